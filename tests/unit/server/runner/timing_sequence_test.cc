#include "server/runner/timing_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/support_kernels.h"
#include "tests/fakes/fake_device.h"

namespace qgemm {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class TimingSequenceTest : public testing::Test {
 protected:
  void SetUp() override {
    device_.Define("flush", "", Nothing(), [] { return 30.0; });
    device_.Define("a", "", Nothing(), [this] { return a_us_; });
    device_.Define("b", "", Nothing(), [this] { return b_us_; });
    device_.Define("probe", "", Nothing(), [] { return 9.0; });
    module_ = device_.Load("flush a b probe").value();
    for (const char* name : {"flush", "a", "b", "probe"}) kernels_[name] = module_->Find(name, 0).value();
  }
  static FakeDevice::KernelFunction Nothing() {
    return [](Dim3, absl::Span<void* const>) { return absl::OkStatus(); };
  }
  Enqueue Put(const std::string& name) {
    return [this, name] { return device_.Launch(*kernels_.at(name), {1, 1, 1}, 32, 0, {}, 1); };
  }

  FakeDevice device_;
  std::unique_ptr<DeviceModule> module_;
  std::map<std::string, std::unique_ptr<DeviceKernel>> kernels_;
  SimulatedClock clock_;
  double a_us_ = 15;
  double b_us_ = 20;
};

TEST_F(TimingSequenceTest, TakesAsManySamplesAsTheBudgetHolds) {
  const auto samples = SampleCold(device_, Put("flush"), Put("a"), 1000);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_TRUE(samples->in_graph);
  EXPECT_EQ(samples->us.size(), 20);  // 1000 / (30 + 15 + 5)
  EXPECT_THAT(samples->us, Each(15.0));
}

TEST_F(TimingSequenceTest, KeepsTheNumberOfSamplesWithinItsLimits) {
  EXPECT_EQ(SampleCold(device_, Put("flush"), Put("a"), 0)->us.size(), kMinScreenSamples);
  EXPECT_EQ(SampleCold(device_, Put("flush"), Put("a"), 1e9)->us.size(), kMaxScreenSamples);
}

TEST_F(TimingSequenceTest, FlushesBeforeEverySampleAndTimesTheKernelAlone) {
  ASSERT_TRUE(SampleCold(device_, Put("flush"), Put("a"), 0).ok());
  const auto graph = std::find(device_.log.begin(), device_.log.end(), "graph");
  ASSERT_NE(graph, device_.log.end());
  EXPECT_THAT(
      std::vector<std::string>(graph, graph + 9),
      ElementsAre("graph", "flush", "record 0", "a", "record 1", "flush", "record 2", "a", "record 3"));
}

TEST_F(TimingSequenceTest, GoesOnWithoutAGraphWhenNoneCanBeMade) {
  // Calls of the estimate: 6 on the stream, the synchronisation, 2 times; then comes BeginCapture.
  device_.FailAt(9, absl::FailedPreconditionError("capture is not supported"));
  const auto samples = SampleCold(device_, Put("flush"), Put("a"), 0);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_FALSE(samples->in_graph);
  EXPECT_THAT(samples->us, Each(15.0));
  EXPECT_EQ(samples->us.size(), kMinScreenSamples);
}

TEST_F(TimingSequenceTest, AFailureAtAnyStepEndsTheCaptureAndIsReportedOrWorkedAround) {
  for (int step = 0;; ++step) {
    FakeDevice& device = device_;
    device.FailAt(step, absl::InternalError("step failed"));
    const int before = device.calls();
    const auto samples = SampleCold(device, Put("flush"), Put("a"), 0);
    EXPECT_FALSE(device.capturing()) << "step " << step;
    if (samples.ok()) {
      EXPECT_EQ(samples->us.size(), kMinScreenSamples);
      EXPECT_THAT(samples->us, Each(15.0));
      if (device.calls() - before <= step) break;  // ran to its end before the failing step
    } else {
      EXPECT_EQ(samples.status().message(), "step failed") << "step " << step;
    }
    ASSERT_LT(step, 200);
  }
}

TEST_F(TimingSequenceTest, ALostContextIsReportedAtEveryStep) {
  for (int step = 0;; ++step) {
    const int before = device_.calls();
    device_.FailAt(step, absl::AbortedError("lost"));
    const auto samples = SampleCold(device_, Put("flush"), Put("a"), 0);
    if (device_.calls() - before <= step) break;
    EXPECT_TRUE(absl::IsAborted(samples.status())) << "step " << step;
    ASSERT_LT(step, 200);
  }
}

TEST_F(TimingSequenceTest, AHopelessKernelGetsOneBatchOfSamples) {
  EXPECT_EQ(SampleCold(device_, Put("flush"), Put("a"), 2000, /*hopeless_us=*/14)->us.size(), kScreenBatch);
  EXPECT_EQ(SampleCold(device_, Put("flush"), Put("a"), 2000, /*hopeless_us=*/15.1)->us.size(), 40);
}

TEST_F(TimingSequenceTest, RoundsInterleaveTheKernelsAndEndWithTheProbe) {
  const std::vector<PlacedKernel> kernels = {Put("a"), Put("b")};
  const auto rounds = RunRounds(device_, Put("flush"), kernels, Put("probe"), {}, clock_);
  ASSERT_TRUE(rounds.ok()) << rounds.status();
  const auto graph = std::find(device_.log.begin(), device_.log.end(), "graph");
  ASSERT_NE(graph, device_.log.end());
  EXPECT_THAT(std::vector<std::string>(graph, graph + 22),
              ElementsAre("graph", "a", "flush", "record 0", "a", "record 1",  //
                          "graph", "b", "flush", "record 2", "b", "record 3",  //
                          "graph", "record 4", "probe", "record 5",            //
                          "graph", "a", "flush", "record 6", "a", "record 7"));
  EXPECT_THAT(rounds->us[0], Each(15.0));
  EXPECT_THAT(rounds->us[1], Each(20.0));
  EXPECT_THAT(rounds->probe_us, Each(9.0));
}

TEST_F(TimingSequenceTest, ARaceOfOneOrOfNobodyEndsAtOnce) {
  const std::vector<PlacedKernel> one = {Put("b")};
  RoundsOptions options;
  options.budget = std::chrono::seconds(10);
  for (const absl::Span<const PlacedKernel> kernels : {absl::MakeConstSpan(one), {}}) {
    const auto rounds = RunRounds(device_, Put("flush"), kernels, Put("probe"), options, clock_);
    ASSERT_TRUE(rounds.ok()) << rounds.status();
    EXPECT_EQ(rounds->probe_us.size(), kMinRounds);
    const std::vector<Center> centers = rounds->Centers();
    ASSERT_EQ(centers.size(), kernels.size());
    for (const Center& center : centers) EXPECT_DOUBLE_EQ(center.us, 20);
  }
}

// Six places are two batches of rounds; the third batch begins with the first places again.
TEST_F(TimingSequenceTest, SamplesTakeTurnsWithThePlacements) {
  std::vector<int> put;
  const PlacedKernel placed(6, [&](int placement) {
    put.push_back(placement);
    return device_.Launch(*kernels_.at("a"), {1, 1, 1}, 32, 0, {}, 1);
  });
  ASSERT_TRUE(SampleCold(device_, Put("flush"), placed, 400).ok());
  EXPECT_THAT(put, ElementsAre(0, 0, 1, 2, 3, 4, 5, 0, 1));  // the estimate, then a graph of 8

  put.clear();
  const std::vector<PlacedKernel> kernels = {placed, Put("b")};
  ASSERT_TRUE(RunRounds(device_, Put("flush"), kernels, Put("probe"), {}, clock_).ok());
  // The warm-up, and two batches of graphs that are made once, each round behind one in the next place; the
  // race is longer than that.
  EXPECT_THAT(put, ElementsAre(0, 1, 0, 2, 1, 3, 2, 4, 3, 5, 4, 0, 5, 1, 0, 2, 1));
}

TEST_F(TimingSequenceTest, RoundsOfLongKernelsAreNotRewarmed) {
  a_us_ = kLongestRewarmedUs + 1;
  b_us_ = 2 * kLongestRewarmedUs;
  const std::vector<PlacedKernel> kernels = {Put("a"), Put("b")};
  ASSERT_TRUE(RunRounds(device_, Put("flush"), kernels, Put("probe"), {}, clock_).ok());
  const auto graph = std::find(device_.log.begin(), device_.log.end(), "graph");
  ASSERT_NE(graph, device_.log.end());
  EXPECT_THAT(std::vector<std::string>(graph, graph + 5),
              ElementsAre("graph", "flush", "record 0", "a", "record 1"));
}

// Kernels that are faster behind themselves: twins of one code, and one that is alone with its own.
TEST_F(TimingSequenceTest, ARewarmedRaceSeesEveryKernelAsIfItWereAlone) {
  std::string last;
  const auto define = [&](const std::string& name, const std::string& code, double us) {
    device_.Define(name, "", Nothing(),
                   [&last, code, us] { return us + (std::exchange(last, code) == code ? 0 : 1); });
    const auto module = device_.Load(name).value();
    kernels_[name] = module->Find(name, 0).value();
  };
  define("lonely", "its own", 10.0);
  define("twin", "shared", 10.5);
  define("twin2", "shared", 10.25);
  const std::vector<PlacedKernel> kernels = {Put("lonely"), Put("twin"), Put("twin2")};
  RoundsOptions options;
  const auto fair = RunRounds(device_, Put("flush"), kernels, Put("probe"), options, clock_);
  ASSERT_TRUE(fair.ok()) << fair.status();
  EXPECT_THAT(fair->us[0], Each(10.0));
  EXPECT_THAT(fair->us[2], Each(10.25));
  options.rewarm = false;
  const auto unfair = RunRounds(device_, Put("flush"), kernels, Put("probe"), options, clock_);
  ASSERT_TRUE(unfair.ok()) << unfair.status();
  EXPECT_THAT(unfair->us[0], Each(11.0));
  EXPECT_THAT(unfair->us[2], Each(10.25));
}

TEST_F(TimingSequenceTest, RoundsStopWhenTheOrderIsClear) {
  RoundsOptions options;
  options.budget = std::chrono::hours(1);
  options.tie_band = 0.01;
  const std::vector<PlacedKernel> kernels = {Put("a"), Put("b")};
  EXPECT_EQ(RunRounds(device_, Put("flush"), kernels, Put("probe"), options, clock_)->probe_us.size(),
            kMinRounds);
  a_us_ = 7;  // a short kernel gets more
  EXPECT_EQ(RunRounds(device_, Put("flush"), kernels, Put("probe"), options, clock_)->probe_us.size(),
            kMinRoundsShort);
}

// b leaves after the first rounds; a and c go on, as their noise hides which is faster.
TEST_F(TimingSequenceTest, ASlowerKernelLeavesTheRace) {
  int launches = 0;
  const auto noisy = [&launches] { return ++launches % 4 < 2 ? 15.0 : 17.0; };
  device_.Define("a", "", Nothing(), noisy);
  device_.Define("c", "", Nothing(), noisy);
  b_us_ = 40;
  const auto module = device_.Load("c").value();
  kernels_["c"] = module->Find("c", 0).value();
  RoundsOptions options;
  options.rewarm = false;  // the noise goes by launches
  options.budget = std::chrono::hours(1);
  const std::vector<PlacedKernel> kernels = {Put("a"), Put("b"), Put("c")};
  const auto rounds = RunRounds(device_, Put("flush"), kernels, Put("probe"), options, clock_);
  ASSERT_TRUE(rounds.ok()) << rounds.status();
  EXPECT_EQ(rounds->us[0].size(), kMaxRounds);
  EXPECT_EQ(rounds->us[1].size(), kMinRounds);
  EXPECT_EQ(rounds->us[2].size(), kMaxRounds);
  const std::vector<Center> centers = rounds->Centers();
  EXPECT_NEAR(centers[1].us, 40, 0.5);
  EXPECT_GT(centers[1].us, std::max(centers[0].us, centers[2].us));
}

// The clock slows down after b left: b's time must not look better for it.
TEST(Rounds, TimesOfKernelsThatLeftAreFreeOfLaterDrift) {
  Rounds rounds;
  rounds.us = {std::vector<double>(12, 10.0), std::vector<double>(12, 10.5)};
  rounds.us[0].insert(rounds.us[0].end(), 36, 11.0);
  rounds.lost_to = {0, 0};
  const std::vector<Center> centers = rounds.Centers();
  EXPECT_NEAR(centers[0].us, 11.0, 0.1);
  EXPECT_NEAR(centers[1].us - centers[0].us, 0.5, 1e-9);
}

// In the first rounds 0 was the fastest, 1 surely slower than it, and 2, which stayed, slower still. Later 2
// is the fastest: 1 must not win for what 2 was like then.
TEST(Rounds, OneThatLeftIsNotFasterThanTheOneItLostTo) {
  Rounds rounds;
  rounds.us = {std::vector<double>(40, 10.0), std::vector<double>(12, 10.1), std::vector<double>(12, 10.3)};
  rounds.us[2].insert(rounds.us[2].end(), 28, 9.9);
  rounds.lost_to = {0, 0, 2};
  const std::vector<Center> centers = rounds.Centers();
  EXPECT_LT(centers[2].us, centers[0].us);
  EXPECT_NEAR(centers[1].us - centers[0].us, 0.1, 1e-9);
}

// A chain: 2 lost to 1, and 1 later to 0.
TEST(Rounds, LosersAreCountedFromTheirRivals) {
  Rounds rounds;
  rounds.us = {std::vector<double>(32, 10.0), std::vector<double>(20, 10.2), std::vector<double>(12, 10.7)};
  rounds.lost_to = {0, 0, 1};
  const std::vector<Center> centers = rounds.Centers();
  EXPECT_NEAR(centers[1].us, 10.2, 1e-9);
  EXPECT_NEAR(centers[2].us, 10.7, 1e-9);
}

TEST_F(TimingSequenceTest, RoundsGoOnWhileTheOrderIsOpenUntilTheBudgetIsSpent) {
  int launches = 0;
  // Two kernels of the same noisy kind: never clear.
  const auto noisy = [&launches] { return ++launches % 4 < 2 ? 15.0 : 17.0; };
  device_.Define("a", "", Nothing(), noisy);
  device_.Define("b", "", Nothing(), noisy);
  device_.Define(
      "probe", "",
      [this](Dim3, absl::Span<void* const>) {
        clock_.Advance(std::chrono::milliseconds(1));
        return absl::OkStatus();
      },
      [] { return 9.0; });
  RoundsOptions options;
  options.rewarm = false;  // the noise goes by launches
  options.budget = std::chrono::milliseconds(31);
  const std::vector<PlacedKernel> kernels = {Put("a"), Put("b")};
  const auto rounds = RunRounds(device_, Put("flush"), kernels, Put("probe"), options, clock_);
  ASSERT_TRUE(rounds.ok());
  // The warm-up round took the first millisecond; whole batches follow until the time is over.
  EXPECT_EQ(rounds->probe_us.size(), 32);
  options.budget = std::chrono::hours(1);
  EXPECT_EQ(RunRounds(device_, Put("flush"), kernels, Put("probe"), options, clock_)->probe_us.size(),
            kMaxRounds);
}

TEST_F(TimingSequenceTest, RoundsGoOnWithoutAGraphWhenNoneCanBeMade) {
  const std::vector<PlacedKernel> kernels = {Put("a"), Put("b")};
  RoundsOptions options;
  options.tie_band = 0.01;
  // The warm-up round: 2 x (flush, record, kernel, record), record, probe, record, synchronise, and a time.
  device_.FailAt(13, absl::FailedPreconditionError("capture is not supported"));
  const auto rounds = RunRounds(device_, Put("flush"), kernels, Put("probe"), options, clock_);
  ASSERT_TRUE(rounds.ok()) << rounds.status();
  EXPECT_FALSE(rounds->in_graph);
  EXPECT_EQ(rounds->us[0].size(), kMinRounds);
}

}  // namespace
}  // namespace qgemm
