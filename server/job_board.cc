#include "server/job_board.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace qgemm {
namespace {

bool KernelsReady(const PickJob& job) {
  const auto ready = [](const std::shared_ptr<Kernel>& kernel) {
    return kernel == nullptr || kernel->ready();
  };
  return ready(job.support) && std::all_of(job.also_compile.begin(), job.also_compile.end(), ready) &&
         std::all_of(job.candidates.begin(), job.candidates.end(),
                     [&](const CandidateState& state) { return ready(state.kernel); });
}

}  // namespace

JobBoard::Joined JobBoard::Join(const std::string& flight_key,
                                const std::function<std::shared_ptr<PickJob>()>& make) {
  MutexLock lock(mu_);
  std::shared_ptr<PickJob>& entry = in_flight_[flight_key];
  const bool created = entry == nullptr;
  if (created) {
    entry = make();
    entry->shared.flight_key = flight_key;
  }
  ++entry->shared.waiters;
  return {entry, created};
}

void JobBoard::Leave(const std::shared_ptr<PickJob>& job) {
  {
    MutexLock lock(mu_);
    QGEMM_CHECK(job->shared.waiters > 0);
    if (--job->shared.waiters > 0 || job->shared.done) return;
    job->shared.abandoned = true;
    FreeKeyLocked(*job);
    changed_.NotifyAll();
    if (!job->shared.queued) return;  // its runner, or the planner in Queue, lets go of the kernels
    job->shared.queued = false;
    std::deque<std::shared_ptr<PickJob>>& queue = job->target.measured ? to_measure_ : to_predict_;
    queue.erase(std::remove(queue.begin(), queue.end(), job), queue.end());
  }
  ReleaseKernels(*job);
}

void JobBoard::Queue(const std::shared_ptr<PickJob>& job) {
  {
    MutexLock lock(mu_);
    if (!job->shared.abandoned) {
      job->shared.queued = true;
      job->shared.running = false;
      (job->target.measured ? to_measure_ : to_predict_).push_back(job);
      changed_.NotifyAll();
      return;
    }
  }
  ReleaseKernels(*job);
}

void JobBoard::Finish(const std::shared_ptr<PickJob>& job, absl::Status status, v1::TuneResult result) {
  ReleaseKernels(*job);
  MutexLock lock(mu_);
  QGEMM_CHECK(!job->shared.done);
  job->shared.done = true;
  job->shared.running = false;
  job->shared.status = std::move(status);
  job->shared.result = std::move(result);
  if (!job->shared.abandoned) FreeKeyLocked(*job);
  changed_.NotifyAll();
}

void JobBoard::Update(PickJob& job, const std::function<void(PickJob::Shared&)>& change) {
  MutexLock lock(mu_);
  change(job.shared);
  changed_.NotifyAll();
}

void JobBoard::Read(const std::function<void()>& read) {
  MutexLock lock(mu_);
  read();
}

bool JobBoard::Abandoned(const PickJob& job) {
  MutexLock lock(mu_);
  return job.shared.abandoned || stopped_;
}

void JobBoard::Notify() {
  MutexLock lock(mu_);
  changed_.NotifyAll();
}

std::shared_ptr<PickJob> JobBoard::TakeLocked(std::deque<std::shared_ptr<PickJob>>& queue, bool only_ready) {
  auto next = std::find_if(queue.begin(), queue.end(),
                           [](const std::shared_ptr<PickJob>& job) { return KernelsReady(*job); });
  if (next == queue.end()) {
    if (only_ready || queue.empty()) return nullptr;
    next = queue.begin();
  }
  std::shared_ptr<PickJob> job = std::move(*next);
  queue.erase(next);
  job->shared.queued = false;
  job->shared.running = true;
  return job;
}

std::shared_ptr<PickJob> JobBoard::NextMeasured() {
  MutexLock lock(mu_);
  while (!stopped_) {
    if (std::shared_ptr<PickJob> job = TakeLocked(to_measure_, /*only_ready=*/false)) return job;
    changed_.Wait(mu_);
  }
  return nullptr;
}

std::shared_ptr<PickJob> JobBoard::NextMeasuredReady() {
  MutexLock lock(mu_);
  return stopped_ ? nullptr : TakeLocked(to_measure_, /*only_ready=*/true);
}

std::shared_ptr<PickJob> JobBoard::NextPredicted() {
  MutexLock lock(mu_);
  while (!stopped_) {
    if (std::shared_ptr<PickJob> job = TakeLocked(to_predict_, /*only_ready=*/true)) return job;
    changed_.Wait(mu_);
  }
  return nullptr;
}

void JobBoard::WaitForKernels(const PickJob& job, const std::function<bool()>& condition) {
  MutexLock lock(mu_);
  while (!stopped_ && !job.shared.abandoned && !condition() &&
         std::none_of(to_measure_.begin(), to_measure_.end(),
                      [](const std::shared_ptr<PickJob>& other) { return KernelsReady(*other); })) {
    changed_.Wait(mu_);
  }
}

void JobBoard::WaitUntil(TimePoint deadline, const std::function<bool()>& condition) {
  MutexLock lock(mu_);
  while (!condition() && clock_.WaitUntil(mu_, changed_, deadline)) {
  }
}

void JobBoard::Stop() {
  MutexLock lock(mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

bool JobBoard::stopped() {
  MutexLock lock(mu_);
  return stopped_;
}

void JobBoard::FreeKeyLocked(const PickJob& job) {
  const auto found = in_flight_.find(job.shared.flight_key);
  if (found != in_flight_.end() && found->second.get() == &job) in_flight_.erase(found);
}

void ReleaseKernels(PickJob& job) {
  for (CandidateState& state : job.candidates) state.kernel.reset();
  job.also_compile.clear();
  job.support.reset();
}

}  // namespace qgemm
