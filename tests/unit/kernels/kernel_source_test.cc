#include "kernels/kernel_source.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/embedded_sources.h"

namespace qgemm {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

TEST(KernelSource, IsAPureFunction) {
  const KernelConfig config = ParseConfig("mma_t1_r1_w2x4_s4_b2_slice_post").value();
  const KernelSource a = RenderKernelSource(config, {}), b = RenderKernelSource(config, {});
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.options, b.options);
  EXPECT_THAT(a.text, HasSubstr("enum : int { kWarpsK = 4 };"));
  EXPECT_THAT(a.text, HasSubstr(a.entry));
}

TEST(KernelSource, EveryFieldThatMattersChangesTheText) {
  const KernelConfig config = ParseConfig("mma_t1_r1_w2x4_s4_b2_slice_post").value();
  std::set<std::string> texts = {RenderKernelSource(config, {}).text};
  for (const char* other : {"mma_t2_r1_w2x4_s4_b2_slice_post", "mma_t1_r2_w2x4_s4_b2_slice_post",
                            "mma_t1_r1_w4x4_s4_b2_slice_post", "mma_t1_r1_w2x2_s4_b2_slice_post",
                            "mma_t1_r1_w2x4_s3_b2_slice_post", "mma_t1_r1_w2x4_s4_b1_slice_post",
                            "mma_t1_r1_w2x4_s4_b2_staged_post", "mma_t1_r1_w2x4_s4_b2_slice_pre"}) {
    EXPECT_TRUE(texts.insert(RenderKernelSource(ParseConfig(other).value(), {}).text).second) << other;
  }
  for (const char* other : {"wgmma_t2_r1_w1x1_s3_b2_staged_pre", "wgmma_t2_r1_w1x1_s3_b2_staged_pre_p2",
                            "wgmma_t2_r1_w1x1_s3_b2_staged_pre_p3"}) {
    EXPECT_TRUE(texts.insert(RenderKernelSource(ParseConfig(other).value(), {}).text).second) << other;
  }
  KernelSignature signature;
  signature.format.group_size = 64;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  signature.format.zero_point = ZeroPoint::kInteger;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  signature.format.zero_point = ZeroPoint::kFloat;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  signature.format.scale_type = ScalarType::kFp16;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  signature.format.scale_levels = 2;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  for (const int bits : {5, 6, 8}) {
    signature.format.bits = bits;
    EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second) << bits;
  }
  signature.format = {.group_size = 0};
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  signature.out = ScalarType::kFp32;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kRelu}) {
    signature.epilogue.activation = activation;
    EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second)
        << ActivationName(activation);
  }
  signature.epilogue.gated = true;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  signature.epilogue.residual = true;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  signature.epilogue.bias = true;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  signature.quantization = ActivationQuantization::kInt8;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
  signature.act = signature.out = signature.format.scale_type = ScalarType::kFp16;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
}

TEST(KernelSource, AChangedSourceStandsInPlaceOfTheShippedOne) {
  const KernelConfig config = ParseConfig("mma_t1_r1_w2x4_s4_b2_slice_post").value();
  const KernelSource shipped = RenderKernelSource(config, {});
  const KernelSource changed = RenderKernelSource(config, {}, {{"mma.cuh", "int changed;"}});
  EXPECT_THAT(changed.text, HasSubstr("#line 1 \"mma.cuh\"\nint changed;\n"));
  EXPECT_THAT(changed.text, Not(HasSubstr("void __launch_bounds__")));
  EXPECT_THAT(changed.text, HasSubstr("#line 1 \"common.cuh\"\n"));
  EXPECT_THAT(changed.text, HasSubstr("enum : int { kWarpsK = 4 };"));
  EXPECT_EQ(changed.options, shipped.options);
  EXPECT_EQ(changed.entry, shipped.entry);
  EXPECT_EQ(changed.name, shipped.name + " with changed mma.cuh");
  EXPECT_THAT(shipped.text, Not(HasSubstr("#line")));
}

TEST(KernelSource, TheDigestIsThatOfWhatIsCompiled) {
  const std::string shipped = DeviceSourceDigest(Family::kMma);
  EXPECT_EQ(DeviceSourceDigest(Family::kMma, {{"mma.cuh", std::string(EmbeddedSource("mma.cuh"))}}), shipped);
  EXPECT_NE(DeviceSourceDigest(Family::kMma, {{"mma.cuh", "int changed;"}}), shipped);
  EXPECT_NE(DeviceSourceDigest(Family::kMma, {{"dequant.cuh", "int changed;"}}), shipped);
  EXPECT_EQ(DeviceSourceDigest(Family::kMma, {{"wgmma.cuh", "int changed;"}}), shipped);
}

TEST(KernelSource, FamiliesSayWhichSourcesTheyUse) {
  EXPECT_TRUE(UsesDeviceSource(Family::kMma, "mma.cuh"));
  EXPECT_FALSE(UsesDeviceSource(Family::kMma, "wgmma.cuh"));
  EXPECT_TRUE(UsesDeviceSource(Family::kWgmma, "common.cuh"));
  const std::vector<std::string> names = FamilySourceNames();
  EXPECT_THAT(names, IsSupersetOf({"common.cuh", "mma.cuh", "wgmma.cuh"}));
  // The judge of all candidates is nobody's to replace.
  EXPECT_THAT(names, Not(Contains("support.cuh")));
}

TEST(KernelSource, IncludesNoLibraryHeader) {
  EXPECT_THAT(RenderKernelSource({}, {}).text, Not(HasSubstr("#include")));
  EXPECT_THAT(SupportKernelSource().text, Not(HasSubstr("#include")));
}

}  // namespace
}  // namespace qgemm
