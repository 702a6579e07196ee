// The runtime on a GPU: what a launch costs beside the driver's own, kernels of similar picks, fingerprints
// of tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/bundle/bundle.h"
#include "client/bundle/bundle_writer.h"
#include "client/runtime/bundle_runtime.h"
#include "kernels/cuda/gpu_fingerprint.h"
#include "kernels/cuda/launch.h"
#include "kernels/packing.h"
#include "kernels/reference_gemm.h"
#include "tests/gpu/gpu_test.h"
#include "tests/unit/client/sample_bundle.h"

namespace qgemm {
namespace {

constexpr char kPointers[] = "mma_t1_r1_w3x4_s4_b2_slice_post";
constexpr char kTensorMaps[] = "wgmma_t2_r1_w3x1_s8_b2_staged_pre";

class RuntimeGpuTest : public GpuTest {
 protected:
  // A bundle of one method with a dynamic M, its layers as they are given; kernels are compiled for this GPU.
  void MakeBundle(std::vector<BundleLayer> layers) {
    auto writer = BundleWriter::Create(folder_ / "b");
    ASSERT_TRUE(writer.ok()) << writer.status();
    method_.name = "some";
    for (BundleLayer& layer : layers) {
      for (BundlePick& pick : layer.picks) {
        const KernelSource source = RenderKernelSource(*ParseConfig(pick.config), layer.problem.signature);
        if (cubins_.count(pick.config) == 0) cubins_[pick.config] = CompileHere(source, arch());
        pick.kernel_sha256 = Sha256Hex(cubins_[pick.config]);
        BundleKernel kernel;
        kernel.sha256 = pick.kernel_sha256;
        kernel.entry = source.entry;
        kernel.arch = arch();
        ASSERT_TRUE((*writer)->AddKernel(kernel, cubins_[pick.config]).ok());
      }
    }
    ASSERT_TRUE((*writer)->Finish().ok());
    method_.layers = std::move(layers);
  }
  absl::StatusOr<std::unique_ptr<Runtime>> Load(int ordinal = 0) {
    auto bundle = Bundle::Open(folder_ / "b");
    if (!bundle.ok()) return bundle.status();
    auto launch_device = LaunchDevice::Open(ordinal);
    if (!launch_device.ok()) return launch_device.status();
    return LoadRuntime(*std::move(bundle), method_, *std::move(launch_device));
  }
  // Random codes with small positive scales.
  static CanonicalWeights RandomWeights(const Problem& problem, std::mt19937& random) {
    CanonicalWeights weights;
    weights.n = problem.n;
    weights.k = problem.k;
    weights.format = problem.signature.format;
    weights.codes.resize(problem.n * problem.k);
    for (uint8_t& code : weights.codes) code = random() % 16;
    weights.scales.assign(problem.n * weights.groups(), ScalarFromDouble(0.015625, ScalarType::kBf16));
    return weights;
  }
  static std::vector<uint16_t> RandomX(int64_t count, std::mt19937& random) {
    std::vector<uint16_t> x(count);
    for (uint16_t& value : x) value = ScalarFromDouble((random() % 1000) / 500.0 - 1, ScalarType::kBf16);
    return x;
  }
  static double RelativeError(const std::vector<uint16_t>& y, const std::vector<double>& expected) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      const double error = ScalarToDouble(y[i], ScalarType::kBf16) - expected[i];
      difference += error * error;
      norm += expected[i] * expected[i];
    }
    return std::sqrt(difference / norm);
  }

  TemporaryFolder folder_;
  BundleMethod method_;
  std::map<std::string, std::string> cubins_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Nanoseconds of one call of `launch`, by 100 of them; what it started has ended when this returns.
template <typename Launch>
double Nanoseconds(const Stream& stream, const Launch& launch) {
  constexpr int kLaunches = 100;  // far fewer than the driver queues without waiting
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kLaunches; ++i) launch();
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE(stream.Synchronize().ok());
  return elapsed.count() / kLaunches;
}

TEST_F(RuntimeGpuTest, ALaunchCostsAtMostHalfAMicrosecondMoreThanTheDrivers) {
  if (SmallMode()) GTEST_SKIP() << "speed is not measured under a sanitizer";
  const Problem problem{384, 2048, {}};
  std::string lines;
  for (const auto& [config, split_k] : {std::pair(kPointers, 2), std::pair(kTensorMaps, 2)}) {
    if (config == kTensorMaps && profile().compute_major != 9) continue;
    MakeBundle({{"layer", problem, "", {SamplePick(8, config, split_k, problem)}}});
    const auto runtime = Load();
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    LayerLaunch launch;
    launch.m = 8;
    launch.ldx = problem.k;
    launch.ldy = problem.n;
    const auto allocate = [&](uint64_t& address, int64_t bytes) {
      const auto memory = (*runtime)->AllocateMemory(bytes);
      ASSERT_TRUE(memory.ok()) << memory.status();
      address = *memory;
    };
    allocate(launch.x, launch.m * problem.k * 2);
    allocate(launch.y, launch.m * problem.n * 2);
    for (const PlaneSize& plane : PlanesOf(problem)) {
      allocate(std::string(plane.plane) == "weights" ? launch.weights : launch.scales, plane.bytes);
    }
    const auto workspace = (*runtime)->AllocateWorkspace(launch.m);
    ASSERT_TRUE(workspace.ok()) << workspace.status();
    launch.workspace = *workspace;
    const auto stream = Stream::Create();
    ASSERT_TRUE(stream.ok()) << stream.status();
    launch.stream = stream->get();

    // The same launch by the driver alone, its arguments ready.
    const LaunchSpec& spec = method_.layers[0].picks[0].launch;
    LaunchOperands operands;
    operands.m = launch.m;
    operands.ldx = launch.ldx;
    operands.ldy = launch.ldy;
    operands.x = launch.x;
    operands.y = launch.y;
    operands.weights = launch.weights;
    operands.scales = launch.scales;
    operands.workspace =
        launch.workspace.address + launch.workspace.ticket_bytes - spec.TicketBytes(launch.m);
    auto block = MarshalArguments(spec, operands);
    ASSERT_TRUE(block.ok()) << block.status();
    ASSERT_TRUE(FillTensorMaps(*block, EncodeTensorMap).ok());
    std::vector<void*> params = block->Params();
    const auto module = Module::Load(cubins_[config]);
    ASSERT_TRUE(module.ok()) << module.status();
    const auto kernel = module->Find(spec.entry);
    ASSERT_TRUE(kernel.ok() && kernel->AllowDynamicSmem(spec.dynamic_smem_bytes).ok());
    const Dim3 grid = spec.Grid(launch.m);
    const auto by_driver = [&] {
      EXPECT_TRUE(LaunchOnStream(kernel->get(), grid, spec.block_threads, spec.dynamic_smem_bytes,
                                 params.data(), stream->get(), spec.cluster_z, /*programmatic=*/false)
                      .ok());
    };
    const auto by_runtime = [&] {
      const absl::Status launched = (*runtime)->Launch(0, launch);
      EXPECT_TRUE(launched.ok()) << launched;
    };
    std::vector<double> bare, ours;
    for (int round = 0; round < 320; ++round) {
      const bool driver_first = round % 2 == 0;
      double a = driver_first ? Nanoseconds(*stream, by_driver) : 0;
      const double b = Nanoseconds(*stream, by_runtime);
      if (!driver_first) a = Nanoseconds(*stream, by_driver);
      if (round < 20) continue;  // modules load, clocks rise
      bare.push_back(a);
      ours.push_back(b);
    }
    const double more = Median(ours) - Median(bare);
    const std::string line = absl::StrCat("launch of ", config, ": driver ", Median(bare), " ns, runtime ",
                                          Median(ours), " ns, more ", more, " ns (medians of 300 rounds)\n");
    std::fputs(line.c_str(), stdout);
    lines += line;
    EXPECT_LE(more, 500);
  }
  WriteResult("launch_overhead.txt", lines);
}

TEST_F(RuntimeGpuTest, ASimilarPicksKernelIsRightForTheLayersOwnShape) {
  const Problem problem{200, 512, {}};
  const Problem other{1024, 2048, {}};
  const char* const config = profile().compute_major == 9 ? kTensorMaps : kPointers;
  MakeBundle({{"layer", problem, "", {SamplePick(1, kPointers, 1, problem)}},
              {"other", other, "", {SamplePick(64, config, 1, other), SamplePick(512, config, 1, other)}}});
  const auto runtime = Load();
  ASSERT_TRUE(runtime.ok()) << runtime.status();

  std::mt19937 random(3);
  const CanonicalWeights weights = RandomWeights(problem, random);
  const auto packed = Pack(weights);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const auto planes = Upload(packed->weights);
  const auto scales = Upload(packed->scales);
  for (const int64_t m : {33, 65, 500}) {
    const auto selected = (*runtime)->Select(0, m);
    ASSERT_TRUE(selected.ok()) << selected.status();
    EXPECT_TRUE(selected->is_similar);
    const std::vector<uint16_t> x = RandomX(m * problem.k, random);
    const std::vector<double> expected = ReferenceGemm(weights, x, m, ScalarType::kBf16, {});
    const auto x_memory = Upload(x);
    const auto y_memory = Upload(std::vector<uint16_t>(m * problem.n));
    ASSERT_TRUE(device().Synchronize().ok());
    LayerLaunch launch;
    launch.m = m;
    launch.x = x_memory->address();
    launch.ldx = problem.k;
    launch.y = y_memory->address();
    launch.ldy = problem.n;
    launch.weights = planes->address();
    launch.scales = scales->address();
    const auto workspace = (*runtime)->AllocateWorkspace(m);
    ASSERT_TRUE(workspace.ok()) << workspace.status();
    launch.workspace = *workspace;
    const absl::Status launched = (*runtime)->Launch(0, launch);
    ASSERT_TRUE(launched.ok()) << launched;
    std::vector<uint16_t> y(m * problem.n);
    const absl::Status copied = (*runtime)->CopyOut(y.data(), launch.y, static_cast<int64_t>(y.size() * 2));
    ASSERT_TRUE(copied.ok()) << copied;
    EXPECT_LE(RelativeError(y, expected), 3e-3) << m;
  }
}

TEST_F(RuntimeGpuTest, TwoDevicesRunOneBundleAtOnce) {
  if (const absl::Status second = LaunchDevice::Open(1).status(); absl::IsInvalidArgument(second)) {
    GTEST_SKIP() << second;
  }
  constexpr int64_t kM = 8;
  const Problem problem{384, 2048, {}};
  MakeBundle({{"layer", problem, "", {SamplePick(8, kPointers, 4, problem)}}});
  std::mt19937 random(7);
  const CanonicalWeights weights = RandomWeights(problem, random);
  const auto packed = Pack(weights);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const std::vector<uint16_t> x = RandomX(kM * problem.k, random);
  const std::vector<double> expected = ReferenceGemm(weights, x, kM, ScalarType::kBf16, {});

  struct OfDevice {
    std::unique_ptr<Runtime> runtime;
    LayerLaunch launch;
    std::vector<uint16_t> y = std::vector<uint16_t>(kM * 384);
  };
  std::array<OfDevice, 2> devices;
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    auto loaded = Load(ordinal);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    OfDevice& here = devices[ordinal];
    here.runtime = *std::move(loaded);
    const auto put = [&](const auto& values) {
      const auto bytes = static_cast<int64_t>(values.size() * sizeof(values[0]));
      const auto address = here.runtime->AllocateMemory(bytes);
      EXPECT_TRUE(address.ok()) << address.status();
      EXPECT_TRUE(here.runtime->CopyIn(*address, values.data(), bytes).ok());
      return *address;
    };
    here.launch.m = kM;
    here.launch.x = put(x);
    here.launch.ldx = problem.k;
    here.launch.y = put(here.y);
    here.launch.ldy = problem.n;
    here.launch.weights = put(packed->weights);
    here.launch.scales = put(packed->scales);
    const auto workspace = here.runtime->AllocateWorkspace(kM);
    ASSERT_TRUE(workspace.ok()) << workspace.status();
    here.launch.workspace = *workspace;
  }
  // One thread launches on both in turn, two others on one each.
  const auto launch_on = [](std::initializer_list<OfDevice*> some) {
    for (int i = 0; i < 100; ++i) {
      for (OfDevice* here : some) {
        const absl::Status launched = here->runtime->Launch(0, here->launch);
        EXPECT_TRUE(launched.ok()) << launched;
      }
    }
  };
  launch_on({&devices[0], &devices[1]});
  std::thread first([&] { launch_on({&devices[0]}); }), second([&] { launch_on({&devices[1]}); });
  first.join();
  second.join();
  for (OfDevice& here : devices) {
    const auto bytes = static_cast<int64_t>(here.y.size() * 2);
    const absl::Status copied = here.runtime->CopyOut(here.y.data(), here.launch.y, bytes);
    ASSERT_TRUE(copied.ok()) << copied;
    EXPECT_LE(RelativeError(here.y, expected), 3e-3);
  }
  EXPECT_EQ(devices[0].y, devices[1].y);
}

TEST_F(RuntimeGpuTest, GraphsWithWorkspacesOfTheirOwnAreReplayedAtOnce) {
  const Problem problem{384, 8192, {}};
  MakeBundle({{"layer", problem, "", {SamplePick(8, kPointers, 8, problem)}}});
  const auto runtime = Load();
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  std::mt19937 random(5);
  std::map<std::string, std::unique_ptr<DeviceMemory>> planes;
  for (const PlaneSize& plane : PlanesOf(problem)) {
    // Scales are small positive numbers, whatever the codes are.
    std::vector<uint16_t> words(plane.bytes / 2, ScalarFromDouble(0.0078125, ScalarType::kBf16));
    if (std::string(plane.plane) == "weights") std::generate(words.begin(), words.end(), std::ref(random));
    planes[plane.plane] = Upload(words);
  }
  auto stream = Stream::Create();
  const auto second = Stream::Create();
  ASSERT_TRUE(stream.ok() && second.ok());
  struct Case {
    std::unique_ptr<DeviceMemory> x, y;
    LayerLaunch launch;
    std::vector<uint16_t> expected;
    std::optional<GraphExec> graph;
  };
  std::array<Case, 2> cases;
  const auto workspace = (*runtime)->AllocateWorkspace(8);
  ASSERT_TRUE(workspace.ok() && workspace->bytes > 0) << workspace.status();
  EXPECT_TRUE(absl::IsFailedPrecondition((*runtime)->AllocateWorkspaceForGraph(8, stream->get()).status()));
  const auto capture = [&](Case& c) {
    ASSERT_TRUE(stream->BeginCapture().ok());
    const auto of_graph = (*runtime)->AllocateWorkspaceForGraph(8, stream->get());
    ASSERT_TRUE(of_graph.ok()) << of_graph.status();
    c.launch.workspace = *of_graph;
    const absl::Status launched = (*runtime)->Launch(0, c.launch);
    ASSERT_TRUE(launched.ok()) << launched;
    auto graph = stream->EndCapture();
    ASSERT_TRUE(graph.ok()) << graph.status();
    c.graph.emplace(*std::move(graph));
  };
  for (Case& c : cases) {
    c.x = Upload(RandomX(8 * problem.k, random));
    c.y = Upload(std::vector<uint16_t>(8 * problem.n));
    ASSERT_TRUE(device().Synchronize().ok());
    c.launch.m = 8;
    c.launch.x = c.x->address();
    c.launch.ldx = problem.k;
    c.launch.y = c.y->address();
    c.launch.ldy = problem.n;
    c.launch.weights = planes["weights"]->address();
    c.launch.scales = planes["scales"]->address();
    c.launch.stream = stream->get();
    c.launch.workspace = *workspace;
    const absl::Status launched = (*runtime)->Launch(0, c.launch);
    ASSERT_TRUE(launched.ok()) << launched;
    ASSERT_TRUE(stream->Synchronize().ok());
    c.expected = Download<uint16_t>(c.y->address(), 8 * problem.n);
    capture(c);
  }
  EXPECT_NE(cases[0].expected, cases[1].expected);
  EXPECT_NE(cases[0].launch.workspace.address, cases[1].launch.workspace.address);
  for (int i = 0; i < (SmallMode() ? 5 : 500); ++i) {
    ASSERT_TRUE(cases[0].graph->Launch(*stream).ok());
    ASSERT_TRUE(cases[1].graph->Launch(*second).ok());
  }
  ASSERT_TRUE(stream->Synchronize().ok() && second->Synchronize().ok());
  for (const Case& c : cases) EXPECT_EQ(Download<uint16_t>(c.y->address(), 8 * problem.n), c.expected);

  // A graph's workspace is freed with it.
  std::set<uint64_t> addresses;
  for (int i = 0; i < 20; ++i) {
    capture(cases[0]);  // in the place of the one before
    ASSERT_TRUE(cases[0].graph->Launch(*stream).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
    addresses.insert(cases[0].launch.workspace.address);
  }
  EXPECT_LT(addresses.size(), 20);
  EXPECT_EQ(Download<uint16_t>(cases[0].y->address(), 8 * problem.n), cases[0].expected);
}

TEST_F(RuntimeGpuTest, FingerprintsOfTensorsAreThoseOfTheirBytes) {
  const auto gpu = GpuFingerprint::Create(0);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  std::mt19937 random(4);
  std::vector<uint8_t> bytes((1 << 22) + 31);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  const auto memory = Upload(bytes);
  ASSERT_TRUE(device().Synchronize().ok());
  for (const int64_t size : {1, 15, 16, 17, 4096, 100003, (1 << 22) + 31}) {
    const auto made = (*gpu)->Of(memory->address(), size);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(*made, FingerprintOf(absl::MakeConstSpan(bytes).first(size))) << size;
    std::string read(size, '\0');
    ASSERT_TRUE((*gpu)->Read(memory->address(), absl::MakeSpan(read.data(), size)).ok());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), reinterpret_cast<const char*>(bytes.data())));
  }
  EXPECT_TRUE(absl::IsInvalidArgument((*gpu)->Of(memory->address() + 8, 16).status()));
}

}  // namespace
}  // namespace qgemm
