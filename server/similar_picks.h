#ifndef QGEMM_SERVER_SIMILAR_PICKS_H_
#define QGEMM_SERVER_SIMILAR_PICKS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "cache/cache_store.h"
#include "kernels/similarity.h"
#include "server/tuning_target.h"

namespace qgemm {

// The store's measured picks as hints for shapes that were never tuned. Reads the store again when reading it
// would take no more than a small share of the time since the last reading; in between, picks of the last
// moments are missing. Thread-safe.
class SimilarPicks {
 public:
  // Borrowed: both.
  SimilarPicks(CacheStore& store, Clock& clock) : store_(store), clock_(clock) {}

  // A pick for `problem` with `m` rows, taken from the nearest legal one of the target whose kernel is in the
  // store, with source SIMILAR and low confidence; nullopt when there is none.
  [[nodiscard]] absl::StatusOr<std::optional<v1::Pick>> Find(const Problem& problem, int64_t m,
                                                             const TuningTarget& target,
                                                             ShapeDistance distance);

  // Winners of the nearest tuned shapes, for a search to begin with.
  [[nodiscard]] absl::StatusOr<std::vector<Candidate>> Seeds(const Problem& problem, int m_bucket,
                                                             const TuningTarget& target, size_t limit);

 private:
  struct Snapshot {
    std::vector<internal::PickRecord> records;  // measured ones that today's program can read
    std::vector<ShapeHint> hints;               // of the same indices
  };
  absl::StatusOr<std::shared_ptr<const Snapshot>> Read();
  // Indices of the target's picks, and their hints.
  static std::vector<size_t> OfTarget(const Snapshot& snapshot, const TuningTarget& target,
                                      std::vector<ShapeHint>* hints);

  CacheStore& store_;
  Clock& clock_;
  Mutex mu_;
  std::shared_ptr<const Snapshot> snapshot_ QGEMM_GUARDED_BY(mu_);
  TimePoint next_read_ QGEMM_GUARDED_BY(mu_) = TimePoint::min();
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_SIMILAR_PICKS_H_
