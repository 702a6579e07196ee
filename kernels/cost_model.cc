#include "kernels/cost_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/bucket.h"
#include "kernels/family/family.h"
#include "kernels/launch_spec.h"
#include "kernels/packing.h"

namespace qgemm {
namespace {

// Physical constants, fitted once to timings of a prototype of family mma on an H200 (README.md); every
// device shares them, rates scale with the device profile.
constexpr double kLaunchUs = 2.0;          // an empty kernel in a graph, and the first bytes' way
constexpr double kWaveUs = 1.2;            // per wave of CTAs: pipeline fill, last stage, epilogue
constexpr double kWarpUs = 0.03;           // and per warp of a CTA in it: start, barrier, sum over K groups
constexpr double kReductionUs = 1.25;      // split-K: fence, ticket, and the last CTA's first read
constexpr double kReductionStepUs = 0.06;  // per slice and vector that a thread of the last CTA adds
constexpr double kFillBytesPerClock = 96;  // per SM: a resident activation slice, before the first MMA
constexpr double kL2BytesPerClock = 16;    // per SM: what all SMs read of L2 at once, activations above all
constexpr double kLatencyBytes = 2048;     // in flight per SM that cost as much as the transfer itself
constexpr double kWarpsToIssue = 8;        // fewer warps on an SM cannot use its issue slots
constexpr double kMmaEfficiency =
    0.58;  // of mma_tflops, in a loop that also waits for ldmatrix and accumulators
constexpr double kWgmmaEfficiency = 0.75;  // of wgmma_tflops, in a loop that also waits for copies
constexpr double kCopyClocks = 110;        // the producer warp issues one bulk or tensor copy in
constexpr double kIssuePerClock = 4;       // warp instructions per SM
constexpr int kBlockInstructions = 16;     // per 16 x 64 block: loads, addresses, the loop

// Instructions that turn one 16 x 64 block's codes into MMA operands, per warp.
double DequantInstructions(const KernelConfig& config, const KernelSignature& signature) {
  const double words = 4;
  // Shifts, logic and subtractions per eight codes: device/dequant.cuh.
  double instructions = words * (signature.act == ScalarType::kBf16 ? 11 : 9);
  if (config.scale == ScaleMode::kPre) instructions += words * 4;
  if (signature.format.zero_point == ZeroPoint::kInteger) {
    instructions += 6.0 * std::max(1, 64 / signature.format.group_size);
  }
  return instructions + static_cast<double>(kBlockInstructions) / config.row_tiles;
}

// Instructions beside the MMAs per block and token tile: activations' ldmatrix, scaling of partial sums.
double TokenInstructions(const KernelConfig& config, const KernelSignature& signature) {
  if (config.family == Family::kWgmma) return 0;  // activations are read by descriptor
  const double load = 2.0 / config.row_tiles;
  if (config.scale == ScaleMode::kPre) return load;
  return load + 4.0 * std::max(1, 64 / signature.format.group_size);
}

// What the compiler needs per thread, within the cap that its thread count sets.
int Registers(const KernelConfig& config) {
  const int tiles = config.row_tiles * config.token_tiles;
  const int wanted = config.scale == ScaleMode::kPost ? 24 + 24 * config.row_tiles + 8 * tiles
                                                      : 40 + 8 * config.row_tiles + 4 * tiles;
  return std::clamp(wanted, 32, std::min(255, 65536 / config.threads()));
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

CostEstimate PredictCost(const Candidate& candidate, const Problem& problem, int64_t m,
                         const DeviceProfile& device) {
  const KernelConfig& config = candidate.config;
  const KernelSignature& signature = problem.signature;
  const LaunchSpec spec = MakeLaunchSpec(candidate, problem, BucketFor(m));
  const Dim3 grid = spec.Grid(m);
  const double clocks_per_us = device.clock_ghz * 1e3;

  // CTAs: how many, how many at once on an SM, how many on the busiest SM.
  const int64_t ctas = grid.x * grid.y * grid.z;
  const int64_t on_busiest = CeilDiv(ctas, device.sm_count);
  const int64_t occupancy =
      std::max(1, std::min({device.max_threads_per_sm / config.threads(),
                            device.max_smem_per_sm / (spec.dynamic_smem_bytes + 1024),
                            device.registers_per_sm / (Registers(config) * config.threads())}));
  const int64_t waves = CeilDiv(on_busiest, occupancy);
  const double ctas_per_sm = static_cast<double>(ctas) / device.sm_count;

  // A CTA's share of the work, the longest slice's.
  const int64_t unit_k = UnitK(signature.format);
  const int64_t slice_k = CeilDiv(CeilDiv(problem.k, unit_k), candidate.split_k) * unit_k;
  const double rows = static_cast<double>(std::min<int64_t>(m, spec.tile_m));
  const double activation_bytes = rows * slice_k * 2;
  const double weight_bytes = static_cast<double>(spec.tile_n) * slice_k / 2;

  CostEstimate cost;
  cost.wave_efficiency = ctas_per_sm / on_busiest;

  // Weights come from DRAM once; token tiles that follow read them from L2, and every CTA its activations.
  // Too few bytes in flight stretch it all.
  const PackedSizes packed = PackedSizesFor(problem.n, problem.k, signature.format);
  const double plane_bytes = packed.weight_bytes + packed.scale_bytes + packed.zero_bytes;
  const double output_bytes = 2.0 * m * problem.n;
  const double l2_bytes = ctas * activation_bytes + (grid.x - 1) * plane_bytes;
  const double in_flight = std::min<double>(FamilyOf(config).BytesInFlight(config, signature), weight_bytes) *
                           std::min<double>(occupancy, std::max(1.0, ctas_per_sm));
  cost.memory_us = ((plane_bytes + output_bytes) / (device.dram_gb_per_s * 1e3) +
                    l2_bytes / (device.sm_count * kL2BytesPerClock * clocks_per_us)) *
                   (1 + kLatencyBytes / in_flight);

  // A warp's blocks: its share of the slice in whole stages.
  const int64_t stages = CeilDiv(CeilDiv(slice_k / 64, config.blocks_per_stage), config.warps_k);
  const double warp_blocks = static_cast<double>(stages * config.blocks_per_stage * config.row_tiles);
  const int warps = config.epilogue_threads() / 32;
  // Blocks that the busiest SM works through, as if it always had enough warps.
  const auto blocks_of = [&](int64_t resident) {
    return resident == 0 ? 0 : warp_blocks * std::max<double>(resident * warps, kWarpsToIssue);
  };
  const int64_t full_waves = on_busiest / occupancy;
  const double blocks = full_waves * blocks_of(occupancy) + blocks_of(on_busiest % occupancy);
  const bool wgmma = config.family == Family::kWgmma;
  const double tflops = wgmma ? device.wgmma_tflops * kWgmmaEfficiency : device.mma_tflops * kMmaEfficiency;
  const double mma_flops_per_clock = tflops * 1e6 / device.sm_count / clocks_per_us;
  const double block_flops = 2.0 * 16 * 64 * spec.tile_m;
  cost.mma_us = blocks * block_flops / mma_flops_per_clock / clocks_per_us;
  cost.dequant_us =
      blocks *
      (DequantInstructions(config, signature) + config.token_tiles * TokenInstructions(config, signature)) /
      kIssuePerClock / clocks_per_us;

  if (candidate.split_k > 1) {
    const double vectors = std::ceil(rows * spec.tile_n / 4 / config.threads());
    const double traffic = 8.0 * candidate.split_k * m * problem.n;  // written and read once, fp32
    cost.reduction_us =
        kReductionUs + std::max(kReductionStepUs * vectors * candidate.split_k,
                                traffic / (device.sm_count * kL2BytesPerClock * clocks_per_us));
  }
  const double fill_us =
      config.activations == ActivationPath::kSlice
          ? activation_bytes * std::min(on_busiest, occupancy) / kFillBytesPerClock / clocks_per_us
          : 0;
  cost.overhead_us = kLaunchUs + waves * (kWaveUs + kWarpUs * warps + fill_us);
  // wgmma runs beside the next block's dequantization, mma.sync shares the warp's instruction stream with it.
  const double compute_us = wgmma ? std::hypot(cost.mma_us, cost.dequant_us) : cost.mma_us + cost.dequant_us;
  if (wgmma) {
    // A CTA's one producer warp issues every copy of its slice in turn: large tiles and many CTAs per SM hide
    // it.
    const int copies = config.blocks_per_stage + 2;
    const int64_t cta_stages = CeilDiv(slice_k / 64, config.blocks_per_stage);
    cost.memory_us = std::max(cost.memory_us, waves * cta_stages * copies * kCopyClocks / clocks_per_us);
  }
  cost.total_us = std::hypot(cost.memory_us, compute_us) + cost.reduction_us + cost.overhead_us;
  return cost;
}

}  // namespace qgemm
