#include "cache/eviction.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "cache/index_keys.h"

namespace qgemm {
namespace {

// Entries handed to Remove() at once: what is collected stays small however large the store is.
constexpr size_t kBatchEntries = 4096;

void Add(const RemovedEntries& more, RemovedEntries& sum) {
  sum.kernels += more.kernels;
  sum.picks += more.picks;
  sum.timings += more.timings;
  sum.kept += more.kept;
  sum.bytes += more.bytes;
}

// Removes entries of `kind` used up to `last_hour`, until `bytes` are gone. Of the last hour, only as many as
// are needed. `spared`: kernels that stay.
absl::Status RemoveUpTo(CacheStore& store, EntryKind kind, int64_t last_hour, int64_t bytes,
                        const std::set<std::string>& spared, RemovedEntries& removed) {
  // The last hour may be most of the store, and all before it goes anyway.
  for (const bool whole_hours : {true, false}) {
    std::vector<EntryId> batch;
    int64_t batch_bytes = 0;
    absl::Status status;
    const auto remove = [&] {
      if (batch.empty() || !status.ok()) return;
      const absl::StatusOr<RemovedEntries> now = store.Remove(batch);
      status = now.status();
      if (now.ok()) Add(*now, removed);
      batch.clear();
      batch_bytes = 0;
    };
    QGEMM_RETURN_IF_ERROR(store.VisitUses([&](const EntryUse& use) {
      const bool due = whole_hours ? use.used_unix_hour < last_hour : use.used_unix_hour == last_hour;
      if (use.id.kind != kind || use.pinned || !due || spared.count(use.id.key) > 0) return true;
      if (!whole_hours && removed.bytes + batch_bytes >= bytes) return false;
      batch.push_back(use.id);
      batch_bytes += use.bytes;
      if (batch.size() == kBatchEntries) remove();
      return status.ok();
    }));
    remove();
    QGEMM_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::set<std::string>> KernelsOfPicks(CacheStore& store) {
  std::set<std::string> kernels;
  QGEMM_RETURN_IF_ERROR(store.VisitPicks([&](const internal::PickRecord& pick) {
    kernels.insert(pick.kernel_key());
    return true;
  }));
  return kernels;
}

}  // namespace

absl::StatusOr<RemovedEntries> EvictFraction(CacheStore& store, double fraction) {
  QGEMM_RETURN_IF_ERROR(store.FlushUses());
  std::map<int64_t, int64_t> bytes_by_hour;
  int64_t total = 0;
  QGEMM_RETURN_IF_ERROR(store.VisitUses([&](const EntryUse& use) {
    total += use.bytes;
    if (!use.pinned) bytes_by_hour[use.used_unix_hour] += use.bytes;
    return true;
  }));
  const auto wanted = static_cast<int64_t>(static_cast<double>(total) * std::clamp(fraction, 0.0, 1.0));
  RemovedEntries removed;
  // Kernels whose picks stay are passed over: then the next hours have to give more.
  int64_t counted = 0;
  int64_t next = wanted;
  for (const auto& [hour, bytes] : bytes_by_hour) {
    counted += bytes;
    if (counted < next && hour != bytes_by_hour.rbegin()->first) continue;
    // Kernels that no pick needs, old timings' or a candidate's that was not chosen, first: they are the
    // large ones, and nobody's answer depends on them.
    for (const EntryKind kind : {EntryKind::kKernel, EntryKind::kPick, EntryKind::kKernel}) {
      if (removed.bytes >= wanted) break;
      std::set<std::string> spared;
      if (kind == EntryKind::kKernel) {
        QGEMM_ASSIGN_OR_RETURN(spared, KernelsOfPicks(store));
      }
      QGEMM_RETURN_IF_ERROR(RemoveUpTo(store, kind, hour, wanted, spared, removed));
    }
    QGEMM_ASSIGN_OR_RETURN(const RemovedEntries timings, store.RemoveTimingsBefore(hour * kHourMs));
    Add(timings, removed);
    if (removed.bytes >= wanted) break;
    next = counted + wanted - removed.bytes;
  }
  return removed;
}

absl::StatusOr<RemovedEntries> Expire(CacheStore& store, const RetentionPolicy& policy, int64_t now_unix_ms) {
  RemovedEntries removed;
  if (policy.max_idle_hours > 0) {
    QGEMM_RETURN_IF_ERROR(store.FlushUses());
    const int64_t last_hour = now_unix_ms / kHourMs - policy.max_idle_hours - 1;
    constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
    QGEMM_RETURN_IF_ERROR(RemoveUpTo(store, EntryKind::kPick, last_hour, kAll, {}, removed));
    QGEMM_ASSIGN_OR_RETURN(const std::set<std::string> needed, KernelsOfPicks(store));
    QGEMM_RETURN_IF_ERROR(RemoveUpTo(store, EntryKind::kKernel, last_hour, kAll, needed, removed));
  }
  if (policy.timing_max_hours > 0) {
    QGEMM_ASSIGN_OR_RETURN(const RemovedEntries timings,
                           store.RemoveTimingsBefore(now_unix_ms - policy.timing_max_hours * kHourMs));
    Add(timings, removed);
  }
  return removed;
}

}  // namespace qgemm
