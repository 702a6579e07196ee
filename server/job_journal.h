#ifndef QGEMM_SERVER_JOB_JOURNAL_H_
#define QGEMM_SERVER_JOB_JOURNAL_H_

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "cache/cache_store.h"
#include "qgemm/internal/store.pb.h"

namespace qgemm {

// How many finished jobs are remembered, and for how long after their end; the smaller of the two counts.
struct HistoryLimits {
  int count = 1000;
  std::chrono::milliseconds age = std::chrono::hours(24 * 7);
};

// What was accepted and how it ended, durable. Thread-safe; no call holds the lock during I/O.
class JobJournal {
 public:
  // `store` and `clock` are borrowed.
  JobJournal(CacheStore& store, Clock& clock, HistoryLimits limits);

  // Reads the journal and drops what is too old. Returns the jobs that have not ended, oldest first. To be
  // called once, before the others.
  [[nodiscard]] absl::StatusOr<std::vector<internal::JobRecord>> Open();

  // Durable when it returns OK: then the client may be told. Also for what is taken up again.
  [[nodiscard]] absl::Status Accept(const internal::JobRecord& record);
  // The job has ended; it is history from here on, also when the write failed (then the next daemon finds it
  // unfinished and finishes it again, from the picks that are stored).
  absl::Status Finish(const internal::JobRecord& record);

  // NotFound: no such job, or its history is gone.
  [[nodiscard]] absl::StatusOr<internal::JobRecord> Read(absl::string_view job_id);
  // Jobs that have ended, in the order of their acceptance.
  std::vector<v1::Job> History();

  void SetLimits(HistoryLimits limits);
  // Drops what the limits no longer allow.
  void Trim();

 private:
  // Acceptance time, id: unique, and in the order in which jobs are listed.
  using Key = std::pair<int64_t, std::string>;

  CacheStore& store_;
  Clock& clock_;
  Mutex mu_;
  HistoryLimits limits_ QGEMM_GUARDED_BY(mu_);
  std::map<Key, v1::Job> history_ QGEMM_GUARDED_BY(mu_);
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_JOB_JOURNAL_H_
