#include "server/jobs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/kernel_key.h"
#include "server/proto_convert.h"
#include "server/retry_delay.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr int kMaxPriority = 100;
constexpr double kMaxDeadlineS = 30.0 * 24 * 3600;
// Daemons that end without being asked to while they work on a job: then it is the job that ends them.
constexpr int kMaxStarts = 10;
constexpr Duration kFirstRetry = std::chrono::seconds(1);
constexpr Duration kLastRetry = std::chrono::seconds(15);
constexpr int kRetriesAtOnce = 16;
constexpr absl::string_view kClientGone = "its client cancelled or went away";

std::string Describe(const v1::TuneRequest& request) {
  if (request.problems().empty()) return "";
  const absl::StatusOr<Problem> first = ProblemFromProto(request.problems(0));
  std::string text = first.ok() ? ProblemName(*first) : "";
  if (request.problems_size() > 1) absl::StrAppend(&text, " and ", request.problems_size() - 1, " more");
  return text;
}

// Where the store keeps a pick; empty for one that is kept in no such place.
std::string KeyOf(const v1::Pick& pick) {
  const absl::StatusOr<Problem> problem = ProblemFromProto(pick.problem());
  if (!problem.ok()) return "";
  PickKeyInput input;
  input.problem = ProblemName(*problem);
  input.m_bucket = pick.m_bucket();
  input.source = pick.source();
  if (pick.source() == v1::PICK_SOURCE_MEASURED) {
    input.device = pick.device();
  } else {
    input.target = pick.target();
  }
  input.arch = pick.kernel().arch();
  input.effort = pick.effort();
  return PickKey(input);
}

}  // namespace

class Jobs::Stream {
 public:
  static absl::StatusOr<std::unique_ptr<Stream>> Open(Jobs& jobs, const std::string& client) {
    MutexLock lock(jobs.mu_);
    int& streams = jobs.streams_[client];
    if (streams >= jobs.limits_.streams_per_client) {
      return WithRetryDelay(absl::ResourceExhaustedError(absl::StrCat(
                                "client ", client, " has ", streams, " calls waiting for jobs; allowed: ",
                                jobs.limits_.streams_per_client, " (use --detach)")),
                            std::chrono::seconds(1));
    }
    ++streams;
    return std::make_unique<Stream>(jobs, client);
  }
  Stream(Jobs& jobs, std::string client) : jobs_(jobs), client_(std::move(client)) {}
  ~Stream() {
    MutexLock lock(jobs_.mu_);
    const auto found = jobs_.streams_.find(client_);
    if (--found->second == 0) jobs_.streams_.erase(found);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

 private:
  Jobs& jobs_;
  const std::string client_;
};

Jobs::Jobs(CacheStore& store, JobBoard& board, Clock& clock, Executor& executor, Work work, JobLimits limits,
           Duration progress_interval)
    : store_(store),
      board_(board),
      clock_(clock),
      executor_(executor),
      work_(std::move(work)),
      progress_interval_(progress_interval),
      journal_(store, clock, limits.history),
      limits_(limits),
      ids_(std::random_device{}()),
      last_pick_(clock.Now()) {}

absl::Status Jobs::Open() {
  QGEMM_ASSIGN_OR_RETURN(std::vector<internal::JobRecord> unfinished, journal_.Open());
  if (!unfinished.empty()) spdlog::info("{} accepted jobs are taken up again", unfinished.size());
  MutexLock lock(mu_);
  for (internal::JobRecord& record : unfinished) {
    record.mutable_job()->set_state(v1::JOB_STATE_QUEUED);
    record.set_starts(record.starts() + 1);
    auto job = std::make_shared<TuneJob>(std::move(record), clock_.Now(), /*resumed=*/true, clock_.Now());
    active_.emplace(job->id(), std::move(job));
  }
  return absl::OkStatus();
}

absl::Status Jobs::ValidateOptions(const v1::TuneRequest& request) const {
  if (!v1::JobClass_IsValid(request.job_class())) {
    return absl::InvalidArgumentError(absl::StrCat("job_class is ", static_cast<int>(request.job_class()),
                                                   "; allowed: INTERACTIVE, BATCH"));
  }
  if (request.priority() < -kMaxPriority || request.priority() > kMaxPriority) {
    return absl::InvalidArgumentError(
        absl::StrCat("priority is ", request.priority(), "; allowed: ", -kMaxPriority, " .. ", kMaxPriority));
  }
  for (const auto& [name, seconds] : {std::pair("queue_deadline_s", request.queue_deadline_s()),
                                      std::pair("execution_deadline_s", request.execution_deadline_s())}) {
    if (!(seconds >= 0 && seconds <= kMaxDeadlineS)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is %g; allowed: 0 (none) .. %g", name, seconds, kMaxDeadlineS));
    }
  }
  return absl::OkStatus();
}

absl::Status Jobs::Admit(const std::string& client, int64_t picks) {
  MutexLock lock(mu_);
  const auto found = picks_.find(client);
  const int64_t own = found == picks_.end() ? 0 : found->second;
  const auto full = [picks, mean = pick_seconds_](absl::string_view whose, int64_t now, int64_t limit) {
    const double seconds = std::clamp(mean * static_cast<double>(now + picks - limit), 1.0, 60.0);
    return WithRetryDelay(
        absl::ResourceExhaustedError(absl::StrFormat(
            "%s %d picks in the queue, and %d more were asked for; allowed: %d; try again in %.0f s", whose,
            now, picks, limit, std::ceil(seconds))),
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::ceil(seconds))));
  };
  if (own + picks > limits_.picks_per_client) {
    return full(absl::StrCat("client ", client, " has"), own, limits_.picks_per_client);
  }
  if (picks_total_ + picks > limits_.picks_total) {
    return full("all clients have", picks_total_, limits_.picks_total);
  }
  picks_[client] += picks;
  picks_total_ += picks;
  return absl::OkStatus();
}

void Jobs::ReleasePicks(const std::string& client, int64_t picks) {
  MutexLock lock(mu_);
  picks_total_ -= picks;
  const auto found = picks_.find(client);
  if (found == picks_.end()) return;
  found->second -= picks;
  if (found->second <= 0) picks_.erase(found);
}

Jobs::JobPtr Jobs::Register(const v1::TuneRequest& request, const std::string& client,
                            const PreparedTune& prepared) {
  internal::JobRecord record;
  *record.mutable_request() = request;
  v1::Job& info = *record.mutable_job();
  info.set_state(v1::JOB_STATE_QUEUED);
  info.set_client(client);
  info.set_job_class(WorkClassOf(request) == WorkClass::kBatch ? v1::JOB_CLASS_BATCH
                                                               : v1::JOB_CLASS_INTERACTIVE);
  info.set_priority(request.priority());
  info.set_detached(request.detach());
  info.set_accepted_unix_ms(clock_.WallUnixMs());
  info.set_problems(request.problems_size());
  info.set_results_wanted(static_cast<int>(prepared.stored.size() + prepared.missing.size()));
  info.set_description(Describe(request));
  info.set_effort(prepared.effort);
  MutexLock lock(mu_);
  do {
    info.set_job_id(absl::StrFormat("%016x", ids_()));
  } while (active_.count(info.job_id()) > 0);
  auto job = std::make_shared<TuneJob>(std::move(record), clock_.Now(), /*resumed=*/false, std::nullopt);
  active_.emplace(job->id(), job);
  return job;
}

absl::Status Jobs::Tune(const v1::TuneRequest& request, const std::string& client, TuneStream& stream) {
  if (stopping_ || draining_) return absl::UnavailableError("the daemon is stopping; try again later");
  QGEMM_RETURN_IF_ERROR(ValidateOptions(request));
  const TimePoint start = clock_.Now();
  QGEMM_ASSIGN_OR_RETURN(PreparedTune prepared, work_.prepare(request));
  if (prepared.missing.empty() && !request.detach()) {
    for (v1::TuneResult& result : prepared.stored) {
      v1::TuneEvent event;
      *event.mutable_result() = std::move(result);
      stream.Send(event);
    }
    v1::TuneEvent event;
    event.mutable_summary()->set_cache_hits(static_cast<int64_t>(prepared.stored.size()));
    event.mutable_summary()->set_wall_s(std::chrono::duration<double>(clock_.Now() - start).count());
    stream.Send(event);
    return absl::OkStatus();
  }
  const auto picks = static_cast<int64_t>(prepared.missing.size());
  std::unique_ptr<Stream> place;
  if (!request.detach()) {
    QGEMM_ASSIGN_OR_RETURN(place, Stream::Open(*this, client));
  }
  QGEMM_RETURN_IF_ERROR(Admit(client, picks));
  const JobPtr job = Register(request, client, prepared);
  const absl::Status journalled = journal_.Accept(job->Record());
  if (!journalled.ok()) {
    ReleasePicks(client, picks);
    MutexLock lock(mu_);
    active_.erase(job->id());
    return absl::Status(journalled.code(),
                        absl::StrCat("the job cannot be written to the journal, so it was not accepted: ",
                                     std::string(journalled.message())));
  }
  v1::TuneEvent accepted;
  accepted.mutable_accepted()->set_job_id(job->id());
  stream.Send(accepted);
  if (request.detach()) {
    spdlog::info("job {} of {}: {} results wanted, detached", job->id(), client,
                 prepared.stored.size() + prepared.missing.size());
    Begin(job, std::move(prepared));
    return absl::OkStatus();
  }
  job->Watched();
  Begin(job, std::move(prepared));
  return WatchActive(job, stream);
}

void Jobs::Begin(const JobPtr& job, PreparedTune prepared) {
  std::vector<TuneJob::Pending> pending;
  pending.reserve(prepared.missing.size());
  for (const TuneUnit& unit : prepared.missing) {
    TuneJob::Pending one;
    one.problem_index = unit.problem_index;
    one.m_bucket = unit.m_bucket;
    pending.push_back(one);
  }
  const int wanted = static_cast<int>(prepared.stored.size() + prepared.missing.size());
  if (!job->Begin(std::move(prepared.stored), std::move(pending), wanted)) {
    ReleasePicks(job->flow().client, static_cast<int64_t>(prepared.missing.size()));
    return;
  }
  if (prepared.missing.empty()) {
    EndLater(job, v1::JOB_STATE_DONE, absl::OkStatus());
    return;
  }
  const int round = job->round();
  for (size_t i = 0; i < prepared.missing.size(); ++i) {
    PickWaiter waiter;
    waiter.flow = job->flow();
    waiter.started = [this, weak = std::weak_ptr<TuneJob>(job)] {
      if (const JobPtr job = weak.lock()) job->Started(clock_.Now(), clock_.WallUnixMs());
    };
    waiter.done = [this, weak = std::weak_ptr<TuneJob>(job), round, i](const std::shared_ptr<PickJob>& pick) {
      if (const JobPtr job = weak.lock()) PickDone(job, round, i, *pick);
    };
    const JobBoard::Joined joined =
        work_.join(prepared, job->request(), prepared.missing[i], std::move(waiter));
    const TuneJob::Came came = job->Joined(i, joined);
    if (came == TuneJob::Came::kIgnored) {
      board_.Leave(joined.job, joined.waiter);
      return;
    }
    if (came == TuneJob::Came::kLast) EndLater(job, v1::JOB_STATE_DONE, absl::OkStatus());
  }
}

void Jobs::PickDone(const JobPtr& job, int round, size_t index, const PickJob& pick) {
  // Stopping ends picks too, which says nothing about them.
  if (stopping_ || board_.stopped()) return;
  // The shared part of a pick that is done does not change any more.
  const absl::Status& status = pick.shared.status;
  if (status.ok()) {
    const TuneJob::Came came = job->PickCame(round, index, pick.shared.result);
    if (came == TuneJob::Came::kIgnored) return;
    ReleasePicks(job->flow().client, 1);
    {
      MutexLock lock(mu_);
      const TimePoint now = clock_.Now();
      const double seconds = std::chrono::duration<double>(now - last_pick_).count();
      pick_seconds_ = 0.9 * pick_seconds_ + 0.1 * std::min(seconds, 60.0);
      last_pick_ = now;
    }
    if (came == TuneJob::Came::kLast) EndLater(job, v1::JOB_STATE_DONE, absl::OkStatus());
    return;
  }
  // Nobody is there to ask again for a detached job: it waits until what is missing is back.
  if (absl::IsUnavailable(status) && job->Info().detached()) {
    executor_.Schedule([this, job, status, round] {
      if (job->round() == round) PutOff(job, status);
    });
  } else {
    EndLater(job, v1::JOB_STATE_FAILED, status);
  }
}

void Jobs::PutOff(const JobPtr& job, const absl::Status& why) {
  // The wait grows with the job's age since its acceptance, between the two bounds.
  const Duration wait = std::clamp<Duration>((clock_.Now() - job->accepted()) / 4, kFirstRetry, kLastRetry);
  if (job->retry_at().has_value()) return;
  const std::optional<std::vector<TuneJob::Pending>> held = job->PutOff(why, clock_.Now() + wait);
  if (held.has_value()) LeaveAll(job, *held);
}

void Jobs::LeaveAll(const JobPtr& job, const std::vector<TuneJob::Pending>& pending) {
  int64_t left = 0;
  for (const TuneJob::Pending& one : pending) {
    if (one.pick != nullptr) board_.Leave(one.pick, one.waiter);
    if (!one.done) ++left;
  }
  ReleasePicks(job->flow().client, left);
}

v1::TuneSummary Jobs::Summarize(const JobPtr& job, const std::vector<TuneJob::Pending>& pending) {
  v1::TuneSummary summary;
  double compile_ms = 0;
  board_.Read([&] {
    for (const TuneJob::Pending& one : pending) {
      if (one.pick == nullptr || !one.created) continue;
      const PickJob::Shared& shared = one.pick->shared;
      summary.set_timings(summary.timings() + shared.timings);
      summary.set_gpu_busy_s(summary.gpu_busy_s() + shared.gpu_busy_s);
      for (const std::shared_ptr<KernelProgress>& kernel : shared.own_kernels) {
        if (kernel->wanted_compile() && kernel->decided()) summary.set_compiles(summary.compiles() + 1);
        compile_ms += kernel->compile_ms.load();
      }
    }
  });
  for (const v1::TuneResult& result : job->Results()) {
    if (result.cached()) summary.set_cache_hits(summary.cache_hits() + 1);
  }
  summary.set_compile_cpu_s(compile_ms / 1000);
  summary.set_wall_s(std::chrono::duration<double>(clock_.Now() - job->accepted()).count());
  return summary;
}

void Jobs::EndLater(const JobPtr& job, v1::JobState state, const absl::Status& status) {
  executor_.Schedule([this, job, state, status] { End(job, state, status); });
}

void Jobs::End(const JobPtr& job, v1::JobState state, const absl::Status& status) {
  const std::optional<std::vector<TuneJob::Pending>> held = job->End(state, status, clock_.WallUnixMs());
  if (!held.has_value()) return;
  LeaveAll(job, *held);
  const v1::TuneSummary summary = Summarize(job, *held);
  internal::JobRecord record = job->Record();
  *record.mutable_summary() = summary;
  for (v1::TuneResult& result : job->Results()) {
    internal::JobResult& kept = *record.add_results();
    // A partial pick is nowhere else.
    if (result.has_pick() && !result.pick().partial()) {
      kept.set_pick_key(KeyOf(result.pick()));
      result.clear_pick();
    }
    *kept.mutable_result() = std::move(result);
  }
  (void)journal_.Finish(record);  // it says so in the log when it fails
  if (!status.ok()) {
    spdlog::info("job {} of {} ended after {} of {} results: {}", job->id(), job->flow().client,
                 record.job().results_done(), record.job().results_wanted(), status.ToString());
  }
  {
    MutexLock lock(mu_);
    active_.erase(job->id());
  }
  job->Over(summary);
}

absl::Status Jobs::WatchActive(const JobPtr& job, TuneStream& stream) {
  absl::Status status =
      job->Watch(stream, board_, clock_, progress_interval_, work_.note, [this] { return stopping_.load(); });
  // A daemon that stops cancels its calls; that is no client's wish.
  const bool last = job->Unwatched();
  if (last && absl::IsCancelled(status) && !stopping_) {
    End(job, v1::JOB_STATE_CANCELLED, absl::CancelledError(kClientGone));
  }
  return status;
}

absl::Status Jobs::Watch(absl::string_view job_id, const std::string& client, TuneStream& stream) {
  QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> place, Stream::Open(*this, client));
  const JobPtr job = Find(job_id);
  if (job == nullptr) return Replay(job_id, stream);
  job->Watched();
  v1::TuneEvent accepted;
  accepted.mutable_accepted()->set_job_id(job->id());
  *accepted.mutable_accepted()->mutable_request() = job->request();
  stream.Send(accepted);
  return WatchActive(job, stream);
}

absl::Status Jobs::Replay(absl::string_view job_id, TuneStream& stream) {
  QGEMM_ASSIGN_OR_RETURN(const internal::JobRecord record, journal_.Read(job_id));
  v1::TuneEvent accepted;
  accepted.mutable_accepted()->set_job_id(record.job().job_id());
  *accepted.mutable_accepted()->mutable_request() = record.request();
  stream.Send(accepted);
  for (const internal::JobResult& kept : record.results()) {
    if (stream.Cancelled()) return absl::CancelledError("the client cancelled");
    v1::TuneEvent event;
    v1::TuneResult& result = *event.mutable_result();
    result = kept.result();
    if (!kept.pick_key().empty()) {
      absl::StatusOr<internal::PickRecord> pick = store_.GetPick(kept.pick_key());
      if (pick.ok()) {
        *result.mutable_pick() = std::move(*pick->mutable_pick());
      } else if (absl::IsNotFound(pick.status())) {
        result.set_error("the pick was made and is no longer in the store: tune again");
      } else {
        return pick.status();
      }
    }
    stream.Send(event);
  }
  if (record.job().finished_unix_ms() == 0) {
    return absl::UnavailableError(absl::StrCat("job ", record.job().job_id(),
                                               " has ended, and how could not be written: ask for it again"));
  }
  if (record.job().state() != v1::JOB_STATE_DONE) {
    return absl::Status(static_cast<absl::StatusCode>(record.job().error_code()), record.job().error());
  }
  v1::TuneEvent event;
  *event.mutable_summary() = record.summary();
  stream.Send(event);
  return absl::OkStatus();
}

std::vector<v1::Job> Jobs::List(const v1::ListJobsRequest& request) {
  std::vector<v1::Job> jobs;
  // The unfinished first: one that ends in between is then in both, not in none.
  for (const JobPtr& job : Active()) jobs.push_back(job->Info());
  if (!request.unfinished_only()) {
    for (v1::Job& job : journal_.History()) {
      const bool listed = std::any_of(jobs.begin(), jobs.end(),
                                      [&](const v1::Job& other) { return other.job_id() == job.job_id(); });
      if (!listed) jobs.push_back(std::move(job));
    }
  }
  jobs.erase(std::remove_if(jobs.begin(), jobs.end(),
                            [&](const v1::Job& job) {
                              return (!request.client().empty() && job.client() != request.client()) ||
                                     (request.unfinished_only() && job.finished_unix_ms() != 0);
                            }),
             jobs.end());
  std::sort(jobs.begin(), jobs.end(), [](const v1::Job& a, const v1::Job& b) {
    return std::pair(a.accepted_unix_ms(), a.job_id()) < std::pair(b.accepted_unix_ms(), b.job_id());
  });
  return jobs;
}

absl::StatusOr<v1::Job> Jobs::Cancel(absl::string_view job_id,
                                     absl::FunctionRef<absl::Status(const v1::Job&)> allowed) {
  if (const JobPtr job = Find(job_id)) {
    QGEMM_RETURN_IF_ERROR(allowed(job->Info()));
    End(job, v1::JOB_STATE_CANCELLED, absl::CancelledError("it was cancelled"));
    return job->Info();
  }
  QGEMM_ASSIGN_OR_RETURN(const internal::JobRecord record, journal_.Read(job_id));
  QGEMM_RETURN_IF_ERROR(allowed(record.job()));
  return record.job();
}

void Jobs::Tick() {
  if (stopping_) return;
  const TimePoint now = clock_.Now();
  bool any_waits = false;
  for (const JobPtr& job : Active()) {
    const absl::Status late = job->CheckDeadlines(now);
    if (!late.ok()) {
      End(job, v1::JOB_STATE_FAILED, late);
      continue;
    }
    size_t hurried = 0;
    for (const TuneJob::Pending& one : job->LatePicks(now)) {
      hurried += board_.Hurry(one.pick, one.waiter) ? 1 : 0;
    }
    if (hurried > 0) {
      spdlog::info("job {} of {}: its execution deadline is over; {} picks end with the best so far",
                   job->id(), job->flow().client, hurried);
    }
    const std::optional<TimePoint> retry_at = job->retry_at();
    any_waits |= retry_at.has_value() && now >= *retry_at;
  }
  if (any_waits && !retrying_.exchange(true)) executor_.Schedule([this] { Retry(); });
  journal_.Trim();
}

void Jobs::Retry() {
  int begun = 0;
  for (const JobPtr& job : Active()) {
    if (stopping_) return;
    if (begun == kRetriesAtOnce) {
      // Others' ends are waiting for this executor, too.
      executor_.Schedule([this] { Retry(); });
      return;
    }
    if (!job->TakeToRetry(clock_.Now())) continue;
    ++begun;
    internal::JobRecord record = job->Record();
    if (record.starts() > kMaxStarts) {
      End(job, v1::JOB_STATE_FAILED,
          absl::AbortedError(
              absl::StrCat("the daemon ended ", record.starts() - 1, " times while it worked on this job")));
      continue;
    }
    absl::StatusOr<PreparedTune> prepared = work_.prepare(job->request());
    absl::Status status = prepared.status();
    if (status.ok() && record.starts() > 0) status = journal_.Accept(record);
    if (!status.ok()) {
      // A full disk passes, too.
      if (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) {
        PutOff(job, status);
      } else {
        End(job, v1::JOB_STATE_FAILED, status);
      }
      continue;
    }
    auto& missing = prepared->missing;
    missing.erase(std::remove_if(missing.begin(), missing.end(),
                                 [&](const TuneUnit& unit) {
                                   return job->HasResult(unit.problem_index, unit.m_bucket);
                                 }),
                  missing.end());
    {
      // Accepted work is never refused: its quota may be above the limit for a while.
      MutexLock lock(mu_);
      picks_[job->flow().client] += static_cast<int64_t>(missing.size());
      picks_total_ += static_cast<int64_t>(missing.size());
    }
    Begin(job, *std::move(prepared));
  }
  retrying_ = false;
}

void Jobs::SetLimits(const JobLimits& limits) {
  journal_.SetLimits(limits.history);
  MutexLock lock(mu_);
  limits_ = limits;
}

void Jobs::Drain() { draining_ = true; }

int Jobs::active() {
  int count = 0;
  for (const JobPtr& job : Active()) count += job->retry_at().has_value() ? 0 : 1;
  return count;
}

void Jobs::Stop() {
  stopping_ = true;
  for (const JobPtr& job : Active()) {
    job->Wake();
    internal::JobRecord record = job->Record();
    if (record.starts() < kMaxStarts / 2 || record.job().finished_unix_ms() != 0) continue;
    // This end is not the job's doing.
    record.set_starts(0);
    (void)journal_.Accept(record);
  }
}

std::vector<Jobs::JobPtr> Jobs::Active() {
  std::vector<JobPtr> jobs;
  MutexLock lock(mu_);
  jobs.reserve(active_.size());
  for (const auto& [id, job] : active_) jobs.push_back(job);
  return jobs;
}

Jobs::JobPtr Jobs::Find(absl::string_view job_id) {
  MutexLock lock(mu_);
  const auto found = active_.find(std::string(job_id));
  return found == active_.end() ? nullptr : found->second;
}

}  // namespace qgemm
