#ifndef QGEMM_CACHE_EVICTION_H_
#define QGEMM_CACHE_EVICTION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "cache/cache_store.h"

namespace qgemm {

// How long things are kept whatever the size. 0: for ever.
struct RetentionPolicy {
  int64_t max_idle_hours = 0;    // picks and kernels that nobody read for so long go
  int64_t timing_max_hours = 0;  // timings older than this go; picks keep their own figures
};

// Both remove least recently used first, to the hour: picks of an hour, then the kernels of that hour that no
// pick needs. Pinned and held entries stay, and so does a kernel whose pick stays. What is removed is gone
// from the tables at once; the disk has it back after CacheStore's next compaction.

// Frees at least `fraction` (0 .. 1) of all bytes, if so much may go. Timings taken before the last hour that
// is removed go too.
[[nodiscard]] absl::StatusOr<RemovedEntries> EvictFraction(CacheStore& store, double fraction);

// Removes what the policy says at this time.
[[nodiscard]] absl::StatusOr<RemovedEntries> Expire(CacheStore& store, const RetentionPolicy& policy,
                                                    int64_t now_unix_ms);

}  // namespace qgemm

#endif  // QGEMM_CACHE_EVICTION_H_
