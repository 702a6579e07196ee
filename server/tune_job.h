#ifndef QGEMM_SERVER_TUNE_JOB_H_
#define QGEMM_SERVER_TUNE_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "qgemm/internal/store.pb.h"
#include "qgemm/v1/tuner.pb.h"
#include "server/fair_queue.h"
#include "server/job_board.h"
#include "server/pick_job.h"
#include "server/tune_stream.h"

namespace qgemm {

// One accepted Tune request: its results so far and who watches them. `Jobs` moves it along; it does nothing
// by itself. Thread-safe; its lock is never held while another one is taken.
class TuneJob {
 public:
  // A pick that the store did not answer.
  struct Pending {
    int problem_index = 0;
    int m_bucket = 0;
    std::shared_ptr<PickJob> pick;  // null: not joined yet
    uint64_t waiter = 0;
    bool created = false;  // for this job, so that its work counts here
    bool done = false;
  };

  // `record` holds the request and everything about the job that is known at its acceptance. `resumed`: by a
  // daemon that ended; nobody is attached then.
  TuneJob(internal::JobRecord record, TimePoint accepted, bool resumed, std::optional<TimePoint> retry_at);

  const std::string& id() const { return id_; }
  const v1::TuneRequest& request() const { return request_; }
  const Flow& flow() const { return flow_; }
  TimePoint accepted() const { return accepted_; }

  // What ListJobs shows.
  v1::Job Info();
  // The record that stands for it in the journal.
  internal::JobRecord Record();

  // Work on it was begun, the first time or again: `stored` answered at once, `pending` is to be joined.
  // Results that it has from before are kept. False: it is ending.
  bool Begin(std::vector<v1::TuneResult> stored, std::vector<Pending> pending, int results_wanted);
  enum class Came { kIgnored, kOne, kLast };
  // The pending pick `index` was joined. kIgnored: the job is ending, the caller leaves the pick again.
  // kLast: all picks had come before their joining was known; the job is done.
  Came Joined(size_t index, const JobBoard::Joined& joined);
  void Started(TimePoint now, int64_t wall_unix_ms);
  // A pick came; ignored when the job is ending or was begun again since. Never kLast before its joining is
  // known: what was done for it is read from there.
  Came PickCame(int round, size_t index, v1::TuneResult result);
  int round();

  // The job waits for something to come back: it holds no pick any more. Returns what it held. nullopt: it is
  // ending.
  std::optional<std::vector<Pending>> PutOff(const absl::Status& why, TimePoint retry_at);
  // When it is to be begun again; nullopt: not waiting.
  std::optional<TimePoint> retry_at();
  // Takes the waiting job, once, to begin it again now.
  bool TakeToRetry(TimePoint now);

  // The first caller ends the job, and gets what it held; nullopt for the others.
  std::optional<std::vector<Pending>> End(v1::JobState state, const absl::Status& status,
                                          int64_t wall_unix_ms);
  // Its end is in the journal: watchers may be told.
  void Over(const v1::TuneSummary& summary);

  // After the execution deadline: the picks that are not there yet; before it, and without one: none.
  std::vector<Pending> LatePicks(TimePoint now);
  // DeadlineExceeded with a sentence when the job is to fail for one of the request's two deadlines: not
  // begun in time, or not done kLateGrace after its time, when every pick was asked to end.
  static constexpr Duration kLateGrace = std::chrono::seconds(3);
  absl::Status CheckDeadlines(TimePoint now);

  // Results that were made so far, without their order.
  std::vector<v1::TuneResult> Results();
  // Whether a result for that pair was made.
  bool HasResult(int problem_index, int m_bucket);

  // Streams results, progress and the summary until the job is over (its status), `stopping` says so
  // (Unavailable) or the stream is cancelled (Cancelled).
  absl::Status Watch(TuneStream& stream, JobBoard& board, Clock& clock, Duration progress_interval,
                     const std::function<std::string()>& note, const std::function<bool()>& stopping);
  // Counts watchers. Unwatched: true when the last one of an attached job left.
  void Watched();
  bool Unwatched();
  // Wakes watchers, so that they look at `stopping`.
  void Wake();

 private:
  v1::TuneProgress Progress(JobBoard& board);

  // Constant after construction.
  const std::string id_;
  const v1::TuneRequest request_;
  const Flow flow_;
  const TimePoint accepted_;
  const int starts_;

  Mutex mu_;
  CondVar changed_;
  v1::Job info_ QGEMM_GUARDED_BY(mu_);
  int round_ QGEMM_GUARDED_BY(mu_) = 0;  // how often it was begun
  std::vector<v1::TuneResult> results_ QGEMM_GUARDED_BY(mu_);
  std::set<std::pair<int, int>> answered_ QGEMM_GUARDED_BY(mu_);  // (problem_index, m_bucket)
  std::vector<Pending> pending_ QGEMM_GUARDED_BY(mu_);
  size_t left_ QGEMM_GUARDED_BY(mu_) = 0;  // pending ones without a result
  std::optional<TimePoint> started_ QGEMM_GUARDED_BY(mu_);
  std::optional<TimePoint> retry_at_ QGEMM_GUARDED_BY(mu_);
  int watchers_ QGEMM_GUARDED_BY(mu_) = 0;
  bool ending_ QGEMM_GUARDED_BY(mu_) = false;
  bool over_ QGEMM_GUARDED_BY(mu_) = false;
  absl::Status status_ QGEMM_GUARDED_BY(mu_);
  v1::TuneSummary summary_ QGEMM_GUARDED_BY(mu_);
};

// The class a request asks for, as a queue knows it.
WorkClass WorkClassOf(const v1::TuneRequest& request);

}  // namespace qgemm

#endif  // QGEMM_SERVER_TUNE_JOB_H_
