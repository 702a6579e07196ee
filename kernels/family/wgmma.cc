#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/family/family.h"
#include "kernels/packing.h"

namespace qgemm {
namespace {

constexpr absl::string_view kSources[] = {"common.cuh", "dequant.cuh", "epilogue.cuh", "wgmma.cuh"};

struct Geometry {
  int row_tiles, groups_n, groups_k;
};

// Registers of a consumer thread: accumulators, two blocks of fragments and addresses, under the cap of the
// CTA's size.
bool FitsRegisters(const KernelConfig& c) {
  const int consumers = c.epilogue_threads();
  int cap = std::min(255, 65536 / ((c.threads() + 127) / 128 * 128) / 8 * 8);  // allocated for warpgroups
  if (c.threads() - consumers == 128) cap = consumers == 256 ? 240 : 160;  // setmaxnreg in the device source
  return consumers <= 384 && c.row_tiles * c.tile_m() / 2 + 32 + 40 <= cap;
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
        "\n      : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b), \"r\"(accumulate));\n}\n");
  }

  absl::Status SupportsDevice(const DeviceProfile& device) const override {
    if (device.arch == "sm_90a") return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("family wgmma needs sm_90a, ", device.name, " is ", device.arch));
  }

  absl::Status SupportsProblem(const Problem& problem) const override {
    QGEMM_RETURN_IF_ERROR(SupportsSignature(problem.signature));
    if (problem.n >= 64) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("family wgmma computes 64 columns of Y at a time; n ",
                                                      problem.n,
                                                      " is left to family mma, which computes 16"));
  }

  std::vector<KernelConfig> Configs(const KernelSignature& signature, int m_bucket) const override {
    std::vector<KernelConfig> out;
    const int tokens = (m_bucket + 7) / 8;
    if (tokens <= 8) {
      for (const Geometry g : {Geometry{1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {1, 3, 1}, {2, 1, 1}, {2, 2, 1}}) {
        for (const int stages : {3, 4, 6, 8}) {
          // Few tokens leave room for deep rings, and shallow ones then never won; nor did the widest tile.
          if (tokens <= 2 && stages == 3) continue;
          if (tokens == 1 && stages == 6) continue;
          if (tokens <= 4 && g.row_tiles * g.groups_n == 4) continue;
          Add(out, tokens, g, stages);
        }
      }
    } else {
      for (const int tiles : {8, 12, 16, 32}) {
        if (tiles > tokens || (tiles == 12 && tokens != 12)) continue;
        for (const Geometry g : {Geometry{1, 1, 1}, {1, 2, 1}, {1, 3, 1}, {2, 1, 1}, {2, 2, 1}}) {
          for (const int stages : {3, 4, 6}) Add(out, tiles, g, stages);
        }
      }
    }
    return out;
  }

  int64_t DynamicSmemBytes(const KernelConfig& config, const KernelSignature& signature, int64_t,
                           int) const override {
    const int64_t ring =
        int64_t{config.stages} * SlotBytes(config, signature.format) + int64_t{config.stages} * 16;
    const int64_t epilogue = int64_t{config.warps_k} * config.tile_m() * (config.tile_n() + 4) * 4;
    return (std::max(ring, epilogue) + 127) / 128 * 128;
  }

  int BytesInFlight(const KernelConfig& config, const KernelSignature& signature) const override {
    return config.stages * config.tile_n() / 16 *
           FragmentStageBytes(signature.format, config.blocks_per_stage);
  }

  std::vector<KernelArgument> Arguments(const KernelConfig& config, const Problem& problem, int64_t units,
                                        int split_k) const override {
    const WeightFormat& format = problem.signature.format;
    const PackedSizes packed = PackedSizesFor(problem.n, problem.k, format);
    const TensorElement element =
        problem.signature.act == ScalarType::kBf16 ? TensorElement::kBf16 : TensorElement::kFp16;
    const int groups = std::max(1, config.blocks_per_stage * 64 / format.group_size);
    // A plane of the packed weights: one row of words per 16 rows of N.
    auto plane = [&](PointerRole role, int64_t words, int box_words) {
      return TensorMapArgument{role,      TensorElement::kU32,  words, packed.padded_n / 16, words * 4,
                               box_words, config.tile_n() / 16, 0};
    };
    const TensorMapArgument scales = plane(PointerRole::kScales, packed.groups * 8, groups * 8);
    // Without zero points the kernel does not read that map; the scales' stands in.
    const bool integer_zeros = format.zero_point == ZeroPoint::kInteger;
    return {
        {"x", TensorMapArgument{PointerRole::kX, element, problem.k, 0, 0, 64, config.tile_m(), 128}},
        {"weights", plane(PointerRole::kWeights, packed.padded_k / 64 * 128, config.blocks_per_stage * 128)},
        {"scales", scales},
        {"zeros", integer_zeros ? plane(PointerRole::kZeros, packed.groups * 4, groups * 4) : scales},
        PointerTo("bias", PointerRole::kBias, true, false),
        PointerTo("y", PointerRole::kY, false, true),
        PointerTo("workspace", PointerRole::kWorkspace, true, true),
        SymbolArgument("m", 32, Symbol::kM),
        ConstantArgument("n", problem.n),
        ConstantArgument("k", problem.k),
        SymbolArgument("ldy", 64, Symbol::kLdy),
        ConstantArgument("units_quotient", units / split_k),
        ConstantArgument("units_remainder", units % split_k)};
  }

 private:
  static void Add(std::vector<KernelConfig>& out, int token_tiles, Geometry g, int stages) {
    KernelConfig c;
    c.family = Family::kWgmma;
    c.token_tiles = token_tiles;
    c.row_tiles = g.row_tiles;
    c.warps_n = g.groups_n;
    c.warps_k = g.groups_k;
    c.stages = stages;
    // Two blocks, so that the batch in flight over the loop's end and the next one use different registers.
    c.blocks_per_stage = 2;
    c.activations = ActivationPath::kStaged;
    c.scale = ScaleMode::kPre;
    // K groups take stages in turn: parities would alias unless every group sees the same slots again.
    if (stages % g.groups_k != 0 || stages <= g.groups_k) return;
    if (FitsRegisters(c)) out.push_back(c);
  }

  static int64_t SlotBytes(const KernelConfig& config, const WeightFormat& format) {
    const int64_t bytes = int64_t{config.blocks_per_stage} * config.tile_m() * 128 +
                          int64_t{config.tile_n()} / 16 * FragmentStageBytes(format, config.blocks_per_stage);
    return (bytes + 1023) / 1024 * 1024;
  }
};

}  // namespace

const KernelFamily& WgmmaFamily() {
  static const Wgmma family;
  return family;
}

}  // namespace qgemm
