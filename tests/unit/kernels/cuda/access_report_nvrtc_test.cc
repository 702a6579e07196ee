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
Expected ExpectedOf(PointerRole role, const KernelSignature& signature) {
  switch (role) {
    case PointerRole::kBias:
      return {signature.epilogue.bias, false};
    case PointerRole::kZeros:
      return {signature.format.zero_point == ZeroPoint::kInteger, false};
    case PointerRole::kY:
      return {false, true};
    case PointerRole::kWorkspace:
      return {true, true};
    default:
      return {true, false};
  }
}

TEST_P(AccessOfKernels, IsRightForEveryEpilogue) {
  const auto nvrtc = Nvrtc::Load();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status();
  const auto config = ParseConfig(GetParam().config);
  ASSERT_TRUE(config.ok()) << config.status();
  for (const bool bias : {false, true}) {
    for (const ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger}) {
      Problem problem{5376, 4096, {}};
      problem.signature.epilogue.bias = bias;
      problem.signature.format.zero_point = zero;
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
        // Without zero points the scales' map stands in for the zeros' and is not read.
        const PointerRole role = map != nullptr && spec.arguments[i].name == "zeros" ? PointerRole::kZeros
                                 : map != nullptr                                    ? map->role
                                                                                     : pointer->role;
        const Expected expected = ExpectedOf(role, problem.signature);
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
  for (int i = 0; i < 5; ++i) {  // x, codes, scales, zeros, bias
    ASSERT_NE(report.Find(i), nullptr);
    EXPECT_TRUE(report.Find(i)->read) << i;
    EXPECT_FALSE(report.Find(i)->written) << i;
  }
  EXPECT_FALSE(report.Find(5)->read);
  EXPECT_TRUE(report.Find(5)->written);
}

}  // namespace
}  // namespace qgemm
