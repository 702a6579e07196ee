// What CudaDevice asks of the driver when it makes and updates graphs, by a driver that only looks.
#include "server/runner/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "server/runner/graph_pool.h"
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
  // Makes the graph, runs it, and gives it back; what ran.
  std::vector<std::string> RunOnce(GraphPool& graphs, const GraphShape& shape, const Enqueue& sequence) {
    const absl::StatusOr<GraphPool::Loan> graph = graphs.Make(shape, sequence);
    if (!graph.ok() || !*graph) return {"no graph"};
    fake_cuda::Current().ran.clear();
    EXPECT_TRUE(device_->LaunchGraph(**graph).ok());
    return fake_cuda::Current().ran;
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<DeviceModule> flush_module_;
  std::unique_ptr<DeviceKernel> flush_;
};

TEST_F(CudaDeviceTest, AnUpdatedGraphRunsTheNextKernelAndRecordsItsEvents) {
  GraphPool graphs(*device_, /*updates=*/true);
  const auto module = device_->Load("a b").value();
  const auto a = module->Find("a_84", 4096).value();
  const auto b = module->Find("b_84", 4096).value();
  EXPECT_THAT(RunOnce(graphs, {}, Sample(*a, 7)),
              ElementsAre("flush_8(5) 2x1x1 threads 256 smem 0 cluster 1", "record 0",
                          "a_84(7, 2) 3x4x1 threads 128 smem 4096 cluster 1", "record 1"));
  EXPECT_THAT(RunOnce(graphs, {}, Sample(*b, 8, 4)),
              ElementsAre("flush_8(5) 2x1x1 threads 256 smem 0 cluster 1", "record 4",
                          "b_84(8, 2) 3x4x1 threads 128 smem 4096 cluster 1", "record 5"));
  EXPECT_NEAR(device_->ElapsedMicroseconds(4, 5).value(), 10, 1e-6);
  EXPECT_EQ(fake_cuda::Current().graphs_instantiated, 1);
  EXPECT_EQ(fake_cuda::Current().kernels_set, 2);
  EXPECT_EQ(fake_cuda::Current().events_set, 2);
  // The same events again: they are left as they are.
  RunOnce(graphs, {}, Sample(*a, 9, 4));
  EXPECT_EQ(fake_cuda::Current().events_set, 2);
  EXPECT_EQ(graphs.counts().updated, 2);
}

// Events that a kernel marks: launches, which an update gives other places to write to.
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
  GraphPool graphs(*device_, /*updates=*/true);
  const auto module = device_->Load("a").value();
  const auto a = module->Find("a_84", 4096).value();
  const auto graph = graphs.Make({}, Sample(*a, 7)).value();
  ASSERT_TRUE(graph);
  uint64_t begin_ns = 1'000'000'000'000'000'000;  // as much as a clock since 1970 has
  for (const uint64_t took_ns : {12320, 64, 12320}) {
    fake_cuda::Current().ran.clear();
    ASSERT_TRUE(device_->LaunchGraph(*graph).ok());
    ASSERT_THAT(fake_cuda::Current().ran, testing::SizeIs(4));
    const uint64_t begin = MarkedAt(fake_cuda::Current().ran, 0);
    EXPECT_EQ(MarkedAt(fake_cuda::Current().ran, 1), begin + 8);
    ASSERT_TRUE(Mark(begin, begin_ns).ok());
    ASSERT_TRUE(Mark(begin + 8, begin_ns + took_ns).ok());
    EXPECT_DOUBLE_EQ(device_->ElapsedMicroseconds(0, 1).value(), static_cast<double>(took_ns) * 1e-3);
    begin_ns += 1'000'000;
  }
}

TEST_F(MarkedEventsTest, AnUpdatedGraphMarksItsOwnEvents) {
  GraphPool graphs(*device_, /*updates=*/true);
  const auto module = device_->Load("a b").value();
  const auto a = module->Find("a_84", 4096).value();
  const auto b = module->Find("b_84", 4096).value();
  const uint64_t first = MarkedAt(RunOnce(graphs, {}, Sample(*a, 7)), 0);
  const std::vector<std::string> ran = RunOnce(graphs, {}, Sample(*b, 8, 4));
  EXPECT_EQ(graphs.counts().updated, 1);
  EXPECT_EQ(ran[2], "b_84(8, 2) 3x4x1 threads 128 smem 4096 cluster 1");
  EXPECT_EQ(MarkedAt(ran, 0), first + 4 * 8);
  EXPECT_EQ(MarkedAt(ran, 1), first + 5 * 8);
  // The events of the driver again: not what a graph of marks can become.
  ASSERT_TRUE(device_->MarkEventsBy(nullptr).ok());
  EXPECT_THAT(RunOnce(graphs, {}, Sample(*a, 7))[1], testing::StartsWith("record"));
  EXPECT_NEAR(device_->ElapsedMicroseconds(0, 1).value(), 10, 1e-6);
}

TEST_F(MarkedEventsTest, EventsWithoutAPlaceAreRefused) {
  EXPECT_TRUE(device_->RecordEvent(4095).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(device_->RecordEvent(4096)));
}

// The driver may look at the function that was captured whenever it updates its node.
TEST_F(CudaDeviceTest, ModulesStayLoadedWhileAGraphRefersToThem) {
  GraphPool graphs(*device_, /*updates=*/true);
  for (const char* name : {"a_84", "b_84", "c_84", "d_84"}) {
    auto module = device_->Load(name).value();
    auto kernel = module->Find(name, 4096).value();
    RunOnce(graphs, {}, Sample(*kernel, 7));
  }
  EXPECT_EQ(graphs.counts().updated, 3);
  EXPECT_EQ(fake_cuda::Current().modules, 3);  // the flush's, the captured one's, and the last one's
  graphs.Clear();
  EXPECT_EQ(fake_cuda::Current().modules, 1);
}

// Clusters are an attribute of a node, which an update leaves: neither of these may become the other.
TEST_F(CudaDeviceTest, ClustersOfAnotherSizeAreNotUpdatedInto) {
  GraphPool graphs(*device_, /*updates=*/true);
  const auto module = device_->Load("a").value();
  const auto a = module->Find("a_84", 4096).value();
  for (const int cluster_z : {1, 4, 1, 2, 4}) {
    // The shape does not tell: the device does.
    EXPECT_EQ(RunOnce(graphs, {}, Sample(*a, 7, 0, cluster_z))[2],
              "a_84(7, 2) 3x4x" + std::to_string(cluster_z) + " threads 128 smem 4096 cluster " +
                  std::to_string(cluster_z));
  }
  EXPECT_EQ(graphs.counts().refused, 4);
  EXPECT_EQ(graphs.counts().built, 5);
  EXPECT_EQ(RunOnce(graphs, {}, Sample(*a, 8, 0, 4))[2], "a_84(8, 2) 3x4x4 threads 128 smem 4096 cluster 4");
  EXPECT_EQ(graphs.counts().updated, 1);
}

TEST_F(CudaDeviceTest, SequencesOfAnotherLengthAreNotUpdatedInto) {
  GraphPool graphs(*device_, /*updates=*/true);
  const auto module = device_->Load("a").value();
  const auto a = module->Find("a_84", 4096).value();
  const auto twice = [&]() -> absl::Status {
    absl::Status status = Sample(*a, 7)();
    status.Update(Sample(*a, 7)());
    return status;
  };
  EXPECT_EQ(RunOnce(graphs, {}, Sample(*a, 7)).size(), 4);
  EXPECT_EQ(RunOnce(graphs, {}, twice).size(), 8);
  EXPECT_EQ(RunOnce(graphs, {}, Sample(*a, 7)).size(), 4);
  EXPECT_EQ(graphs.counts().refused, 2);
}

// With every code that says so, and after any number of nodes.
TEST_F(CudaDeviceTest, AGraphWhoseUpdateTheDriverRefusesIsBuiltAnew) {
  const auto module = device_->Load("a b").value();
  const auto a = module->Find("a_84", 4096).value();
  const auto b = module->Find("b_84", 4096).value();
  constexpr int kInvalidValue = 1, kExecUpdateFailure = 910, kNotSupported = 801;
  for (const int refusal : {kInvalidValue, kExecUpdateFailure, kNotSupported}) {
    for (const int nodes : {0, 1}) {
      GraphPool graphs(*device_, /*updates=*/true);
      RunOnce(graphs, {}, Sample(*a, 7));
      fake_cuda::Current().refuse_set_at = fake_cuda::Current().kernels_set + nodes;
      fake_cuda::Current().refuse_with = refusal;
      const int before = fake_cuda::Current().graphs_instantiated;
      EXPECT_EQ(RunOnce(graphs, {}, Sample(*b, 8))[2], "b_84(8, 2) 3x4x1 threads 128 smem 4096 cluster 1");
      EXPECT_EQ(fake_cuda::Current().graphs_instantiated, before + 1);
      EXPECT_EQ(graphs.counts().refused, 1);
      EXPECT_EQ(fake_cuda::Current().execs, 1);  // the new one, kept
      fake_cuda::Current().refuse_set_at = -1;
    }
  }
}

TEST_F(CudaDeviceTest, AStickyErrorInAnUpdateLosesTheContext) {
  GraphPool graphs(*device_, /*updates=*/true);
  const auto module = device_->Load("a").value();
  const auto a = module->Find("a_84", 4096).value();
  RunOnce(graphs, {}, Sample(*a, 7));
  constexpr int kIllegalAddress = 700;
  fake_cuda::Current().refuse_set_at = 0;
  fake_cuda::Current().refuse_with = kIllegalAddress;
  EXPECT_TRUE(absl::IsAborted(graphs.Make({}, Sample(*a, 7)).status()));
}

TEST_F(CudaDeviceTest, GraphsAreBuiltAnewWhereTheDriverDoesNotTellTheirNodes) {
  fake_cuda::Current().tells_nodes = false;
  GraphPool graphs(*device_, /*updates=*/true);
  const auto module = device_->Load("a").value();
  const auto a = module->Find("a_84", 4096).value();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(RunOnce(graphs, {}, Sample(*a, 7)).size(), 4);
  EXPECT_EQ(graphs.counts().built, 3);
  EXPECT_EQ(graphs.counts().refused, 0);
}

// Copies have no place in an update: they would happen at once.
TEST_F(CudaDeviceTest, NothingButLaunchesAndEventsIsTakenInAnUpdate) {
  const auto module = device_->Load("a").value();
  const auto a = module->Find("a_84", 4096).value();
  ASSERT_TRUE(device_->BeginCapture().ok());
  ASSERT_TRUE(Sample(*a, 7)().ok());
  const auto graph = device_->EndCapture().value();
  ASSERT_TRUE(graph->updatable());
  const std::vector<Enqueue> others = {
      [&] { return device_->SetBytes(0, 0, 1); }, [&] { return device_->CopyOnDevice(0, 0, 1); },
      [&] { return device_->Synchronize(); },     [&] { return device_->LaunchGraph(*graph); },
      [&] { return device_->BeginCapture(); },
  };
  for (const Enqueue& other : others) {
    EXPECT_TRUE(absl::IsFailedPrecondition(device_->Update(*graph, other)));
  }
  EXPECT_TRUE(device_->Update(*graph, Sample(*a, 9)).ok());

  ASSERT_TRUE(device_->BeginCapture().ok());
  ASSERT_TRUE(device_->SetBytes(0, 0, 1).ok());
  EXPECT_FALSE(device_->EndCapture().value()->updatable());
}

}  // namespace
}  // namespace qgemm
