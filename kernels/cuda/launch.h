#ifndef QGEMM_KERNELS_CUDA_LAUNCH_H_
#define QGEMM_KERNELS_CUDA_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/driver.h"
#include "kernels/launch_spec.h"

namespace qgemm {

// The data of one launch. Pointers are device addresses; 0 = null.
struct LaunchOperands {
  int64_t m = 0;
  int64_t ldx = 0;  // elements between rows of X
  int64_t ldy = 0;  // elements between rows of Y
  int64_t ldr = 0;  // elements between rows of the residual; 0 where there is none
  uint64_t x = 0;
  uint64_t weights = 0;
  uint64_t scales = 0;
  uint64_t zeros = 0;  // null where the format has no zero points
  uint64_t steps = 0;  // null where the scales have one level
  uint64_t bias = 0;   // null where the epilogue has no bias
  uint64_t residual = 0;
  uint64_t y = 0;
  uint64_t workspace = 0;  // null where the launch needs none
};

// The values of a kernel's parameters in order, each at its natural size and alignment: the bytes a kernel
// finds in its parameter space.
struct ArgumentBlock {
  std::vector<std::byte> bytes;
  std::vector<size_t> offsets;

  // 128 bytes of `bytes` that only the driver can fill in.
  struct TensorMap {
    size_t offset = 0;
    TensorMapShape shape;
  };
  std::vector<TensorMap> tensor_maps;

  // One pointer per parameter, into `bytes`: what cuLaunchKernel takes. Valid while the block is not changed.
  std::vector<void*> Params();
};

// A pure function. InvalidArgument: M outside the spec's range, a missing operand, or a pointer that is not
// aligned as the spec asks; the message names the argument.
[[nodiscard]] absl::StatusOr<ArgumentBlock> MarshalArguments(const LaunchSpec& spec,
                                                             const LaunchOperands& operands);

// Fills in the block's tensor maps, each by encode(shape, its 128 bytes): what MarshalArguments leaves to the
// driver.
[[nodiscard]] absl::Status FillTensorMaps(
    ArgumentBlock& block,
    absl::FunctionRef<absl::Status(const TensorMapShape& shape, absl::Span<std::byte> out)> encode);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_CUDA_LAUNCH_H_
