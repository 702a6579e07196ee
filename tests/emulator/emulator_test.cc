// Kernels' own sources, run on the CPU: numbers against fp64, and what no number shows (machine.h). A sample
// of the space, the same one each time; QGEMM_EMULATOR_CASES=N: N cases for each format instead;
// QGEMM_EMULATOR_SEED: other ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "absl/strings/str_cat.h"
#include "kernels/bucket.h"
#include "kernels/device_profile.h"
#include "kernels/embedded_sources.h"
#include "kernels/family/family.h"
#include "kernels/legality.h"
#include "kernels/reference_gemm.h"
#include "kernels/search_space.h"
#include "kernels/support_kernels.h"
#include "tests/emulator/kernel_run.h"

namespace qgemm {
namespace {

int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

DeviceProfile Profile(const char* name) { return FindDeviceProfile(name).value(); }

// The kernel, or null with a failure.
std::unique_ptr<EmulatedKernel> Compiled(const KernelSource& source) {
  absl::StatusOr<std::unique_ptr<EmulatedKernel>> kernel = EmulatedKernel::Compile(source, 900);
  EXPECT_TRUE(kernel.ok()) << kernel.status();
  return kernel.ok() ? *std::move(kernel) : nullptr;
}

// Runs a candidate that must be right.
void ExpectRight(const EmulatedKernel& kernel, const Candidate& candidate, const KernelCase& data, int64_t m,
                 uint64_t seed) {
  SCOPED_TRACE(absl::StrCat(CandidateName(candidate), " M ", m, " seed ", seed));
  const auto run = RunCandidate(kernel, candidate, data, m, seed);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_TRUE(run->right(data.problem.signature)) << run->Describe();
  EXPECT_GT(run->matrix_instructions, 0);
}

// One config of `family` for each format, on a shape and M that fit nothing, with every split and reduction.
class Formats : public testing::TestWithParam<std::tuple<int, Family>> {};

TEST_P(Formats, AgreeWithFp64AndAreClean) {
  const KernelSignature signature = FormatSignatures()[std::get<0>(GetParam())];
  const Family family = std::get<1>(GetParam());
  const DeviceProfile profile = Profile("h200");
  const int group = signature.format.group_size;
  const int64_t short_k = group == 0 ? 200 : group == 256 ? 512 : 3 * group;
  const int64_t odd = signature.epilogue.gated ? 0 : 1;
  std::mt19937 random(std::get<0>(GetParam()) + 1000 * FromEnvironment("QGEMM_EMULATOR_SEED", 0));
  const int cases = FromEnvironment("QGEMM_EMULATOR_CASES", 1);
  int candidates = 0;
  for (int i = 0; i < cases; ++i) {
    // Many rows take seconds each.
    constexpr int64_t kRows[] = {1, 3, 8, 9, 17, 33, 65, 130};
    const int64_t m = kRows[random() % (std::size(kRows) - (i == 0 ? 2 : 0))];
    const int bucket = BucketFor(m);
    const bool narrow = family == Family::kMma && random() % 2 == 0;
    const KernelShape shape = {(narrow ? 16 : 128) + odd, 2 * short_k + std::max(8, group)};
    const Problem problem = {shape.n, shape.k, signature};
    std::vector<KernelConfig> configs;
    for (const KernelConfig& config : ConfigSpace(signature, bucket, profile)) {
      if (config.family == family && IsLegal({config, 1, Reduction::kNone}, problem, bucket, profile).ok()) {
        configs.push_back(config);
      }
    }
    ASSERT_FALSE(configs.empty()) << ProblemName(problem) << " M " << m;
    const KernelConfig config = configs[random() % configs.size()];
    const auto kernel = Compiled(RenderKernelSource(config, signature));
    ASSERT_NE(kernel, nullptr);
    const KernelCase data = MakeKernelCase(shape, signature, m);
    for (const Reduction reduction : {Reduction::kNone, Reduction::kWorkspace, Reduction::kCluster}) {
      for (const int split : {1, 2, 3}) {
        const Candidate candidate = {config, split, reduction};
        if (!IsLegal(candidate, problem, bucket, profile).ok()) continue;
        SCOPED_TRACE(ProblemName(problem));
        ExpectRight(*kernel, candidate, data, m, random());
        ++candidates;
      }
    }
  }
  EXPECT_GE(candidates, cases);
}

// As a test may be named.
std::string NameOf(std::string name) {
  for (char& c : name) {
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

std::string FormatName(const testing::TestParamInfo<std::tuple<int, Family>>& info) {
  return NameOf(absl::StrCat(std::get<1>(info.param) == Family::kMma ? "mma " : "wgmma ",
                             SignatureName(FormatSignatures()[std::get<0>(info.param)])));
}

// Formats whose codes family mma sums raw, the activations' types taking turns.
std::vector<KernelSignature> RawFormats() {
  const std::vector<KernelSignature> all = FormatSignatures();
  std::vector<KernelSignature> raw;
  for (size_t i = 0; i < all.size(); ++i) {
    const WeightFormat& format = all[i].format;
    if (all[i].quantization != ActivationQuantization::kNone) continue;
    if (format.channel_wise() && format.zero_point != ZeroPoint::kFloat) continue;
    const ScalarType turn = i / 2 % 2 == 0 ? ScalarType::kFp16 : ScalarType::kBf16;
    if (all[i].act == turn) raw.push_back(all[i]);
  }
  return raw;
}

// Sums far beyond one, sums whose terms cancel, and sums whose roundings all go the same way, as
// tests/gpu/candidate_test.cc has them on a GPU: the error stays small beside the terms, whatever is left of
// them. K ends within a stage, a unit of slices, or a block, where the format lets it.
class HugeAndCancelling : public testing::TestWithParam<int> {};

TEST_P(HugeAndCancelling, InputsAreRight) {
  KernelSignature signature = RawFormats()[GetParam()];
  signature.epilogue = {};
  signature.out = ScalarType::kFp32;
  const int group = signature.format.group_size;
  const KernelShape shape = {17, group == 0 ? 200 : group >= 128 ? 2048 + group : 320 + group};
  constexpr int64_t kM = 9;
  constexpr const char* kConfigs[] = {"mma_t2_r2_w1x2_s3_b2_slice_post", "mma_t2_r1_w2x2_s3_b2_staged_post",
                                      "mma_t2_r1_w1x4_s4_b1_slice_post"};
  const Candidate candidate = {ParseConfig(kConfigs[GetParam() % std::size(kConfigs)]).value(), 1,
                               Reduction::kNone};
  const auto kernel = Compiled(RenderKernelSource(candidate.config, signature));
  ASSERT_NE(kernel, nullptr);
  std::mt19937 random(GetParam());
  std::normal_distribution<double> normal(0, 1);
  // fp16 ends at 65504.
  const double size = signature.act == ScalarType::kBf16 ? 1e15 : 3e3;
  enum Kind { kHuge, kCancelling, kOfOneSign };
  for (const Kind kind : {kHuge, kCancelling, kOfOneSign}) {
    std::vector<double> x(kM * shape.k);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = normal(random) * size;
      // Every second one takes back nearly what the one before gave.
      if (kind == kCancelling && i % 2 == 1) x[i] = -x[i - 1] * (1 + normal(random) / 256);
      if (kind == kOfOneSign) x[i] = std::fabs(x[i]);
    }
    const KernelCase data = MakeKernelCase(shape, signature, kM, &x);
    ASSERT_TRUE(IsLegal(candidate, data.problem, BucketFor(kM), Profile("h200")).ok());
    const auto run = RunCandidate(*kernel, candidate, data, kM, GetParam());
    ASSERT_TRUE(run.ok()) << run.status();
    double squares = 0;
    for (const double value : data.expected) squares += value * value;
    SCOPED_TRACE(absl::StrCat(ProblemName(data.problem), " ", CandidateName(candidate), " kind ", kind, ": ",
                              run->Describe()));
    EXPECT_LE(run->error * std::sqrt(squares) / data.root_sum_squares, ToleranceFor(signature));
    EXPECT_EQ(run->violation, "");
    EXPECT_TRUE(run->repeatable);
    EXPECT_THAT(run->problems, testing::IsEmpty());
  }
}

// A slice longer than the chunks that its activations are made bytes in, and warps with unequal numbers of
// stages.
TEST(ByteActivations, ComeChunkByChunkWhereTheSliceDoesNotFit) {
  KernelSignature signature;
  signature.quantization = ActivationQuantization::kInt8;
  signature.format.zero_point = ZeroPoint::kInteger;
  const KernelCase data = MakeKernelCase({65, 2176}, signature, 29);
  for (const char* name : {"mma_t4_r1_w4x1_s3_b2_staged_post", "mma_t4_r1_w2x4_s3_b2_staged_post"}) {
    const Candidate candidate = {ParseConfig(name).value(), 1, Reduction::kNone};
    ASSERT_LT(64 * ChunkStages(candidate.config) * candidate.config.warps_k * 2, data.problem.k);
    const auto kernel = Compiled(RenderKernelSource(candidate.config, signature));
    ASSERT_NE(kernel, nullptr);
    ExpectRight(*kernel, candidate, data, 29, 1);
  }
}

// Sums in units of the steps of two levels: slices of one step and of many, the last one cut short, and K
// groups that take a step's stages together, in turns, or have none.
TEST(RunningSteps, AgreeWithFp64HoweverStagesAreTaken) {
  struct Row {
    const char* config;
    int bits, group;
    ScalarType act;
  };
  constexpr ScalarType kBf16 = ScalarType::kBf16, kFp16 = ScalarType::kFp16;
  const Row rows[] = {
      {"wgmma_t2_r1_w1x1_s3_b2_staged_pre", 5, 64, kBf16},
      {"wgmma_t2_r2_w1x1_s3_b2_staged_pre", 4, 128, kFp16},
      {"wgmma_t1_r1_w1x2_s4_b2_staged_pre", 8, 128, kFp16},
      {"wgmma_t1_r1_w1x2_s6_b2_staged_pre", 6, 32, kBf16},
      {"wgmma_t1_r1_w1x1_s3_b4_staged_pre", 4, 64, kBf16},
      {"wgmma_t1_r1_w1x2_s4_b4_staged_pre", 4, 16, kBf16},
  };
  for (const Row& row : rows) {
    KernelSignature signature;
    signature.act = row.act;
    signature.out = ScalarType::kFp32;
    signature.format = {row.bits, row.group, ScalarType::kFp16, ZeroPoint::kNone, 2};
    const KernelConfig config = ParseConfig(row.config).value();
    const int64_t m = config.tile_m() - 3;
    const KernelCase data = MakeKernelCase({65, 1280 + row.group}, signature, m);
    const auto kernel = Compiled(RenderKernelSource(config, signature));
    ASSERT_NE(kernel, nullptr);
    for (const int split : {1, 6}) {
      const Candidate candidate = {config, split, split == 1 ? Reduction::kNone : Reduction::kWorkspace};
      ASSERT_TRUE(IsLegal(candidate, data.problem, BucketFor(m), Profile("h200")).ok());
      ExpectRight(*kernel, candidate, data, m, split);
    }
  }
}

// CTAs that fill an SM, in three ways: too many to wait for each other, all of them without patience, all of
// them at the same time (EmulatedKernel::Launch); and small ones of a cluster. Packed sums, and sums in fp32,
// which show the order of addition.
TEST(Slices, AreAddedByTheLastOrByAll) {
  for (const auto& [name, reduction] :
       {std::pair("wgmma_t4_r1_w4x1_s3_b2_staged_pre", Reduction::kWorkspace),
        std::pair("wgmma_t4_r1_w2x2_s4_b2_staged_pre", Reduction::kWorkspace),
        std::pair("wgmma_t4_r2_w1x1_s3_b2_staged_pre", Reduction::kCluster)}) {
    const KernelConfig config = ParseConfig(name).value();
    for (const ScalarType out : {ScalarType::kFp32, ScalarType::kBf16}) {
      KernelSignature signature;
      signature.out = out;
      const KernelCase data = MakeKernelCase({257, 896}, signature, 29);
      const auto kernel = Compiled(RenderKernelSource(config, signature));
      ASSERT_NE(kernel, nullptr);
      for (const int split : {2, 3}) {
        // Two launches each, of seeds 2 x and 2 x + 1.
        for (const int seed : {0, 2, 1}) ExpectRight(*kernel, {config, split, reduction}, data, 29, seed);
      }
    }
  }
}

// Several passes over the same weights: with rows for all of them, for a part of the last one, and for none
// of it; with slices that end within the ring, with it, or after more than one round; with the sums behind
// the whole ring and over some of its slots.
struct PassesCase {
  const char* config;
  int slots_ahead;  // of its stages, filled for the next pass during an epilogue
};

class Passes : public testing::TestWithParam<PassesCase> {};

TEST_P(Passes, AreRightWhateverIsLeftOfThem) {
  const Candidate candidate = {ParseConfig(GetParam().config).value(), 1, Reduction::kNone};
  const KernelConfig& config = candidate.config;
  KernelSignature signature;
  signature.epilogue.bias = true;
  signature.epilogue.residual = true;
  const KernelSource source = RenderKernelSource(config, signature);
  EXPECT_THAT(source.text, testing::HasSubstr(absl::StrCat("kSlotsAhead = ", GetParam().slots_ahead, " ")));
  const auto kernel = Compiled(source);
  ASSERT_NE(kernel, nullptr);
  const int64_t stage = 64 * config.blocks_per_stage;
  for (const int64_t stages :
       {int64_t{1}, int64_t{config.stages} - 1, int64_t{config.stages}, int64_t{2} * config.stages + 1}) {
    const KernelShape shape = {config.tile_n() + 1, stages * stage};
    const int64_t all = config.launch_tile_m();
    const KernelCase data = MakeKernelCase(shape, signature, all + 3);
    ASSERT_TRUE(IsLegal(candidate, data.problem, all, Profile("h200")).ok());
    // Full; the last pass of a few rows; no last pass; one pass alone; a second CTA along M.
    for (const int64_t m : {all, all - config.tile_m() + 1, all - config.tile_m(), int64_t{3}, all + 3}) {
      if (m != all && stages < config.stages && m != all - config.tile_m() + 1) continue;  // seconds each
      ExpectRight(*kernel, candidate, data, m, m + stages);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Passes,
                         testing::Values(PassesCase{"wgmma_t2_r1_w1x1_s3_b2_staged_pre_p2", 2},
                                         PassesCase{"wgmma_t2_r1_w1x1_s3_b2_staged_post_p2", 2},
                                         PassesCase{"wgmma_t2_r1_w2x1_s4_b2_staged_pre_p3", 3},
                                         PassesCase{"wgmma_t2_r1_w1x2_s4_b2_staged_pre_p3", 3},
                                         PassesCase{"wgmma_t2_r1_w2x1_s6_b2_staged_pre_p2", 6},
                                         PassesCase{"wgmma_t22_r1_w2x1_s4_b2_staged_pre_p2", 2}),
                         [](const auto& info) { return std::string(info.param.config); });

// Tails: CTAs that do one, two and three of them, of tiles some of which N or M cuts off; slices that end
// within the ring, or after more than one round; sums that the next tail's first copies lie behind, all or
// some. Whoever of a tile's two CTAs comes last adds (the seed's order of CTAs).
struct TailsCase {
  const char* config;
  int bits, group;
  ZeroPoint zero_point;
  int levels;
};

class Tails : public testing::TestWithParam<TailsCase> {};

TEST_P(Tails, AreAddedByWhoComesLast) {
  const TailsCase& c = GetParam();
  const KernelConfig config = ParseConfig(c.config).value();
  for (const bool plain : {true, false}) {  // packed sums, and rows of fp32
    KernelSignature signature;
    signature.format = {c.bits, c.group, c.levels == 2 ? ScalarType::kFp16 : ScalarType::kBf16, c.zero_point,
                        c.levels};
    if (!plain) {
      signature.out = ScalarType::kFp32;
      signature.epilogue = {true, Activation::kSilu, false, true};
    }
    const auto kernel = Compiled(RenderKernelSource(config, signature));
    ASSERT_NE(kernel, nullptr);
    const int64_t unit = UnitK(signature.format);
    for (const auto& [units, split] : {std::pair(4, 3), std::pair(11, 4)}) {
      if (config.tile_m() > 64 && plain != (split == 3)) continue;  // seconds each
      const int64_t k = units * unit - (c.group == 0 ? 24 : unit - std::max(16, c.group));
      const KernelCase data = MakeKernelCase({3 * config.tile_n() - 63, k}, signature, config.tile_m() + 3);
      const Candidate candidate = {config, split, Reduction::kWorkspace};
      ASSERT_TRUE(IsLegal(candidate, data.problem, BucketFor(config.tile_m()), Profile("h200")).ok());
      for (const int64_t m : {int64_t{config.tile_m()} + 3, int64_t{config.tile_m()} - 5}) {
        ExpectRight(*kernel, candidate, data, m, 2 * m + split);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Tails,
    testing::Values(TailsCase{"wgmma_t2_r1_w1x1_s4_b2_staged_pre_tails", 4, 128, ZeroPoint::kNone, 1},
                    TailsCase{"wgmma_t2_r1_w2x1_s3_b2_staged_pre_tails", 8, 64, ZeroPoint::kInteger, 1},
                    TailsCase{"wgmma_t3_r2_w1x1_s3_b2_staged_pre_tails", 5, 128, ZeroPoint::kNone, 2},
                    TailsCase{"wgmma_t2_r1_w1x1_s3_b2_staged_pre_tails", 6, 0, ZeroPoint::kFloat, 1},
                    TailsCase{"wgmma_t16_r1_w2x1_s4_b2_staged_pre_tails", 4, 128, ZeroPoint::kNone, 1}),
    [](const auto& info) { return absl::StrCat(info.param.config, "_int", info.param.bits); });

// The judge of a tuning on the GPU, which shares no code with the kernels: its sums are fp64's, whatever the
// format.
TEST(SupportKernels, ReferenceGemmAgreesWithFp64) {
  KernelSource source = SupportKernelSource();
  source.entry = support::kReferenceGemm;
  const auto kernel = Compiled(source);
  ASSERT_NE(kernel, nullptr);
  const std::vector<KernelSignature> signatures = FormatSignatures();
  for (size_t i = 0; i < signatures.size(); i += 5) {
    const KernelSignature& signature = signatures[i];
    SCOPED_TRACE(SignatureName(signature));
    const WeightFormat& format = signature.format;
    const KernelShape shape = {66, format.channel_wise() ? 104 : 2 * format.group_size};
    constexpr int64_t kM = 3;
    const KernelCase data = MakeKernelCase(shape, signature, kM);
    const CanonicalWeights& weights = data.canonical;
    GlobalMemory memory;
    std::vector<std::byte> parameters;
    const auto add = [&](auto value) {
      parameters.resize((parameters.size() + sizeof(value) - 1) / sizeof(value) * sizeof(value));
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      parameters.insert(parameters.end(), bytes, bytes + sizeof(value));
    };
    const auto add_copy = [&](const char* name, const auto& numbers) {
      add(numbers.empty() ? nullptr : memory.Copy(name, numbers.data(), numbers.size() * sizeof(numbers[0])));
    };
    const int64_t columns = data.problem.y_columns();
    uint8_t* const out = memory.Allocate("out", kM * columns * 4, true, false);
    add_copy("x", data.x_numbers);
    add_copy("codes", weights.codes);
    add_copy("scales", weights.scales);
    add_copy("zeros", weights.zeros);
    add_copy("offsets", weights.offsets);
    add_copy("scale codes", weights.scale_codes);
    add_copy("offset codes", weights.offset_codes);
    add_copy("bias", data.bias_numbers);
    add_copy("residual", data.residual_numbers);
    add(out);
    for (const int64_t value : {kM, shape.n, shape.k, data.ldx, data.residual_numbers.empty() ? 0 : data.ldr,
                                format.channel_wise() ? shape.k : int64_t{format.group_size}}) {
      add(value);
    }
    for (const int value :
         {support::ScalarTypeCode(signature.act), support::ScalarTypeCode(format.scale_type),
          support::ScalarTypeCode(signature.out), format.center(),
          support::ActivationCode(signature.epilogue.activation), signature.epilogue.gated ? 1 : 0,
          signature.quantization == ActivationQuantization::kInt8 ? 1 : 0}) {
      add(value);
    }
    const MachineReport report =
        kernel->Launch({2, 1, 1}, support::kThreads, parameters, memory, i, 16 << 10);
    EXPECT_THAT(report.problems, testing::IsEmpty());
    const std::vector<double> actual =
        ScalarsToDouble(absl::MakeSpan(out, kM * columns * 4), ScalarType::kFp32);
    EXPECT_LT(RelativeError(actual, absl::MakeSpan(data.expected).subspan(0, actual.size())), 1e-6);
  }
}

// What the emulator is for: a mistake put into a device source is found, by what it is.
struct Mistake {
  const char* name;
  const char* config;
  const char* source;  // whose `right` becomes `wrong`
  const char* right;
  const char* wrong;
  const char* found;  // in what is reported
  Reduction reduction = Reduction::kNone;
  int split = 1;
  int bits = 4;
  int levels = 1;
};

constexpr char kMma[] = "mma_t1_r1_w2x2_s3_b2_slice_post";
constexpr char kWide[] = "mma_t1_r2_w8x1_s3_b2_slice_post";
constexpr char kStaged[] = "mma_t8_r2_w2x1_s3_b1_staged_pre";
constexpr char kFull[] = "wgmma_t3_r1_w4x1_s3_b2_staged_pre";  // CTAs that fill an SM
constexpr char kGroups[] = "wgmma_t3_r1_w1x2_s4_b2_staged_pre";
constexpr char kWgmma[] = "wgmma_t2_r1_w1x1_s3_b2_staged_pre";
constexpr char kPasses[] = "wgmma_t2_r1_w1x2_s4_b2_staged_pre_p2";
constexpr char kTails[] = "wgmma_t2_r1_w2x1_s4_b2_staged_pre_tails";

const Mistake kMistakes[] = {
    {"CodesReadBeforeTheyArrive", kMma, "mma.cuh",
     "copy_wait<kStages - 1>();\n      if constexpr (kSyncLanes) __syncwarp();",
     "if constexpr (kSyncLanes) __syncwarp();", "asynchronous copy is not known to be complete"},
    {"LanesReadEachOthersCopiesAtOnce", kMma, "mma.cuh",
     "      if constexpr (kSyncLanes) __syncwarp();\n    } else", "    } else",
     "asynchronous copy is not known to be complete", Reduction::kNone, 1, 5},
    {"LanesOverwriteWhatOthersStillRead", kMma, "mma.cuh",
     "    if constexpr (kOwnStages && kSyncLanes) __syncwarp();  // this slot is overwritten next\n", "",
     "with no barrier between", Reduction::kNone, 1, 6},
    {"SumsOverTheRingTooEarly", kMma, "mma.cuh", "copy_wait<0>();\n  __syncthreads();", "copy_wait<0>();",
     "with no barrier between"},
    {"StageWithoutItsBarrier", kStaged, "mma.cuh",
     "      if constexpr (kWarpsK == 1) {\n        __syncthreads();", "      if constexpr (kWarpsK == 1) {",
     "with no barrier between"},
    {"RowsBeyondN", kWide, "mma.cuh", "min_of(first_row_block + r, last_row_block)) * blocks_k",
     "first_row_block + r) * blocks_k", "of weights"},
    {"ActivationsBeyondTheLastRow", kMma, "mma.cuh",
     "warp.rows = rows_left < kTileM ? static_cast<int>(rows_left) : kTileM;", "warp.rows = kTileM;", "of x"},
    {"ResultsBeyondTheLastRow", kMma, "rows.cuh", "end = min_of(share_first + share_rows, rows);",
     "end = config::kTileM;", "wrote element"},
    {"SharedMemoryBeyondItsEnd", kMma, "mma.cuh", "warp.wk * kTileM + t * 8 + t2) * epilogue::kRow",
     "warp.wk * kTileM + t * 8 + t2) * epilogue::kRow * 64", "bytes at shared address"},
    {"XReadBesideTheKernelBefore", kMma, "mma.cuh", "      wait_for_kernel_before();\n      copy_rows<true>",
     "      copy_rows<true>", "before griddepcontrol.wait"},
    {"BarrierOfTooMany", kStaged, "epilogue.cuh", "    __syncthreads();",
     "    asm volatile(\"bar.sync 0, 1024;\" ::: \"memory\");", "waits for ever: barrier 0"},
    {"LanesPartWays", kMma, "mma.cuh", "    const u8* stage = ring + slot * kSlotBytes;",
     "    if (warp.lane == 3) __syncwarp();\n    const u8* stage = ring + slot * kSlotBytes;",
     "where other lanes of its warp are not"},
    {"PushedOverTheRing", kMma, "rows.cuh", "    cluster_meet();  // nobody reads its ring", "    //",
     "mbarrier that was not initialised", Reduction::kCluster, 3},
    {"PushesNotWaitedFor", kMma, "rows.cuh", "    wait_for_pushes(shared_address(&pushed));\n", "",
     "asynchronous copy is not known to be complete", Reduction::kCluster, 3},
    {"PushesExpectedTooFew", kMma, "rows.cuh", "(slices - 1) * own_rows", "(slices - 2) * own_rows",
     "asynchronous copy is not known to be complete", Reduction::kCluster, 3},
    {"TicketsLeftBehind", kMma, "epilogue.cuh", "    *ticket = 0;\n    return sharing", "    return sharing",
     "left a ticket behind", Reduction::kWorkspace, 2},
    {"NobodyIsTheLastToLeave", kFull, "fragments.cuh",
     "  if (together && departures(state) + 1 == slices) *ticket = 0;\n", "", "left a ticket behind",
     Reduction::kWorkspace, 3},
    {"SharesOfThoseWhoLeft", kFull, "epilogue.cuh", "return own | state >> 16;", "return own;", "error ",
     Reduction::kWorkspace, 3},
    {"ShareNotWrittenBeforeLeaving", kFull, "fragments.cuh",
     "      for (int i = first_of(self); i < count; i += slices) {",
     "      for (int i = count; i < count;) {", "error ", Reduction::kWorkspace, 3},
    {"ScaleOfTheNextGroup", kMma, "mma.cuh", "k / kGroupSize + g, warp.lane / 4)",
     "(k / kGroupSize + g) ^ 1, warp.lane / 4)", "error 0."},
    {"StageFreedBeforeItIsRead", kWgmma, "wgmma.cuh", "      // After a stage's first batch",
     "      if (lane == 0) barrier_arrive(empty + slot * 8);\n      // After a stage's first batch",
     "with no barrier between"},
    {"AccumulatorsReadEarly", kWgmma, "wgmma.cuh", "let_next_kernel_start();\n    wgmma_wait<0>();",
     "let_next_kernel_start();", "error "},
    {"SumsRescaledUnderABatch", kWgmma, "wgmma.cuh",
     "              wgmma_wait<0>();\n#pragma unroll\n              for", "#pragma unroll\n              for",
     "error ", Reduction::kNone, 1, 4, 2},
    {"StepOfTheUnitBefore", kWgmma, "wgmma.cuh",
     "const bool next_unit = kRunningSteps && s % kTurnStages == 0;",
     "const bool next_unit = kRunningSteps && s % (2 * kTurnStages) == 0;", "error ", Reduction::kNone, 1, 8,
     2},
    {"TooFewBytesExpected", kWgmma, "wgmma.cuh", "barrier_expect(barrier, kWeightBytes);",
     "barrier_expect(barrier, kWeightBytes - 16);", "waits for ever"},
    {"NobodySaysAStageIsFree", kWgmma, "wgmma.cuh", "if (s != first_stage && lane == 0) barrier_arrive",
     "if (s != first_stage && lane == 99) barrier_arrive", "waits for ever: mbarrier"},
    {"RingReusedUnderTheSums", kWgmma, "fragments.cuh",
     "    barrier();  // nobody reads the ring any more, and every copy into it was waited for\n    "
     "if constexpr (kPacked",
     "    if constexpr (kPacked", "with no barrier between"},
    {"RingReusedUnderTheFragments", kFull, "fragments.cuh",
     "    barrier();  // and nobody reads the ring any more", "", "with no barrier between",
     Reduction::kWorkspace, 3},
    {"FragmentsPushedOverTheRing", kWgmma, "fragments.cuh", "    cluster_meet();  // nobody reads its ring",
     "    //", "with no barrier between", Reduction::kCluster, 3},
    {"FragmentsNotWaitedFor", kWgmma, "fragments.cuh", "    wait_for_pushes(shared_address(&pushed));\n", "",
     "asynchronous copy is not known to be complete", Reduction::kCluster, 3},
    {"FragmentsPushedOverTheBarriers", kGroups, "wgmma.cuh",
     "kBarrierOffset = max_of(kRingBytes, kRedOffset + config::kEpilogueBytes)",
     "kBarrierOffset = kEpilogueBytes - 4096", "over an mbarrier", Reduction::kCluster, 8},
    {"FragmentsExpectedTooFew", kWgmma, "fragments.cuh", "__popc(own) * (slices - 1)",
     "__popc(own) * (slices - 2)", "asynchronous copy is not known to be complete", Reduction::kCluster, 3},
    {"FragmentsTurnedWithoutItsBarrier", kWgmma, "fragments.cuh",
     "        __syncwarp();\n        // Half a warp", "        // Half a warp", "with no barrier between",
     Reduction::kWorkspace, 2},
    {"PartialSumsDroppedEarly", kFull, "fragments.cuh", "for (int i = begin + lane / 4 * stride;",
     "for (int i = lane / 4 * stride;", "error ", Reduction::kWorkspace, 3},
    {"FragmentsOfBothGroups", kGroups, "fragments.cuh", "kept[i] = group_k ? odd : even;", "kept[i] = even;",
     "error ", Reduction::kWorkspace, 2},
    {"NextPassOverTheSums", kPasses, "wgmma.cuh", "tile > 0) barrier_wait(summed, (tile - 1) & 1);",
     "tile > 0) wait_for_kernel_before();", "with no barrier between"},
    {"LanesStillReadTheSums", kPasses, "wgmma.cuh",
     "      __syncwarp();\n      if (lane == 0) barrier_arrive(summed);",
     "      if (lane == 0) barrier_arrive(summed);", "with no barrier between"},
    {"LastSlotOfAPassIsNotFreed", kPasses, "wgmma.cuh",
     "    if (kSeveral && first_stage < slice.stages && lane == 0) barrier_arrive(empty + previous * 8);\n",
     "", "waits for ever: mbarrier"},
    {"TailsTicketIsNotReset", kTails, "fragments.cuh", "  if (threadIdx.x == 0) *ticket = 0;\n  enum",
     "  enum", "left a ticket behind", Reduction::kWorkspace, 3},
    {"TailIsAddedToItself", kTails, "fragments.cuh", "parts + (1 - self) * kTileBytes",
     "parts + self * kTileBytes", "error ", Reduction::kWorkspace, 3},
    {"EveryTailOfACtaIsOfTheSameTile", kTails, "wgmma.cuh", "      ++first_tile;\n", "", "error ",
     Reduction::kWorkspace, 3},
};

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

class Mistakes : public testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreFound) {
  const Mistake& mistake = GetParam();
  KernelSignature signature;
  signature.format.bits = mistake.bits;
  if (mistake.levels == 2) signature.format = {mistake.bits, 128, ScalarType::kFp16, ZeroPoint::kNone, 2};
  const Candidate candidate = {ParseConfig(mistake.config).value(), mistake.split, mistake.reduction};
  const KernelShape shape = {129, 1024};
  const int64_t m = candidate.config.launch_tile_m() - 3;
  const KernelCase data = MakeKernelCase(shape, signature, m);
  ASSERT_TRUE(IsLegal(candidate, data.problem, BucketFor(m), Profile("h200")).ok());
  const auto run = [&](const SourceOverrides& overrides) {
    const auto kernel = Compiled(RenderKernelSource(candidate.config, signature, overrides));
    return RunCandidate(*kernel, candidate, data, m, 2).value();
  };
  EXPECT_TRUE(run({}).right(signature)) << run({}).Describe();
  std::string text(EmbeddedSource(mistake.source));
  const size_t at = text.find(mistake.right);
  ASSERT_NE(at, std::string::npos) << "the source no longer says: " << mistake.right;
  text.replace(at, std::string(mistake.right).size(), mistake.wrong);
  const KernelRun wrong = run({{mistake.source, text}});
  EXPECT_FALSE(wrong.right(signature));
  EXPECT_THAT(wrong.Describe(), testing::HasSubstr(mistake.found));
}

INSTANTIATE_TEST_SUITE_P(All, Mistakes, testing::ValuesIn(kMistakes),
                         [](const auto& info) { return std::string(info.param.name); });

// Each format with each family that serves it.
std::vector<std::tuple<int, Family>> FormatsAndFamilies() {
  std::vector<std::tuple<int, Family>> all;
  const std::vector<KernelSignature> signatures = FormatSignatures();
  for (int i = 0; i < static_cast<int>(signatures.size()); ++i) {
    for (const KernelFamily* family : AllFamilies()) {
      if (family->SupportsProblem({1024, 1024, signatures[i]}).ok()) all.emplace_back(i, family->id());
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, HugeAndCancelling, testing::Range(0, static_cast<int>(RawFormats().size())),
                         [](const testing::TestParamInfo<int>& info) {
                           return NameOf(SignatureName(RawFormats()[info.param]));
                         });

INSTANTIATE_TEST_SUITE_P(All, Formats, testing::ValuesIn(FormatsAndFamilies()), FormatName);

}  // namespace
}  // namespace qgemm
