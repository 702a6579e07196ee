#include "server/runner/stopping_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace qgemm {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;

std::vector<double> Noisy(double centre, double sigma, int count, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(centre, sigma);
  std::vector<double> samples;
  for (int i = 0; i < count; ++i) samples.push_back(normal(random));
  return samples;
}

TEST(Summarize, GivesMedianAndInterquartileRange) {
  const SampleSummary summary = Summarize({5, 1, 3, 2, 4});
  EXPECT_DOUBLE_EQ(summary.median, 3);
  EXPECT_DOUBLE_EQ(summary.spread, 2);
  EXPECT_DOUBLE_EQ(Summarize({1, 2}).median, 1.5);
  EXPECT_DOUBLE_EQ(Summarize({7}).median, 7);
  EXPECT_DOUBLE_EQ(Summarize({7}).spread, 0);
}

TEST(CenterOf, IsTheMeanOfTheMiddleHalf) {
  EXPECT_DOUBLE_EQ(CenterOf({1, 4, 2, 100, 3, 5, 0, 7}).us, (2 + 3 + 4 + 5) / 4.0);
  EXPECT_DOUBLE_EQ(CenterOf({3, 5}).us, 4);
  EXPECT_TRUE(std::isinf(CenterOf({3, 5, 4}).error));
}

TEST(CenterOf, SeesBetweenTheStepsOfTheEventClock) {
  // 10.010 us by a clock of 0.032 us steps: two thirds 10.016, the rest 9.984 (and one outlier).
  std::vector<double> samples(200, 10.016);
  std::fill(samples.begin(), samples.begin() + 40, 9.984);
  std::fill(samples.begin() + 190, samples.end(), 14.0);
  const Center center = CenterOf(samples);
  EXPECT_NEAR(center.us, 10.016, 0.016);
  EXPECT_LT(center.us, 10.017);
  EXPECT_GT(center.error, 0);
}

TEST(CenterOf, ItsErrorIsWhatRepetitionsShow) {
  double sum = 0;
  double squares = 0;
  double error = 0;
  constexpr int kRepetitions = 500;
  for (int seed = 0; seed < kRepetitions; ++seed) {
    const Center center = CenterOf(Noisy(10, 1, 40, seed));
    sum += center.us;
    squares += center.us * center.us;
    error += center.error / kRepetitions;
  }
  const double mean = sum / kRepetitions;
  EXPECT_NEAR(std::sqrt(squares / kRepetitions - mean * mean), error, 0.1 * error);
}

using Samples = std::vector<std::vector<double>>;

std::vector<Standing> Standings(const Samples& samples, double tie_band) {
  return CompareToFastest(samples, tie_band).standings;
}

TEST(CompareToFastest, TellsTheSlowerOneFromTheFaster) {
  EXPECT_THAT(Standings(Samples{Noisy(10.5, 0.05, 20, 1), Noisy(10.0, 0.05, 20, 2)}, 0.003),
              ElementsAre(Standing::kSlower, Standing::kTied));
}

TEST(CompareToFastest, TwoWithinTheBandTie) {
  EXPECT_THAT(Standings(Samples{Noisy(10.0, 0.01, 20, 1), Noisy(10.001, 0.01, 20, 2)}, 0.003),
              ElementsAre(Standing::kTied, Standing::kTied));
}

TEST(CompareToFastest, IsOpenWhileTheNoiseIsLargerThanTheBand) {
  EXPECT_THAT(Standings(Samples{Noisy(10.0, 0.3, 20, 1), Noisy(10.02, 0.3, 20, 2)}, 0.003),
              Contains(Standing::kOpen));
}

TEST(CompareToFastest, IsOpenOnTooFewRounds) {
  EXPECT_THAT(Standings(Samples{{10, 10, 10}, {20, 20, 20}}, 0.003), Each(Standing::kOpen));
  EXPECT_TRUE(Standings(Samples{}, 0.003).empty());
}

TEST(CompareToFastest, ASlowerOneIsHardlyEverTheFaster) {
  int wrong = 0;
  for (int seed = 0; seed < 1000; ++seed) {
    const std::vector<Standing> standings =
        Standings(Samples{Noisy(10, 0.2, 24, 2 * seed), Noisy(10, 0.2, 24, 2 * seed + 1)}, 0.003);
    if (standings[0] == Standing::kSlower || standings[1] == Standing::kSlower) ++wrong;
  }
  EXPECT_LE(wrong, 10);
}

TEST(CompareToFastest, PairsCancelDriftThatBothShare) {
  std::vector<double> a, b;
  for (int i = 0; i < 20; ++i) {
    const double drift = i * 0.2;  // far more than the difference
    a.push_back(10 + drift);
    b.push_back(10.2 + drift);
  }
  EXPECT_THAT(Standings(Samples{a, b}, 0.003), ElementsAre(Standing::kTied, Standing::kSlower));
}

}  // namespace
}  // namespace qgemm
