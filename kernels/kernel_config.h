#ifndef QGEMM_KERNELS_KERNEL_CONFIG_H_
#define QGEMM_KERNELS_KERNEL_CONFIG_H_

#include <compare>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

enum class Family { kMma };
// Where a CTA keeps its activations: the whole slice of K resident in shared memory, or a part of every stage.
enum class ActivationPath { kSlice, kStaged };
// When the group scale is applied: to the weights before the MMA, or to each group's partial sum after it.
enum class ScaleMode { kPre, kPost };
enum class Reduction { kNone, kWorkspace };

// One point of a kernel family's space. A plain value: comparable, printable, parseable.
// A CTA computes tile_m = 8 * token_tiles rows of X times tile_n = 16 * row_tiles * warps_n rows of W over its slice
// of K; warps_k warps share each tile and split the slice further (summed in fixed order at the end).
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

  int tile_m() const { return 8 * token_tiles; }
  int tile_n() const { return 16 * row_tiles * warps_n; }
  int threads() const { return 32 * warps_n * warps_k; }

  friend auto operator<=>(const KernelConfig&, const KernelConfig&) = default;
};

// "mma_t1_r2_w4x2_s4_b2_slice_post": tokens, rows, warps N x K, stages, blocks, activations, scale.
std::string ConfigName(const KernelConfig& config);
// InvalidArgument for text that ConfigName does not print.
[[nodiscard]] absl::StatusOr<KernelConfig> ParseConfig(absl::string_view text);

absl::string_view ReductionName(Reduction reduction);  // "none", "workspace"

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
