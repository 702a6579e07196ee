// What CudaDevice asks of the driver when it makes graphs, by a driver that only looks.
#include "server/runner/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "server/runner/timing_sequence.h"
#include "tests/fakes/fake_cuda_driver.h"

namespace qgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda::Current() = {};
    auto device = CudaDevice::Open("auto");
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    flush_module_ = device_->Load("flush").value();
    flush_ = flush_module_->Find("flush_8", 0).value();
  }
  void TearDown() override {
    flush_.reset();
    flush_module_.reset();
    device_.reset();
    EXPECT_THAT(fake_cuda::Current().violations, IsEmpty());
    EXPECT_EQ(fake_cuda::Current().modules, 0);
    EXPECT_EQ(fake_cuda::Current().graphs, 0);
    EXPECT_EQ(fake_cuda::Current().execs, 0);
  }

  // Parameters as a launch of ours has them: gone after the call.
  absl::Status Launch(const DeviceKernel& kernel, uint64_t first, int32_t second, Dim3 grid, int cluster_z) {
    void* params[] = {&first, &second};
    const absl::Status launched = device_->Launch(kernel, grid, 128, 4096, params, cluster_z);
    first = 0xdead;
    second = 0xdead;
    return launched;
  }
  absl::Status Flush() {
    uint64_t address = 5;
    void* params[] = {&address};
    return device_->Launch(*flush_, {2, 1, 1}, 256, 0, params, 1);
  }
  // One sample.
  Enqueue Sample(const DeviceKernel& kernel, uint64_t first, int event = 0, int cluster_z = 1) {
    return [=, this, &kernel]() -> absl::Status {
      absl::Status status = Flush();
      status.Update(device_->RecordEvent(event));
      status.Update(Launch(kernel, first, 2, {3, 4, cluster_z}, cluster_z));
      status.Update(device_->RecordEvent(event + 1));
      return status;
    };
  }
  // Null when a call failed.
  std::unique_ptr<DeviceGraph> Capture(const Enqueue& sequence) {
    EXPECT_TRUE(device_->BeginCapture().ok());
    EXPECT_TRUE(sequence().ok());
    absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = device_->EndCapture();
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : nullptr;
  }
  // What ran.
  std::vector<std::string> Run(const DeviceGraph& graph) {
    fake_cuda::Current().ran.clear();
    EXPECT_TRUE(device_->LaunchGraph(graph).ok());
    return fake_cuda::Current().ran;
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<DeviceModule> flush_module_;
  std::unique_ptr<DeviceKernel> flush_;
};

TEST_F(CudaDeviceTest, AGraphRunsWhatWasCapturedEveryTime) {
  const auto module = device_->Load("a").value();
  const auto a = module->Find("a_84", 4096).value();
  const auto graph = Capture(Sample(*a, 7, /*event=*/4));
  ASSERT_NE(graph, nullptr);
  EXPECT_THAT(fake_cuda::Current().ran, IsEmpty());
  EXPECT_EQ(fake_cuda::Current().graphs, 0);  // what was captured is not needed any more
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Run(*graph), ElementsAre("flush_8(5) 2x1x1 threads 256 smem 0 cluster 1", "record 4",
                                         "a_84(7, 2) 3x4x1 threads 128 smem 4096 cluster 1", "record 5"));
    EXPECT_NEAR(device_->ElapsedMicroseconds(4, 5).value(), 10, 1e-6);
  }
}

TEST_F(CudaDeviceTest, AGraphLaunchesInClusters) {
  const auto module = device_->Load("a").value();
  const auto a = module->Find("a_84", 4096).value();
  const auto graph = Capture(Sample(*a, 7, /*event=*/0, /*cluster_z=*/4));
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(Run(*graph)[2], "a_84(7, 2) 3x4x4 threads 128 smem 4096 cluster 4");
}

// Events that a kernel marks.
class MarkedEventsTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    CudaDeviceTest::SetUp();
    module_ = device_->Load("mark").value();
    mark_ = module_->Find("mark_8", 0).value();
    ASSERT_TRUE(device_->MarkEventsBy(mark_.get()).ok());
  }
  void TearDown() override {
    mark_.reset();
    module_.reset();
    CudaDeviceTest::TearDown();
  }
  // Where mark `i` of what ran wrote, or 0.
  static uint64_t MarkedAt(const std::vector<std::string>& ran, int i) {
    const std::string& text = ran[2 * i + 1];
    return absl::StartsWith(text, "mark_8(") ? std::stoull(text.substr(7)) : 0;
  }
  absl::Status Mark(uint64_t address, uint64_t ns) {
    return device_->Write(address, {reinterpret_cast<const std::byte*>(&ns), sizeof(ns)});
  }

  std::unique_ptr<DeviceModule> module_;
  std::unique_ptr<DeviceKernel> mark_;
};

TEST_F(MarkedEventsTest, TimesAreWhatTheKernelWroteInTheLastRun) {
  const auto module = device_->Load("a").value();
  const auto a = module->Find("a_84", 4096).value();
  const auto graph = Capture(Sample(*a, 7));
  ASSERT_NE(graph, nullptr);
  uint64_t begin_ns = 1'000'000'000'000'000'000;  // as much as a clock since 1970 has
  for (const uint64_t took_ns : {12320, 64, 12320}) {
    const std::vector<std::string> ran = Run(*graph);
    ASSERT_THAT(ran, testing::SizeIs(4));
    const uint64_t begin = MarkedAt(ran, 0);
    EXPECT_EQ(MarkedAt(ran, 1), begin + 8);
    ASSERT_TRUE(Mark(begin, begin_ns).ok());
    ASSERT_TRUE(Mark(begin + 8, begin_ns + took_ns).ok());
    EXPECT_DOUBLE_EQ(device_->ElapsedMicroseconds(0, 1).value(), static_cast<double>(took_ns) * 1e-3);
    begin_ns += 1'000'000;
  }
}

TEST_F(MarkedEventsTest, EveryEventHasAPlaceUntilTheyAreTheDriversAgain) {
  const auto module = device_->Load("a").value();
  const auto a = module->Find("a_84", 4096).value();
  const uint64_t first = MarkedAt(Run(*Capture(Sample(*a, 7))), 0);
  const std::vector<std::string> ran = Run(*Capture(Sample(*a, 8, /*event=*/4)));
  EXPECT_EQ(MarkedAt(ran, 0), first + 4 * 8);
  EXPECT_EQ(MarkedAt(ran, 1), first + 5 * 8);
  ASSERT_TRUE(device_->MarkEventsBy(nullptr).ok());
  EXPECT_THAT(Run(*Capture(Sample(*a, 7)))[1], testing::StartsWith("record"));
  EXPECT_NEAR(device_->ElapsedMicroseconds(0, 1).value(), 10, 1e-6);
}

TEST_F(MarkedEventsTest, EventsWithoutAPlaceAreRefused) {
  EXPECT_TRUE(device_->RecordEvent(4095).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(device_->RecordEvent(4096)));
}

}  // namespace
}  // namespace qgemm
