#include "server/compile_pool.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/mutex.h"
#include "server/compile_worker_process.h"

namespace qgemm {
namespace {

constexpr int kMaxDeathsPerJob = 2;
// Deaths by somebody else's hand count separately: they are not the kernel's doing, but a machine that is
// short of memory kills like this each time.
constexpr int kMaxKillsPerJob = 5;
// A running compile that nobody wants is gone within a second, what notices that included.
constexpr auto kCancelPatience = std::chrono::milliseconds(500);
// How often an idle worker is looked at: one that died is found by then even if nothing is compiled.
constexpr auto kIdleCheckInterval = std::chrono::seconds(1);

// first, 2 first, 4 first, ... last.
Duration Backoff(int failures, Duration first, Duration last) {
  Duration wait = first;
  for (int i = 1; i < failures && wait < last; ++i) wait *= 2;
  return std::min(wait, last);
}

absl::Status Stopped() { return absl::CancelledError("the compile pool was stopped"); }

}  // namespace

// One task. Its `task` and `done` belong to whoever took it from kQueued; the rest to the pool's lock.
struct CompilePool::Job {
  enum class State { kQueued, kRunning, kCalling, kDone };

  CompileTask task;
  Done done;

  std::vector<Flow> flows;
  State state = State::kQueued;
  bool cancelled = false;
  TimePoint cancelled_at;
  std::thread::id caller;  // in kCalling
  int deaths = 0;          // of workers that compiled it
  int kills = 0;           // of them, by somebody else
};

// What the slots, the tickets and the pool's own methods share.
class CompilePool::Shared {
 public:
  Shared(Spawner* spawner, Clock* clock, CompilePoolOptions options)
      : spawner(spawner), clock(clock), options(std::move(options)) {}

  using JobPtr = std::shared_ptr<Job>;

  void PushLocked(JobPtr job) QGEMM_REQUIRES(mu) {
    job->state = Job::State::kQueued;
    for (const Flow& flow : job->flows) queue.Push(flow, job);
  }
  JobPtr PopLocked() QGEMM_REQUIRES(mu) {
    JobPtr job = queue.Take()->item;
    job->state = Job::State::kRunning;
    return job;
  }
  // Takes all waiting jobs away, to be finished by the caller.
  std::vector<JobPtr> PopAllLocked() QGEMM_REQUIRES(mu) {
    std::vector<JobPtr> jobs;
    while (!queue.empty()) jobs.push_back(PopLocked());
    return jobs;
  }

  // Calls the job's callback unless it was cancelled. On a thread that holds nothing.
  void Finish(const JobPtr& job, absl::StatusOr<internal::CompileReply> result) QGEMM_EXCLUDES(mu) {
    bool call;
    {
      MutexLock lock(mu);
      call = !job->cancelled;
      job->state = call ? Job::State::kCalling : Job::State::kDone;
      job->caller = std::this_thread::get_id();
    }
    if (call) job->done(std::move(result));
    // What the callback holds may be this job's own ticket.
    job->done = nullptr;
    {
      MutexLock lock(mu);
      job->state = Job::State::kDone;
    }
    called.NotifyAll();
  }
  void FinishAll(const std::vector<JobPtr>& jobs, const absl::Status& status) {
    for (const JobPtr& job : jobs) Finish(job, status);
  }

  void Cancel(const JobPtr& job) QGEMM_EXCLUDES(mu) {
    MutexLock lock(mu);
    switch (job->state) {
      case Job::State::kQueued:
        queue.Remove(job);
        job->state = Job::State::kDone;
        job->cancelled = true;
        break;
      case Job::State::kRunning:
        if (!job->cancelled) job->cancelled_at = RealClock().Now();
        job->cancelled = true;
        break;
      case Job::State::kCalling:
        if (job->caller == std::this_thread::get_id()) break;
        while (job->state == Job::State::kCalling) called.Wait(mu);
        break;
      case Job::State::kDone:
        break;
    }
  }

  void AlsoFor(const JobPtr& job, const Flow& flow) QGEMM_EXCLUDES(mu) {
    MutexLock lock(mu);
    if (job->state != Job::State::kQueued || job->cancelled) return;
    const bool known = std::any_of(job->flows.begin(), job->flows.end(), [&](const Flow& other) {
      return other.client == flow.client && other.work_class == flow.work_class &&
             other.priority >= flow.priority;
    });
    if (known) return;
    job->flows.push_back(flow);
    queue.Push(flow, job);
  }

  bool IsStopping() QGEMM_EXCLUDES(mu) {
    MutexLock lock(mu);
    return stopping;
  }
  // Whether nobody waits for a running job any more.
  bool GivenUp(const Job& job) QGEMM_EXCLUDES(mu) {
    MutexLock lock(mu);
    return stopping || (job.cancelled && RealClock().Now() >= job.cancelled_at + kCancelPatience);
  }

  // Constant after construction.
  Spawner* const spawner;
  Clock* const clock;
  const CompilePoolOptions options;

  Mutex mu;
  CondVar changed;  // anything below but a job's state
  CondVar called;   // a job left kCalling
  FairQueue<JobPtr> queue QGEMM_GUARDED_BY(mu);
  bool stopping QGEMM_GUARDED_BY(mu) = false;
  int starting QGEMM_GUARDED_BY(mu) = 0;  // workers started that have not said hello
  int busy QGEMM_GUARDED_BY(mu) = 0;      // workers that compile
  // Why nothing can be compiled; OK from the first hello on, and until the first failure.
  absl::Status unavailable QGEMM_GUARDED_BY(mu);
  std::string toolchain QGEMM_GUARDED_BY(mu);  // of the first hello
  std::vector<std::string> archs QGEMM_GUARDED_BY(mu);
  Stats stats QGEMM_GUARDED_BY(mu);  // but `queued`
};

class CompilePool::Ticket : public CompileTicket {
 public:
  Ticket(std::shared_ptr<Shared> shared, std::shared_ptr<Job> job)
      : shared_(std::move(shared)), job_(std::move(job)) {}
  ~Ticket() override { shared_->Cancel(job_); }
  void Cancel() override { shared_->Cancel(job_); }
  void AlsoFor(const Flow& flow) override { shared_->AlsoFor(job_, flow); }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Job> job_;
};

// One worker's place in the pool and the thread that feeds it. All members belong to that thread.
class CompilePool::Slot {
 public:
  // `shared` outlives the slot: the pool, which owns both, joins the slots' threads first.
  Slot(Shared* shared, bool is_first) : shared_(*shared), is_first_(is_first) {}

  void Run() {
    while (true) {
      switch (WaitForWork()) {
        case Work::kStop:
          if (job_ != nullptr) shared_.Finish(std::exchange(job_, nullptr), Stopped());
          DropWorker();
          return;
        case Work::kRefuse:
          shared_.FinishAll(std::exchange(refused_, {}), refusal_);
          break;
        case Work::kStart:
          StartWorker();
          break;
        case Work::kCheck:
          if (!worker_->IsAlive()) WorkerDied("died while idle");
          break;
        case Work::kCompile:
          CompileJob();
          break;
      }
    }
  }

 private:
  enum class Work { kStop, kRefuse, kStart, kCheck, kCompile };

  // Sets job_ for kCompile, refused_ and refusal_ for kRefuse.
  Work WaitForWork() {
    MutexLock lock(shared_.mu);
    while (true) {
      if (shared_.stopping) return Work::kStop;
      if (!shared_.unavailable.ok() && !shared_.queue.empty()) {
        refused_ = shared_.PopAllLocked();
        refusal_ = shared_.unavailable;
        return Work::kRefuse;
      }
      if (worker_ != nullptr && (job_ != nullptr || !shared_.queue.empty())) {
        if (job_ == nullptr) job_ = shared_.PopLocked();
        ++shared_.busy;
        return Work::kCompile;
      }
      const int idle = shared_.stats.workers_running - shared_.busy;
      const bool wanted =
          job_ != nullptr || is_first_ || static_cast<int>(shared_.queue.size()) > idle + shared_.starting;
      if (worker_ != nullptr) {
        // Spurious and other wake-ups must not put the check off.
        const TimePoint now = shared_.clock->Now();
        if (now >= check_at_) {
          check_at_ = now + kIdleCheckInterval;
          return Work::kCheck;
        }
        shared_.clock->WaitUntil(shared_.mu, shared_.changed, check_at_);
      } else if (!wanted) {
        shared_.changed.Wait(shared_.mu);
      } else if (shared_.clock->Now() < start_again_at_) {
        shared_.clock->WaitUntil(shared_.mu, shared_.changed, start_again_at_);
      } else {
        ++shared_.starting;
        return Work::kStart;
      }
    }
  }

  void StartWorker() {
    const CompilePoolOptions& options = shared_.options;
    auto started =
        CompileWorkerProcess::Start(shared_.spawner, options.worker, RealClock().Now() + options.start_limit,
                                    [this] { return shared_.IsStopping(); });
    absl::Status failure = started.status();
    {
      MutexLock lock(shared_.mu);
      --shared_.starting;
      if (failure.ok()) failure = CheckToolchainLocked((*started)->hello());
      if (failure.ok()) {
        worker_ = *std::move(started);
        failed_starts_ = 0;
        ++shared_.stats.workers_running;
        ++shared_.stats.workers_started;
        shared_.unavailable = absl::OkStatus();
      } else {
        ++failed_starts_;
        ++shared_.stats.failed_starts;
        start_again_at_ =
            shared_.clock->Now() + Backoff(failed_starts_, options.first_backoff, options.last_backoff);
        if (shared_.stats.workers_running == 0 && shared_.starting == 0) shared_.unavailable = failure;
        // Somebody else's worker may be able to compile it.
        if (job_ != nullptr) shared_.PushLocked(std::exchange(job_, nullptr));
      }
    }
    shared_.changed.NotifyAll();
    if (failure.ok()) {
      spdlog::debug("compile worker started ({})", worker_->hello().toolchain());
    } else if (!absl::IsCancelled(failure)) {
      spdlog::warn("compile worker not started, attempt {}: {}", failed_starts_, failure.ToString());
    }
  }

  // The keys of kernels name the toolchain of the first hello, so another one must not slip in.
  absl::Status CheckToolchainLocked(const internal::WorkerHello& hello) QGEMM_REQUIRES(shared_.mu) {
    if (shared_.toolchain.empty()) {
      shared_.toolchain = hello.toolchain();
      shared_.archs.assign(hello.archs().begin(), hello.archs().end());
    }
    if (hello.toolchain() == shared_.toolchain) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the compile worker's toolchain changed from ",
                                               shared_.toolchain, " to ", hello.toolchain(),
                                               ": restart the daemon"));
  }

  void CompileJob() {
    const CompilePoolOptions& options = shared_.options;
    const Shared::JobPtr job = std::exchange(job_, nullptr);
    if (shared_.GivenUp(*job)) {
      WorkerIsIdle();
      shared_.Finish(job, Stopped());
      return;
    }
    if (!worker_->IsAlive()) {
      // It died while idle: not the job's doing.
      WorkerIsIdle();
      WorkerDied("died while idle");
      job_ = job;
      return;
    }
    const internal::CompileRequest request = MakeCompileRequest(job->task, ++last_id_);
    auto reply = worker_->Compile(request, RealClock().Now() + options.compile_limit,
                                  [this, &job] { return shared_.GivenUp(*job); });
    WorkerIsIdle();
    if (reply.ok() && reply->compiler_failed()) {
      // The process may be in any state: out of memory, say. Treated like its death.
      reply =
          absl::InternalError(absl::StrCat("the compiler failed on ", request.name(), ": ", reply->error()));
    }
    if (reply.ok()) {
      crashes_ = 0;
      RecycleWorker();
      if (!reply->error().empty()) {
        shared_.Finish(job, absl::InvalidArgumentError(reply->error()));
      } else {
        shared_.Finish(job, std::move(reply));
      }
      return;
    }
    // Moved on, not shared: ThreadSanitizer does not see the reference count inside the distribution's
    // Status.
    absl::Status failure = std::move(reply).status();
    if (absl::IsInvalidArgument(failure)) {
      shared_.Finish(job, std::move(failure));
      return;
    }
    WorkerDied(failure.ToString());
    if (absl::IsAborted(failure)) {
      if (++job->kills < kMaxKillsPerJob) {
        start_again_at_ =
            shared_.clock->Now() + Backoff(job->kills, options.first_backoff, options.last_crash_backoff);
        job_ = job;
        return;
      }
      failure = absl::InternalError(absl::StrCat(failure.message(), ", for the ", job->kills, "th time"));
      job->deaths = kMaxDeathsPerJob;
    }
    if (absl::IsInternal(failure)) {
      ++crashes_;
      // The first crash costs no wait.
      if (crashes_ > 1) {
        start_again_at_ =
            shared_.clock->Now() + Backoff(crashes_ - 1, options.first_backoff, options.last_crash_backoff);
      }
      if (++job->deaths < kMaxDeathsPerJob) {
        job_ = job;
        return;
      }
    }
    shared_.Finish(job, std::move(failure));
  }

  void WorkerIsIdle() {
    MutexLock lock(shared_.mu);
    --shared_.busy;
  }
  void WorkerDied(absl::string_view reason) {
    spdlog::warn("compile worker ended after {} kernels: {}", worker_->num_compiles(), std::string(reason));
    {
      MutexLock lock(shared_.mu);
      ++shared_.stats.workers_died;
    }
    DropWorker();
  }
  void RecycleWorker() {
    const int64_t bytes = worker_->ResidentBytes();
    if (worker_->num_compiles() < shared_.options.max_compiles_per_worker &&
        bytes <= shared_.options.max_worker_bytes) {
      return;
    }
    spdlog::debug("compile worker replaced after {} kernels at {} MiB", worker_->num_compiles(), bytes >> 20);
    {
      MutexLock lock(shared_.mu);
      ++shared_.stats.workers_recycled;
    }
    DropWorker();
  }
  void DropWorker() {
    if (worker_ == nullptr) return;
    worker_.reset();
    {
      MutexLock lock(shared_.mu);
      --shared_.stats.workers_running;
    }
    shared_.changed.NotifyAll();
  }

  Shared& shared_;
  const bool is_first_;  // kept running without work too

  std::unique_ptr<CompileWorkerProcess> worker_;
  uint64_t last_id_ = 0;
  int failed_starts_ = 0;  // in a row
  int crashes_ = 0;        // in a row
  TimePoint start_again_at_ = TimePoint::min();
  TimePoint check_at_ = TimePoint::min();
  std::shared_ptr<Job> job_;  // taken, for the worker once it runs
  std::vector<std::shared_ptr<Job>> refused_;
  absl::Status refusal_;
};

internal::CompileRequest MakeCompileRequest(const CompileTask& task, uint64_t id) {
  internal::CompileRequest request;
  request.set_id(id);
  request.set_source(task.source.text);
  request.set_name(task.source.name);
  request.set_entry(task.source.entry);
  request.set_arch(task.arch);
  request.mutable_options()->Assign(task.source.options.begin(), task.source.options.end());
  request.set_want_ptx(task.want_ptx);
  return request;
}

SpawnOptions CompileWorkerProgram(const std::string& path) {
  SpawnOptions program;
  program.path = path;
  program.env = {{"CUDA_VISIBLE_DEVICES", ""}};
  program.nice = 10;
  program.core_bytes = 0;
  program.oom_score_adj = 500;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  program.address_space_bytes = uint64_t{8} << 30;
#endif
  return program;
}

CompilePool::CompilePool(Spawner* spawner, Clock* clock, CompilePoolOptions options)
    : num_workers_(options.num_workers),
      shared_(std::make_shared<Shared>(spawner, clock, std::move(options))) {
  QGEMM_CHECK(num_workers_ > 0);
  for (int i = 0; i < num_workers_; ++i) {
    threads_.emplace_back([slot = std::make_unique<Slot>(shared_.get(), i == 0)] { slot->Run(); });
    pthread_setname_np(threads_.back().native_handle(), "compile-slot");
  }
}

CompilePool::~CompilePool() {
  {
    MutexLock lock(shared_->mu);
    shared_->stopping = true;
  }
  shared_->changed.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
  std::vector<Shared::JobPtr> jobs;
  {
    MutexLock lock(shared_->mu);
    jobs = shared_->PopAllLocked();
  }
  shared_->FinishAll(jobs, Stopped());
}

std::unique_ptr<CompileTicket> CompilePool::Compile(CompileTask task, Done done) {
  auto job = std::make_shared<Job>();
  job->flows.push_back(task.flow);
  job->task = std::move(task);
  job->done = std::move(done);
  {
    MutexLock lock(shared_->mu);
    QGEMM_CHECK(!shared_->stopping);
    shared_->PushLocked(job);
  }
  shared_->changed.NotifyAll();
  return std::make_unique<Ticket>(shared_, std::move(job));
}

absl::StatusOr<std::string> CompilePool::Toolchain() {
  MutexLock lock(shared_->mu);
  while (shared_->toolchain.empty() && shared_->unavailable.ok() && !shared_->stopping) {
    shared_->changed.Wait(shared_->mu);
  }
  if (!shared_->unavailable.ok()) return shared_->unavailable;
  if (shared_->toolchain.empty()) return Stopped();
  return shared_->toolchain;
}

absl::Status CompilePool::SupportsArch(absl::string_view arch) {
  absl::StatusOr<std::string> toolchain = Toolchain();
  if (!toolchain.ok()) return toolchain.status();
  MutexLock lock(shared_->mu);
  if (std::find(shared_->archs.begin(), shared_->archs.end(), arch) != shared_->archs.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("arch '", arch, "' is not known to ", *toolchain,
                                                 ": it compiles for ", absl::StrJoin(shared_->archs, " ")));
}

CompilePool::Stats CompilePool::stats() const {
  MutexLock lock(shared_->mu);
  Stats stats = shared_->stats;
  stats.queued = static_cast<int>(shared_->queue.size());
  return stats;
}

}  // namespace qgemm
