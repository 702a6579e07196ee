#ifndef QGEMM_KERNELS_KERNEL_CONFIG_H_
#define QGEMM_KERNELS_KERNEL_CONFIG_H_

#include <compare>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

enum class Family { kMma, kWgmma };
// Where a CTA keeps its activations: the whole slice of K resident in shared memory, or a part of every
// stage.
enum class ActivationPath { kSlice, kStaged };
// When the group scale is applied: to the weights before the MMA, or to each group's partial sum after it.
enum class ScaleMode { kPre, kPost };
// How the slices of a split K are summed: nothing to sum; fp32 partials in a workspace, added by the last CTA
// of a tile; or through the distributed shared memory of a cluster of the tile's CTAs (sm_90 and up).
enum class Reduction { kNone, kWorkspace, kCluster };

inline constexpr int kMaxClusterSplit = 8;  // CTAs of a portable cluster

// One point of a kernel family's space. A plain value: comparable, printable, parseable.
// A CTA computes tile_m = 8 * token_tiles rows of X times tile_n rows of W over its slice of K. Family mma:
// warps own row_tiles tiles of 16 rows, warps_n of them along N; family wgmma: warpgroups own row_tiles tiles
// of 64 rows, and two more warps copy. warps_k warps (warpgroups) share each tile and split the slice
// further, summed in fixed order. Family wgmma: a CTA may compute `passes` such tiles, one after the other,
// of the same rows of W and the rows of X that follow each other: what it is launched for is launch_tile_m
// rows.
struct KernelConfig {
  Family family = Family::kMma;
  int token_tiles = 1;
  int row_tiles = 1;
  int warps_n = 1;
  int warps_k = 1;
  int stages = 3;            // depth of the copy pipeline
  int blocks_per_stage = 1;  // 64-wide blocks of K per stage
  ActivationPath activations = ActivationPath::kSlice;
  ScaleMode scale = ScaleMode::kPost;
  int passes = 1;  // above 1: family wgmma, K not split
  // Family wgmma, one pass: a tile's CTA leaves the last of split_k slices of K, the tail, to another, which
  // does the tails of split_k - 1 tiles. For tiles that leave some SMs idle, but not half of them.
  bool tails = false;

  int tile_m() const { return 8 * token_tiles; }
  int launch_tile_m() const { return passes * tile_m(); }
  int tile_n() const { return (family == Family::kWgmma ? 64 : 16) * row_tiles * warps_n; }
  // Threads that compute, and so run the epilogue.
  int epilogue_threads() const { return (family == Family::kWgmma ? 128 : 32) * warps_n * warps_k; }
  // Family wgmma: and the two producer warps, a whole warpgroup where registers are moved from it to several
  // consumer warpgroups.
  int threads() const {
    if (family == Family::kMma) return epilogue_threads();
    const int accumulators = row_tiles * tile_m() / 2;
    const int warpgroups = warps_n * warps_k;
    const bool moves_registers = warpgroups > 1 && accumulators >= (warpgroups == 4 ? 33 : 96);
    return epilogue_threads() + (moves_registers ? 128 : 64);
  }

  friend auto operator<=>(const KernelConfig&, const KernelConfig&) = default;
};

// "mma_t1_r2_w4x2_s4_b2_slice_post": tokens, rows, warps N x K, stages, blocks, activations, scale; and where
// there are several passes their number, "wgmma_t22_r1_w2x1_s4_b2_staged_pre_p2", or "_tails".
std::string ConfigName(const KernelConfig& config);
// InvalidArgument for text that ConfigName does not print.
[[nodiscard]] absl::StatusOr<KernelConfig> ParseConfig(absl::string_view text);

absl::string_view ReductionName(Reduction reduction);  // "none", "workspace", "cluster"

// A config with its run-time choices: what is timed and picked.
struct Candidate {
  KernelConfig config;
  int split_k = 1;
  Reduction reduction = Reduction::kNone;

  friend auto operator<=>(const Candidate&, const Candidate&) = default;
};

// "mma_t1_r2_w4x2_s4_b2_slice_post/k4/workspace".
std::string CandidateName(const Candidate& candidate);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_KERNEL_CONFIG_H_
