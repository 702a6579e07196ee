#include "kernels/device_profile.h"

#include <gtest/gtest.h>

#include <set>

namespace qgemm {
namespace {

TEST(DeviceProfile, BuiltInsAreCompleteAndPlausible) {
  std::set<std::string> names;
  for (const DeviceProfile& profile : DeviceProfiles()) {
    names.insert(profile.name);
    EXPECT_TRUE(ValidateArch(profile.arch).ok()) << profile.name;
    EXPECT_EQ(profile.arch.substr(0, 5),
              "sm_" + std::to_string(10 * profile.compute_major + profile.compute_minor).substr(0, 2))
        << profile.name;
    EXPECT_GE(profile.compute_major, 8) << profile.name;
    EXPECT_GT(profile.sm_count, 100) << profile.name;
    EXPECT_GE(profile.l2_bytes, 40 << 20) << profile.name;
    EXPECT_GE(profile.memory_gib, 24) << profile.name;
    EXPECT_GT(profile.dram_gb_per_s, 500) << profile.name;
    EXPECT_LT(profile.dram_gb_per_s, 8000) << profile.name;
    EXPECT_GT(profile.mma_tflops, 100) << profile.name;
    EXPECT_GT(profile.clock_ghz, 1) << profile.name;
    EXPECT_GE(profile.max_smem_per_block, 99 << 10) << profile.name;
    EXPECT_EQ(profile.max_smem_per_sm, profile.max_smem_per_block + 1024) << profile.name;
    EXPECT_GE(profile.max_threads_per_sm, 1536) << profile.name;
  }
  EXPECT_EQ(names, (std::set<std::string>{"a100", "b200", "h100", "h200", "l40s", "rtx4090", "rtx5090"}));
}

TEST(DeviceProfile, FindsH200WithItsMeasuredFigures) {
  const auto profile = FindDeviceProfile("h200");
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(profile->product_name, "NVIDIA H200");
  EXPECT_EQ(profile->arch, "sm_90a");
  EXPECT_EQ(profile->sm_count, 132);
  EXPECT_EQ(profile->l2_bytes, int64_t{60} << 20);
  EXPECT_DOUBLE_EQ(profile->dram_gb_per_s, 4200);
  EXPECT_NEAR(profile->mma_tflops, 537, 1);
  EXPECT_EQ(profile->max_smem_per_block, 227 * 1024);
}

TEST(DeviceProfile, UnknownNameListsTheKnownOnes) {
  for (const char* name : {"", "H200", "v100"}) {
    const auto profile = FindDeviceProfile(name);
    EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(profile.status().message(),
              std::string("target \"") + name +
                  "\" is not known: use a100, l40s, rtx4090, h100, h200, b200, rtx5090");
  }
}

TEST(DeviceProfile, PresentDeviceKeepsItsOwnFigures) {
  const auto profile = ProfileForDevice("NVIDIA H200", 9, 0, 120, 50 << 20, 139, 200 << 10);
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(profile->name, "h200");
  EXPECT_EQ(profile->sm_count, 120);
  EXPECT_EQ(profile->l2_bytes, 50 << 20);
  EXPECT_EQ(profile->memory_gib, 139);
  EXPECT_EQ(profile->max_smem_per_block, 200 << 10);
  EXPECT_DOUBLE_EQ(profile->dram_gb_per_s, 4200);
  EXPECT_NEAR(profile->mma_tflops, 537 * 120 / 132.0, 1);
}

TEST(DeviceProfile, UnlistedProductTakesItsNearestRelative) {
  const auto nvl = ProfileForDevice("NVIDIA H200 NVL", 9, 0, 132, 60 << 20, 139, 227 << 10);
  ASSERT_TRUE(nvl.ok());
  EXPECT_EQ(nvl->name, "NVIDIA H200 NVL");
  EXPECT_EQ(nvl->arch, "sm_90a");
  EXPECT_DOUBLE_EQ(nvl->dram_gb_per_s, 4200);

  const auto a10 = ProfileForDevice("NVIDIA A10", 8, 6, 72, 6 << 20, 24, 99 << 10);
  ASSERT_TRUE(a10.ok());
  EXPECT_EQ(a10->name, "NVIDIA A10");
  EXPECT_EQ(a10->arch, "sm_86");
  EXPECT_EQ(a10->compute_minor, 6);
  EXPECT_EQ(a10->max_threads_per_sm, 1536);
  EXPECT_EQ(a10->max_smem_per_sm, 100 << 10);

  const auto spark = ProfileForDevice("NVIDIA GB10", 12, 1, 48, 24 << 20, 120, 99 << 10);
  ASSERT_TRUE(spark.ok());
  EXPECT_EQ(spark->arch, "sm_121");
  const auto b300 = ProfileForDevice("NVIDIA B300", 10, 3, 148, 126 << 20, 268, 227 << 10);
  ASSERT_TRUE(b300.ok());
  EXPECT_EQ(b300->arch, "sm_103a");
}

TEST(DeviceProfile, RefusesOldDevices) {
  const auto profile = ProfileForDevice("Tesla T4", 7, 5, 40, 4 << 20, 15, 64 << 10);
  EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(profile.status().message(),
            "compute capability 7.5 of Tesla T4 is not supported: 8.0 or newer is needed");
}

TEST(DeviceProfile, ArchIsWellFormedAndAtLeastSm80) {
  for (const char* arch :
       {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_100f", "sm_120", "sm_121"}) {
    EXPECT_TRUE(ValidateArch(arch).ok()) << arch;
  }
  for (const char* arch : {"", "sm_", "sm_75", "sm_8", "sm_080", "80", "sm_90b", "sm_a", "compute_90",
                           "sm_90aa", "sm_1000", "sm_90a ", "SM_90"}) {
    const absl::Status status = ValidateArch(arch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << arch;
    EXPECT_EQ(status.message(),
              std::string("arch \"") + arch +
                  "\" is not allowed: use sm_80 or newer, such as sm_80, sm_89, sm_90a, sm_100a "
                  "or sm_120");
  }
}

}  // namespace
}  // namespace qgemm
