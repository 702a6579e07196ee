// Memory of graphs, by a driver that only looks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "client/runtime/launch_device.h"
#include "kernels/cuda/driver.h"
#include "tests/fakes/fake_cuda_driver.h"

namespace qgemm {
namespace {

using ::testing::IsEmpty;

class CudaLaunchDeviceTest : public testing::Test {
 protected:
  static constexpr int64_t kBytes = 512;

  void SetUp() override {
    fake_cuda::Current() = {};
    auto device = LaunchDevice::Open(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_.emplace(Stream::Create().value());
  }
  void TearDown() override {
    device_.reset();
    EXPECT_THAT(fake_cuda::Current().blocks, IsEmpty());
    EXPECT_THAT(fake_cuda::Current().violations, IsEmpty());
  }

  // A graph, instantiated, that has memory of its own.
  std::pair<GraphExec, uint64_t> Capture() {
    EXPECT_TRUE(stream_->BeginCapture().ok());
    const uint64_t address = device_->AllocateForGraph(kBytes, stream_->get()).value();
    return {stream_->EndCapture().value(), address};
  }
  static bool Allocated(uint64_t address) { return fake_cuda::Current().blocks.count(address) > 0; }

  std::unique_ptr<LaunchDevice> device_;
  std::optional<Stream> stream_;
};

TEST_F(CudaLaunchDeviceTest, AGraphsMemoryIsFreedOnceTheGraphIsGone) {
  auto [first, of_first] = Capture();
  auto [second, of_second] = Capture();
  EXPECT_NE(of_first, of_second);
  EXPECT_TRUE(Allocated(of_first));
  { const GraphExec gone = std::move(first); }
  const auto [third, of_third] = Capture();
  EXPECT_EQ(of_third, of_first);  // it was free
  EXPECT_TRUE(Allocated(of_second));
}

// The address may be somebody else's by the time that the graph goes.
TEST_F(CudaLaunchDeviceTest, AGraphsMemoryThatTheCallerFreedIsNotFreedAgain) {
  std::optional<GraphExec> graph;
  auto [made, of_graph] = Capture();
  graph.emplace(std::move(made));
  device_->Free(of_graph);
  const auto others = device_->Allocate(kBytes);
  ASSERT_TRUE(others.ok());
  ASSERT_EQ(*others, of_graph);
  graph.reset();
  const auto [next, of_next] = Capture();
  EXPECT_NE(of_next, *others);
  EXPECT_TRUE(Allocated(*others));
}

TEST_F(CudaLaunchDeviceTest, AGraphMayOutliveTheDevice) {
  const auto [graph, address] = Capture();
  device_.reset();
  EXPECT_FALSE(Allocated(address));
}

TEST_F(CudaLaunchDeviceTest, WhatFailsKeepsNoMemory) {
  EXPECT_TRUE(absl::IsFailedPrecondition(device_->AllocateForGraph(kBytes, stream_->get()).status()));
  for (bool* const refuse :
       {&fake_cuda::Current().refuse_object_create, &fake_cuda::Current().refuse_object_retain}) {
    ASSERT_TRUE(stream_->BeginCapture().ok());
    *refuse = true;
    EXPECT_FALSE(device_->AllocateForGraph(kBytes, stream_->get()).ok());
    *refuse = false;
    fake_cuda::Current().most_bytes = 1;
    EXPECT_FALSE(device_->AllocateForGraph(kBytes, stream_->get()).ok());
    fake_cuda::Current().most_bytes = 1 << 30;
    EXPECT_THAT(fake_cuda::Current().blocks, IsEmpty());
    EXPECT_TRUE(stream_->EndCapture().ok());
  }
}

}  // namespace
}  // namespace qgemm
