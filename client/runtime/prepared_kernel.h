#ifndef QGEMM_CLIENT_RUNTIME_PREPARED_KERNEL_H_
#define QGEMM_CLIENT_RUNTIME_PREPARED_KERNEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/runtime/launch_device.h"
#include "kernels/cuda/launch.h"
#include "kernels/launch_spec.h"

namespace qgemm {

// Encoded tensor maps by what they are made from. Encoding one costs more than a launch may: a layer that
// runs again and again on the same buffers finds its maps here. Thread-safe.
class TensorMapCache {
 public:
  // Copies the map of `shape` to `out` (128 bytes), encoding it where it is not there.
  [[nodiscard]] absl::Status Get(LaunchDevice& device, const TensorMapShape& shape, std::byte* out)
      QGEMM_EXCLUDES(mu_);

 private:
  static constexpr size_t kEntries = 16;  // buffers times M a layer takes turns with
  struct Entry {
    uint64_t address = 0;  // 0: free
    int64_t rows = 0;
    int64_t row_pitch_bytes = 0;
    alignas(64) std::array<std::byte, 128> map;
  };
  Mutex mu_;
  std::array<Entry, kEntries> entries_ QGEMM_GUARDED_BY(mu_);
};

// A pick's kernel on a device, with everything worked out that does not depend on the launch. Launch does
// neither wait nor allocate and is safe under graph capture. Thread-safe.
class PreparedKernel {
 public:
  // InvalidArgument: more arguments than a kernel of ours has. `device` must outlive it.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PreparedKernel>> Create(LaunchSpec spec,
                                                                              LaunchFunction function,
                                                                              LaunchDevice& device);

  const LaunchSpec& spec() const { return spec_; }

  // Launches with these operands, M = 0 not at all. InvalidArgument names the argument that is missing, not
  // aligned, or outside of what the spec serves, as MarshalArguments does.
  [[nodiscard]] absl::Status Launch(const LaunchOperands& operands, void* stream, bool programmatic);

 private:
  static constexpr size_t kMaxArguments = 32;
  static constexpr size_t kMaxBytes = 1024;
  static constexpr int kRoles = 9;

  struct PointerSlot {
    int role;
    uint64_t alignment_mask;
    bool required;
    size_t offset;
  };
  struct IntegerSlot {
    Symbol symbol;
    int bits;
    size_t offset;
  };
  struct MapSlot {
    int role;
    TensorMapShape shape;  // without what the launch brings
    bool rows_from_launch;
    bool pitch_from_launch;
    size_t offset;
    std::unique_ptr<TensorMapCache> cache;
  };

  PreparedKernel(LaunchSpec spec, LaunchFunction function, LaunchDevice& device)
      : spec_(std::move(spec)), function_(function), device_(device) {}

  // Constant after Create.
  const LaunchSpec spec_;
  const LaunchFunction function_;
  LaunchDevice& device_;
  std::vector<std::byte> constants_;  // the argument block with its constants filled in
  std::vector<size_t> offsets_;
  std::vector<PointerSlot> pointers_;
  std::vector<IntegerSlot> integers_;
  std::vector<MapSlot> maps_;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_RUNTIME_PREPARED_KERNEL_H_
