// The access report of real kernels: PTX as NVRTC makes it, of every family, reduction and epilogue.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <tuple>

#include "base/digest.h"
#include "kernels/access_memo.h"
#include "kernels/access_report.h"
#include "kernels/bucket.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/device_profile.h"
#include "kernels/family/family.h"
#include "kernels/launch_spec.h"

namespace qgemm {
namespace {

struct KernelCase {
  const char* config;
  const char* arch;
};

// One config of each path through the device sources; a kernel holds every reduction its arch has.
constexpr KernelCase kKernels[] = {
    {"mma_t1_r2_w4x2_s4_b2_slice_post", "sm_80"},   // workspace alone
    {"mma_t1_r1_w3x4_s4_b2_slice_post", "sm_90a"},  // and clusters
    {"mma_t2_r1_w4x4_s4_b1_staged_post", "sm_89"},   {"mma_t8_r2_w4x1_s3_b1_staged_pre", "sm_120"},
    {"wgmma_t2_r1_w3x1_s8_b2_staged_pre", "sm_90a"}, {"wgmma_t16_r2_w2x1_s3_b2_staged_pre", "sm_90a"},
    {"wgmma_t1_r1_w1x2_s4_b2_staged_pre", "sm_90a"}, {"wgmma_t22_r1_w2x1_s4_b2_staged_pre_p2", "sm_90a"},
};

class AccessOfKernels : public ::testing::TestWithParam<KernelCase> {};

// What a report says of the arguments of a launch spec, by role.
struct Expected {
  bool read = false;
  bool written = false;
};
// Family wgmma has maps of the planes that come with the stages, and pointers to channel-wise ones; another
// plane's map stands in for one that the format lacks, and is not read.
Expected ExpectedOf(const std::string& argument, bool is_map, const KernelSignature& signature) {
  const WeightFormat& format = signature.format;
  const bool staged = !is_map || !format.channel_wise();
  const bool zeros = format.zero_point != ZeroPoint::kNone;
  if (argument == "scales") return {staged, false};
  if (argument == "zeros") return {zeros && staged, false};
  if (argument == "steps") return {format.two_level(), false};
  if (argument == "channel_scales") return {format.channel_wise(), false};
  if (argument == "channel_zeros") return {zeros && format.channel_wise(), false};
  if (argument == "bias") return {signature.epilogue.bias, false};
  if (argument == "residual") return {signature.epilogue.residual, false};
  if (argument == "y") return {false, true};
  if (argument == "workspace") return {true, true};
  return {true, false};
}

// Every plane and every part of an epilogue, there and not there.
std::vector<KernelSignature> Signatures() {
  KernelSignature plain;
  KernelSignature integer_zeros = plain;
  integer_zeros.format.zero_point = ZeroPoint::kInteger;
  integer_zeros.epilogue = {.bias = true, .activation = Activation::kGeluTanh};
  KernelSignature channel = plain;
  channel.format = {.bits = 8, .group_size = 0, .zero_point = ZeroPoint::kInteger};
  channel.epilogue = {.activation = Activation::kRelu, .residual = true};
  KernelSignature two_level = plain;
  two_level.format = {6, 32, ScalarType::kFp16, ZeroPoint::kFloat, 2};
  two_level.out = ScalarType::kFp32;
  two_level.epilogue = {.bias = true, .activation = Activation::kSilu, .gated = true, .residual = true};
  KernelSignature symmetric_channel = plain;
  symmetric_channel.format = {.bits = 5, .group_size = 0};
  KernelSignature bytes = integer_zeros;
  bytes.quantization = ActivationQuantization::kInt8;
  return {plain, integer_zeros, channel, two_level, symmetric_channel, bytes};
}

TEST_P(AccessOfKernels, IsRightForEveryEpilogue) {
  const auto nvrtc = Nvrtc::Load();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status();
  const auto config = ParseConfig(GetParam().config);
  ASSERT_TRUE(config.ok()) << config.status();
  for (const KernelSignature& signature : Signatures()) {
    const Problem problem{5376, 4096, signature};
    if (signature.quantization != ActivationQuantization::kNone &&
        (config->family != Family::kMma || config->scale != ScaleMode::kPost)) {
      continue;  // not offered
    }
    const KernelSource source = RenderKernelSource(*config, problem.signature);
    SCOPED_TRACE(source.name);
    const auto output = (*nvrtc)->Compile(source, GetParam().arch, /*want_ptx=*/true);
    ASSERT_TRUE(output.ok()) << output.status();
    const LaunchSpec spec = MakeLaunchSpec({*config, 2, Reduction::kWorkspace}, problem, config->tile_m());

    const AccessReport report = AnalyzeAccess(output->ptx, source.entry);
    EXPECT_EQ(report.failure, "");
    for (size_t i = 0; i < spec.arguments.size(); ++i) {
      SCOPED_TRACE(spec.arguments[i].name);
      const ParameterAccess* access = report.Find(static_cast<int>(i));
      if (const auto* integer = std::get_if<IntegerArgument>(&spec.arguments[i].kind)) {
        EXPECT_EQ(access != nullptr,
                  integer->bits == 64);  // may be a pointer, but nothing is accessed by it
        EXPECT_FALSE(access != nullptr && (access->read || access->written));
        continue;
      }
      ASSERT_NE(access, nullptr);
      const auto* pointer = std::get_if<PointerArgument>(&spec.arguments[i].kind);
      const auto* map = std::get_if<TensorMapArgument>(&spec.arguments[i].kind);
      Expected expected = ExpectedOf(spec.arguments[i].name, map != nullptr, signature);
      // Passes leave no slices to add.
      if (config->passes > 1 && spec.arguments[i].name == "workspace") expected = {};
      EXPECT_EQ(access->read, expected.read);
      EXPECT_EQ(access->written, expected.written);
      if (map != nullptr) {
        EXPECT_LE(access->alignment, 16);
      }
      if (pointer != nullptr) {
        // The spec promises no less than what the kernel does, and asks for the alignment it needs.
        EXPECT_LE(access->read, pointer->read);
        EXPECT_LE(access->written, pointer->written);
        EXPECT_LE(access->alignment, pointer->alignment);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, AccessOfKernels, ::testing::ValuesIn(kKernels), [](const auto& test) {
  return std::string(test.param.config) + "_" + test.param.arch;
});

// ---- a model exported as eight methods ----

// The layers of one block of a Llama whose epilogues are in its kernels.
std::vector<Problem> BlockLayers() {
  KernelSignature plain;
  KernelSignature gated = plain;
  gated.epilogue = {.activation = Activation::kSilu, .gated = true};
  KernelSignature adding = plain;
  adding.epilogue.residual = true;
  return {{3072, 2048, plain}, {2048, 2048, adding}, {16384, 2048, gated}, {2048, 8192, adding}};
}

// A method's rows; 0: any, with a kernel for every bucket.
constexpr int kMethods[] = {1, 2, 4, 8, 16, 32, 64, 0};
constexpr int kBlocks = 16;

Candidate CandidateOf(int m_bucket) {
  const char* const config = m_bucket <= 16   ? "mma_t1_r1_w3x4_s4_b2_slice_post"
                             : m_bucket <= 64 ? "wgmma_t2_r1_w3x1_s8_b2_staged_pre"
                                              : "wgmma_t16_r2_w2x1_s3_b2_staged_pre";
  return {*ParseConfig(config), m_bucket <= 16 ? 2 : 1,
          m_bucket <= 16 ? Reduction::kWorkspace : Reduction::kNone};
}

// Arguments of a launch as an exporter knows them: M is a number in a method with a static M, a symbol in the
// other.
std::vector<CallArgument> ArgumentsOf(const LaunchSpec& spec, int static_m, int block) {
  constexpr int32_t kBf16 = 1, kBytes = 2, kInt32 = 3, kInt64 = 4;
  std::vector<CallArgument> out;
  for (size_t i = 0; i < spec.arguments.size(); ++i) {
    if (const auto* integer = std::get_if<IntegerArgument>(&spec.arguments[i].kind)) {
      const int32_t dtype = integer->bits == 32 ? kInt32 : kInt64;
      if (const auto* constant = std::get_if<int64_t>(&integer->value)) {
        out.push_back(CallArgument::Scalar(dtype, static_cast<uint64_t>(*constant)));
      } else if (std::get<Symbol>(integer->value) == Symbol::kM && static_m == 0) {
        out.push_back(CallArgument::Symbolic(dtype));
      } else {
        out.push_back(CallArgument::Scalar(dtype, static_m > 0 ? static_m : 8192));
      }
      continue;
    }
    const auto* pointer = std::get_if<PointerArgument>(&spec.arguments[i].kind);
    const PointerRole role =
        pointer != nullptr ? pointer->role : std::get<TensorMapArgument>(spec.arguments[i].kind).role;
    const bool is_bytes =
        role == PointerRole::kWeights || role == PointerRole::kZeros || role == PointerRole::kWorkspace;
    out.push_back(CallArgument::Pointer(is_bytes ? kBytes : kBf16, 0x10000 * (block + 1) + 0x100 * i));
  }
  return out;
}

TEST(AccessOfMethods, EverySignatureIsAnalysedOnceAndRight) {
  const auto nvrtc = Nvrtc::Load();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status();
  std::map<std::string, std::pair<NvrtcOutput, std::string>> kernels;  // with their entries
  AccessMemo memo;
  std::set<std::pair<std::string, std::vector<std::tuple<int, int32_t, uint64_t>>>> distinct;
  int64_t calls = 0;
  const auto walk = [&] {
    for (const int static_m : kMethods) {
      for (int block = 0; block < kBlocks; ++block) {
        for (const Problem& problem : BlockLayers()) {
          for (const int bucket : BucketLadder()) {
            if (static_m != 0 && bucket != static_m) continue;
            const Candidate candidate = CandidateOf(bucket);
            const KernelSource source = RenderKernelSource(candidate.config, problem.signature);
            auto at = kernels.find(source.name);
            if (at == kernels.end()) {
              const auto output = (*nvrtc)->Compile(source, "sm_90a", /*want_ptx=*/true);
              ASSERT_TRUE(output.ok()) << output.status();
              at = kernels.emplace(source.name, std::make_pair(*output, source.entry)).first;
            }
            const auto& [output, entry] = at->second;
            const std::string sha256 = Sha256Hex(output.cubin);
            const LaunchSpec spec = MakeLaunchSpec(candidate, problem, bucket);
            const std::vector<CallArgument> arguments = ArgumentsOf(spec, static_m, block);
            const auto report = memo.Get(sha256, arguments, [&, &ptx = output.ptx, &name = entry] {
              return AnalyzeAccess(ptx, name);
            });
            ++calls;
            std::vector<std::tuple<int, int32_t, uint64_t>> signature;
            for (const CallArgument& argument : arguments) {
              const uint64_t value = argument.kind == CallArgument::Kind::kPointer  ? argument.value % 16
                                     : argument.kind == CallArgument::Kind::kScalar ? argument.value
                                                                                    : 0;
              signature.emplace_back(static_cast<int>(argument.kind), argument.dtype, value);
            }
            distinct.emplace(sha256, std::move(signature));
            EXPECT_EQ(report->failure, "");
            for (size_t i = 0; i < spec.arguments.size(); ++i) {
              if (std::holds_alternative<IntegerArgument>(spec.arguments[i].kind)) continue;
              const ParameterAccess* const access = report->Find(static_cast<int>(i));
              ASSERT_NE(access, nullptr);
              const bool is_map = std::holds_alternative<TensorMapArgument>(spec.arguments[i].kind);
              const Expected expected = ExpectedOf(spec.arguments[i].name, is_map, problem.signature);
              EXPECT_EQ(access->read, expected.read) << source.name << " " << spec.arguments[i].name;
              EXPECT_EQ(access->written, expected.written) << source.name << " " << spec.arguments[i].name;
            }
          }
        }
      }
    }
  };
  walk();
  EXPECT_GT(calls, 8 * kBlocks * 4);
  // Four layers in seven static methods, and three kernels each in the dynamic one.
  EXPECT_EQ(distinct.size(), 7 * 4 + 3 * 4);
  EXPECT_EQ(memo.counts().analyses, distinct.size());
  walk();  // another export
  EXPECT_EQ(memo.counts().analyses, distinct.size());
  EXPECT_EQ(memo.counts().repeats, calls - static_cast<int64_t>(distinct.size()));
  EXPECT_EQ(memo.counts().failures, 0);

  // A repeat, in the quietest of some runs.
  const Problem problem = BlockLayers()[0];
  const Candidate candidate = CandidateOf(16);
  const std::vector<CallArgument> arguments = ArgumentsOf(MakeLaunchSpec(candidate, problem, 16), 16, 3);
  const std::string sha256 =
      Sha256Hex(kernels.at(RenderKernelSource(candidate.config, problem.signature).name).first.cubin);
  double quietest_ns = 1e9;
  for (int run = 0; run < 50; ++run) {
    constexpr int kRepeats = 1000;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepeats; ++i) {
      (void)memo.Get(sha256, arguments, [] {
        ADD_FAILURE() << "analysed again";
        return AccessReport();
      });
    }
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
    quietest_ns = std::min(quietest_ns, elapsed.count() / kRepeats);
  }
  EXPECT_LE(quietest_ns, 1000);
}

TEST(AccessOfSupportKernels, ReferenceGemmWritesItsResultAlone) {
  const auto nvrtc = Nvrtc::Load();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status();
  const auto output = (*nvrtc)->Compile(SupportKernelSource(), "sm_90a", /*want_ptx=*/true);
  ASSERT_TRUE(output.ok()) << output.status();
  const AccessReport report = AnalyzeAccess(output->ptx, "qgemm_reference_gemm");
  EXPECT_EQ(report.failure, "");
  constexpr int kOut = 9;  // after x, codes, the planes of scales, bias and residual
  for (int i = 0; i < kOut; ++i) {
    ASSERT_NE(report.Find(i), nullptr);
    EXPECT_TRUE(report.Find(i)->read) << i;
    EXPECT_FALSE(report.Find(i)->written) << i;
  }
  EXPECT_FALSE(report.Find(kOut)->read);
  EXPECT_TRUE(report.Find(kOut)->written);
}

}  // namespace
}  // namespace qgemm
