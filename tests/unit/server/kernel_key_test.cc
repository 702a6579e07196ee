#include "server/kernel_key.h"

#include <gtest/gtest.h>

#include <functional>

namespace qgemm {
namespace {

KernelKeyInput SomeKernel() {
  KernelKeyInput input;
  input.source_digest = "0123abcd";
  input.config = "mma_t1_r2_w4x2_s4_b2_slice_post";
  input.signature = "int4-g128-bf16 act bf16 out bf16";
  input.layout_id = "frag-v1";
  input.launch_abi_version = 1;
  input.arch = "sm_90a";
  input.options = {"--std=c++17", "-default-device"};
  input.toolchain = "nvrtc 13.0";
  return input;
}

v1::DeviceClass SomeDevice() {
  v1::DeviceClass device;
  device.set_product_name("NVIDIA H200");
  device.set_compute_major(9);
  device.set_compute_minor(0);
  device.set_sm_count(132);
  device.set_l2_bytes(62914560);
  device.set_memory_gib(140);
  return device;
}

TimingKeyInput SomeTiming() {
  TimingKeyInput input;
  input.problem = "5376x4096 int4-g128-bf16 act bf16 out bf16";
  input.m_bucket = 16;
  input.device = SomeDevice();
  input.kernel_key = KernelKey(SomeKernel());
  input.split_k = 4;
  input.reduction = Reduction::kWorkspace;
  return input;
}

PickKeyInput MeasuredPick() {
  PickKeyInput input;
  input.problem = "5376x4096 int4-g128-bf16 act bf16 out bf16";
  input.m_bucket = 16;
  input.source = v1::PICK_SOURCE_MEASURED;
  input.device = SomeDevice();
  input.arch = "sm_90a";
  input.effort = v1::EFFORT_BALANCED;
  return input;
}

PickKeyInput ModelPick() {
  PickKeyInput input = MeasuredPick();
  input.source = v1::PICK_SOURCE_MODEL;
  input.device.Clear();
  input.target = "h200";
  return input;
}

void ExpectKernelKeyChanges(const std::function<void(KernelKeyInput&)>& change) {
  KernelKeyInput changed = SomeKernel();
  change(changed);
  EXPECT_NE(KernelKey(SomeKernel()), KernelKey(changed));
}

void ExpectTimingKeyChanges(const std::function<void(TimingKeyInput&)>& change) {
  TimingKeyInput changed = SomeTiming();
  change(changed);
  EXPECT_NE(TimingKey(SomeTiming()), TimingKey(changed));
}

void ExpectPickKeyChanges(const PickKeyInput& base, const std::function<void(PickKeyInput&)>& change) {
  PickKeyInput changed = base;
  change(changed);
  EXPECT_NE(PickKey(base), PickKey(changed));
}

TEST(KernelKey, IsThirtyTwoBytesAndRepeats) {
  EXPECT_EQ(KernelKey(SomeKernel()).size(), 32u);
  EXPECT_EQ(KernelKey(SomeKernel()), KernelKey(SomeKernel()));
}

TEST(KernelKey, SourceDigestDiffers) {
  ExpectKernelKeyChanges([](KernelKeyInput& input) { input.source_digest = "0123abce"; });
}
TEST(KernelKey, ConfigDiffers) {
  ExpectKernelKeyChanges([](KernelKeyInput& input) { input.config = "mma_t1_r2_w4x2_s3_b2_slice_post"; });
}
TEST(KernelKey, SignatureDiffers) {
  ExpectKernelKeyChanges([](KernelKeyInput& input) { input.signature = "int4-g64-bf16 act bf16 out bf16"; });
}
TEST(KernelKey, LayoutDiffers) {
  ExpectKernelKeyChanges([](KernelKeyInput& input) { input.layout_id = "frag-v2"; });
}
TEST(KernelKey, LaunchAbiDiffers) {
  ExpectKernelKeyChanges([](KernelKeyInput& input) { input.launch_abi_version = 2; });
}
TEST(KernelKey, ArchDiffers) {
  ExpectKernelKeyChanges([](KernelKeyInput& input) { input.arch = "sm_90"; });
}
TEST(KernelKey, OptionDiffers) {
  ExpectKernelKeyChanges([](KernelKeyInput& input) { input.options[0] = "--std=c++20"; });
}
TEST(KernelKey, OptionOrderDiffers) {
  ExpectKernelKeyChanges([](KernelKeyInput& input) { std::swap(input.options[0], input.options[1]); });
}
TEST(KernelKey, OptionSplitInTwoDiffers) {
  ExpectKernelKeyChanges([](KernelKeyInput& input) {
    input.options = {"--std=c++17", "-default", "-device"};
  });
}
TEST(KernelKey, ToolchainDiffers) {
  ExpectKernelKeyChanges([](KernelKeyInput& input) { input.toolchain = "nvrtc 13.1"; });
}
TEST(KernelKey, TextMovedBetweenFieldsDiffers) {
  KernelKeyInput a = SomeKernel();
  KernelKeyInput b = SomeKernel();
  a.arch = "sm_90";
  a.toolchain = "a nvrtc 13.0";
  b.arch = "sm_90a";
  b.toolchain = " nvrtc 13.0";
  EXPECT_NE(KernelKey(a), KernelKey(b));
}

TEST(TimingKey, ProblemDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.problem[0] = '6'; });
}
TEST(TimingKey, BucketDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.m_bucket = 24; });
}
TEST(TimingKey, ProductNameDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.device.set_product_name("NVIDIA H20"); });
}
TEST(TimingKey, ComputeMajorDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.device.set_compute_major(10); });
}
TEST(TimingKey, ComputeMinorDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.device.set_compute_minor(1); });
}
TEST(TimingKey, SmCountDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.device.set_sm_count(78); });
}
TEST(TimingKey, L2BytesDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.device.set_l2_bytes(1); });
}
TEST(TimingKey, MemoryDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.device.set_memory_gib(96); });
}
TEST(TimingKey, TimerVersionDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { ++input.timer_version; });
}
TEST(TimingKey, KernelDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.kernel_key[31] ^= 1; });
}
TEST(TimingKey, SplitDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.split_k = 5; });
}
TEST(TimingKey, ReductionDiffers) {
  ExpectTimingKeyChanges([](TimingKeyInput& input) { input.reduction = Reduction::kNone; });
}

TEST(PickKey, ProblemDiffers) {
  ExpectPickKeyChanges(MeasuredPick(), [](PickKeyInput& input) { input.problem[0] = '6'; });
}
TEST(PickKey, BucketDiffers) {
  ExpectPickKeyChanges(MeasuredPick(), [](PickKeyInput& input) { input.m_bucket = 24; });
}
TEST(PickKey, SourceDiffers) { EXPECT_NE(PickKey(MeasuredPick()), PickKey(ModelPick())); }
TEST(PickKey, DeviceDiffersWhenMeasured) {
  ExpectPickKeyChanges(MeasuredPick(), [](PickKeyInput& input) { input.device.set_sm_count(78); });
}
TEST(PickKey, TargetDiffersWhenPredicted) {
  ExpectPickKeyChanges(ModelPick(), [](PickKeyInput& input) { input.target = "h100"; });
}
TEST(PickKey, ArchDiffers) {
  ExpectPickKeyChanges(MeasuredPick(), [](PickKeyInput& input) { input.arch = "sm_90"; });
  ExpectPickKeyChanges(ModelPick(), [](PickKeyInput& input) { input.arch = "sm_90"; });
}
TEST(PickKey, EffortDiffers) {
  ExpectPickKeyChanges(MeasuredPick(), [](PickKeyInput& input) { input.effort = v1::EFFORT_EXHAUSTIVE; });
}

}  // namespace
}  // namespace qgemm
