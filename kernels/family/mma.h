#ifndef QGEMM_KERNELS_FAMILY_MMA_H_
#define QGEMM_KERNELS_FAMILY_MMA_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device_profile.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"

namespace qgemm {

// Family `mma` (device/mma.cuh): mma.sync.m16n8k16, sm_80 and up. Everything the rest of kernels/ asks of a
// family.
namespace mma_family {

inline constexpr char kEntry[] = "qgemm_mma";

// K in units: a slice of a split is a whole number of them. max(64, group) weights.
int UnitK(const WeightFormat& format);

// Bytes of dynamic shared memory for slices of at most `slice_units` units and `rows` rows of X per CTA.
int DynamicSmemBytes(const KernelConfig& config, const KernelSignature& signature, int64_t slice_units,
                     int rows);

// Weight bytes a CTA keeps in flight: what hides memory latency.
int BytesInFlight(const KernelConfig& config, const KernelSignature& signature);

// All configs worth trying for a bucket, unsorted; independent of any shape.
std::vector<KernelConfig> Configs(const KernelSignature& signature, int m_bucket);

// The lines `constexpr ... = ...;` of namespace config that the device source reads.
std::string ConfigConstants(const KernelConfig& config, const KernelSignature& signature);

// FailedPrecondition when the device cannot run the family at all.
[[nodiscard]] absl::Status SupportsDevice(const DeviceProfile& device);

}  // namespace mma_family
}  // namespace qgemm

#endif  // QGEMM_KERNELS_FAMILY_MMA_H_
