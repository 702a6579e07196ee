#include "kernels/legality.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "kernels/family/family.h"
#include "kernels/launch_spec.h"

namespace qgemm {

absl::Status IsLegal(const Candidate& candidate, const Problem& problem, int64_t m,
                     const DeviceProfile& device) {
  QGEMM_RETURN_IF_ERROR(FamilyOf(candidate.config).SupportsDevice(device));
  QGEMM_RETURN_IF_ERROR(FamilyOf(candidate.config).SupportsProblem(problem));
  const KernelConfig& config = candidate.config;
  const int64_t unit = UnitK(problem.signature.format);
  const int64_t units = (problem.k + unit - 1) / unit;
  if (candidate.split_k < 1 || candidate.split_k > units) {
    return absl::FailedPreconditionError(absl::StrCat("split_k ", candidate.split_k,
                                                      " leaves empty slices: K ", problem.k, " has ", units,
                                                      " units of ", unit));
  }
  if ((candidate.split_k > 1) != (candidate.reduction != Reduction::kNone)) {
    return absl::FailedPreconditionError(absl::StrCat("reduction ",
                                                      std::string(ReductionName(candidate.reduction)),
                                                      " does not go with split_k ", candidate.split_k));
  }
  if (config.passes < 1 ||
      (config.passes > 1 && (config.family != Family::kWgmma || candidate.split_k > 1))) {
    return absl::FailedPreconditionError(
        absl::StrCat(config.passes, " passes need family wgmma and split_k 1"));
  }
  if (config.tails) {
    if (config.family != Family::kWgmma || config.passes != 1 || config.warps_k != 1) {
      return absl::FailedPreconditionError("tails need family wgmma, one pass and one warpgroup along K");
    }
    if (candidate.split_k < 3 || candidate.reduction != Reduction::kWorkspace) {
      return absl::FailedPreconditionError(
          absl::StrCat("tails need split_k of 3 at least and reduction workspace, not ", candidate.split_k,
                       " and ", std::string(ReductionName(candidate.reduction))));
    }
  } else if (candidate.split_k > 1 && !MaySplit(config)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "split_k ", candidate.split_k, ": of tiles of ", config.tile_m(), " x ", config.tile_n(),
        " a warp keeps more than 32 fragments, and such kernels add no slices; split_k must be 1"));
  }
  if (candidate.reduction == Reduction::kCluster) {
    if (device.compute_major != 9 && device.compute_major != 10) {
      return absl::FailedPreconditionError(
          absl::StrCat("reduction cluster needs compute capability 9.x or 10.x, ", device.name, " has ",
                       device.compute_major, ".", device.compute_minor));
    }
    if (!PushesSlices(config)) {
      return absl::FailedPreconditionError(
          absl::StrCat("reduction cluster: kernels of tiles of ", config.tile_m(), " x ", config.tile_n(),
                       " push no sums to each other; reduction must be workspace"));
    }
    if (candidate.split_k > kMaxClusterSplit) {
      return absl::FailedPreconditionError(absl::StrCat("split_k ", candidate.split_k, " exceeds the ",
                                                        kMaxClusterSplit, " CTAs of a cluster"));
    }
  }
  const LaunchSpec spec = MakeLaunchSpec(candidate, problem, BucketFor(m));
  // The epilogue keeps one word in static shared memory; 1 KiB per CTA is the system's.
  if (spec.dynamic_smem_bytes + 16 > device.max_smem_per_block) {
    return absl::FailedPreconditionError(absl::StrCat("shared memory ", spec.dynamic_smem_bytes,
                                                      " bytes exceeds the ", device.max_smem_per_block,
                                                      " of a block"));
  }
  const int64_t m_tiles = spec.Grid(m).x;
  if (m_tiles > 0x7fffffff || spec.grid_n > 65535 || candidate.split_k > 65535) {
    return absl::FailedPreconditionError(
        absl::StrCat("grid ", m_tiles, " x ", spec.grid_n, " x ", candidate.split_k,
                     " exceeds the launch limits 2147483647 x 65535 x 65535"));
  }
  if (const int64_t bytes = spec.WorkspaceBytes(m); bytes > kMaxWorkspaceBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("workspace ", bytes, " bytes exceeds the limit of ", kMaxWorkspaceBytes));
  }
  if (config.threads() > 1024) {
    return absl::FailedPreconditionError(
        absl::StrCat(config.threads(), " threads exceed the 1024 of a block"));
  }
  return absl::OkStatus();
}

}  // namespace qgemm
