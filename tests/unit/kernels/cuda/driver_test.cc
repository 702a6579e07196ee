#include "kernels/cuda/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/nvml.h"

namespace qgemm {
namespace {

TEST(ArchFor, UsesTheArchSpecificTargetWhereThereIsOne) {
  EXPECT_EQ(ArchFor(8, 0), "sm_80");
  EXPECT_EQ(ArchFor(8, 9), "sm_89");
  EXPECT_EQ(ArchFor(9, 0), "sm_90a");
  EXPECT_EQ(ArchFor(10, 0), "sm_100a");
  EXPECT_EQ(ArchFor(12, 0), "sm_120");
}

TEST(DeviceProperties, RoundsMemoryToTheNearestGib) {
  DeviceProperties properties;
  properties.memory_total_bytes = 150'754'820'096;  // an H200
  EXPECT_EQ(properties.memory_gib(), 140);
  properties.memory_total_bytes = int64_t{24} << 30;
  EXPECT_EQ(properties.memory_gib(), 24);
}

TEST(IsSticky, IsOnlyForALostContext) {
  EXPECT_TRUE(IsSticky(absl::AbortedError("cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS")));
  EXPECT_FALSE(IsSticky(absl::FailedPreconditionError("cuLaunchKernel: CUDA_ERROR_INVALID_VALUE")));
  EXPECT_FALSE(IsSticky(absl::OkStatus()));
}

TEST(DescribeClocksReasons, NamesOnlyWhatDisturbsATiming) {
  EXPECT_EQ(DescribeClocksReasons(0x1 | 0x2), "");
  EXPECT_EQ(DescribeClocksReasons(kClocksSwPowerCap | kClocksHwThermal), "power cap, thermal slowdown");
}

// On a machine with a GPU this opens it; without one it must say so and not crash.
TEST(Driver, LoadsOrSaysWhyNot) {
  const auto driver = Driver::Load();
  if (!driver.ok()) {
    EXPECT_FALSE(driver.status().message().empty());
    return;
  }
  const auto properties = (*driver)->Properties(0);
  ASSERT_TRUE(properties.ok()) << properties.status();
  EXPECT_GT(properties->sm_count, 0);
}

}  // namespace
}  // namespace qgemm
