#include "server/tune_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace qgemm {
namespace {

constexpr Duration kCancellationPoll = std::chrono::milliseconds(50);

Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

WorkClass WorkClassOf(const v1::TuneRequest& request) {
  if (request.job_class() == v1::JOB_CLASS_INTERACTIVE) return WorkClass::kInteractive;
  if (request.job_class() == v1::JOB_CLASS_BATCH) return WorkClass::kBatch;
  return request.detach() ? WorkClass::kBatch : WorkClass::kInteractive;
}

TuneJob::TuneJob(internal::JobRecord record, TimePoint accepted, bool resumed,
                 std::optional<TimePoint> retry_at)
    : id_(record.job().job_id()),
      request_(record.request()),
      flow_{record.job().client(), WorkClassOf(record.request()), record.job().priority()},
      accepted_(accepted),
      starts_(record.starts()),
      info_(std::move(*record.mutable_job())),
      retry_at_(retry_at) {
  if (resumed) {
    info_.set_detached(true);
    info_.set_results_done(0);
  }
}

v1::Job TuneJob::Info() {
  MutexLock lock(mu_);
  return info_;
}

internal::JobRecord TuneJob::Record() {
  internal::JobRecord record;
  *record.mutable_request() = request_;
  record.set_starts(starts_);
  MutexLock lock(mu_);
  *record.mutable_job() = info_;
  *record.mutable_summary() = summary_;
  return record;
}

bool TuneJob::Begin(std::vector<v1::TuneResult> stored, std::vector<Pending> pending, int results_wanted) {
  MutexLock lock(mu_);
  if (ending_) return false;
  ++round_;
  for (v1::TuneResult& result : stored) {
    if (answered_.emplace(result.problem_index(), result.m_bucket()).second) {
      results_.push_back(std::move(result));
    }
  }
  pending_ = std::move(pending);
  left_ = pending_.size();
  info_.set_error("");
  info_.set_results_wanted(results_wanted);
  info_.set_results_done(static_cast<int>(results_.size()));
  changed_.NotifyAll();
  return true;
}

TuneJob::Came TuneJob::Joined(size_t index, const JobBoard::Joined& joined) {
  MutexLock lock(mu_);
  if (ending_ || retry_at_.has_value()) return Came::kIgnored;
  Pending& one = pending_[index];
  one.pick = joined.job;
  one.waiter = joined.waiter;
  one.created = joined.created;
  return one.done && --left_ == 0 ? Came::kLast : Came::kOne;
}

void TuneJob::Started(TimePoint now, int64_t wall_unix_ms) {
  MutexLock lock(mu_);
  if (started_.has_value() || ending_) return;
  started_ = now;
  info_.set_started_unix_ms(wall_unix_ms);
  info_.set_state(v1::JOB_STATE_RUNNING);
}

TuneJob::Came TuneJob::PickCame(int round, size_t index, v1::TuneResult result) {
  MutexLock lock(mu_);
  if (ending_ || round != round_ || retry_at_.has_value() || pending_[index].done) return Came::kIgnored;
  pending_[index].done = true;
  result.set_problem_index(pending_[index].problem_index);
  answered_.emplace(pending_[index].problem_index, pending_[index].m_bucket);
  results_.push_back(std::move(result));
  info_.set_results_done(static_cast<int>(results_.size()));
  changed_.NotifyAll();
  // A pick may come before its joining is known (Joined then counts it).
  return pending_[index].pick != nullptr && --left_ == 0 ? Came::kLast : Came::kOne;
}

int TuneJob::round() {
  MutexLock lock(mu_);
  return round_;
}

std::optional<std::vector<TuneJob::Pending>> TuneJob::PutOff(const absl::Status& why, TimePoint retry_at) {
  MutexLock lock(mu_);
  if (ending_) return std::nullopt;
  retry_at_ = retry_at;
  left_ = 0;
  info_.set_state(v1::JOB_STATE_QUEUED);
  info_.set_error(absl::StrCat("waits: ", std::string(why.message())));
  return std::exchange(pending_, {});
}

std::optional<TimePoint> TuneJob::retry_at() {
  MutexLock lock(mu_);
  return retry_at_;
}

bool TuneJob::TakeToRetry(TimePoint now) {
  MutexLock lock(mu_);
  if (ending_ || !retry_at_.has_value() || now < *retry_at_) return false;
  retry_at_.reset();
  return true;
}

std::optional<std::vector<TuneJob::Pending>> TuneJob::End(v1::JobState state, const absl::Status& status,
                                                          int64_t wall_unix_ms) {
  MutexLock lock(mu_);
  if (ending_) return std::nullopt;
  ending_ = true;
  retry_at_.reset();
  status_ = status;
  info_.set_state(state);
  info_.set_finished_unix_ms(wall_unix_ms);
  info_.set_error(std::string(status.message()));
  info_.set_error_code(static_cast<int>(status.code()));
  return pending_;
}

void TuneJob::Over(const v1::TuneSummary& summary) {
  MutexLock lock(mu_);
  summary_ = summary;
  over_ = true;
  pending_.clear();
  changed_.NotifyAll();
}

std::vector<TuneJob::Pending> TuneJob::LatePicks(TimePoint now) {
  MutexLock lock(mu_);
  std::vector<Pending> late;
  const double execution_s = request_.execution_deadline_s();
  if (ending_ || !started_.has_value() || execution_s <= 0) return late;
  if (now < *started_ + FromSeconds(execution_s)) return late;
  for (const Pending& one : pending_) {
    if (one.pick != nullptr && !one.done) late.push_back(one);
  }
  return late;
}

absl::Status TuneJob::CheckDeadlines(TimePoint now) {
  MutexLock lock(mu_);
  if (ending_) return absl::OkStatus();
  const double queue_s = request_.queue_deadline_s();
  const double execution_s = request_.execution_deadline_s();
  if (!started_.has_value() && queue_s > 0 && now >= accepted_ + FromSeconds(queue_s)) {
    return absl::DeadlineExceededError(
        absl::StrFormat("no work was begun within queue_deadline_s of %g: %s", queue_s,
                        info_.error().empty() ? std::string("others are before it") : info_.error()));
  }
  if (started_.has_value() && execution_s > 0 && now >= *started_ + FromSeconds(execution_s) + kLateGrace) {
    return absl::DeadlineExceededError(
        absl::StrFormat("%d of %d results were done within execution_deadline_s of %g; what was stored stays",
                        info_.results_done(), info_.results_wanted(), execution_s));
  }
  return absl::OkStatus();
}

std::vector<v1::TuneResult> TuneJob::Results() {
  MutexLock lock(mu_);
  return results_;
}

bool TuneJob::HasResult(int problem_index, int m_bucket) {
  MutexLock lock(mu_);
  return answered_.count({problem_index, m_bucket}) > 0;
}

v1::TuneProgress TuneJob::Progress(JobBoard& board) {
  v1::TuneProgress progress;
  std::vector<std::shared_ptr<PickJob>> picks;
  {
    MutexLock lock(mu_);
    progress.set_results_wanted(info_.results_wanted());
    progress.set_results_done(info_.results_done());
    for (const Pending& pending : pending_) {
      if (pending.pick != nullptr) picks.push_back(pending.pick);
    }
  }
  board.Read([&] {
    std::set<const KernelProgress*> seen;
    for (const std::shared_ptr<PickJob>& pick : picks) {
      const PickJob::Shared& shared = pick->shared;
      progress.set_candidates_wanted(progress.candidates_wanted() + shared.candidates_wanted);
      progress.set_candidates_done(progress.candidates_done() + shared.candidates_done);
      for (const std::shared_ptr<KernelProgress>& kernel : shared.kernels) {
        if (!kernel->wanted_compile() || !seen.insert(kernel.get()).second) continue;
        progress.set_kernels_wanted(progress.kernels_wanted() + 1);
        if (kernel->decided()) progress.set_kernels_compiled(progress.kernels_compiled() + 1);
      }
    }
  });
  return progress;
}

absl::Status TuneJob::Watch(TuneStream& stream, JobBoard& board, Clock& clock, Duration progress_interval,
                            const std::function<std::string()>& note, const std::function<bool()>& stopping) {
  size_t sent = 0;
  std::string last_progress;
  TimePoint next_progress = TimePoint::min();
  while (true) {
    if (stream.Cancelled()) return absl::CancelledError("the client cancelled");
    std::vector<v1::TuneResult> fresh;
    bool over = false;
    {
      MutexLock lock(mu_);
      fresh.assign(results_.begin() + static_cast<std::ptrdiff_t>(sent), results_.end());
      over = over_;
    }
    sent += fresh.size();
    for (v1::TuneResult& result : fresh) {
      v1::TuneEvent event;
      *event.mutable_result() = std::move(result);
      stream.Send(event);
    }
    if (over) {
      absl::Status status;
      v1::TuneEvent event;
      {
        MutexLock lock(mu_);
        status = status_;
        *event.mutable_summary() = summary_;
      }
      if (status.ok()) stream.Send(event);
      return status;
    }
    // After looking at the end: a job that ended while the daemon stops has its own answer.
    if (stopping()) {
      return absl::UnavailableError(absl::StrCat("the daemon is stopping; job ", id_,
                                                 " goes on when it runs again: qgemmctl watch ", id_));
    }
    if (clock.Now() >= next_progress) {
      v1::TuneEvent event;
      *event.mutable_progress() = Progress(board);
      if (note) event.mutable_progress()->set_note(note());
      const std::string bytes = event.SerializeAsString();
      if (bytes != last_progress) {
        last_progress = bytes;
        next_progress = clock.Now() + progress_interval;
        event.mutable_progress()->set_elapsed_s(
            std::chrono::duration<double>(clock.Now() - accepted_).count());
        stream.Send(event);
      }
    }
    MutexLock lock(mu_);
    const TimePoint deadline = clock.Now() + kCancellationPoll;
    while (!over_ && results_.size() == sent && !stopping() && clock.WaitUntil(mu_, changed_, deadline)) {
    }
  }
}

void TuneJob::Watched() {
  MutexLock lock(mu_);
  ++watchers_;
}

bool TuneJob::Unwatched() {
  MutexLock lock(mu_);
  return --watchers_ == 0 && !info_.detached();
}

void TuneJob::Wake() {
  MutexLock lock(mu_);
  changed_.NotifyAll();
}

}  // namespace qgemm
