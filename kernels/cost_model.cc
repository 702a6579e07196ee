#include "kernels/cost_model.h"

#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "kernels/bucket.h"
#include "kernels/family/family.h"
#include "kernels/launch_spec.h"
#include "kernels/packing.h"

namespace qgemm {
namespace {

// Physical constants, fitted to timings on an H200 (README.md); every device shares them, rates scale with
// the device profile.
constexpr double kWaveUs = 2.3;             // per wave of CTAs: launch, pipeline fill, last stage, epilogue
constexpr double kReductionUs = 1.81;       // workspace: fence, ticket, and the last CTA's first read
constexpr double kReductionStepUs = 0.321;  // per trip to the L2: a thread asks for several slices at once
constexpr double kPartialBytesPerClock = 20.5;  // per SM: partial sums, written and read once
constexpr double kClusterUs = 0.97;             // cluster: the CTAs meet; each has its share of the sum
constexpr double kClusterStepUs = 0.0338;       // per CTA of a cluster
constexpr double kClusterBytesPerClock = 10.9;  // per SM: partial sums of other SMs
constexpr double kFillBytesPerClock = 312;      // per SM: a resident activation slice, before the first MMA
constexpr double kL2BytesPerClock = 25.3;       // per SM: what all SMs read of L2 at once by cp.async
constexpr double kDramRate = 1.13;  // of dram_gb_per_s, which is what a whole kernel that only reads reaches
constexpr int kBlockInstructions = 16;  // per 16 x 64 block: loads, addresses, the loop
// Family mma.
constexpr double kWarpUs = 0.0158;      // per warp of a CTA and wave: start, barrier, sum over K groups
constexpr double kStageUs = 0.0397;     // per stage that a warp walks: waiting for its bytes, a barrier
constexpr double kLatencyBytes = 3350;  // in flight per SM that cost as much as the transfer itself
constexpr double kWarpsToIssue = 4.47;  // fewer warps on an SM cannot use its issue slots
constexpr double kMmaEfficiency =
    0.96;  // of mma_tflops, in a loop that also waits for ldmatrix and accumulators
constexpr double kIssuePerClock = 4;  // warp instructions per SM
// Family wgmma. Tensor cores run at wgmma_tflops, beside the dequantization of other batches.
constexpr double kTensorCopyBytesPerClock = 80;  // per SM: what the copy engine reads of L2
constexpr double kCopyClocks = 90.4;             // a producer thread issues one copy in
constexpr double kRefillClocks = 1630;           // from a slot's release to its next data
constexpr double kBatchClocks =
    3.15;  // per dequantizing instruction: a warpgroup's batch with an SM to itself
constexpr double kIssueClocks = 2.3;    // and on an SM that has other warpgroups to run meanwhile
constexpr double kEpilogueUs = 0.0507;  // per CTA and vector that a thread sums and stores

// Share of the SMs that clusters of so many CTAs can occupy, one CTA per SM: a cluster stays within a GPC.
// What the driver says of 132 SMs (cudaOccupancyMaxActiveClusters); seven lies between its neighbours.
constexpr double kClusterPacking[kMaxClusterSplit + 1] = {
    1, 1, 1, 117. / 132, 120. / 132., 110. / 132, 102. / 132., 105. / 132, 120. / 132};

// Scales that a row of a block has; channel-wise ones are read once, not per block.
int GroupsPerBlock(const WeightFormat& format) {
  return format.channel_wise() ? 0 : std::max(1, 64 / format.group_size);
}

// Shifts, logic and subtractions that make numbers of eight codes: device/dequant.cuh. Raw codes are not
// made exact integers; those of fp16 are moved up in their bytes.
double CodeInstructions(const KernelSignature& signature, bool raw) {
  const bool bf16 = signature.act == ScalarType::kBf16;
  const bool moved = raw && !bf16 && signature.format.bits < 8;
  const double exact = raw ? (moved ? 2 : 0) : 4;
  if (signature.format.bits == 4) return (bf16 ? 7 : 5) + exact;
  if (signature.format.bits < 8) return 12 + exact;
  if (!bf16) return 6 + exact;
  return 14 + (signature.format.zero_point == ZeroPoint::kNone ? 0 : exact);
}

// Whether the scale is applied once, after the last MMA.
bool DefersScale(const WeightFormat& format) {
  return format.channel_wise() && format.zero_point != ZeroPoint::kFloat;
}

// Family mma sums raw codes in `post` mode, over the blocks of a stage that share a scale.
bool SumsRawCodes(const KernelConfig& config, const KernelSignature& signature) {
  return config.family == Family::kMma && config.scale == ScaleMode::kPost &&
         signature.quantization == ActivationQuantization::kNone && !DefersScale(signature.format);
}

// Family wgmma keeps sums in units of the step of two-level scales in `pre` mode (RunningStep in
// device/dequant.cuh).
bool HasRunningStep(const KernelConfig& config, const WeightFormat& format) {
  return config.family == Family::kWgmma && config.scale == ScaleMode::kPre && format.two_level() &&
         format.zero_point != ZeroPoint::kFloat;
}

// And that make weights of these: one for each of four pairs; more where the activations' type does not hold
// the scale.
double ScaleInstructions(const KernelConfig& config, const KernelSignature& signature) {
  const WeightFormat& format = signature.format;
  if (DefersScale(format)) return 0;
  if (HasRunningStep(config, format)) return 4;
  const bool split =
      format.two_level() || (signature.act == ScalarType::kBf16 && format.scale_type != ScalarType::kBf16);
  if (!split) return 4;
  return format.zero_point == ZeroPoint::kFloat ? 20 : 8;
}

// Instructions that turn one 16 x 64 block's codes into MMA operands, per warp.
double DequantInstructions(const KernelConfig& config, const KernelSignature& signature) {
  const double words = 4;
  // Row tiles of family mma share loads and addresses; those of wgmma are batches of their own.
  const int shared_by = config.family == Family::kMma ? config.row_tiles : 1;
  double instructions = words * CodeInstructions(signature, SumsRawCodes(config, signature));
  if (config.scale == ScaleMode::kPre) instructions += words * ScaleInstructions(config, signature);
  const int groups = GroupsPerBlock(signature.format);
  if (signature.format.zero_point == ZeroPoint::kInteger) instructions += 6.0 * groups;
  if (HasRunningStep(config, signature.format)) {
    // Codes; of four blocks, the step and what it does to the sums.
    instructions += 6.0 * groups + (20 + config.tile_m() / 2.0) / 4;
  } else if (signature.format.two_level()) {
    instructions += 12.0 * groups;
  }
  // Family wgmma adds a group's part once the next one begins: half as often as there are blocks, or every
  // block.
  if (config.family == Family::kWgmma && config.scale == ScaleMode::kPost) {
    instructions += config.tile_m() / 2.0 / (signature.format.group_size >= 128 ? 2 : 1);
  }
  return instructions + static_cast<double>(kBlockInstructions) / shared_by;
}

// Instructions beside the MMAs per block and token tile: activations' ldmatrix, scaling of partial sums.
double TokenInstructions(const KernelConfig& config, const KernelSignature& signature) {
  const double load = 2.0 / config.row_tiles;
  if (config.scale == ScaleMode::kPre || DefersScale(signature.format)) return load;
  const WeightFormat& format = signature.format;
  const double groups = GroupsPerBlock(format);
  if (!SumsRawCodes(config, signature)) return load + 4 * groups;
  const bool exact =
      format.bits == 8 && signature.act == ScalarType::kBf16 && format.zero_point == ZeroPoint::kNone;
  const int stage_k = 64 * config.blocks_per_stage;
  const double parts =
      format.group_size % stage_k == 0 && !format.channel_wise() ? 1.0 / config.blocks_per_stage : groups;
  if (exact) return load + 4 * parts;
  // The activations' sums, for all row tiles, and what is taken off a part for them; offsets have products of
  // their own.
  return load + 4.0 / config.row_tiles + (format.zero_point == ZeroPoint::kFloat ? 12 : 8) * parts;
}

// What NVRTC 13.0 gives a thread of the int4 kernels for sm_90a (682 of them; some registers off), in steps
// of eight, within the cap that the CTA's threads set.
int Registers(const KernelConfig& config) {
  const int rows = config.row_tiles;
  const int tokens = config.token_tiles;
  const bool post = config.scale == ScaleMode::kPost;
  int wanted = 0;
  if (config.family == Family::kWgmma) {
    const int accumulators = rows * config.tile_m() / 2;
    wanted = post ? 44 + 12 * rows + 3 * accumulators : 60 + accumulators;
  } else if (post) {
    wanted = 26 + 10 * rows + (14 + 27 * rows) * tokens / 2;
  } else {
    const int slice = config.activations == ActivationPath::kSlice ? 7 : 0;
    wanted = (rows == 1 ? 44 + 7 * tokens : rows == 2 ? 48 + 15 * tokens : 65 + 23 * tokens) - slice;
  }
  const int cap = std::min(255, 65536 / config.threads()) / 8 * 8;
  return std::clamp((wanted + 7) / 8 * 8, 32, std::max(32, cap));
}

// A candidate's CTAs on the device, and one CTA's share of the work (the longest slice's).
struct Work {
  int64_t ctas = 0;
  int64_t on_busiest = 0;  // CTAs of the busiest SM
  int64_t occupancy = 0;   // CTAs that an SM holds at once
  int64_t waves = 0;
  double rows = 0;  // of X in a tile
  int64_t slice_k = 0;
  double activation_bytes = 0;
  double streamed_bytes = 0;  // packed planes and output: DRAM once
  double l2_bytes = 0;        // activations of every CTA, and weights again for token tiles that follow

  // Clocks of the busiest SM whose rounds of `resident` CTAs take clocks_of(resident).
  template <typename ClocksOf>
  double Rounds(const ClocksOf& clocks_of) const {
    const int64_t rest = on_busiest % occupancy;
    const int64_t full = on_busiest / occupancy;
    return static_cast<double>(full) * clocks_of(occupancy) + (rest == 0 ? 0 : clocks_of(rest));
  }
};

Work WorkOf(const Candidate& candidate, const Problem& problem, int64_t m, const LaunchSpec& spec,
            const DeviceProfile& device) {
  const KernelConfig& config = candidate.config;
  const Dim3 grid = spec.Grid(m);
  Work work;
  work.ctas = grid.x * grid.y * grid.z;
  const double packing = kClusterPacking[std::min<int>(spec.cluster_z, kMaxClusterSplit)];
  const auto sms = static_cast<int64_t>(device.sm_count * packing + 1e-6);
  work.on_busiest = CeilDiv(work.ctas, sms);
  work.occupancy = std::max(1, std::min({device.max_threads_per_sm / config.threads(),
                                         device.max_smem_per_sm / (spec.dynamic_smem_bytes + 1024),
                                         device.registers_per_sm / (Registers(config) * config.threads())}));
  work.waves = CeilDiv(work.on_busiest, work.occupancy);

  const int64_t unit_k = UnitK(problem.signature.format);
  const int64_t units = CeilDiv(problem.k, unit_k);
  // With tails all CTAs are about as long as those of the tiles.
  work.slice_k = (config.tails ? units - TailUnits(config, problem.signature.format, units, candidate.split_k)
                               : CeilDiv(units, candidate.split_k)) *
                 unit_k;
  work.rows = static_cast<double>(std::min<int64_t>(m, spec.tile_m));
  work.activation_bytes = work.rows * work.slice_k * 2;
  const PackedSizes packed = PackedSizesFor(problem.n, problem.k, problem.signature.format);
  const double plane_bytes = packed.weight_bytes + packed.scale_bytes + packed.zero_bytes + packed.step_bytes;
  work.streamed_bytes = plane_bytes + 2.0 * m * problem.n;
  work.l2_bytes = work.ctas * work.activation_bytes + (CeilDiv(m, config.tile_m()) - 1) * plane_bytes;
  return work;
}

// The packed bytes come from DRAM while the activations, which every CTA reads again, come from L2.
double MemoryUs(const Work& work, double l2_bytes_per_clock, const DeviceProfile& device) {
  return std::hypot(work.streamed_bytes / (kDramRate * device.dram_gb_per_s * 1e3),
                    work.l2_bytes / (device.sm_count * l2_bytes_per_clock * device.clock_ghz * 1e3));
}

// Flops of an SM in a clock.
double FlopsPerClock(double tflops, const DeviceProfile& device) {
  return tflops * 1e3 / device.sm_count / device.clock_ghz;
}

double ReductionUs(const Candidate& candidate, const Problem& problem, int64_t m, const Work& work,
                   const DeviceProfile& device) {
  if (candidate.reduction == Reduction::kNone) return 0;
  const int split = candidate.split_k;
  const KernelConfig& config = candidate.config;
  const double tile_bytes = 4.0 * work.rows * config.tile_n();
  const double bytes_per_us = device.clock_ghz * 1e3;  // of a byte a clock
  if (candidate.reduction == Reduction::kCluster) {
    return kClusterUs + kClusterStepUs * split +
           tile_bytes * (split - 1) / split / (kClusterBytesPerClock * bytes_per_us);
  }
  // With tails one of a tile's two CTAs writes its sums, and the other reads them.
  if (config.tails) {
    return kReductionUs + 8.0 * m * problem.n / (device.sm_count * kPartialBytesPerClock * bytes_per_us);
  }
  // As device/rows.cuh and fragments.cuh: large CTAs that can be resident all at once share a tile's sum, and
  // keep their own share; a thread asks for some of its rows of several slices at once.
  const int threads = config.epilogue_threads();
  const double row_step = threads * 4.0 / config.tile_n();
  const bool together =
      MayShareTiles(config) && split <= kMostShares && work.rows > row_step && work.ctas <= device.sm_count;
  const double rows = together ? std::ceil(static_cast<double>(work.rows) / split) : work.rows;
  const int at_once = config.family == Family::kMma ? 2 : FragmentsAtOnce(config);
  const double trips = std::ceil(rows / (at_once * row_step)) *
                       std::ceil((split - (together ? 1.0 : 0.0)) / SlicesAtOnce(config));
  // Written and read once, fp32.
  const double traffic = 8.0 * (split - (together ? 1 : 0)) * m * problem.n;
  return kReductionUs + std::max(kReductionStepUs * trips,
                                 traffic / (device.sm_count * kPartialBytesPerClock * bytes_per_us));
}

// Warps share one instruction stream between copies, dequantization and mma.sync.
void PredictMma(const KernelConfig& config, const KernelSignature& signature, const Work& work,
                const DeviceProfile& device, CostEstimate* cost) {
  const double clocks_per_us = device.clock_ghz * 1e3;
  // Too few bytes in flight stretch the transfers.
  const double ctas_per_sm = static_cast<double>(work.ctas) / device.sm_count;
  const double slice_bytes = static_cast<double>(config.tile_n()) * work.slice_k * signature.format.bits / 8;
  const double in_flight = std::min<double>(FamilyOf(config).BytesInFlight(config, signature), slice_bytes) *
                           std::min<double>(work.occupancy, std::max(1.0, ctas_per_sm));
  cost->memory_us = MemoryUs(work, kL2BytesPerClock, device) * (1 + kLatencyBytes / in_flight);

  // Blocks that the busiest SM works through, as if it always had enough warps; a warp's are its share of the
  // slice in whole stages.
  const int64_t stages = CeilDiv(CeilDiv(work.slice_k / 64, config.blocks_per_stage), config.warps_k);
  const double warp_blocks = static_cast<double>(stages * config.blocks_per_stage * config.row_tiles);
  const int warps = config.threads() / 32;
  const double blocks = work.Rounds(
      [&](int64_t resident) { return warp_blocks * std::max<double>(resident * warps, kWarpsToIssue); });
  const double block_flops = 2.0 * 16 * 64 * config.tile_m();
  cost->mma_us =
      blocks * block_flops / FlopsPerClock(device.mma_tflops * kMmaEfficiency, device) / clocks_per_us;
  cost->dequant_us =
      blocks *
      (DequantInstructions(config, signature) + config.token_tiles * TokenInstructions(config, signature)) /
      kIssuePerClock / clocks_per_us;
  const double fill_us = config.activations == ActivationPath::kSlice
                             ? work.activation_bytes * std::min(work.on_busiest, work.occupancy) /
                                   kFillBytesPerClock / clocks_per_us
                             : 0;
  cost->overhead_us = work.waves * (kWaveUs + kWarpUs * warps + kStageUs * stages + fill_us);
  cost->main_us = std::hypot(cost->memory_us, cost->mma_us + cost->dequant_us);
}

// A CTA walks its stages at the pace of the slowest of: the producer threads, the way of a slot's bytes, one
// warpgroup's own instructions, and the issue slots and tensor cores that the SM's warpgroups share. They
// overlap, not perfectly: the cubic norm.
void PredictWgmma(const KernelConfig& config, const KernelSignature& signature, int64_t m, const Work& work,
                  const DeviceProfile& device, CostEstimate* cost) {
  const double clocks_per_us = device.clock_ghz * 1e3;
  cost->memory_us = MemoryUs(work, kTensorCopyBytesPerClock, device);

  // A pass goes on with the ring of the one before: what it has of its own is an epilogue.
  const int64_t passes = std::min<int64_t>(config.passes, CeilDiv(m, config.tile_m()));
  const int64_t pass_stages = CeilDiv(work.slice_k / 64, config.blocks_per_stage);
  const int64_t stages = passes * pass_stages;
  // One thread copies each block's activations, another the codes and each other plane.
  const StageBytes stage = FragmentStage(signature.format, config.blocks_per_stage);
  const int planes = (stage.scales > 0) + (stage.zeros > 0) + (stage.steps > 0);
  const double produce_clocks = stages * std::max(config.blocks_per_stage, 1 + planes) * kCopyClocks;
  const double refill_clocks = stages * kRefillClocks / (config.stages - 1);
  // A batch is a warpgroup's 64 x 64 block of weights.
  const double batches = static_cast<double>(passes * CeilDiv(pass_stages, config.warps_k) *
                                             config.blocks_per_stage * config.row_tiles);
  const int warpgroups = config.warps_n * config.warps_k;
  const double instructions = DequantInstructions(config, signature);
  const double tensor_clocks =
      batches * warpgroups * 2.0 * 64 * 64 * config.tile_m() / FlopsPerClock(device.wgmma_tflops, device);
  const double issue_clocks = batches * warpgroups * instructions * kIssueClocks;
  const double walk_us = work.Rounds([&](int64_t resident) {
    double cubes = 0;
    for (const double clocks : {produce_clocks, refill_clocks, batches * instructions * kBatchClocks,
                                resident * issue_clocks, resident * tensor_clocks}) {
      cubes += clocks * clocks * clocks;
    }
    return std::cbrt(cubes);
  }) / clocks_per_us;
  cost->mma_us = work.on_busiest * tensor_clocks / clocks_per_us;
  cost->dequant_us = work.on_busiest * issue_clocks / clocks_per_us;
  const double vectors = std::ceil(work.rows * config.tile_n() / 4 / config.epilogue_threads());
  cost->overhead_us =
      work.waves * kWaveUs + kEpilogueUs * vectors * std::min(work.on_busiest, work.occupancy);
  cost->main_us = std::max(cost->memory_us, walk_us);
}

}  // namespace

CostEstimate PredictCost(const Candidate& candidate, const Problem& problem, int64_t m,
                         const DeviceProfile& device) {
  const LaunchSpec spec = MakeLaunchSpec(candidate, problem, BucketFor(m));
  const Work work = WorkOf(candidate, problem, m, spec, device);
  CostEstimate cost;
  cost.wave_efficiency = static_cast<double>(work.ctas) / device.sm_count / work.on_busiest;
  if (candidate.config.family == Family::kWgmma) {
    PredictWgmma(candidate.config, problem.signature, m, work, device, &cost);
  } else {
    PredictMma(candidate.config, problem.signature, work, device, &cost);
  }
  cost.reduction_us = ReductionUs(candidate, problem, m, work, device);
  cost.total_us = cost.main_us + cost.reduction_us + cost.overhead_us;
  return cost;
}

}  // namespace qgemm
