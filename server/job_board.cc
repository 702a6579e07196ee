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

// The first candidate whose kernel can be used is there: a prediction waits for no later one's.
bool PredictionReady(const PickJob& job) {
  for (const CandidateState& state : job.candidates) {
    if (state.kernel == nullptr || !state.kernel->ready()) return false;
    if (state.kernel->usable() || state.kernel->is_system_failure()) return true;
  }
  return false;
}

// A runner of its kind has all that it needs.
bool CanRun(const PickJob& job) {
  return KernelsReady(job) || (!job.target.measured && job.shared.hurried && PredictionReady(job));
}

}  // namespace

JobBoard::Joined JobBoard::Join(const std::string& flight_key,
                                const std::function<std::shared_ptr<PickJob>()>& make, PickWaiter waiter) {
  Joined joined;
  std::function<void()> started;
  std::vector<std::weak_ptr<Kernel>> compiling;
  Flow flow;
  {
    MutexLock lock(mu_);
    std::shared_ptr<PickJob>& entry = in_flight_[flight_key];
    joined.created = entry == nullptr;
    if (joined.created) {
      entry = make();
      entry->shared.flight_key = flight_key;
      entry->shared.to_plan = true;
    }
    joined.job = entry;
    joined.waiter = next_waiter_++;
    PickJob::Shared& shared = entry->shared;
    if (shared.to_plan) to_plan_.Push(waiter.flow, entry);
    if (!joined.created) compiling = shared.compiling;
    flow = waiter.flow;
    if (shared.queued) RunQueue(*entry).Push(waiter.flow, entry);
    if (shared.started) started = std::exchange(waiter.started, nullptr);
    shared.waiters.emplace(joined.waiter, std::move(waiter));
    changed_.NotifyAll();
  }
  for (const std::weak_ptr<Kernel>& weak : compiling) {
    if (const std::shared_ptr<Kernel> kernel = weak.lock()) kernel->AlsoFor(flow);
  }
  if (started) started();
  return joined;
}

void JobBoard::Leave(const std::shared_ptr<PickJob>& job, uint64_t waiter) {
  {
    MutexLock lock(mu_);
    PickJob::Shared& shared = job->shared;
    const auto leaving = shared.waiters.find(waiter);
    if (leaving == shared.waiters.end()) return;
    const Flow flow = leaving->second.flow;
    shared.waiters.erase(leaving);
    if (!shared.waiters.empty()) {
      const bool others = std::any_of(shared.waiters.begin(), shared.waiters.end(), [&](const auto& other) {
        return other.second.flow.client == flow.client && other.second.flow.work_class == flow.work_class;
      });
      if (others) return;
      if (shared.to_plan) to_plan_.RemoveFrom(flow, job);
      if (shared.queued) RunQueue(*job).RemoveFrom(flow, job);
      return;
    }
    shared.abandoned = true;
    FreeKeyLocked(*job);
    changed_.NotifyAll();
    if (shared.to_plan) {
      shared.to_plan = false;
      to_plan_.Remove(job);
      return;
    }
    if (!shared.queued) return;  // its planner (in Queue) or its runner lets go of the kernels
    shared.queued = false;
    RunQueue(*job).Remove(job);
    EndWorkLocked(*job);
  }
  ReleaseKernels(*job);
}

bool JobBoard::Hurry(const std::shared_ptr<PickJob>& job, uint64_t waiter) {
  MutexLock lock(mu_);
  PickJob::Shared& shared = job->shared;
  const auto late = shared.waiters.find(waiter);
  if (shared.hurried || late == shared.waiters.end()) return false;
  late->second.hurries = true;
  // Asked again at every tick: one who has time may have left since.
  shared.hurried = std::all_of(shared.waiters.begin(), shared.waiters.end(),
                               [](const auto& one) { return one.second.hurries; });
  if (!shared.hurried) return false;
  FreeKeyLocked(*job);
  changed_.NotifyAll();
  return true;
}

std::vector<Flow> JobBoard::Flows(const PickJob& job) {
  std::vector<Flow> flows;
  MutexLock lock(mu_);
  for (const auto& [number, waiter] : job.shared.waiters) flows.push_back(waiter.flow);
  return flows;
}

std::shared_ptr<PickJob> JobBoard::TakeToPlanLocked() {
  auto taken = to_plan_.Take(
      [this](const std::string& client) QGEMM_NO_THREAD_SAFETY_ANALYSIS {
        const auto found = in_work_.find(client);
        return found == in_work_.end() || found->second < kPlannedPerClient;
      },
      [](const std::shared_ptr<PickJob>&) { return true; });
  if (!taken.has_value()) return nullptr;
  taken->item->shared.to_plan = false;
  ++in_work_[taken->client];
  taken->item->shared.worked_for = std::move(taken->client);
  return std::move(taken->item);
}

std::shared_ptr<PickJob> JobBoard::NextToPlan() {
  MutexLock lock(mu_);
  while (!stopped_) {
    if (std::shared_ptr<PickJob> job = TakeToPlanLocked()) return job;
    changed_.Wait(mu_);
  }
  return nullptr;
}

std::shared_ptr<PickJob> JobBoard::TryNextToPlan() {
  MutexLock lock(mu_);
  return stopped_ ? nullptr : TakeToPlanLocked();
}

void JobBoard::Queue(const std::shared_ptr<PickJob>& job) {
  {
    MutexLock lock(mu_);
    if (!job->shared.abandoned) {
      job->shared.queued = true;
      for (const auto& [number, waiter] : job->shared.waiters) RunQueue(*job).Push(waiter.flow, job);
      changed_.NotifyAll();
      return;
    }
    EndWorkLocked(*job);
  }
  ReleaseKernels(*job);
}

void JobBoard::Finish(const std::shared_ptr<PickJob>& job, absl::Status status, v1::TuneResult result) {
  ReleaseKernels(*job);
  std::map<uint64_t, PickWaiter> waiters;
  {
    MutexLock lock(mu_);
    QGEMM_CHECK(!job->shared.done);
    job->shared.done = true;
    job->shared.status = std::move(status);
    job->shared.result = std::move(result);
    waiters = std::exchange(job->shared.waiters, {});
    if (!job->shared.abandoned) FreeKeyLocked(*job);
    EndWorkLocked(*job);
    changed_.NotifyAll();
  }
  for (const auto& [number, waiter] : waiters) {
    if (waiter.done) waiter.done(job);
  }
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

bool JobBoard::Hurried(const PickJob& job) {
  MutexLock lock(mu_);
  return job.shared.hurried;
}

void JobBoard::Notify() {
  MutexLock lock(mu_);
  changed_.NotifyAll();
}

std::shared_ptr<PickJob> JobBoard::TakeLocked(PickQueue& queue, bool only_ready, Calls& calls) {
  const auto any_client = [](const std::string&) { return true; };
  auto taken = queue.Take(any_client, [](const std::shared_ptr<PickJob>& job) { return CanRun(*job); });
  if (!taken.has_value() && !only_ready) taken = queue.Take();
  if (!taken.has_value()) return nullptr;
  PickJob::Shared& shared = taken->item->shared;
  shared.queued = false;
  if (!shared.started) {
    shared.started = true;
    for (auto& [number, waiter] : shared.waiters) {
      if (waiter.started) calls.push_back(std::exchange(waiter.started, nullptr));
    }
  }
  return std::move(taken->item);
}

std::shared_ptr<PickJob> JobBoard::NextMeasured() { return Next(/*measured=*/true); }

std::shared_ptr<PickJob> JobBoard::NextPredicted() { return Next(/*measured=*/false); }

std::shared_ptr<PickJob> JobBoard::Next(bool measured) {
  Calls calls;
  std::shared_ptr<PickJob> job;
  {
    MutexLock lock(mu_);
    while (!stopped_) {
      job = measured ? TakeLocked(to_measure_, /*only_ready=*/false, calls)
                     : TakeLocked(to_predict_, /*only_ready=*/true, calls);
      if (job != nullptr) break;
      changed_.Wait(mu_);
    }
  }
  for (const std::function<void()>& call : calls) call();
  return job;
}

std::shared_ptr<PickJob> JobBoard::NextMeasuredReady() {
  Calls calls;
  std::shared_ptr<PickJob> job;
  {
    MutexLock lock(mu_);
    if (!stopped_) job = TakeLocked(to_measure_, /*only_ready=*/true, calls);
  }
  for (const std::function<void()>& call : calls) call();
  return job;
}

void JobBoard::WaitForKernels(const PickJob& job, const std::function<bool()>& condition) {
  MutexLock lock(mu_);
  while (!stopped_ && !job.shared.abandoned && !condition() &&
         !to_measure_.Any([](const std::shared_ptr<PickJob>& other) { return KernelsReady(*other); })) {
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

JobBoard::Counts JobBoard::counts() {
  MutexLock lock(mu_);
  Counts counts;
  for (const auto& [key, job] : in_flight_) {
    const PickJob::Shared& shared = job->shared;
    ++(shared.started && !shared.queued ? counts.running : counts.waiting);
  }
  return counts;
}

void JobBoard::EndWorkLocked(PickJob& job) {
  if (!job.shared.worked_for.has_value()) return;
  const auto found = in_work_.find(*job.shared.worked_for);
  if (--found->second == 0) in_work_.erase(found);
  job.shared.worked_for.reset();
  changed_.NotifyAll();
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
