#ifndef QGEMM_CACHE_SELECTION_H_
#define QGEMM_CACHE_SELECTION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/cache_store.h"
#include "qgemm/v1/cache.pb.h"

namespace qgemm {

// InvalidArgument names the field, its value and what is allowed.
[[nodiscard]] absl::Status ValidateSelection(const v1::CacheSelection& selection);

struct SelectedEntries {
  std::vector<std::string> picks;    // keys, in key order
  std::vector<std::string> kernels;  // keys, in key order

  [[nodiscard]] std::vector<EntryId> Ids() const;
};

// What the selection means now. InvalidArgument as ValidateSelection.
[[nodiscard]] absl::StatusOr<SelectedEntries> Select(CacheStore& store, const v1::CacheSelection& selection,
                                                     int64_t now_unix_ms);

// Removes what is selected. A kernel that a pick needs goes only with that pick, and the kernels of removed
// picks go when no other pick needs them.
[[nodiscard]] absl::StatusOr<RemovedEntries> DeleteSelected(CacheStore& store,
                                                            const v1::CacheSelection& selection,
                                                            int64_t now_unix_ms);

// Hands stored picks or kernels to `visit`, in key order, until it returns false; all fields of the entry but
// `stale` are set. An empty selection is all.
[[nodiscard]] absl::Status VisitCacheEntries(
    CacheStore& store, const v1::CacheListRequest& request, int64_t now_unix_ms,
    const std::function<bool(const internal::PickRecord*, v1::CacheEntry&)>& visit);

}  // namespace qgemm

#endif  // QGEMM_CACHE_SELECTION_H_
