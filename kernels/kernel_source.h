#ifndef QGEMM_KERNELS_KERNEL_SOURCE_H_
#define QGEMM_KERNELS_KERNEL_SOURCE_H_

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

// A pure function of its arguments and of the embedded device sources.
KernelSource RenderKernelSource(const KernelConfig& config, const KernelSignature& signature);

// The GPU-side support kernels of verification and timing (canonical data, packing, reference GEMM,
// comparison, guards, L2 flush): one translation unit with several extern "C" entries, listed in
// support_kernels.h.
KernelSource SupportKernelSource();

// The fingerprint kernel; fingerprint.h has its arguments.
KernelSource FingerprintKernelSource();

// SHA-256 (lower-case hex) over the device sources a family's kernels are made of: part of every kernel key.
std::string DeviceSourceDigest(Family id);
std::string SupportSourceDigest();

}  // namespace qgemm

#endif  // QGEMM_KERNELS_KERNEL_SOURCE_H_
