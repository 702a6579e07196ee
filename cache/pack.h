#ifndef QGEMM_CACHE_PACK_H_
#define QGEMM_CACHE_PACK_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/cache_store.h"
#include "qgemm/v1/cache.pb.h"

namespace qgemm {

// A selection of a store as one file (cache/FORMAT.md, "Packs").

// Hands the pack's bytes to `write`, in order, some hundred KB at a time. Picks bring their kernels and
// timings along; a kernel that is gone is left out. NotFound: nothing is selected. Whatever `write` returns
// ends it.
[[nodiscard]] absl::Status WritePack(CacheStore& store, const v1::CacheSelection& selection,
                                     absl::string_view writer, int64_t now_unix_ms,
                                     const std::function<absl::Status(absl::string_view)>& write);

// Takes the pack in the file over, after all of it was checked. `replace`: its entries win over stored ones
// that differ. Kernels are written before the picks that need them. The toolchain is adopted when the pack
// has one. InvalidArgument: not a whole, unharmed pack; the sentence has the offset, and nothing was written.
// An error while writing (ResourceExhausted) leaves what was written before it: whole entries.
[[nodiscard]] absl::StatusOr<v1::CacheImportResponse> ImportPack(const std::string& path, bool replace,
                                                                 CacheStore& store);

}  // namespace qgemm

#endif  // QGEMM_CACHE_PACK_H_
