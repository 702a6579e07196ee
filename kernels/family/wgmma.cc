#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/family/family.h"
#include "kernels/packing.h"

namespace qgemm {
namespace {

constexpr absl::string_view kSources[] = {"common.cuh", "dequant.cuh", "epilogue.cuh", "fragments.cuh",
                                          "wgmma.cuh"};

struct Geometry {
  int row_tiles, groups_n, groups_k;
};

// Registers of a consumer thread: accumulators, two blocks of fragments and addresses, under the cap of the
// CTA's size.
bool FitsRegisters(const KernelConfig& c) {
  const int consumers = c.epilogue_threads();
  const bool moved = c.threads() - consumers == 128;
  int cap = std::min(255, 65536 / ((c.threads() + 127) / 128 * 128) / 8 * 8);  // allocated for warpgroups
  if (moved) cap = consumers == 256 ? 240 : 160;  // setmaxnreg in the device source
  const int accumulators = c.row_tiles * c.tile_m() / 2 * (c.scale == ScaleMode::kPost ? 2 : 1);
  // Of four consumer warpgroups NVRTC 13.0 spills no such config, nor serialises its wgmma, with 96 registers
  // or, moved, 112.
  if (consumers == 512) return accumulators <= (moved ? 52 : 32);
  return consumers <= 384 && accumulators + 32 + 40 <= cap;
}

// Token tiles of a CTA for many tokens: the bucket in equal parts. What the last wave of CTAs leaves idle is
// most of what large M loses, and the parts are what the number of CTAs can be chosen by (6656x19968, M 1024:
// 208 CTAs of 256 tokens keep 132 SMs busy for 79 % of two waves, 260 of 208 tokens for 98 %).
std::vector<int> TokenTiles(int tokens) {
  constexpr int kFewest = 8, kMost = 32;  // wgmma takes up to 256 tokens
  const int least_parts = (tokens + kMost - 1) / kMost;
  std::vector<int> tiles;
  for (int parts = least_parts; parts <= 2 * least_parts || parts <= 4; ++parts) {
    const int tile = (tokens + parts - 1) / parts;
    if (tile < kFewest) break;
    // A waste of more than an eighth, or a tile hardly smaller than the one before.
    if (tile * parts * 8 > tokens * 9) continue;
    if (!tiles.empty() && tiles.back() - tile < 3) continue;
    tiles.push_back(tile);
  }
  return tiles;
}

// device/wgmma.cuh: wgmma.m64nNk16 with weights through registers, sm_90a.
class Wgmma final : public KernelFamily {
 public:
  Family id() const override { return Family::kWgmma; }
  absl::string_view entry() const override { return "qgemm_wgmma"; }
  absl::Span<const absl::string_view> device_sources() const override { return kSources; }

  // wgmma takes its accumulators' count from the instruction: the wrapper is written for the config's token
  // tile. PTX ISA, wgmma.mma_async: D and A in registers, B by descriptor; the predicate says whether D is
  // read.
  std::string GeneratedSource(const KernelConfig& config, const KernelSignature& signature) const override {
    const int accumulators = config.tile_m() / 2;
    const absl::string_view type = signature.act == ScalarType::kBf16 ? "bf16" : "f16";
    std::string outputs, constraints;
    for (int i = 0; i < accumulators; ++i) {
      absl::StrAppend(&outputs, i ? "," : "", "%", i);
      absl::StrAppend(&constraints, i ? ", " : "", "\"+f\"(d[", i, "])");
    }
    const int a = accumulators;
    return absl::StrCat(
        "QG_DEVICE void wgmma_issue(float (&d)[", accumulators,
        "], const u32 (&a)[4], u64 b, int accumulate) {\n  asm volatile(\"{.reg .pred p; setp.ne.b32 p, %",
        a + 5, ", 0; wgmma.mma_async.sync.aligned.m64n", config.tile_m(), "k16.f32.", type, ".", type, " {",
        outputs, "}, {%", a, ",%", a + 1, ",%", a + 2, ",%", a + 3, "}, %", a + 4,
        ", p, 1, 1, 0;}\"\n      : ", constraints,
        "\n      : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b), \"r\"(accumulate));\n}\n",
        "namespace config {\nenum : int { kPasses = ", config.passes,
        " };\nenum : int { kSlotsAhead = ", SlotsAhead(config, signature.format),
        " };\nenum : int { kEpilogueBytes = ", EpilogueSmemBytes(config), " };\n}\n");
  }

  absl::Status SupportsDevice(const DeviceProfile& device) const override {
    if (device.arch == "sm_90a") return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("family wgmma needs sm_90a, ", device.name, " is ", device.arch));
  }

  absl::Status SupportsProblem(const Problem& problem) const override {
    QGEMM_RETURN_IF_ERROR(SupportsSignature(problem.signature));
    if (problem.signature.quantization != ActivationQuantization::kNone) {
      return absl::FailedPreconditionError(
          "family wgmma has no int8 activations; they are left to family mma");
    }
    if (problem.n >= 64) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("family wgmma computes 64 columns of Y at a time; n ",
                                                      problem.n,
                                                      " is left to family mma, which computes 16"));
  }

  std::vector<KernelConfig> Configs(const KernelSignature& signature, int m_bucket) const override {
    std::vector<KernelConfig> out;
    if (signature.quantization != ActivationQuantization::kNone) return out;
    const int tokens = (m_bucket + 7) / 8;
    const WeightFormat& format = signature.format;
    // Parts of a sum need a block of one scale, and offsets an MMA of their own.
    const bool parts = format.group_size >= 64 && format.zero_point != ZeroPoint::kFloat;
    // A scale that the activations' type does not hold costs twice as much on the weights, and no more on a
    // part.
    const bool split =
        format.two_level() || (signature.act == ScalarType::kBf16 && format.scale_type == ScalarType::kFp16);
    if (tokens <= 8) {
      // All four warpgroups of an SM in one CTA: it reads the activations once, and few enough CTAs can be
      // resident to add their slices together.
      if (tokens > 2) {
        for (const int stages : {3, 4, 6}) {
          Add(out, tokens, {1, 4, 1}, stages, 2, ScaleMode::kPre);
          if (parts && split) Add(out, tokens, {1, 4, 1}, stages, 2, ScaleMode::kPost);
        }
        for (const int stages : {4, 6, 8}) Add(out, tokens, {1, 2, 2}, stages, 2, ScaleMode::kPre);
      }
      for (const Geometry g : {Geometry{1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {1, 3, 1}, {2, 1, 1}, {2, 2, 1}}) {
        for (const int stages : {3, 4, 6, 8}) {
          // Few tokens leave room for deep rings, and shallow ones then never won; nor did the widest tile.
          if (tokens <= 2 && stages == 3) continue;
          if (tokens == 1 && stages == 6) continue;
          if (tokens <= 4 && g.row_tiles * g.groups_n == 4) continue;
          Add(out, tokens, g, stages, 2, ScaleMode::kPre);
          const bool few = tokens <= 4 && stages > 4;
          if (parts && (few || (split && g.row_tiles == 1))) Add(out, tokens, g, stages, 2, ScaleMode::kPost);
        }
        // Twice as wide stages halve the copies per byte; with more tokens they never won. A box has at most
        // 256 words.
        if (signature.format.bits > 4 || tokens > 4 || g.row_tiles * g.groups_n > 2) continue;
        for (const int stages : {3, 4, 6}) {
          Add(out, tokens, g, stages, 4, parts ? ScaleMode::kPost : ScaleMode::kPre);
        }
      }
    } else {
      for (const int tiles : TokenTiles(tokens)) {
        for (const Geometry g : {Geometry{1, 1, 1}, {1, 2, 1}, {1, 3, 1}, {2, 1, 1}, {2, 2, 1}}) {
          for (const int stages : {3, 4, 6}) Add(out, tiles, g, stages, 2, ScaleMode::kPre);
        }
        // A batch of so few tokens takes the tensor cores less time than a warpgroup the next dequantization:
        // two K groups take turns. They need three stages each.
        if (tiles <= 16) {
          for (const int stages : {6, 8}) Add(out, tiles, {1, 1, 2}, stages, 2, ScaleMode::kPre);
        }
        // As above, four warpgroups: as many tokens as their registers allow.
        Add(out, tiles, {1, 2, 2}, 6, 2, ScaleMode::kPre);
        Add(out, tiles, {1, 4, 1}, 4, 2, ScaleMode::kPre);
      }
      if (tokens >= kFewestForPasses) AddPasses(out, tokens, format);
      AddTails(out, tokens, format);
    }
    return out;
  }

  int64_t DynamicSmemBytes(const KernelConfig& config, const KernelSignature& signature, int64_t,
                           int) const override {
    const int64_t slot = SlotBytes(config, signature.format);
    const int64_t ring = config.stages * slot;
    // Nothing lies over the barriers.
    const int64_t bytes =
        std::max(ring, SlotsAhead(config, signature.format) * slot + EpilogueSmemBytes(config)) +
        BarrierBytes(config);
    return (bytes + 127) / 128 * 128;
  }

  int BytesInFlight(const KernelConfig& config, const KernelSignature& signature) const override {
    return config.stages * config.tile_n() / 16 *
           FragmentStage(signature.format, config.blocks_per_stage).all();
  }

  std::vector<KernelArgument> Arguments(const KernelConfig& config, const Problem& problem, int64_t units,
                                        int split_k) const override {
    const WeightFormat& format = problem.signature.format;
    const PackedSizes packed = PackedSizesFor(problem.n, problem.k, format);
    const TensorElement element =
        problem.signature.act == ScalarType::kBf16 ? TensorElement::kBf16 : TensorElement::kFp16;
    // A plane of the packed weights: one row of 64-bit words per 16 rows of N.
    const auto plane = [&](PointerRole role, int64_t plane_bytes, int box_bytes) {
      const int64_t pitch = plane_bytes / (packed.padded_n / 16);
      return TensorMapArgument{role,          TensorElement::kU64,  pitch / 8, packed.padded_n / 16, pitch,
                               box_bytes / 8, config.tile_n() / 16, 0};
    };
    const StageBytes stage = FragmentStage(format, config.blocks_per_stage);
    const TensorMapArgument weights = plane(PointerRole::kWeights, packed.weight_bytes, stage.codes);
    // Planes that the format lacks, or that do not come with the stages, are not read: the weights' map
    // stands in.
    const auto plane_or_weights = [&](PointerRole role, int64_t plane_bytes, int box_bytes) {
      return box_bytes > 0 ? plane(role, plane_bytes, box_bytes) : weights;
    };
    return {{"x", TensorMapArgument{PointerRole::kX, element, problem.k, 0, 0, 64, config.tile_m(), 128}},
            {"weights", weights},
            {"scales", plane_or_weights(PointerRole::kScales, packed.scale_bytes, stage.scales)},
            {"zeros", plane_or_weights(PointerRole::kZeros, packed.zero_bytes, stage.zeros)},
            {"steps", plane_or_weights(PointerRole::kSteps, packed.step_bytes, stage.steps)},
            SymbolArgument("m", 32, Symbol::kM),
            ConstantArgument("n", problem.n),
            ConstantArgument("k", problem.k),
            config.tails ? ConstantArgument("tail_units", TailUnits(config, format, units, split_k))
                         : ConstantArgument("units_quotient", units / split_k),
            config.tails ? ConstantArgument("tails_per_cta", split_k - 1)
                         : ConstantArgument("units_remainder", units % split_k),
            PointerTo("y", PointerRole::kY, false, true),
            // Lines of it are discarded.
            PointerTo("workspace", PointerRole::kWorkspace, true, true, 128),
            SymbolArgument("ldy", 64, Symbol::kLdy),
            SymbolArgument("ldr", 64, Symbol::kLdr),
            PointerTo("bias", PointerRole::kBias, true, false),
            PointerTo("residual", PointerRole::kResidual, true, false),
            PointerTo("channel_scales", PointerRole::kScales, format.channel_wise(), false),
            PointerTo("channel_zeros", PointerRole::kZeros, format.channel_wise(), false)};
  }

 private:
  static constexpr int kFewestForPasses = 32;  // token tiles of a bucket
  static constexpr int kFewestForTails = 16;   // of a CTA
  static constexpr int64_t kSmemPerSm = 228 << 10;
  static constexpr int64_t kSmemReserved = 1024 + 128;  // of each CTA: the system's, static, rounding

  // Two or three passes where the bucket's token tiles are so many for each CTA, of CTAs that have an SM to
  // themselves; they need a slot that is filled during an epilogue.
  static void AddPasses(std::vector<KernelConfig>& out, int tokens, const WeightFormat& format) {
    for (const int tiles : TokenTiles(tokens)) {
      const int parts = (tokens + tiles - 1) / tiles;
      for (const int passes : {2, 3}) {
        if (parts % passes != 0) continue;
        for (const Geometry g : {Geometry{1, 2, 1}, {1, 3, 1}, {2, 1, 1}, {2, 2, 1}}) {
          AddSeveralTiles(out, tiles, g, format, passes, false);
        }
      }
    }
  }

  // Large tiles: what they leave idle is worth most.
  static void AddTails(std::vector<KernelConfig>& out, int tokens, const WeightFormat& format) {
    for (const int tiles : TokenTiles(tokens)) {
      if (tiles < kFewestForTails) continue;
      for (const Geometry g : {Geometry{1, 1, 1}, {1, 2, 1}}) AddSeveralTiles(out, tiles, g, format, 1, true);
    }
  }

  // With the deepest ring that leaves a slot to be filled during an epilogue, if any does.
  static void AddSeveralTiles(std::vector<KernelConfig>& out, int token_tiles, Geometry g,
                              const WeightFormat& format, int passes, bool tails) {
    for (const int stages : {4, 3}) {
      std::vector<KernelConfig> one;
      Add(one, token_tiles, g, stages, 2, ScaleMode::kPre, passes, tails);
      if (one.empty() || SlotsAhead(one.front(), format) == 0) continue;
      out.push_back(one.front());
      return;
    }
  }

  static void Add(std::vector<KernelConfig>& out, int token_tiles, Geometry g, int stages, int blocks,
                  ScaleMode scale, int passes = 1, bool tails = false) {
    KernelConfig c;
    c.passes = passes;
    c.tails = tails;
    c.family = Family::kWgmma;
    c.token_tiles = token_tiles;
    c.row_tiles = g.row_tiles;
    c.warps_n = g.groups_n;
    c.warps_k = g.groups_k;
    c.stages = stages;
    // Even, so that the batch in flight over the loop's end and the next one use different registers.
    c.blocks_per_stage = blocks;
    c.activations = ActivationPath::kStaged;
    c.scale = scale;
    // K groups take stages in turn: parities would alias unless every group sees the same slots again.
    if (stages % g.groups_k != 0 || stages <= g.groups_k) return;
    if (FitsRegisters(c)) out.push_back(c);
  }

  // As the constants of the device source: every plane begins at a multiple of 128 bytes.
  static int64_t SlotBytes(const KernelConfig& config, const WeightFormat& format) {
    const int64_t fragments = config.tile_n() / 16;
    const StageBytes stage = FragmentStage(format, config.blocks_per_stage);
    int64_t bytes = int64_t{config.blocks_per_stage} * config.tile_m() * 128;
    for (const int plane : {stage.codes, stage.scales, stage.zeros, stage.steps}) {
      bytes += (fragments * plane + 127) / 128 * 128;
    }
    return (bytes + 1023) / 1024 * 1024;
  }

  // Whether a CTA may compute several tiles, one after the other.
  static bool SeveralTiles(const KernelConfig& config) { return config.passes > 1 || config.tails; }

  // Full and empty of every stage; with several tiles, one for the end of an epilogue.
  static int64_t BarrierBytes(const KernelConfig& config) {
    return config.stages * 16 + (SeveralTiles(config) ? 8 : 0);
  }

  // Slots that are filled for the next tile while the sums of this one lie behind them: as many as shared
  // memory holds beside the sums without an SM's holding fewer CTAs.
  static int64_t SlotsAhead(const KernelConfig& config, const WeightFormat& format) {
    if (!SeveralTiles(config)) return 0;
    const int64_t slot = SlotBytes(config, format);
    const int64_t barriers = BarrierBytes(config);
    const int64_t ctas = kSmemPerSm / (config.stages * slot + barriers + kSmemReserved);
    if (ctas == 0) return 0;  // not legal
    const int64_t room = kSmemPerSm / ctas - kSmemReserved - barriers - EpilogueSmemBytes(config);
    return std::clamp<int64_t>(room / slot, 0, config.stages);
  }
};

}  // namespace

const KernelFamily& WgmmaFamily() {
  static const Wgmma family;
  return family;
}

}  // namespace qgemm
