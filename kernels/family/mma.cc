#include "kernels/family/mma.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace qgemm::mma_family {
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

// Up to 16 tokens the weights' stream is everything: many warps, private rings, activations resident.
void AddDecode(std::vector<KernelConfig>& out, int token_tiles) {
  for (const Geometry g : {Geometry{1, 1, 8},
                           {1, 1, 16},
                           {1, 2, 4},
                           {1, 2, 8},
                           {1, 3, 4},
                           {1, 3, 5},
                           {1, 4, 2},
                           {1, 4, 4},
                           {1, 8, 1},
                           {1, 8, 2},
                           {2, 1, 8},
                           {2, 2, 4},
                           {2, 2, 8},
                           {2, 4, 2},
                           {2, 4, 4},
                           {2, 8, 1}}) {
    for (const int stages : {3, 4})
      Add(out, token_tiles, g, stages, 2, ActivationPath::kSlice, ScaleMode::kPost);
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
    for (const int stages : {3, 4})
      Add(out, token_tiles, g, stages, 1, ActivationPath::kStaged, ScaleMode::kPre);
    Add(out, token_tiles, g, 3, 2, ActivationPath::kStaged, ScaleMode::kPre);
  }
}

int64_t Align(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

int GroupsPerStage(const KernelConfig& config, const WeightFormat& format) {
  return std::max(1, config.blocks_per_stage * 64 / format.group_size);
}

// Codes, scales and zero points of one stage of one warp.
int SlotBytes(const KernelConfig& config, const WeightFormat& format) {
  const int groups = config.row_tiles * GroupsPerStage(config, format);
  return config.row_tiles * config.blocks_per_stage * 512 + groups * 32 +
         (format.zero_point == ZeroPoint::kInteger ? groups * 16 : 0);
}

}  // namespace

int UnitK(const WeightFormat& format) { return std::max(64, format.group_size); }

int DynamicSmemBytes(const KernelConfig& config, const KernelSignature& signature, int64_t slice_units,
                     int rows) {
  const int64_t warps = config.warps_n * config.warps_k;
  const int64_t ring = warps * config.stages * SlotBytes(config, signature.format);
  const int64_t activations =
      config.activations == ActivationPath::kSlice
          ? rows * (slice_units * UnitK(signature.format) * 2 + 16)
          : int64_t{config.warps_k} * config.stages * config.tile_m() * (config.blocks_per_stage * 128 + 16);
  const int64_t epilogue = int64_t{config.warps_k} * config.tile_m() * (config.tile_n() + 4) * 4;
  return static_cast<int>(std::min<int64_t>(Align(std::max(ring + activations, epilogue), 128), INT32_MAX));
}

int BytesInFlight(const KernelConfig& config, const KernelSignature& signature) {
  return config.warps_n * config.warps_k * (config.stages - 1) * SlotBytes(config, signature.format);
}

std::vector<KernelConfig> Configs(const KernelSignature& signature, int m_bucket) {
  std::vector<KernelConfig> out;
  const int tokens = (m_bucket + 7) / 8;
  if (tokens <= 2) {
    AddDecode(out, tokens);
  } else if (tokens <= 4) {
    AddMiddle(out, tokens);
  } else if (tokens <= 8) {
    AddPrefill(out, tokens);
    AddPrefill(out, tokens / 2);
  } else if (tokens <= 16) {
    AddPrefill(out, tokens);
    AddPrefill(out, tokens / 2);
  } else {
    for (const int tiles : {4, 8, 16}) AddPrefill(out, tiles);
  }
  return out;
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

absl::Status SupportsDevice(const DeviceProfile& device) {
  if (device.compute_major < 8) {
    return absl::FailedPreconditionError(absl::StrCat("family mma needs compute capability 8.0 or newer, ",
                                                      device.name, " has ", device.compute_major, ".",
                                                      device.compute_minor));
  }
  return absl::OkStatus();
}

}  // namespace qgemm::mma_family
