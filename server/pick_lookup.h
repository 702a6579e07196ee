#ifndef QGEMM_SERVER_PICK_LOOKUP_H_
#define QGEMM_SERVER_PICK_LOOKUP_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/cache_store.h"
#include "kernels/problem.h"
#include "qgemm/internal/store.pb.h"
#include "server/kernel_supply.h"
#include "server/tuning_target.h"

namespace qgemm {

struct StoredPick {
  internal::PickRecord record;
  // The kernel that today's device code and toolchain would give is another one.
  bool kernel_outdated = false;
  // Timed under another driver version than today's.
  bool driver_changed = false;

  bool stale() const { return kernel_outdated || driver_changed; }
};

// Finds stored picks. Thread-safe.
class PickLookup {
 public:
  // Borrowed.
  PickLookup(CacheStore& store, KernelSupply& supply) : store_(store), supply_(supply) {}

  static std::string KeyFor(const Problem& problem, int m_bucket, const TuningTarget& target,
                            v1::Effort effort);

  // The keys that Find() may read, in its order.
  static std::vector<std::string> KeysFor(const Problem& problem, int m_bucket, const TuningTarget& target,
                                          v1::Effort least);

  // The pick of the highest effort at or above `least`, or nullopt. Predicted picks answer only for a target
  // that is not measured, or when `least` is MODEL_ONLY and nothing was measured. `toolchain` empty: not
  // known now; then no pick counts as outdated.
  [[nodiscard]] absl::StatusOr<std::optional<StoredPick>> Find(const Problem& problem, int m_bucket,
                                                               const TuningTarget& target, v1::Effort least,
                                                               absl::string_view toolchain);

 private:
  [[nodiscard]] absl::StatusOr<std::optional<StoredPick>> FindIn(const Problem& problem, int m_bucket,
                                                                 const TuningTarget& target, v1::Effort least,
                                                                 absl::string_view toolchain);

  CacheStore& store_;
  KernelSupply& supply_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_PICK_LOOKUP_H_
