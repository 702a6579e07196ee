#ifndef QGEMM_KERNELS_KERNEL_SOURCE_H_
#define QGEMM_KERNELS_KERNEL_SOURCE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"

namespace qgemm {

// Everything NVRTC needs for one kernel but the arch. No library headers are included by the source.
struct KernelSource {
  std::string name;                  // for messages
  std::string entry;                 // extern "C" symbol, the same for all configs of a family
  std::string text;                  // CUDA C++
  std::vector<std::string> options;  // NVRTC options
};

// Texts that stand in place of embedded device sources, by their names ("mma.cuh"): for developers of
// kernels. Compilers' messages then name the source and count its own lines.
using SourceOverrides = std::map<std::string, std::string>;

// A pure function of its arguments and of the embedded device sources.
KernelSource RenderKernelSource(const KernelConfig& config, const KernelSignature& signature,
                                const SourceOverrides& overrides = {});

// The GPU-side support kernels of verification and timing (canonical data, packing, reference GEMM,
// comparison, guards, L2 flush): one translation unit with several extern "C" entries, listed in
// support_kernels.h.
KernelSource SupportKernelSource();

// The fingerprint kernel; fingerprint.h has its arguments.
KernelSource FingerprintKernelSource();

// SHA-256 (lower-case hex) over the device sources a family's kernels are made of: part of every kernel key.
std::string DeviceSourceDigest(Family id, const SourceOverrides& overrides = {});
std::string SupportSourceDigest();

// Whether a family's kernels are made of the device source of this name.
bool UsesDeviceSource(Family id, absl::string_view name);
// The names of all device sources that some family uses, in byte order.
std::vector<std::string> FamilySourceNames();

}  // namespace qgemm

#endif  // QGEMM_KERNELS_KERNEL_SOURCE_H_
