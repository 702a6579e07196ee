// What graph timing measures on a real GPU: events inside graphs, cold operands, stability, order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/nvml.h"
#include "server/runner/disturbance.h"
#include "server/runner/stopping_rule.h"
#include "server/runner/timing_sequence.h"
#include "tests/gpu/gpu_test.h"

namespace qgemm {
namespace {

constexpr char kSource[] = R"(
extern "C" __global__ void nothing() {}
// Runs for `ns` nanoseconds of the GPU's own clock.
extern "C" __global__ void spin(unsigned long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}
extern "C" __global__ void read_all(const uint4* words, long long count, unsigned* sink) {
  unsigned sum = 0;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    uint4 word = words[i];
    sum += word.x ^ word.y ^ word.z ^ word.w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}
)";

class TimingTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    KernelSource source;
    source.name = "timing kernels";
    source.text = kSource;
    auto module = device().Load(CompileHere(source, arch()));
    ASSERT_TRUE(module.ok()) << module.status();
    module_ = *std::move(module);
    nothing_ = module_->Find("nothing", 0).value();
    spin_ = module_->Find("spin", 0).value();
    read_all_ = module_->Find("read_all", 0).value();
    memory_ = device().Allocate(kReadBytes + 256).value();
    ASSERT_TRUE(device().SetBytes(memory_->address(), 0, kReadBytes + 256).ok());
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_TRUE(device().Synchronize().ok());
  }

  Enqueue Flush() {
    return [this] { return support().Flush(); };
  }
  Enqueue Probe() {
    return [this] { return support().Probe(); };
  }
  Enqueue Nothing() {
    return [this] { return device().Launch(*nothing_, {1, 1, 1}, 32, 0, {}, 1); };
  }
  Enqueue Spin(uint64_t ns) {
    return [this, ns]() mutable {
      void* params[] = {&ns};
      return device().Launch(*spin_, {1, 1, 1}, 1, 0, params, 1);
    };
  }
  Enqueue Read() {
    return [this] {
      uint64_t words = memory_->address();
      int64_t count = kReadBytes / 16;
      uint64_t sink = memory_->address() + kReadBytes;
      void* params[] = {&words, &count, &sink};
      return device().Launch(*read_all_, {device().sm_count() * 4, 1, 1}, 512, 0, params, 1);
    };
  }
  double Median(const Enqueue& flush, const Enqueue& kernel) {
    const auto samples = SampleCold(device(), flush, kernel, 3000);
    EXPECT_TRUE(samples.ok()) << samples.status();
    EXPECT_TRUE(samples->in_graph);
    return Summarize(samples->us).median;
  }

  static constexpr int64_t kReadBytes = 16 << 20;
  std::unique_ptr<DeviceModule> module_;
  std::unique_ptr<DeviceKernel> nothing_, spin_, read_all_;
  std::unique_ptr<DeviceMemory> memory_;
};

TEST_F(TimingTest, EventsInsideAGraphMeasureTheKernel) {
  const double empty = Median(Flush(), Nothing());
  const double spun = Median(Flush(), Spin(100'000));
  std::printf("empty kernel %.2f us, 100 us spin %.2f us\n", empty, spun);
  EXPECT_GT(empty, 0);
  EXPECT_LT(empty, 10);
  EXPECT_NEAR(spun, 100 + empty, 5);
}

// Where the GPU's clock is too coarse, events remain and say the same.
TEST_F(TimingTest, MarksInsideAGraphMeasureTheKernelAndGoAgain) {
  const double by_events = Median(Flush(), Nothing());
  ASSERT_TRUE(support().MarkEvents().ok());
  const double empty = Median(Flush(), Nothing());
  const double spun = Median(Flush(), Spin(100'000));
  ASSERT_TRUE(device().MarkEventsBy(nullptr).ok());
  const double by_events_again = Median(Flush(), Nothing());
  std::printf("by marks: empty kernel %.2f us, 100 us spin %.2f us; empty by events %.2f and %.2f us\n",
              empty, spun, by_events, by_events_again);
  EXPECT_GT(empty, 0);
  EXPECT_LT(empty, 10);
  EXPECT_NEAR(spun, 100 + empty, 5);
  EXPECT_NEAR(by_events_again, by_events, 1);
}

TEST_F(TimingTest, MediansAreStableBetweenRuns) {
  const double first = Median(Flush(), Read());
  const double second = Median(Flush(), Read());
  std::printf("reading %lld MiB cold: %.2f us, again %.2f us\n", static_cast<long long>(kReadBytes >> 20),
              first, second);
  EXPECT_NEAR(first, second, 0.05 * first);
}

TEST_F(TimingTest, TheFlushMakesOperandsCold) {
  if (device().l2_bytes() < kReadBytes) GTEST_SKIP() << "the L2 is smaller than what is read";
  const double cold = Median(Flush(), Read());
  const double hot = Median([] { return absl::OkStatus(); }, Read());
  std::printf("reading %lld MiB: cold %.2f us, hot %.2f us\n", static_cast<long long>(kReadBytes >> 20), cold,
              hot);
  EXPECT_GT(cold, 1.2 * hot);
}

TEST_F(TimingTest, ScreeningCostsLittleBesidesTheKernels) {
  // Loaded and warm.
  Median(Flush(), Spin(10'000));
  const TimePoint begin = RealClock().Now();
  const auto samples = SampleCold(device(), Flush(), Spin(10'000), 1500);
  const double ms = std::chrono::duration<double, std::milli>(RealClock().Now() - begin).count();
  ASSERT_TRUE(samples.ok()) << samples.status();
  std::printf("screening with a budget of 1.5 ms: %zu samples in %.2f ms of wall time\n", samples->us.size(),
              ms);
  EXPECT_LT(ms, 50);
}

TEST_F(TimingTest, RoundsTellWhichKernelIsFaster) {
  const std::vector<PlacedKernel> kernels = {Spin(21'000), Spin(20'000), Spin(30'000)};
  RoundsOptions options;
  options.budget = std::chrono::milliseconds(200);
  const auto rounds = RunRounds(device(), Flush(), kernels, Probe(), options, RealClock());
  ASSERT_TRUE(rounds.ok()) << rounds.status();
  EXPECT_TRUE(rounds->in_graph);
  const double a = Summarize(rounds->us[0]).median;
  const double b = Summarize(rounds->us[1]).median;
  const double c = Summarize(rounds->us[2]).median;
  const SampleSummary probe = Summarize(rounds->probe_us);
  std::printf("%zu rounds: %.2f, %.2f, %.2f us; clock probe %.2f us, spread %.3f us\n",
              rounds->probe_us.size(), a, b, c, probe.median, probe.spread);
  EXPECT_LT(b, a);
  EXPECT_LT(a, c);
  EXPECT_GT(probe.median, 1);
}

TEST_F(TimingTest, NvmlTellsTheDriverAndDisturbances) {
  auto nvml = Nvml::Open(device().properties().uuid);
  if (!nvml.ok()) GTEST_SKIP() << nvml.status();
  std::printf("driver %s\n", nvml->driver_version().c_str());
  EXPECT_THAT(nvml->driver_version(), testing::ContainsRegex("^[0-9]+[.][0-9]+"));
  EXPECT_TRUE(nvml->ClocksReasons().ok()) << nvml->ClocksReasons().status();
  const auto processes = nvml->ComputeProcesses();
  std::printf("%zu compute processes on the GPU\n", processes.ok() ? processes->size() : 0);
  NvmlMonitor monitor(*std::move(nvml), &RealClock());
  const TimePoint begin = RealClock().Now();
  const std::string disturbance = monitor.Check();
  const double ms = std::chrono::duration<double, std::milli>(RealClock().Now() - begin).count();
  std::printf("disturbance: '%s', asked in %.2f ms\n", disturbance.c_str(), ms);
  EXPECT_LT(ms, 500);
}

}  // namespace
}  // namespace qgemm
