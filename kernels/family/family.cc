#include "kernels/family/family.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace qgemm {

absl::Span<const KernelFamily* const> AllFamilies() {
  static const KernelFamily* const families[] = {&MmaFamily(), &WgmmaFamily()};
  return families;
}

const KernelFamily& FamilyOf(const KernelConfig& config) {
  return *AllFamilies()[static_cast<int>(config.family)];
}

absl::Status SupportsSignature(const KernelSignature& s) {
  const bool served = s.format.bits == 4 && s.format.zero_point != ZeroPoint::kFloat &&
                      !s.format.two_level() && s.format.group_size >= 32 && s.format.group_size <= 128 &&
                      s.format.scale_type == s.act && s.out == s.act &&
                      s.epilogue == Epilogue{.bias = s.epilogue.bias};
  if (served) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("no kernel family serves ", SignatureName(s)));
}

int UnitK(const WeightFormat& format) { return std::max(64, format.group_size); }

int FragmentStageBytes(const WeightFormat& format, int blocks) {
  const int groups = std::max(1, blocks * 64 / format.group_size);
  return blocks * 512 + groups * (format.zero_point == ZeroPoint::kInteger ? 48 : 32);
}

std::string ConfigConstants(const KernelConfig& config, const KernelSignature& signature) {
  std::string text;
  auto constant = [&text](absl::string_view type, absl::string_view name, int value) {
    absl::StrAppend(&text, "constexpr ", type, " ", name, " = ", value, ";\n");
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
  constant("int", "kGroupSize", signature.format.group_size);
  constant("bool", "kIntegerZeros", signature.format.zero_point == ZeroPoint::kInteger);
  constant("bool", "kActIsBf16", signature.act == ScalarType::kBf16);
  constant("bool", "kSliceActivations", config.activations == ActivationPath::kSlice);
  constant("bool", "kPostScale", config.scale == ScaleMode::kPost);
  constant("bool", "kBias", signature.epilogue.bias);
  // An unrolled mma.sync costs NVRTC about 1.35 ms: blocks of large tiles stay a loop.
  constant("bool", "kUnrollBlocks",
           4 * config.row_tiles * config.token_tiles * config.blocks_per_stage <= 64);
  return text;
}

}  // namespace qgemm
