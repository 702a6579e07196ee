#include <gtest/gtest.h>

#include "kernels/cuda/nvrtc.h"
#include "kernels/fingerprint.h"
#include "kernels/kernel_source.h"

namespace qgemm {
namespace {

class FingerprintKernelTest : public testing::TestWithParam<const char*> {};

TEST_P(FingerprintKernelTest, CompilesWithoutSpills) {
  const auto nvrtc = Nvrtc::Load();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status();
  const auto output = (*nvrtc)->Compile(FingerprintKernelSource(), GetParam(), /*want_ptx=*/false);
  ASSERT_TRUE(output.ok()) << output.status();
  const auto resources = ParseResources(output->log, kFingerprintEntry);
  ASSERT_TRUE(resources.ok()) << resources.status();
  EXPECT_EQ(resources->spill_store_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(Archs, FingerprintKernelTest, testing::Values("sm_80", "sm_90a", "sm_120"));

}  // namespace
}  // namespace qgemm
