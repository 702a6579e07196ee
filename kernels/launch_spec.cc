#include "kernels/launch_spec.h"

#include <algorithm>

#include "base/ceil_div.h"
#include "kernels/bucket.h"
#include "kernels/family/family.h"
#include "kernels/packing.h"

namespace qgemm {
KernelArgument PointerTo(std::string name, PointerRole role, bool read, bool written, int alignment) {
  return {std::move(name), PointerArgument{role, read, written, alignment}};
}
KernelArgument ConstantArgument(std::string name, int64_t value) {
  return {std::move(name), IntegerArgument{32, value}};
}
KernelArgument SymbolArgument(std::string name, int bits, Symbol symbol) {
  return {std::move(name), IntegerArgument{bits, symbol}};
}

Dim3 LaunchSpec::Grid(int64_t m) const { return {CeilDiv(m, tile_m), grid_n, split_k}; }

int64_t LaunchSpec::TicketBytes(int64_t m) const {
  return CeilDiv(CeilDiv(m, tile_m) * ticket_bytes_per_m_tile, 256) * 256;
}

int64_t LaunchSpec::WorkspaceBytes(int64_t m) const {
  return TicketBytes(m) + CeilDiv(m, tile_m) * partial_bytes_per_m_tile;
}

LaunchSpec MakeLaunchSpec(const Candidate& candidate, const Problem& problem, int m_bucket) {
  const KernelConfig& config = candidate.config;
  const KernelSignature& signature = problem.signature;
  const KernelFamily& family = FamilyOf(config);
  const int64_t units = CeilDiv(problem.k, UnitK(signature.format));
  const int split = candidate.split_k;
  const bool open_ended = m_bucket == BucketLadder().back();

  LaunchSpec spec;
  spec.layout_id = std::string(kLayoutId);
  spec.entry = std::string(family.entry());
  spec.tile_m = config.launch_tile_m();
  spec.tile_n = config.tile_n();
  const int64_t tiles_n = CeilDiv(problem.n, spec.tile_n);
  // With tails, CTAs that do them follow those of the tiles.
  spec.grid_n = static_cast<int>(tiles_n + (config.tails ? CeilDiv(tiles_n, std::max(1, split - 1)) : 0));
  spec.split_k = config.tails ? 1 : split;
  spec.block_threads = config.threads();
  spec.dynamic_smem_bytes = static_cast<int>(std::min<int64_t>(
      family.DynamicSmemBytes(config, signature, CeilDiv(units, split), std::min(m_bucket, config.tile_m())),
      INT32_MAX));
  spec.max_m = open_ended ? 0 : m_bucket;
  spec.cluster_z = candidate.reduction == Reduction::kCluster ? split : 1;
  if (candidate.reduction == Reduction::kWorkspace) {
    const int parts = config.tails ? 2 : split;
    spec.ticket_bytes_per_m_tile = tiles_n * 4;
    spec.partial_bytes_per_m_tile = tiles_n * parts * spec.tile_m * spec.tile_n * 4;
  }
  spec.arguments = family.Arguments(config, problem, units, split);
  return spec;
}

}  // namespace qgemm
