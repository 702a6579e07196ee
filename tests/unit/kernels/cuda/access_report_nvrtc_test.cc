// The access report of real kernels: PTX as NVRTC makes it, of every family, reduction and epilogue.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/access_report.h"
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
    {"wgmma_t1_r1_w1x2_s4_b2_staged_pre", "sm_90a"},
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
  return {plain, integer_zeros, channel, two_level, symmetric_channel};
}

TEST_P(AccessOfKernels, IsRightForEveryEpilogue) {
  const auto nvrtc = Nvrtc::Load();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status();
  const auto config = ParseConfig(GetParam().config);
  ASSERT_TRUE(config.ok()) << config.status();
  for (const KernelSignature& signature : Signatures()) {
    const Problem problem{5376, 4096, signature};
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
      const Expected expected = ExpectedOf(spec.arguments[i].name, map != nullptr, signature);
      EXPECT_EQ(access->read, expected.read);
      EXPECT_EQ(access->written, expected.written);
      EXPECT_LE(access->alignment, 16);
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
