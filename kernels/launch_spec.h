#ifndef QGEMM_KERNELS_LAUNCH_SPEC_H_
#define QGEMM_KERNELS_LAUNCH_SPEC_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/kernel_config.h"
#include "kernels/problem.h"

namespace qgemm {

// Version of the kernels' parameter list and of LaunchSpec's meaning; part of every kernel key.
inline constexpr int kLaunchAbiVersion = 2;

// kZeros: integer zero points or float offsets; kSteps: the fp16 steps of two-level scales
// (kernels/LAYOUT.md).
enum class PointerRole { kX, kWeights, kScales, kZeros, kBias, kY, kWorkspace, kSteps, kResidual };
enum class Symbol { kM, kLdx, kLdy, kLdr };

struct PointerArgument {
  PointerRole role;
  bool read = false;
  bool written = false;
  int alignment = 16;  // bytes
};
// `bits` is 32 or 64.
struct IntegerArgument {
  int bits = 32;
  std::variant<int64_t, Symbol> value;
};
enum class TensorElement { kBf16, kFp16, kU32, kU64 };
inline int TensorElementBytes(TensorElement element) {
  return element == TensorElement::kU64 ? 8 : element == TensorElement::kU32 ? 4 : 2;
}

// A 128-byte CUtensorMap by value, 64-byte aligned, made by whoever launches for its own pointer: 2-D,
// dimensions {columns, rows}, box {box_columns, box_rows}, zero fill beyond the edges.
struct TensorMapArgument {
  PointerRole role;
  TensorElement element = TensorElement::kBf16;
  int64_t columns = 0;          // elements of a row
  int64_t rows = 0;             // 0: the launch's M
  int64_t row_pitch_bytes = 0;  // 0: ldx elements
  int box_columns = 0;
  int box_rows = 0;
  int swizzle_bytes = 0;  // 0 or 128
};
struct KernelArgument {
  std::string name;
  std::variant<PointerArgument, IntegerArgument, TensorMapArgument> kind;
};

KernelArgument PointerTo(std::string name, PointerRole role, bool read, bool written, int alignment = 16);
KernelArgument ConstantArgument(std::string name, int64_t value);  // i32
KernelArgument SymbolArgument(std::string name, int bits, Symbol symbol);

struct Dim3 {
  int64_t x = 1, y = 1, z = 1;
};

// How to launch a candidate for a problem and any M its bucket serves; proto/qgemm/v1/types.proto has the
// same message for clients. Grid (ceil(M / tile_m), grid_n, split_k), block (block_threads, 1, 1). Of a
// config with tails grid_n holds their CTAs, too, and split_k is 1.
struct LaunchSpec {
  int abi_version = kLaunchAbiVersion;
  std::string layout_id;
  std::string entry;
  int tile_m = 8;
  int tile_n = 16;
  int grid_n = 1;
  int split_k = 1;
  int cluster_z = 1;  // above 1: clusters of (1, 1, cluster_z) CTAs
  int block_threads = 32;
  int dynamic_smem_bytes = 0;
  int64_t max_m = 0;  // 0: any
  int64_t ticket_bytes_per_m_tile = 0;
  int64_t partial_bytes_per_m_tile = 0;
  std::vector<KernelArgument> arguments;

  Dim3 Grid(int64_t m) const;
  // Bytes of workspace that must be zero before the first launch: the tickets, rounded up to 256.
  int64_t TicketBytes(int64_t m) const;
  // All workspace bytes for a launch with m rows; 0 when none is needed.
  int64_t WorkspaceBytes(int64_t m) const;
};

// The spec of a legal candidate (IsLegal). `m_bucket` sizes shared memory: the spec serves every M its bucket
// does.
LaunchSpec MakeLaunchSpec(const Candidate& candidate, const Problem& problem, int m_bucket);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_LAUNCH_SPEC_H_
