#ifndef QGEMM_SERVER_JOBS_H_
#define QGEMM_SERVER_JOBS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "cache/cache_store.h"
#include "kernels/problem.h"
#include "qgemm/v1/tuner.pb.h"
#include "server/job_board.h"
#include "server/job_journal.h"
#include "server/search_limits.h"
#include "server/tune_job.h"
#include "server/tune_stream.h"
#include "server/tuning_target.h"

namespace qgemm {

// One (problem, bucket) of a request.
struct TuneUnit {
  int problem_index = 0;
  Problem problem;
  int m_bucket = 0;
};

// A request that was looked at: what the store answers, and what has to be tuned and how.
struct PreparedTune {
  std::vector<v1::TuneResult> stored;  // with their problem_index
  std::vector<TuneUnit> missing;
  v1::Effort effort = v1::EFFORT_BALANCED;
  TuningTarget target;
  TuningTarget lookup_target;
  std::string toolchain;
  SearchLimits limits;
};

struct JobLimits {
  // Picks that were asked for and are not done: of one client, and of all.
  int64_t picks_per_client = 32768;
  int64_t picks_total = 131072;
  // Calls that wait for a job, of one client: each holds a thread.
  int streams_per_client = 256;
  HistoryLimits history;
};

// Accepts Tune requests as jobs and sees each to its end: journals it before anybody is told, joins its
// picks, streams to whoever watches, withdraws it when its client goes away, and takes up again what an
// earlier daemon left unfinished. Thread-safe.
class Jobs {
 public:
  // How a request is looked at, and how one of its missing units is joined: the tuner's part.
  struct Work {
    std::function<absl::StatusOr<PreparedTune>(const v1::TuneRequest&)> prepare;
    std::function<JobBoard::Joined(const PreparedTune&, const v1::TuneRequest&, const TuneUnit&, PickWaiter)>
        join;
    std::function<std::string()> note;  // TunerOptions::note; may be empty
  };

  // Borrowed: all but `work` and `limits`. `executor` runs what ends and resumes jobs, one function at a time
  // and in order; it has to finish before this is destroyed.
  Jobs(CacheStore& store, JobBoard& board, Clock& clock, Executor& executor, Work work, JobLimits limits,
       Duration progress_interval);

  // Reads the journal: the unfinished jobs are queued and begun by the next Tick().
  absl::Status Open();

  // As the RPC (tuner.proto). `client` is who asks.
  absl::Status Tune(const v1::TuneRequest& request, const std::string& client, TuneStream& stream);
  absl::Status Watch(absl::string_view job_id, const std::string& client, TuneStream& stream);
  std::vector<v1::Job> List(const v1::ListJobsRequest& request);
  // `allowed` is asked with the job as it is; its error is the answer, and nothing was changed.
  absl::StatusOr<v1::Job> Cancel(absl::string_view job_id,
                                 absl::FunctionRef<absl::Status(const v1::Job&)> allowed);

  // To be called about once a second: deadlines, jobs that wait, history.
  void Tick();
  void SetLimits(const JobLimits& limits);

  // From now on new requests are refused with Unavailable; those that were accepted go on.
  void Drain();
  // Jobs that have not ended and do not wait for something to come back.
  int active();
  // Everybody who watches is told Unavailable. What has not ended stays in the journal.
  void Stop();

 private:
  using JobPtr = std::shared_ptr<TuneJob>;
  // A call's place among its client's.
  class Stream;

  absl::Status ValidateOptions(const v1::TuneRequest& request) const;
  absl::Status Admit(const std::string& client, int64_t picks);
  void ReleasePicks(const std::string& client, int64_t picks);
  JobPtr Register(const v1::TuneRequest& request, const std::string& client, const PreparedTune& prepared);
  // Joins the picks of a job that is in the journal.
  void Begin(const JobPtr& job, PreparedTune prepared);
  void PickDone(const JobPtr& job, int round, size_t index, const PickJob& pick);
  void PutOff(const JobPtr& job, const absl::Status& why);
  void End(const JobPtr& job, v1::JobState state, const absl::Status& status);
  void EndLater(const JobPtr& job, v1::JobState state, const absl::Status& status);
  void LeaveAll(const JobPtr& job, const std::vector<TuneJob::Pending>& pending);
  v1::TuneSummary Summarize(const JobPtr& job, const std::vector<TuneJob::Pending>& pending);
  absl::Status WatchActive(const JobPtr& job, TuneStream& stream);
  absl::Status Replay(absl::string_view job_id, TuneStream& stream);
  // Begins waiting jobs whose time has come, a few at a time.
  void Retry();
  std::vector<JobPtr> Active();
  JobPtr Find(absl::string_view job_id);

  CacheStore& store_;
  JobBoard& board_;
  Clock& clock_;
  Executor& executor_;
  const Work work_;
  const Duration progress_interval_;
  JobJournal journal_;

  std::atomic<bool> draining_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> retrying_{false};

  Mutex mu_;
  JobLimits limits_ QGEMM_GUARDED_BY(mu_);
  std::map<std::string, JobPtr, std::less<>> active_ QGEMM_GUARDED_BY(mu_);  // by id
  std::map<std::string, int64_t> picks_ QGEMM_GUARDED_BY(mu_);               // wanted, by client
  int64_t picks_total_ QGEMM_GUARDED_BY(mu_) = 0;
  std::map<std::string, int> streams_ QGEMM_GUARDED_BY(mu_);  // by client
  std::mt19937_64 ids_ QGEMM_GUARDED_BY(mu_);
  double pick_seconds_ QGEMM_GUARDED_BY(mu_) = 1;  // running mean between two picks, for retry delays
  TimePoint last_pick_ QGEMM_GUARDED_BY(mu_);
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_JOBS_H_
