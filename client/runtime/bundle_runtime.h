#ifndef QGEMM_CLIENT_RUNTIME_BUNDLE_RUNTIME_H_
#define QGEMM_CLIENT_RUNTIME_BUNDLE_RUNTIME_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/bundle/bundle.h"
#include "client/qgemm/runtime.h"
#include "client/runtime/launch_device.h"

namespace qgemm {

// Runtime::Load on a device of the caller's choice.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Runtime>> LoadRuntime(Bundle bundle, absl::string_view method,
                                                                   std::unique_ptr<LaunchDevice> device);
// The same of a method that was read from the bundle, or made of parts of one.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Runtime>> LoadRuntime(Bundle bundle, BundleMethod method,
                                                                   std::unique_ptr<LaunchDevice> device);

// The place in `buckets` (ascending) of the one that serves m rows: the bucket of m, else the next larger one
// that is there. -1: none does.
int SelectBucket(absl::Span<const int> buckets, int64_t m);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_RUNTIME_BUNDLE_RUNTIME_H_
