// In programs that ThreadSanitizer watches only: absl::Status as they see it, with the release of its reference
// count compiled here. The distribution's library counts down unseen, so that whoever frees a status seems to
// race with everybody who ever read it; stacks of such reports end in the library and do not always name it.
#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

// Takes the place of the library's.
void Status::UnrefNonInlined(uintptr_t rep) {
  status_internal::StatusRep* const shared = RepToPointer(rep);
  if (shared->ref.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
}

ABSL_NAMESPACE_END
}  // namespace absl
