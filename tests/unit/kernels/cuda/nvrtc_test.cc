#include "kernels/cuda/nvrtc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "kernels/kernel_config.h"
#include "kernels/kernel_source.h"

namespace qgemm {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kLog[] =
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function 'first' for 'sm_90a'\n"
    "ptxas info    : Function properties for first\n"
    "ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
    "ptxas info    : Used 64 registers, used 1 barriers, 2048 bytes smem\n"
    "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
    "ptxas info    : Function properties for second\n"
    "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 8 registers, used 0 barriers\n";

TEST(ParseResources, ReadsTheNamedEntryOnly) {
  const auto first = ParseResources(kLog, "first");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, (KernelResources{64, 2048, 8, 12, 16}));
  const auto second = ParseResources(kLog, "second");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, (KernelResources{8, 0, 0, 0, 0}));
}

TEST(ParseResources, IsNotFoundWhenTheEntryIsMissing) {
  const auto missing = ParseResources(kLog, "fir");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("'fir'"));
}

class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto loaded = Nvrtc::Load();
    if (!loaded.ok()) GTEST_SKIP() << loaded.status();
    nvrtc_ = *loaded;
  }
  const Nvrtc* nvrtc_ = nullptr;
};

TEST_F(NvrtcTest, TellsItsVersionAndArchs) {
  EXPECT_THAT(nvrtc_->toolchain(), StartsWith("nvrtc 1"));
  EXPECT_THAT(nvrtc_->archs(), Contains("sm_80"));
  EXPECT_THAT(nvrtc_->archs(), Contains("sm_90a"));
}

TEST_F(NvrtcTest, OneCallYieldsCubinPtxAndResources) {
  const KernelSource source{"double it",
                            "twice",
                            "extern \"C\" __global__ void twice(float* p) { p[threadIdx.x] *= 2.f; }",
                            {"-std=c++17"}};
  const auto output = nvrtc_->Compile(source, "sm_90a", /*want_ptx=*/true);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_TRUE(absl::StartsWith(output->cubin,
                               "\x7f"
                               "ELF"));
  EXPECT_THAT(output->ptx, HasSubstr(".entry twice"));
  EXPECT_GT(output->resources.registers, 0);
  EXPECT_EQ(output->resources.spill_store_bytes, 0);
}

TEST_F(NvrtcTest, AnswersTheFirstErrorLineWhenTheSourceIsWrong) {
  const KernelSource source{
      "broken", "broken", "extern \"C\" __global__ void broken() { undefined_name(); }", {}};
  std::string log;
  const auto output = nvrtc_->Compile(source, "sm_80", /*want_ptx=*/false, &log);
  EXPECT_EQ(output.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(output.status().message()), HasSubstr("undefined_name"));
  EXPECT_THAT(log, HasSubstr("undefined_name"));
}

TEST(SerialisesWgmma, IsWhatPtxasSays) {
  EXPECT_FALSE(SerialisesWgmma(kLog));
  EXPECT_TRUE(
      SerialisesWgmma("ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async "
                      "instructions are serialized due to non wgmma instructions reading accumulator "
                      "registers"));
}

// Accumulators that are read before wgmma is waited for would do it.
TEST_F(NvrtcTest, NoWgmmaIsSerialisedAndNothingSpills) {
  for (const char* name :
       {"wgmma_t2_r1_w1x2_s4_b4_staged_post", "wgmma_t8_r1_w4x1_s6_b2_staged_pre",
        "wgmma_t8_r1_w2x2_s8_b2_staged_pre", "wgmma_t12_r1_w3x1_s3_b2_staged_pre",
        "wgmma_t16_r1_w1x1_s3_b2_staged_pre", "wgmma_t17_r2_w2x1_s3_b2_staged_pre",
        "wgmma_t22_r1_w2x1_s4_b2_staged_pre_p2", "wgmma_t13_r1_w2x2_s6_b2_staged_pre",
        "wgmma_t13_r1_w4x1_s4_b2_staged_pre", "wgmma_t16_r1_w1x2_s6_b2_staged_pre",
        "wgmma_t16_r1_w2x1_s4_b2_staged_pre_tails", "wgmma_t32_r1_w1x1_s3_b2_staged_pre_tails"}) {
    KernelSignature plain, biased, offsets;
    biased.epilogue.bias = true;
    offsets.format.zero_point = ZeroPoint::kInteger;
    offsets.out = ScalarType::kFp32;
    for (const KernelSignature& signature : {plain, biased, offsets}) {
      const KernelSource source = RenderKernelSource(ParseConfig(name).value(), signature);
      const auto output = nvrtc_->Compile(source, "sm_90a", /*want_ptx=*/false);
      ASSERT_TRUE(output.ok()) << output.status();
      EXPECT_FALSE(SerialisesWgmma(output->log)) << source.name << "\n" << output->log;
      EXPECT_EQ(output->resources.spill_store_bytes, 0) << source.name;
    }
  }
}

TEST_F(NvrtcTest, RefusesAnUnknownArch) {
  const auto output = nvrtc_->Compile({"x", "x", "extern \"C\" __global__ void x() {}", {}}, "sm_1", false);
  EXPECT_EQ(output.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(output.status().message()), HasSubstr("'sm_1'"));
}

}  // namespace
}  // namespace qgemm
