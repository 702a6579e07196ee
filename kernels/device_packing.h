#ifndef QGEMM_KERNELS_DEVICE_PACKING_H_
#define QGEMM_KERNELS_DEVICE_PACKING_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/launch_spec.h"
#include "kernels/weight_format.h"

namespace qgemm {

// Device addresses of the arrays of a CanonicalWeights (kernels/packing.h); 0 where the format has none.
struct CanonicalAddresses {
  uint64_t codes = 0;
  uint64_t scales = 0;
  uint64_t zeros = 0;
  uint64_t offsets = 0;
  uint64_t scale_codes = 0;
  uint64_t offset_codes = 0;
};

// Device addresses of the planes of a PackedWeights, of the sizes of PackedSizesFor and 16-byte aligned; 0
// where the format has none.
struct PackedAddresses {
  uint64_t weights = 0;
  uint64_t scales = 0;
  uint64_t zeros = 0;
  uint64_t steps = 0;
};

// A launch of one of the support kernels.
struct SupportLaunch {
  const char* entry;
  Dim3 grid;
  int threads = 0;
  std::vector<uint64_t> values;  // of the parameters; of those of 4 bytes the lower half

  // One pointer per parameter, into `values`: what cuLaunchKernel takes.
  std::vector<void*> Params();
};

// The launches that pack weights on the device, to the same bytes as kernels/packing.h's Pack; they may run
// in any order. Codes and zero points must be below 2^bits. `sm_count` sizes the grids. A pure function;
// InvalidArgument names a field of the shape or format, or a plane that is missing or not aligned.
[[nodiscard]] absl::StatusOr<std::vector<SupportLaunch>> PackLaunches(int64_t n, int64_t k,
                                                                      const WeightFormat& format,
                                                                      const CanonicalAddresses& from,
                                                                      const PackedAddresses& to,
                                                                      int sm_count);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_DEVICE_PACKING_H_
