#ifndef QGEMM_KERNELS_CUDA_GPU_PACKER_H_
#define QGEMM_KERNELS_CUDA_GPU_PACKER_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/driver.h"
#include "kernels/device_packing.h"
#include "kernels/weight_format.h"

namespace qgemm {

// Packs weights that are on a GPU already, to the same bytes as kernels/packing.h's Pack:
//
//   const Driver* driver = Driver::Load().value();
//   Context context = Context::Open(*driver, 0).value();  // the primary context, as PyTorch's
//   GpuPacker packer = GpuPacker::Create(context).value();
//   absl::Status status = packer.Pack(n, k, format, {.codes = ..., .scales = ...}, {.weights = ..., .scales =
//   ...});
//
// Used by the thread that opened the context; lives no longer than it.
class GpuPacker {
 public:
  // Compiles the packing kernels for the context's device, a second or two. NotFound: no NVRTC; other errors
  // are those of Nvrtc::Compile and of the driver.
  [[nodiscard]] static absl::StatusOr<GpuPacker> Create(const Context& context);

  // Waits until the planes are packed; what is in `from` must be there when it is called. Planes have the
  // sizes of PackedSizesFor. Codes and zero points of 2^bits and above are not noticed: they spoil the
  // planes, nothing else. InvalidArgument names a field of shape or format, or an address that is missing or
  // not aligned.
  [[nodiscard]] absl::Status Pack(int64_t n, int64_t k, const WeightFormat& format,
                                  const CanonicalAddresses& from, const PackedAddresses& to) const;

 private:
  GpuPacker(Module module, Stream stream, int sm_count)
      : module_(std::move(module)), stream_(std::move(stream)), sm_count_(sm_count) {}

  // Constant after Create.
  Module module_;
  Stream stream_;
  int sm_count_;
};

}  // namespace qgemm

#endif  // QGEMM_KERNELS_CUDA_GPU_PACKER_H_
