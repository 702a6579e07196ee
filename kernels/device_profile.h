#ifndef QGEMM_KERNELS_DEVICE_PROFILE_H_
#define QGEMM_KERNELS_DEVICE_PROFILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace qgemm {

// A device class's figures: published ones for planning and prediction, measured ones where they are known.
struct DeviceProfile {
  std::string name;          // "h200"
  std::string product_name;  // as the driver reports it: "NVIDIA H200"
  std::string arch;          // what kernels are compiled for: "sm_90a"
  int compute_major = 0;
  int compute_minor = 0;
  int sm_count = 0;
  int64_t l2_bytes = 0;
  int memory_gib = 0;
  double dram_gb_per_s = 0;    // achievable read bandwidth, 10^9 bytes/s
  double mma_tflops = 0;       // achievable dense bf16 rate of mma.sync, fp32 accumulate
  double wgmma_tflops = 0;     // and of wgmma; 0 where there is none
  double clock_ghz = 0;        // sustained SM clock
  int max_smem_per_block = 0;  // bytes, after opting in
  int max_smem_per_sm = 0;     // bytes
  int max_threads_per_sm = 0;
  int registers_per_sm = 65536;
};

// Built-in profiles: a100 l40s rtx4090 h100 h200 b200 rtx5090.
absl::Span<const DeviceProfile> DeviceProfiles();
// InvalidArgument lists the known names.
[[nodiscard]] absl::StatusOr<DeviceProfile> FindDeviceProfile(absl::string_view name);
// The profile of a present GPU: the built-in one whose product name (or, else, compute capability) matches,
// with the GPU's own SM count, L2 size, memory and shared memory put in. InvalidArgument when its compute
// capability is below 8.0.
[[nodiscard]] absl::StatusOr<DeviceProfile> ProfileForDevice(absl::string_view product_name,
                                                             int compute_major, int compute_minor,
                                                             int sm_count, int64_t l2_bytes, int memory_gib,
                                                             int max_smem_per_block);
// "sm_80" ... : well-formed and at least sm_80, else InvalidArgument saying what is allowed.
[[nodiscard]] absl::Status ValidateArch(absl::string_view arch);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_DEVICE_PROFILE_H_
