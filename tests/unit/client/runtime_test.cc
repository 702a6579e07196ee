#include "client/qgemm/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "client/runtime/bundle_runtime.h"
#include "client/runtime/prepared_kernel.h"
#include "kernels/cuda/launch.h"
#include "kernels/legality.h"
#include "kernels/similarity.h"
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
    launch.x = 0x10000000;
    launch.ldx = 256;
    launch.y = 0x20000000;
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

TEST_F(RuntimeTest, YOverXIsRefused) {
  const auto runtime = Load("decode");
  ASSERT_TRUE((*runtime)->UploadWeights().ok());
  LayerLaunch launch = SomeLaunch(**runtime, 1);
  launch.x = 0x10000;  // 512 bytes; Y has 256
  for (const int64_t y : {0x10000, 0x10010, 0x101f0, 0xff10}) {
    launch.y = y;
    const absl::Status status = (*runtime)->Launch(0, launch);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << y;
    EXPECT_THAT(std::string(status.message()), HasSubstr("overlaps X at 0x10000"));
  }
  for (const int64_t y : {0xff00, 0x10200}) {
    launch.y = y;
    EXPECT_TRUE((*runtime)->Launch(0, launch).ok()) << y;
  }
}

TEST_F(RuntimeTest, TicketsOfAllKernelsEndAtOnePlace) {
  const auto runtime = Load("prefill");
  ASSERT_TRUE((*runtime)->UploadWeights().ok());
  const WorkspaceMemory workspace = *(*runtime)->AllocateWorkspace(8);
  EXPECT_GT(workspace.ticket_bytes, 0);
  EXPECT_GT(workspace.bytes, workspace.ticket_bytes);
  const LaunchSpec spec = SamplePick(8, kMmaConfig, 2, SampleProblem()).launch;
  for (const KernelArgument& argument : spec.arguments) {
    const auto* integer = std::get_if<IntegerArgument>(&argument.kind);
    device_->parameter_bytes.push_back(integer == nullptr ? 8 : integer->bits / 8);
  }
  for (const int64_t m : {1, 3, 8}) {
    LayerLaunch launch = SomeLaunch(**runtime, m);
    launch.workspace = workspace;
    ASSERT_TRUE((*runtime)->Launch(0, launch).ok());
    uint64_t address = 0;
    // The workspace's place among the family's arguments.
    for (size_t i = 0; i < spec.arguments.size(); ++i) {
      if (spec.arguments[i].name == "workspace") {
        std::memcpy(&address, device_->launches.back().parameters[i].data(), 8);
      }
    }
    EXPECT_EQ(address + spec.TicketBytes(m), workspace.address + workspace.ticket_bytes) << m;
  }
}

TEST_F(RuntimeTest, AGraphsWorkspaceIsItsOwn) {
  const auto runtime = Load("prefill");
  int one = 0, other = 0;  // streams
  EXPECT_TRUE(absl::IsFailedPrecondition((*runtime)->AllocateWorkspaceForGraph(8, &one).status()));
  device_->captured = {&one, &other};
  const auto a = (*runtime)->AllocateWorkspaceForGraph(8, &one);
  const auto b = (*runtime)->AllocateWorkspaceForGraph(8, &other);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->address, b->address);
  EXPECT_EQ(device_->of_graphs[&one], std::vector<uint64_t>{a->address});
  const WorkspaceMemory size = (*runtime)->WorkspaceFor(8);
  EXPECT_EQ(std::make_pair(a->bytes, a->ticket_bytes), std::make_pair(size.bytes, size.ticket_bytes));
  EXPECT_EQ(device_->memory[a->address].size(), size.bytes);
  ASSERT_TRUE((*runtime)->UploadWeights().ok());
  LayerLaunch launch = SomeLaunch(**runtime, 8);
  launch.workspace = *a;
  launch.stream = &one;
  EXPECT_TRUE((*runtime)->Launch(0, launch).ok());
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

// ---- layers that were not tuned for every bucket ----

// Layer "q" of SampleProblem with picks for these buckets, and one of another shape with one pick.
class SimilarTest : public ::testing::Test {
 protected:
  SimilarTest() {
    WriteSampleBundle(folder_ / "b");
    method_.name = "some";
    method_.layers = {{"q", SampleProblem(), "", {}}, {"r", {192, 256, {}}, "", {}}};
  }
  BundleLayer& q() { return method_.layers[0]; }
  BundleLayer& r() { return method_.layers[1]; }
  void Tune(BundleLayer& layer, int bucket, const std::string& config, int split_k) {
    layer.picks.push_back(SamplePick(bucket, config, split_k, layer.problem));
  }
  void Load() {
    auto bundle = Bundle::Open(folder_ / "b");
    ASSERT_TRUE(bundle.ok()) << bundle.status();
    auto device = std::make_unique<FakeLaunchDevice>();
    device_ = device.get();
    auto runtime = LoadRuntime(*std::move(bundle), method_, std::move(device));
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
  }
  LayerLaunch SomeLaunch(int64_t m) {
    LayerLaunch launch;
    launch.m = m;
    launch.x = 0x10000000;
    launch.ldx = 256;
    launch.y = 0x20000000;
    launch.ldy = 192;
    launch.weights = 0x3000;
    launch.scales = 0x4000;
    launch.workspace = *runtime_->AllocateWorkspace(m);
    return launch;
  }

  TemporaryFolder folder_;
  BundleMethod method_;
  FakeLaunchDevice* device_ = nullptr;
  std::unique_ptr<Runtime> runtime_;
};

TEST_F(SimilarTest, TheBucketComesFirst) {
  Tune(q(), 8, kMmaConfig, 2);
  Tune(q(), 64, kWgmmaConfig, 1);
  Tune(r(), 128, kWgmmaConfig, 1);
  Load();
  for (const int64_t m : {5, 8, 49, 64}) {
    const auto selected = runtime_->Select(0, m);
    ASSERT_TRUE(selected.ok()) << selected.status();
    EXPECT_FALSE(selected->is_similar) << m;
    EXPECT_EQ(selected->m_bucket, m <= 8 ? 8 : 64);
  }
}

TEST_F(SimilarTest, ElseTheNearestLegalPickOfTheMethod) {
  Tune(q(), 8, kMmaConfig, 2);
  Tune(q(), 64, kWgmmaConfig, 1);
  Tune(r(), 128, kWgmmaConfig, 1);
  Load();
  // M, and whose bucket: its own next larger ones are near, r's 128 alone holds more than 64 rows.
  const std::pair<int64_t, int> cases[] = {{1, 8}, {3, 8}, {9, 64}, {24, 64}, {65, 128}, {100, 128}};
  for (const auto& [m, bucket] : cases) {
    const auto selected = runtime_->Select(0, m);
    ASSERT_TRUE(selected.ok()) << selected.status();
    EXPECT_TRUE(selected->is_similar) << m;
    EXPECT_EQ(selected->m_bucket, bucket) << m;
    device_->launches.clear();
    ASSERT_TRUE(runtime_->Launch(0, SomeLaunch(m)).ok()) << m;
    const std::string config(selected->config);
    EXPECT_EQ(device_->launches.back().cubin, SampleCubin(config));
    // All of the launch is made from the layer's own shape.
    const auto parsed = ParseConfig(config);
    const int split_k = bucket == 8 ? 2 : 1;
    const Candidate candidate{*parsed, split_k, split_k > 1 ? Reduction::kWorkspace : Reduction::kNone};
    const LaunchSpec spec = MakeLaunchSpec(candidate, SampleProblem(), BucketFor(m));
    EXPECT_EQ(device_->launches.back().call.grid.x, spec.Grid(m).x);
    EXPECT_EQ(device_->launches.back().call.grid.y, spec.Grid(m).y);
    EXPECT_EQ(device_->launches.back().call.dynamic_smem_bytes, spec.dynamic_smem_bytes);
  }
  const auto none = runtime_->Select(0, 129);
  EXPECT_TRUE(absl::IsInvalidArgument(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("layer q: M = 129 is outside of 1 to 128"));
}

TEST_F(SimilarTest, IsWhatTheRankingSays) {
  for (const int bucket : {2, 16, 48, 256, 4096}) {
    Tune(q(), bucket, bucket <= 8 ? kMmaConfig : kWgmmaConfig, bucket <= 8 ? 2 : 1);
  }
  for (const int bucket : {1, 8, 32, 1024, 2048}) {
    Tune(r(), bucket, bucket <= 32 ? kMmaConfig : kWgmmaConfig, bucket <= 32 ? 2 : 1);
  }
  Load();
  std::vector<ShapeHint> hints;
  for (const BundleLayer& layer : method_.layers) {
    for (const BundlePick& pick : layer.picks) {
      const int split_k = pick.launch.split_k;
      hints.push_back(
          {layer.problem,
           pick.m_bucket,
           {*ParseConfig(pick.config), split_k, split_k > 1 ? Reduction::kWorkspace : Reduction::kNone}});
    }
  }
  const DeviceProfile device = *FindDeviceProfile("h200");
  for (int layer = 0; layer < 2; ++layer) {
    for (const int bucket : BucketLadder()) {
      const auto selected = runtime_->Select(layer, bucket);
      ASSERT_TRUE(selected.ok()) << selected.status();
      if (!selected->is_similar) continue;
      const auto ranked =
          RankSimilar(method_.layers[layer].problem, bucket, device, hints, ShapeDistance::kLog2L1, 1);
      ASSERT_EQ(ranked.size(), 1);
      EXPECT_EQ(selected->m_bucket, hints[ranked[0].index].m_bucket) << layer << " " << bucket;
    }
  }
}

TEST_F(SimilarTest, AnIllegalPickIsPassedOver) {
  // The nearer one's eight slices would be empty for a K of two units.
  r().problem.k = 1024;
  Tune(q(), 8, kMmaConfig, 2);
  Tune(r(), 16, kMmaConfig, 8);
  method_.layers.push_back({"s", {1024, 256, {}}, "", {}});
  Tune(method_.layers[2], 16, kWgmmaConfig, 1);
  Load();
  const auto selected = runtime_->Select(0, 16);
  ASSERT_TRUE(selected.ok()) << selected.status();
  EXPECT_TRUE(selected->is_similar);
  EXPECT_EQ(selected->config, kWgmmaConfig);
}

TEST_F(SimilarTest, AnotherFormatsPickIsNone) {
  Tune(q(), 8, kMmaConfig, 2);
  r().problem.signature.format.group_size = 64;
  Tune(r(), 64, kWgmmaConfig, 1);
  Load();
  EXPECT_TRUE(runtime_->Select(0, 8).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(runtime_->Select(0, 64).status()));
}

TEST_F(SimilarTest, Int8ActivationsArePickedForNobodyElse) {
  Tune(q(), 8, kMmaConfig, 2);
  r().problem.signature.quantization = ActivationQuantization::kInt8;
  Tune(r(), 64, kMmaConfig, 2);
  Load();
  EXPECT_TRUE(runtime_->Select(0, 8).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(runtime_->Select(0, 64).status()));
  const auto own = runtime_->Select(1, 64);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_FALSE(own->is_similar);
}

TEST_F(SimilarTest, AWorkspaceServesSimilarPicksToo) {
  Tune(q(), 1, kWgmmaConfig, 1);
  Tune(r(), 8, kMmaConfig, 2);
  Load();
  EXPECT_TRUE(runtime_->Select(0, 8)->is_similar);
  EXPECT_EQ(runtime_->WorkspaceFor(8).bytes, runtime_->WorkspaceFor(7).bytes);
  const Candidate candidate{*ParseConfig(kMmaConfig), 2, Reduction::kWorkspace};
  const LaunchSpec spec = MakeLaunchSpec(candidate, {192, 256, {}}, 8);
  EXPECT_GE(runtime_->WorkspaceFor(8).bytes, spec.WorkspaceBytes(8));
  ASSERT_TRUE(runtime_->Launch(0, SomeLaunch(8)).ok());
}

TEST_F(SimilarTest, AStaticMethodSelectsNothing) {
  method_.static_m = 8;
  Tune(q(), 8, kMmaConfig, 2);
  Tune(r(), 8, kMmaConfig, 2);
  Load();
  EXPECT_FALSE(runtime_->Select(0, 3)->is_similar);
  EXPECT_TRUE(absl::IsInvalidArgument(runtime_->Select(0, 9).status()));
}

// ---- what a launch must bring ----

// Layer "q" with zero points, bias and residual, whose weights the caller brings.
class OperandsTest : public SimilarTest {
 protected:
  OperandsTest() {
    q().problem.signature.format.zero_point = ZeroPoint::kInteger;
    q().problem.signature.epilogue.bias = true;
    q().problem.signature.epilogue.residual = true;
    Tune(q(), 8, kMmaConfig, 2);
    Tune(r(), 8, kMmaConfig, 2);
    Load();
  }
  LayerLaunch Whole() {
    LayerLaunch launch = SomeLaunch(3);
    launch.ldy = launch.ldr = 128;
    launch.zeros = 0x5000;
    launch.bias = 0x6000;
    launch.residual = 0x30000000;
    return launch;
  }
  std::string Refusal(int layer, const LayerLaunch& launch) {
    const absl::Status status = runtime_->Launch(layer, launch);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(device_->launches.empty());
    return std::string(status.message());
  }
};

TEST_F(OperandsTest, AreAllThatTheKernelReads) {
  for (const auto& [argument, member] : {std::pair("zeros", &LayerLaunch::zeros),
                                         {"bias", &LayerLaunch::bias},
                                         {"residual", &LayerLaunch::residual}}) {
    LayerLaunch launch = Whole();
    launch.*member = 0;
    EXPECT_EQ(Refusal(0, launch),
              absl::StrCat("layer q: argument '", argument, "' is null; the layer has it"));
  }
  EXPECT_TRUE(runtime_->Launch(0, Whole()).ok());
}

TEST_F(OperandsTest, AreNotMoreThanTheLayerAdds) {
  LayerLaunch launch = SomeLaunch(3);
  launch.bias = 0x6000;
  EXPECT_EQ(Refusal(1, launch), "layer r: a bias is given; the layer adds none");
  launch.bias = 0;
  launch.residual = 0x30000000;
  EXPECT_EQ(Refusal(1, launch), "layer r: a residual is given; the layer adds none");
  launch.residual = 0;
  EXPECT_TRUE(runtime_->Launch(1, launch).ok());
}

TEST_F(OperandsTest, HaveRowsThatAreAlignedAndApart) {
  for (const int64_t ldx : {0, 248, 257, 260, -256}) {
    LayerLaunch launch = Whole();
    launch.ldx = ldx;
    EXPECT_EQ(Refusal(0, launch),
              absl::StrCat("layer q: ldx = ", ldx, " is not a multiple of 8 of at least K = 256"));
  }
  LayerLaunch launch = Whole();
  launch.ldy = 127;
  EXPECT_EQ(Refusal(0, launch), "layer q: ldy = 127 is less than the 128 columns of Y");
  launch = Whole();
  launch.ldr = 127;
  EXPECT_EQ(Refusal(0, launch), "layer q: ldr = 127 is less than the 128 columns of the residual");
}

TEST_F(OperandsTest, TheResidualMayLieInYsOwnPlaceAndNoOther) {
  LayerLaunch launch = Whole();
  launch.residual = launch.y + 16;
  EXPECT_THAT(Refusal(0, launch), HasSubstr("overlaps the residual"));
  launch.residual = launch.y;
  EXPECT_TRUE(runtime_->Launch(0, launch).ok());
}

TEST_F(OperandsTest, AWorkspaceForAnyMIsFinite) {
  const WorkspaceMemory most = runtime_->WorkspaceFor(INT32_MAX);
  EXPECT_GT(most.bytes, 0);
  EXPECT_EQ(runtime_->WorkspaceFor(INT64_MAX).bytes, most.bytes);
  EXPECT_EQ(runtime_->WorkspaceFor(-1).bytes, 0);
}

TEST_F(OperandsTest, OfCopiesAreThere) {
  char byte = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(runtime_->CopyIn(0x1000, nullptr, 4)));
  EXPECT_TRUE(absl::IsInvalidArgument(runtime_->CopyIn(0x1000, &byte, -1)));
  EXPECT_TRUE(absl::IsInvalidArgument(runtime_->CopyOut(nullptr, 0x1000, 4)));
  EXPECT_TRUE(absl::IsInvalidArgument(runtime_->CopyOut(&byte, 0x1000, -1)));
  for (const int64_t bytes : {0, -1}) {
    EXPECT_TRUE(absl::IsInvalidArgument(runtime_->AllocateMemory(bytes).status())) << bytes;
  }
}

TEST(Runtime, LoadsNoKernelThatWritesWhatItsLaunchDoesNotSay) {
  const TemporaryFolder folder;
  auto writer = BundleWriter::Create(folder / "b");
  ASSERT_TRUE(writer.ok()) << writer.status();
  BundleKernel kernel;
  kernel.sha256 = Sha256Hex(SampleCubin(kMmaConfig));
  kernel.entry = "qgemm_mma";
  kernel.arch = "sm_90a";
  kernel.access = {{"parameters", {{{"index", 0}, {"read", true}, {"written", true}, {"alignment", 16}}}}};
  ASSERT_TRUE((*writer)->AddKernel(kernel, SampleCubin(kMmaConfig)).ok());
  ASSERT_TRUE((*writer)->AddMethod(SampleMethod("decode", 1, "")).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  auto bundle = Bundle::Open(folder / "b");
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  const absl::Status loaded =
      LoadRuntime(*std::move(bundle), "decode", std::make_unique<FakeLaunchDevice>()).status();
  EXPECT_TRUE(absl::IsDataLoss(loaded)) << loaded;
  EXPECT_THAT(std::string(loaded.message()), HasSubstr("writes argument 'x', which its launch does not say"));
}

}  // namespace
}  // namespace qgemm
