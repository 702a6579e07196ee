#include "server/runner/stopping_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace qgemm {
namespace {

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

TEST(MedianInterval, IsOpenForTooFewSamples) {
  // Five samples exclude the median with probability 2 / 32 > 5 %.
  const Interval five = MedianInterval({1, 2, 3, 4, 5}, 0.95);
  EXPECT_TRUE(std::isinf(five.low) && std::isinf(five.high));
  const Interval six = MedianInterval({1, 2, 3, 4, 5, 6}, 0.95);
  EXPECT_DOUBLE_EQ(six.low, 1);
  EXPECT_DOUBLE_EQ(six.high, 6);
}

TEST(MedianInterval, TakesTheTabulatedOrderStatistics) {
  // n = 20 at 95 %: the 6th and the 15th.
  std::vector<double> samples;
  for (int i = 1; i <= 20; ++i) samples.push_back(i);
  const Interval interval = MedianInterval(samples, 0.95);
  EXPECT_DOUBLE_EQ(interval.low, 6);
  EXPECT_DOUBLE_EQ(interval.high, 15);
}

TEST(MedianInterval, CoversTheMedianAsOftenAsItSays) {
  int covered = 0;
  for (int seed = 0; seed < 1000; ++seed) {
    const Interval interval = MedianInterval(Noisy(10, 1, 15, seed), 0.95);
    if (interval.low <= 10 && 10 <= interval.high) ++covered;
  }
  EXPECT_GE(covered, 935);
}

TEST(OrderIsClear, ForASingleCandidate) { EXPECT_TRUE(OrderIsClear({std::vector<double>{1, 2}}, 0.003)); }

TEST(OrderIsClear, WhenOneIsFasterBeyondTheBand) {
  EXPECT_TRUE(OrderIsClear({Noisy(10.0, 0.05, 20, 1), Noisy(10.5, 0.05, 20, 2)}, 0.003));
}

TEST(OrderIsClear, WhenTwoTieWithinTheBand) {
  EXPECT_TRUE(OrderIsClear({Noisy(10.0, 0.003, 20, 1), Noisy(10.001, 0.003, 20, 2)}, 0.003));
}

TEST(OrderIsClear, NotWhileTheNoiseIsLargerThanTheBand) {
  EXPECT_FALSE(OrderIsClear({Noisy(10.0, 0.3, 20, 1), Noisy(10.02, 0.3, 20, 2)}, 0.003));
}

TEST(OrderIsClear, NotOnTooFewRounds) { EXPECT_FALSE(OrderIsClear({{10, 10, 10}, {20, 20, 20}}, 0.003)); }

TEST(OrderIsClear, PairsCancelDriftThatBothShare) {
  std::vector<double> a, b;
  for (int i = 0; i < 20; ++i) {
    const double drift = i * 0.2;  // far more than the difference
    a.push_back(10 + drift);
    b.push_back(10.2 + drift);
  }
  EXPECT_TRUE(OrderIsClear({a, b}, 0.003));
}

}  // namespace
}  // namespace qgemm
