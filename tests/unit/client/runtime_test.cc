#include "client/qgemm/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "client/runtime/bundle_runtime.h"
#include "client/runtime/prepared_kernel.h"
#include "kernels/cuda/launch.h"
#include "tests/fakes/fake_launch_device.h"
#include "tests/unit/client/sample_bundle.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

LaunchOperands SomeOperands(int64_t m) {
  LaunchOperands operands;
  operands.m = m;
  operands.ldx = 256;
  operands.ldy = 128;
  operands.x = 0x1000;
  operands.weights = 0x2000;
  operands.scales = 0x3000;
  operands.y = 0x4000;
  operands.workspace = 0x5000;
  return operands;
}

// What a kernel finds in its parameters: as MarshalArguments makes it, the runtime's own way must be the
// same.
void ExpectSameArguments(const LaunchSpec& spec, const LaunchOperands& operands) {
  FakeLaunchDevice device;
  auto block = MarshalArguments(spec, operands);
  ASSERT_TRUE(block.ok()) << block.status();
  ASSERT_TRUE(FillTensorMaps(*block, [&](const TensorMapShape& shape, absl::Span<std::byte> out) {
                return device.EncodeTensorMap(shape, out);
              }).ok());
  std::vector<std::string> expected;
  for (size_t i = 0; i < block->offsets.size(); ++i) {
    const auto* integer = std::get_if<IntegerArgument>(&spec.arguments[i].kind);
    const bool is_map = std::holds_alternative<TensorMapArgument>(spec.arguments[i].kind);
    device.parameter_bytes.push_back(integer != nullptr ? integer->bits / 8 : is_map ? 128 : 8);
    expected.emplace_back(reinterpret_cast<const char*>(block->bytes.data()) + block->offsets[i],
                          device.parameter_bytes.back());
  }
  const auto function = device.LoadKernel("cubin", "entry", 0);
  ASSERT_TRUE(function.ok());
  const auto kernel = PreparedKernel::Create(spec, *function, device);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  int stream = 0;
  ASSERT_TRUE((*kernel)->Launch(operands, &stream, false).ok());
  ASSERT_EQ(device.launches.size(), 1);
  const FakeLaunchDevice::Launched& launch = device.launches[0];
  EXPECT_EQ(launch.parameters, expected);
  EXPECT_EQ(launch.call.stream, &stream);
  EXPECT_EQ(launch.call.grid.x, spec.Grid(operands.m).x);
  EXPECT_EQ(launch.call.grid.z, spec.split_k);
  EXPECT_EQ(launch.call.block_threads, spec.block_threads);
  EXPECT_EQ(launch.call.dynamic_smem_bytes, spec.dynamic_smem_bytes);
  EXPECT_EQ(launch.call.cluster_z, spec.cluster_z);
}

TEST(PreparedKernel, PassesTheSameArgumentsAsMarshalArguments) {
  for (const char* config : {kMmaConfig, kWgmmaConfig}) {
    for (const int split_k : {1, 2}) {
      for (const int m : {1, 5, 8}) {
        ExpectSameArguments(SamplePick(8, config, split_k, SampleProblem()).launch, SomeOperands(m));
      }
    }
  }
}

TEST(PreparedKernel, RefusesWithTheSameSentences) {
  FakeLaunchDevice device;
  const auto function = device.LoadKernel("cubin", "entry", 0);
  for (const char* config : {kMmaConfig, kWgmmaConfig}) {
    const auto kernel =
        PreparedKernel::Create(SamplePick(8, config, 2, SampleProblem()).launch, *function, device);
    ASSERT_TRUE(kernel.ok());
    std::vector<LaunchOperands> wrong(9, SomeOperands(4));
    wrong[0].x = 0x1008;
    wrong[1].y = 0x4004;
    wrong[2].weights = 0;
    wrong[3].workspace = 0;
    wrong[4].m = 9;
    wrong[5].m = -1;
    wrong[6].bias = 2;
    wrong[7].scales = 0x3001;
    wrong[8].y = 0;
    for (const LaunchOperands& operands : wrong) {
      const absl::Status status = (*kernel)->Launch(operands, nullptr, false);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_EQ(status, MarshalArguments((*kernel)->spec(), operands).status());
    }
  }
  EXPECT_TRUE(device.launches.empty());
}

TEST(PreparedKernel, ZeroRowsLaunchNothing) {
  FakeLaunchDevice device;
  const auto function = device.LoadKernel("cubin", "entry", 0);
  const auto kernel =
      PreparedKernel::Create(SamplePick(8, kWgmmaConfig, 1, SampleProblem()).launch, *function, device);
  EXPECT_TRUE((*kernel)->Launch(LaunchOperands(), nullptr, false).ok());
  EXPECT_TRUE(device.launches.empty());
  EXPECT_EQ(device.encoded, 0);
}

TEST(PreparedKernel, EncodesATensorMapOncePerBufferAndM) {
  FakeLaunchDevice device;
  const auto function = device.LoadKernel("cubin", "entry", 0);
  const auto kernel =
      PreparedKernel::Create(SamplePick(8, kWgmmaConfig, 1, SampleProblem()).launch, *function, device);
  ASSERT_TRUE(kernel.ok());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE((*kernel)->Launch(SomeOperands(4), nullptr, false).ok());
  const int maps = device.encoded;
  EXPECT_LE(maps, 5);  // X and the planes
  ASSERT_TRUE((*kernel)->Launch(SomeOperands(5), nullptr, false).ok());
  EXPECT_EQ(device.encoded, maps + 1);  // that of X alone: its rows are M
  LaunchOperands moved = SomeOperands(5);
  moved.x = 0x9000;
  ASSERT_TRUE((*kernel)->Launch(moved, nullptr, false).ok());
  EXPECT_EQ(device.encoded, maps + 2);
}

TEST(PreparedKernel, ThreadsGetTheirOwnMaps) {
  FakeLaunchDevice device;
  device.parameter_bytes = {128};
  const auto function = device.LoadKernel("cubin", "entry", 0);
  const auto kernel =
      PreparedKernel::Create(SamplePick(8, kWgmmaConfig, 1, SampleProblem()).launch, *function, device);
  ASSERT_TRUE(kernel.ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&kernel, t] {
      for (int i = 0; i < 200; ++i) {
        LaunchOperands operands = SomeOperands(1 + i % 8);
        operands.x = 0x10000 + 0x1000 * t;
        int64_t stream = 0;
        EXPECT_TRUE((*kernel)->Launch(operands, &stream, false).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(device.launches.size(), 800);
  for (const FakeLaunchDevice::Launched& launch : device.launches) {
    EXPECT_THAT(launch.parameters[0], HasSubstr(" pitch 512 box 64x64"));
  }
}

TEST(SelectBucket, IsTheBucketOfMElseTheNextLarger) {
  const std::vector<int> some = {4, 16, 4096};
  const std::pair<int64_t, int> cases[] = {{0, -1}, {-3, -1}, {1, 0},  {4, 0},
                                           {5, 1},  {16, 1},  {17, 2}, {1 << 20, 2}};
  for (const auto& [m, place] : cases) EXPECT_EQ(SelectBucket(some, m), place) << m;
  const std::vector<int> one = {8};
  EXPECT_EQ(SelectBucket(one, 8), 0);
  EXPECT_EQ(SelectBucket(one, 9), -1);
  for (int64_t m = 1; m < 5000; ++m) {
    const int place = SelectBucket(BucketLadder(), m);
    ASSERT_GE(place, 0);
    EXPECT_EQ(BucketLadder()[place], BucketFor(m));
  }
}

class RuntimeTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Runtime>> Load(const std::string& method) {
    WriteSampleBundle(folder_ / "b");
    auto bundle = Bundle::Open(folder_ / "b");
    if (!bundle.ok()) return bundle.status();
    auto device = std::make_unique<FakeLaunchDevice>();
    device_ = device.get();
    device_->refuse_kernels = refuse_kernels_;
    return LoadRuntime(*std::move(bundle), method, std::move(device));
  }
  LayerLaunch SomeLaunch(Runtime& runtime, int64_t m) {
    LayerLaunch launch;
    launch.m = m;
    launch.x = 0x1000;
    launch.ldx = 256;
    launch.y = 0x2000;
    launch.ldy = 128;
    launch.workspace = *runtime.AllocateWorkspace(m);
    return launch;
  }

  TemporaryFolder folder_;
  FakeLaunchDevice* device_ = nullptr;
  bool refuse_kernels_ = false;
};

TEST_F(RuntimeTest, KnowsItsLayers) {
  const auto runtime = Load("decode");
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  ASSERT_EQ((*runtime)->layer_count(), 1);
  EXPECT_EQ((*runtime)->FindLayer("q"), 0);
  EXPECT_EQ((*runtime)->FindLayer("k"), -1);
  EXPECT_EQ((*runtime)->layer(0).n, 128);
  EXPECT_EQ((*runtime)->layer(0).static_m, 1);
  EXPECT_TRUE((*runtime)->layer(0).has_weights);
}

TEST_F(RuntimeTest, PicksByTheRealM) {
  const auto runtime = Load("prefill");
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  ASSERT_TRUE((*runtime)->UploadWeights().ok());
  const std::pair<int64_t, std::string> cases[] = {
      {1, kMmaConfig}, {8, kMmaConfig}, {9, kWgmmaConfig}, {100, kWgmmaConfig}, {100000, kWgmmaConfig}};
  for (const auto& [m, config] : cases) {
    EXPECT_EQ((*runtime)->Select(0, m)->config, config) << m;
    ASSERT_TRUE((*runtime)->Launch(0, SomeLaunch(**runtime, m)).ok()) << m;
    EXPECT_EQ(device_->launches.back().cubin, SampleCubin(config)) << m;
  }
  EXPECT_EQ((*runtime)->Select(0, 100)->m_bucket, 128);
  EXPECT_EQ(device_->loaded.size(), 2);  // each kernel once
}

TEST_F(RuntimeTest, AStaticMethodServesItsBucketOnly) {
  const auto runtime = Load("decode");
  ASSERT_TRUE(runtime.ok());
  ASSERT_TRUE((*runtime)->UploadWeights().ok());
  EXPECT_TRUE((*runtime)->Launch(0, SomeLaunch(**runtime, 1)).ok());
  const absl::Status status = (*runtime)->Launch(0, SomeLaunch(**runtime, 2));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer q: M = 2 is outside of 1 to 1"));
}

TEST_F(RuntimeTest, ZeroRowsAreNoLaunch) {
  const auto runtime = Load("decode");
  EXPECT_TRUE((*runtime)->Launch(0, LayerLaunch()).ok());
  EXPECT_TRUE(device_->launches.empty());
}

TEST_F(RuntimeTest, UsesTheBundlesWeightsOrTheCallers) {
  const auto runtime = Load("decode");
  ASSERT_TRUE(runtime.ok());
  LayerLaunch launch = SomeLaunch(**runtime, 1);
  EXPECT_THAT(std::string((*runtime)->Launch(0, launch).message()), HasSubstr("'weights' is null"));
  ASSERT_TRUE((*runtime)->UploadWeights().ok());
  device_->parameter_bytes = {8, 8, 8};  // x, weights, scales
  ASSERT_TRUE((*runtime)->Launch(0, launch).ok());
  uint64_t address = 0;
  std::memcpy(&address, device_->launches.back().parameters[1].data(), 8);
  ASSERT_EQ(device_->memory.count(address & ~uint64_t{255}), 1);
  EXPECT_EQ(device_->memory.begin()->second.empty(), false);
  launch.weights = 0x7000;
  launch.scales = 0x8000;
  ASSERT_TRUE((*runtime)->Launch(0, launch).ok());
  std::memcpy(&address, device_->launches.back().parameters[1].data(), 8);
  EXPECT_EQ(address, 0x7000);
}

TEST_F(RuntimeTest, NamesTheArgumentThatIsNotAligned) {
  const auto runtime = Load("decode");
  ASSERT_TRUE((*runtime)->UploadWeights().ok());
  LayerLaunch launch = SomeLaunch(**runtime, 1);
  launch.x = 0x1002;
  const absl::Status status = (*runtime)->Launch(0, launch);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("layer q: argument 'x' at 0x1002 is not aligned to 16 bytes"));
}

TEST_F(RuntimeTest, TicketsOfAllKernelsEndAtOnePlace) {
  const auto runtime = Load("prefill");
  ASSERT_TRUE((*runtime)->UploadWeights().ok());
  const WorkspaceMemory workspace = *(*runtime)->AllocateWorkspace(8);
  EXPECT_GT(workspace.ticket_bytes, 0);
  EXPECT_GT(workspace.bytes, workspace.ticket_bytes);
  device_->parameter_bytes.assign(9, 8);  // the pointers
  const LaunchSpec spec = SamplePick(8, kMmaConfig, 2, SampleProblem()).launch;
  for (const int64_t m : {1, 3, 8}) {
    LayerLaunch launch = SomeLaunch(**runtime, m);
    launch.workspace = workspace;
    ASSERT_TRUE((*runtime)->Launch(0, launch).ok());
    uint64_t address = 0;
    // The workspace's place among the family's arguments.
    for (size_t i = 0; i < device_->parameter_bytes.size(); ++i) {
      if (spec.arguments[i].name == "workspace") {
        std::memcpy(&address, device_->launches.back().parameters[i].data(), 8);
      }
    }
    EXPECT_EQ(address + spec.TicketBytes(m), workspace.address + workspace.ticket_bytes) << m;
  }
}

TEST_F(RuntimeTest, AWorkspaceThatIsTooSmallIsRefused) {
  const auto runtime = Load("prefill");
  ASSERT_TRUE((*runtime)->UploadWeights().ok());
  LayerLaunch launch = SomeLaunch(**runtime, 8);
  launch.workspace.bytes -= 1;
  const absl::Status status = (*runtime)->Launch(0, launch);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer q: the workspace at"));
  launch.workspace = {};
  EXPECT_TRUE(absl::IsInvalidArgument((*runtime)->Launch(0, launch)));
}

TEST_F(RuntimeTest, ProgrammaticLaunchIsForKernelsThatWait) {
  const auto runtime = Load("decode");
  ASSERT_TRUE((*runtime)->UploadWeights().ok());
  LayerLaunch launch = SomeLaunch(**runtime, 1);
  launch.programmatic = true;
  EXPECT_TRUE(absl::IsFailedPrecondition((*runtime)->Launch(0, launch)));
}

TEST_F(RuntimeTest, AKernelForAnotherDeviceIsNamed) {
  refuse_kernels_ = true;
  const auto runtime = Load("decode");
  EXPECT_TRUE(absl::IsFailedPrecondition(runtime.status()));
  EXPECT_THAT(std::string(runtime.status().message()), HasSubstr("for sm_90a on a device of sm_90a"));
}

TEST_F(RuntimeTest, ManyRuntimesStandSideBySide) {
  const auto first = Load("decode");
  FakeLaunchDevice* const first_device = device_;
  const auto second = Load("decode");
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE((*first)->UploadWeights().ok());
  ASSERT_TRUE((*first)->Launch(0, SomeLaunch(**first, 1)).ok());
  EXPECT_EQ(first_device->launches.size(), 1);
  EXPECT_TRUE(device_->launches.empty());
}

}  // namespace
}  // namespace qgemm
