#include "kernels/kernel_source.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(KernelSource, IsAPureFunction) {
  const KernelConfig config = ParseConfig("mma_t1_r1_w2x4_s4_b2_slice_post").value();
  const KernelSource a = RenderKernelSource(config, {}), b = RenderKernelSource(config, {});
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.options, b.options);
  EXPECT_THAT(a.text, HasSubstr("constexpr int kWarpsK = 4;"));
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
  signature.act = signature.out = signature.format.scale_type = ScalarType::kFp16;
  EXPECT_TRUE(texts.insert(RenderKernelSource(config, signature).text).second);
}

TEST(KernelSource, IncludesNoLibraryHeader) {
  EXPECT_THAT(RenderKernelSource({}, {}).text, Not(HasSubstr("#include")));
  EXPECT_THAT(SupportKernelSource().text, Not(HasSubstr("#include")));
}

}  // namespace
}  // namespace qgemm
