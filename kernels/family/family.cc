#include "kernels/family/family.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/ceil_div.h"

namespace qgemm {

absl::Span<const KernelFamily* const> AllFamilies() {
  static const KernelFamily* const families[] = {&MmaFamily(), &WgmmaFamily()};
  return families;
}

const KernelFamily& FamilyOf(const KernelConfig& config) {
  return *AllFamilies()[static_cast<int>(config.family)];
}

absl::Status SupportsSignature(const KernelSignature& signature) { return ValidateSignature(signature); }

int UnitK(const WeightFormat& format) {
  return format.two_level() ? kStepWeights : std::max(64, format.group_size);
}

StageBytes FragmentStage(const WeightFormat& format, int blocks) {
  StageBytes bytes;
  bytes.codes = blocks * 128 * format.bits;
  if (format.channel_wise()) return bytes;
  const int groups = std::max(1, blocks * 64 / format.group_size);
  bytes.scales = groups * (format.two_level() ? 16 : 32);
  if (format.zero_point == ZeroPoint::kInteger) bytes.zeros = groups * 16;
  if (format.zero_point == ZeroPoint::kFloat) bytes.zeros = bytes.scales;
  if (format.two_level()) bytes.steps = format.zero_point == ZeroPoint::kFloat ? 64 : 32;
  return bytes;
}

int ChunkStages(const KernelConfig& config) {
  constexpr int kChunkBytes = 24 << 10;
  return std::max(1, kChunkBytes / (config.tile_m() * 64 * config.blocks_per_stage * config.warps_k));
}

bool MayShareTiles(const KernelConfig& config) {
  const int least = config.epilogue_threads() >= 512 ? 6144 : config.family == Family::kMma ? 16384 : 12288;
  return config.tile_m() * config.tile_n() >= least;
}

namespace {
// Fragments of 16 x 8 results that a warp of family wgmma keeps of its K groups' sums.
int KeptFragments(const KernelConfig& config) {
  return static_cast<int>(CeilDiv(int64_t{config.row_tiles} * config.token_tiles, config.warps_k));
}

// Tiles of family wgmma of which a warp keeps so many that few slices pay, each with several of them to add:
// one trip to memory for all (H200, 128 x 128 results, three slices: 15.1 -> 14.7 us beside four fragments of
// four slices).
bool AddsManyFragments(const KernelConfig& config) {
  return config.family == Family::kWgmma && config.row_tiles * config.token_tiles >= 12 &&
         config.epilogue_threads() < 512;
}
}  // namespace

bool MaySplit(const KernelConfig& config) {
  return config.family == Family::kMma ||
         (config.passes == 1 && !config.tails && KeptFragments(config) <= 32);
}

int64_t TailUnits(const KernelConfig& config, const WeightFormat& format, int64_t units, int split_k) {
  // Writing a tail's sums and beginning with the next, in products of an SM meanwhile; fitted on an H200,
  // where 128 x 128 results of 19968 k, four tails a CTA, are fastest with tails of 28 of 156 units: 90.1
  // us, 95.2 with a fifth of K.
  constexpr int64_t kTailProducts = 8 << 20;
  const int64_t unit_products = int64_t{config.tile_m()} * config.tile_n() * UnitK(format);
  const int64_t tails = split_k - 1;
  return std::max<int64_t>(1, (units - tails * CeilDiv(kTailProducts, unit_products)) / split_k);
}

int SlicesAtOnce(const KernelConfig& config) {
  if (AddsManyFragments(config)) return 2;
  if (config.epilogue_threads() < 512) return 4;
  return config.family == Family::kWgmma ? 5 : 6;
}

int FragmentsAtOnce(const KernelConfig& config) {
  return std::min(KeptFragments(config), AddsManyFragments(config) ? 6 : 2);
}

bool PushesSlices(const KernelConfig& config) {
  return config.tile_m() * config.tile_n() <= 4096 ||
         (config.family == Family::kWgmma && config.epilogue_threads() == 128 && config.row_tiles == 1);
}

// As device/rows.cuh and device/fragments.cuh lay it out.
int64_t EpilogueSmemBytes(const KernelConfig& config) {
  const bool pushes = PushesSlices(config);
  if (config.family == Family::kMma) {
    // Of a CTA's own sums, and of what the others of a cluster push to it: each its share of the tile's rows,
    // rounded up.
    const int pushed = pushes ? config.tile_m() + kMaxClusterSplit - 1 : 0;
    return int64_t{config.warps_k * config.tile_m() + pushed} * (config.tile_n() + 4) * 4;
  }
  // One slice: rows of sums. More: the tile's fragments, where warps turn them round, and what is pushed: to
  // each warp its share of the fragments that it keeps, rounded up.
  const int64_t rows = int64_t{config.warps_k} * config.tile_m() * (config.tile_n() + 4) * 4;
  if (!MaySplit(config)) return rows;
  constexpr int kFragmentBytes = 512, kTurnBytes = 640;
  const int64_t warps = config.epilogue_threads() / 32;
  const int64_t kept = KeptFragments(config);
  int64_t pushed = 0;
  for (int64_t slices = 2; pushes && slices <= kMaxClusterSplit; ++slices) {
    pushed = std::max(pushed, (kept + slices - 1) / slices * (slices - 1));
  }
  const int64_t fragments = int64_t{config.tile_m()} * config.tile_n() * 4 +
                            warps * (int64_t{FragmentsAtOnce(config)} * kTurnBytes + pushed * kFragmentBytes);
  return std::max(rows, fragments);
}

std::string ConfigConstants(const KernelConfig& config, const KernelSignature& signature) {
  std::string text;
  auto constant = [&text](absl::string_view type, absl::string_view name, int value) {
    absl::StrAppend(&text, "enum : ", type, " { ", name, " = ", value, " };\n");
  };
  constant("int", "kTokenTiles", config.token_tiles);
  constant("int", "kRowTiles", config.row_tiles);
  constant("int", "kWarpsN", config.warps_n);
  constant("int", "kWarpsK", config.warps_k);
  constant("int", "kStages", config.stages);
  constant("int", "kBlocks", config.blocks_per_stage);
  constant("int", "kTileM", config.tile_m());
  constant("int", "kTileN", config.tile_n());
  constant("int", "kThreads", config.threads());
  constant("int", "kEpilogueThreads", config.epilogue_threads());
  constant("bool", "kMaySplit", MaySplit(config));
  constant("bool", "kTails", config.tails);
  constant("bool", "kMayShare", MayShareTiles(config));
  constant("int", "kMostShares", kMostShares);
  constant("int", "kSlicesAtOnce", SlicesAtOnce(config));
  constant("int", "kFragmentsAtOnce", FragmentsAtOnce(config));
  constant("bool", "kPush", PushesSlices(config));
  const WeightFormat& format = signature.format;
  constant("int", "kBits", format.bits);
  constant("int", "kGroupSize", format.channel_wise() ? 64 : format.group_size);
  constant("bool", "kChannelWise", format.channel_wise());
  constant("bool", "kTwoLevel", format.two_level());
  constant("bool", "kIntegerZeros", format.zero_point == ZeroPoint::kInteger);
  constant("bool", "kFloatZeros", format.zero_point == ZeroPoint::kFloat);
  constant("bool", "kScaleIsBf16", format.scale_type == ScalarType::kBf16);
  constant("bool", "kByteActivations", signature.quantization == ActivationQuantization::kInt8);
  constant("int", "kChunkStages", ChunkStages(config));
  constant("bool", "kActIsBf16", signature.act == ScalarType::kBf16);
  constant("bool", "kOutIsFp32", signature.out == ScalarType::kFp32);
  constant("bool", "kSliceActivations", config.activations == ActivationPath::kSlice);
  constant("bool", "kPostScale", config.scale == ScaleMode::kPost);
  constant("bool", "kBias", signature.epilogue.bias);
  constant("int", "kActivation", static_cast<int>(signature.epilogue.activation));
  constant("bool", "kGated", signature.epilogue.gated);
  constant("bool", "kResidual", signature.epilogue.residual);
  // An unrolled mma.sync costs NVRTC about 1.35 ms: blocks of large tiles stay a loop.
  constant("bool", "kUnrollBlocks",
           4 * config.row_tiles * config.token_tiles * config.blocks_per_stage <= 64);
  return text;
}

}  // namespace qgemm
