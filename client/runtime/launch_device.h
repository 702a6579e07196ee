#ifndef QGEMM_CLIENT_RUNTIME_LAUNCH_DEVICE_H_
#define QGEMM_CLIENT_RUNTIME_LAUNCH_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/cuda/driver.h"
#include "kernels/device_profile.h"
#include "kernels/launch_spec.h"

namespace qgemm {

// A kernel of a loaded module, as LaunchDevice knows it.
using LaunchFunction = const void*;

struct LaunchCall {
  LaunchFunction function = nullptr;
  Dim3 grid;
  int block_threads = 0;
  int dynamic_smem_bytes = 0;
  int cluster_z = 1;
  // Programmatic dependent launch: may start while the kernel before it on the stream ends.
  bool programmatic = false;
  void* stream = nullptr;   // CUstream; null: the default stream
  void** params = nullptr;  // one pointer per parameter
};

// What the runtime needs of a GPU; faked in tests. Launch and EncodeTensorMap may be called from several
// threads at once, and neither waits for the GPU nor allocates.
class LaunchDevice {
 public:
  virtual ~LaunchDevice() = default;

  virtual const std::string& arch() const = 0;  // "sm_90a"
  virtual const DeviceProfile& profile() const = 0;
  // A kernel that may be launched with up to `dynamic_smem_bytes`; it lives as long as the device. The
  // cubin's bytes are not needed afterwards. FailedPrecondition: it is not for this device.
  [[nodiscard]] virtual absl::StatusOr<LaunchFunction> LoadKernel(absl::string_view cubin,
                                                                  const std::string& entry,
                                                                  int dynamic_smem_bytes) = 0;
  [[nodiscard]] virtual absl::StatusOr<uint64_t> Allocate(int64_t bytes) = 0;  // 256-byte aligned, zeros
  // The same while `stream` is being captured, belonging to its graph: free when the graph and all that was
  // made of it are gone, at the latest with the device. Becomes no part of the graph itself.
  // FailedPrecondition: the stream is not being captured.
  [[nodiscard]] virtual absl::StatusOr<uint64_t> AllocateForGraph(int64_t bytes, void* stream) = 0;
  virtual void Free(uint64_t address) = 0;
  [[nodiscard]] virtual absl::Status CopyIn(uint64_t address, absl::string_view bytes) = 0;
  [[nodiscard]] virtual absl::Status CopyOut(uint64_t address, absl::Span<char> bytes) = 0;

  [[nodiscard]] virtual absl::Status EncodeTensorMap(const TensorMapShape& shape,
                                                     absl::Span<std::byte> out) = 0;
  [[nodiscard]] virtual absl::Status Launch(const LaunchCall& call) = 0;

  // The device of this ordinal through the driver, in its primary context, which is current only inside the
  // calls. Unavailable: no driver, or it has no device; InvalidArgument: none of this ordinal.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LaunchDevice>> Open(int ordinal);
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_RUNTIME_LAUNCH_DEVICE_H_
