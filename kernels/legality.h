#ifndef QGEMM_KERNELS_LEGALITY_H_
#define QGEMM_KERNELS_LEGALITY_H_

#include "absl/status/status.h"
#include "kernels/device_profile.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"

namespace qgemm {

inline constexpr int64_t kMaxWorkspaceBytes = 64 << 20;

// The one predicate that decides whether a candidate can run a problem with `m` rows on a device: shared
// memory, workspace, grid limits, non-empty slices, arch. OK, or FailedPrecondition with the reason.
[[nodiscard]] absl::Status IsLegal(const Candidate& candidate, const Problem& problem, int64_t m,
                                   const DeviceProfile& device);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_LEGALITY_H_
