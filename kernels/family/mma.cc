#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/family/family.h"

namespace qgemm {
namespace {

// Whether a config compiles without spills at the register cap of its thread count: accumulators, live weight
// and activation fragments, and an allowance for addresses and copies, read off ptxas reports over the space
// (sm_80 to sm_120, groups 32 to 128, with and without zero points). A config that spills all the same is
// rejected when compiled.
bool FitsRegisters(const KernelConfig& c) {
  const int cap = std::min(255, 65536 / c.threads() / 8 * 8);
  const int accumulators = 4 * c.row_tiles * c.token_tiles;
  const bool post = c.scale == ScaleMode::kPost;
  const int fragments = post ? 16 * c.row_tiles + 12 : 4 * c.row_tiles + 8;
  const int allowance = post ? 60 : 72;
  // 128 accumulators leave room for the addresses of 8 token tiles, not of 16 (sm_80 and sm_89 spill).
  if (accumulators >= 128 && c.token_tiles > 8) return false;
  return accumulators + fragments + allowance <= cap;
}

struct Geometry {
  int row_tiles, warps_n, warps_k;
};

void Add(std::vector<KernelConfig>& out, int token_tiles, Geometry g, int stages, int blocks,
         ActivationPath path, ScaleMode scale) {
  KernelConfig c;
  c.token_tiles = token_tiles;
  c.row_tiles = g.row_tiles;
  c.warps_n = g.warps_n;
  c.warps_k = g.warps_k;
  c.stages = stages;
  c.blocks_per_stage = blocks;
  c.activations = path;
  c.scale = scale;
  if (FitsRegisters(c)) out.push_back(c);
}

constexpr int kAlignment = 128;  // of what follows the planes in shared memory

constexpr Geometry kDecodeGeometries[] = {{1, 1, 8}, {1, 1, 16}, {1, 2, 4}, {1, 2, 8}, {1, 3, 4}, {1, 3, 5},
                                          {1, 4, 2}, {1, 4, 4},  {1, 8, 1}, {1, 8, 2}, {2, 1, 8}, {2, 2, 4},
                                          {2, 2, 8}, {2, 4, 2},  {2, 4, 4}, {2, 8, 1}};

// Up to 16 tokens the weights' stream is everything: many warps, private rings, activations resident.
void AddDecode(std::vector<KernelConfig>& out, int token_tiles) {
  for (const Geometry& g : kDecodeGeometries) {
    for (const int stages : {3, 4}) {
      Add(out, token_tiles, g, stages, 2, ActivationPath::kSlice, ScaleMode::kPost);
    }
  }
  for (const Geometry g :
       {Geometry{1, 1, 8}, {1, 2, 8}, {1, 4, 4}, {1, 8, 2}, {2, 2, 4}, {2, 4, 2}, {2, 4, 4}, {2, 8, 1}}) {
    Add(out, token_tiles, g, 6, 1, ActivationPath::kSlice, ScaleMode::kPost);
    Add(out, token_tiles, g, 4, 2, ActivationPath::kSlice, ScaleMode::kPre);
    // For slices of K that do not fit: a long K that the workspace limit or a small shared memory keeps from
    // being split.
    Add(out, token_tiles, g, 3, 2, ActivationPath::kStaged, ScaleMode::kPost);
    Add(out, token_tiles, g, 4, 1, ActivationPath::kStaged, ScaleMode::kPost);
  }
}

// 17 to 32 tokens: the activations no longer always fit beside the ring.
void AddMiddle(std::vector<KernelConfig>& out, int token_tiles) {
  for (const Geometry g : {Geometry{1, 1, 8},
                           {1, 2, 4},
                           {1, 2, 8},
                           {1, 4, 2},
                           {1, 4, 4},
                           {1, 8, 1},
                           {1, 8, 2},
                           {2, 1, 8},
                           {2, 2, 4},
                           {2, 4, 2},
                           {2, 4, 4},
                           {2, 8, 1}}) {
    Add(out, token_tiles, g, 4, 2, ActivationPath::kSlice, ScaleMode::kPost);
    Add(out, token_tiles, g, 4, 2, ActivationPath::kSlice, ScaleMode::kPre);
    Add(out, token_tiles, g, 4, 1, ActivationPath::kStaged, ScaleMode::kPre);
    Add(out, token_tiles, g, 3, 2, ActivationPath::kStaged, ScaleMode::kPre);
    Add(out, token_tiles, g, 3, 1, ActivationPath::kStaged, ScaleMode::kPre);
  }
}

// Activations of bytes.
void AddBytes(std::vector<KernelConfig>& out, int token_tiles) {
  for (const Geometry& g : kDecodeGeometries) {
    if (g.warps_k == 5) continue;  // not tried
    for (const int stages : {3, 4}) {
      Add(out, token_tiles, g, stages, 2, ActivationPath::kSlice, ScaleMode::kPost);
    }
    // For slices that do not fit.
    Add(out, token_tiles, g, 3, 2, ActivationPath::kStaged, ScaleMode::kPost);
  }
}

// 33 to 128 tokens: activations come with the stages. Scaling after the MMA never won here and spills most.
void AddPrefill(std::vector<KernelConfig>& out, int token_tiles) {
  for (const Geometry g : {Geometry{1, 2, 2},
                           {1, 2, 4},
                           {1, 4, 1},
                           {1, 4, 2},
                           {1, 4, 4},
                           {1, 8, 1},
                           {1, 8, 2},
                           {2, 2, 1},
                           {2, 2, 2},
                           {2, 2, 4},
                           {2, 4, 1},
                           {2, 4, 2},
                           {2, 8, 1},
                           {4, 2, 2},
                           {4, 4, 1}}) {
    for (const int stages : {3, 4}) {
      Add(out, token_tiles, g, stages, 1, ActivationPath::kStaged, ScaleMode::kPre);
    }
    Add(out, token_tiles, g, 3, 2, ActivationPath::kStaged, ScaleMode::kPre);
  }
}

constexpr absl::string_view kSources[] = {"common.cuh", "dequant.cuh", "epilogue.cuh", "rows.cuh", "mma.cuh"};

// device/mma.cuh: mma.sync.m16n8k16, sm_80 and up.
class Mma final : public KernelFamily {
 public:
  Family id() const override { return Family::kMma; }
  absl::string_view entry() const override { return "qgemm_mma"; }
  absl::Span<const absl::string_view> device_sources() const override { return kSources; }

  absl::Status SupportsDevice(const DeviceProfile& device) const override {
    if (device.compute_major >= 8) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("family mma needs compute capability 8.0 or newer, ",
                                                      device.name, " has ", device.compute_major, ".",
                                                      device.compute_minor));
  }

  absl::Status SupportsProblem(const Problem& problem) const override {
    return SupportsSignature(problem.signature);
  }

  std::vector<KernelConfig> Configs(const KernelSignature& signature, int m_bucket) const override {
    std::vector<KernelConfig> out;
    const int tokens = (m_bucket + 7) / 8;
    if (tokens <= 2) {
      AddDecode(out, tokens);
    } else if (tokens <= 4) {
      AddMiddle(out, tokens);
    } else if (tokens <= 16) {
      AddPrefill(out, tokens);
      AddPrefill(out, tokens / 2);
      if (tokens > 8) AddPrefill(out, tokens / 4);  // for devices with little shared memory
    } else {
      for (const int tiles : {4, 8, 16}) AddPrefill(out, tiles);
    }
    if (signature.quantization == ActivationQuantization::kInt8) {
      out.clear();
      AddBytes(out, std::min(tokens, 8));
      if (tokens > 8) AddBytes(out, 4);
    }
    return out;
  }

  int64_t DynamicSmemBytes(const KernelConfig& config, const KernelSignature& signature, int64_t slice_units,
                           int rows) const override {
    const int64_t ring = int64_t{config.stages} * RingStageBytes(config, signature.format);
    const StageBytes unit = FragmentStage(signature.format, UnitK(signature.format) / 64);
    const bool resident = config.activations == ActivationPath::kSlice;
    // A row of X: of the slice, or of every stage; int8 activations with their scales and sums, of the slice
    // or a chunk.
    const int64_t slice_k = slice_units * UnitK(signature.format);
    int64_t activations = 0;
    if (signature.quantization == ActivationQuantization::kInt8) {
      const int64_t k =
          resident ? slice_k : int64_t{64} * ChunkStages(config) * config.warps_k * config.blocks_per_stage;
      const bool sums = signature.format.zero_point != ZeroPoint::kNone;
      activations = config.tile_m() * ((k + 127) / 128 * 128 + k / kActivationBlock * (sums ? 8 : 4));
    } else if (resident) {
      activations = rows * slice_k * 2;
    } else {
      activations = int64_t{config.warps_k} * config.stages * config.tile_m() * config.blocks_per_stage * 128;
    }
    if (resident) activations += config.tile_n() / 16 * slice_units * (unit.all() - unit.codes) + kAlignment;
    return (std::max((ring + 127) / 128 * 128 + activations, EpilogueSmemBytes(config)) + 127) / 128 * 128;
  }

  int BytesInFlight(const KernelConfig& config, const KernelSignature& signature) const override {
    return (config.stages - 1) * RingStageBytes(config, signature.format);
  }

  std::vector<KernelArgument> Arguments(const KernelConfig& config, const Problem& problem, int64_t units,
                                        int split_k) const override {
    return {PointerTo("x", PointerRole::kX, true, false),
            PointerTo("weights", PointerRole::kWeights, true, false),
            PointerTo("scales", PointerRole::kScales, true, false),
            PointerTo("zeros", PointerRole::kZeros, true, false),
            PointerTo("steps", PointerRole::kSteps, true, false),
            PointerTo("y", PointerRole::kY, false, true),
            SymbolArgument("m", 32, Symbol::kM),
            ConstantArgument("n", problem.n),
            ConstantArgument("k", problem.k),
            ConstantArgument("units_quotient", units / split_k),
            ConstantArgument("units_remainder", units % split_k),
            SymbolArgument("ldx", 64, Symbol::kLdx),
            PointerTo("workspace", PointerRole::kWorkspace, true, true),
            SymbolArgument("ldy", 64, Symbol::kLdy),
            SymbolArgument("ldr", 64, Symbol::kLdr),
            PointerTo("bias", PointerRole::kBias, true, false),
            PointerTo("residual", PointerRole::kResidual, true, false)};
  }

 private:
  // Of all warps. The slice path's stages hold codes alone.
  static int RingStageBytes(const KernelConfig& config, const WeightFormat& format) {
    const StageBytes stage = FragmentStage(format, config.blocks_per_stage);
    const int warp =
        config.row_tiles * (config.activations == ActivationPath::kSlice ? stage.codes : stage.all());
    return config.warps_n * config.warps_k * ((warp + 31) / 32 * 32);
  }
};

}  // namespace

const KernelFamily& MmaFamily() {
  static const Mma family;
  return family;
}

}  // namespace qgemm
