#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/replay/replay_session.h"

namespace qgemm {
namespace {

const RecordedTimings& Sample() {
  static const RecordedTimings& timings = *[] {
    std::ifstream file(REPLAY_DATA);
    return new RecordedTimings(ReadRecordedTimings(file));
  }();
  return timings;
}

TEST(RecordedTimings, ReadsItsOwnLinesAndThePrototypesAndSkipsOthers) {
  std::istringstream in(
      "[64, 128, 1, 5.5, \"mma_t1_r1_w2x4_s3_b2_slice_post/k2/workspace\"]\n"
      "[64, 128, 1, 5.4, \"mma_t1_r1_w2x4_s3_b2_slice_post/k2/workspace\"]\n"
      "[64, 128, 1, 5.6, \"mma_t1_r1_w2x4_s3_b2_slice_post/k2/cluster\"]\n"
      "[64, 128, 1, 9.0, \"A_1_1_2_1_8_2_4_2_2_1\", 3, 1, 2]\n"
      "[64, 128, 1, 9.0, \"A_0_1_1_1_16_1_4_2_2_1\", 1, 0, 2]\n"
      "not a point\n"
      "[64, 128, 1, 9.0, \"unknown/k1/none\"]\n");
  const RecordedTimings timings = ReadRecordedTimings(in);
  ASSERT_EQ(timings.size(), 1u);
  std::map<std::string, double> by_name;
  for (const auto& [candidate, us] : timings.at({64, 128, 1})) by_name[CandidateName(candidate)] = us;
  EXPECT_THAT(by_name, testing::UnorderedElementsAre(
                           testing::Pair("mma_t1_r1_w2x4_s3_b2_slice_post/k2/workspace", 5.4),
                           testing::Pair("mma_t1_r1_w2x4_s3_b2_slice_post/k2/cluster", 5.6),
                           testing::Pair("mma_t1_r2_w1x8_s4_b2_slice_post/k3/workspace", 9.0)));
}

TEST(RecordedTimings, ALaterRunCounts) {
  RecordedTimings first;
  first[{1, 2, 3}][Candidate()] = 10;
  RecordedTimings second;
  second[{1, 2, 3}][Candidate()] = 11;
  second[{1, 2, 4}][Candidate()] = 12;
  EXPECT_THAT(MergeRecordedTimings(second, &first), testing::ElementsAre(1.1));
  EXPECT_EQ((first[{1, 2, 3}][Candidate()]), 11);
  EXPECT_EQ(first.size(), 2u);
}

// Two daemons with other noise agree, and are right, for every recorded cell.
TEST(ReplaySession, FreshTuningsAgreeAndAreWithinOnePercent) {
  for (const v1::Effort effort : {v1::EFFORT_BALANCED, v1::EFFORT_EXHAUSTIVE}) {
    int pairs = 0;
    int agree = 0;
    for (const auto& [cell, candidates] : Sample()) {
      double before = 0;
      for (int seed = 0; seed < 8; ++seed) {
        ReplaySession daemon(Sample(), NoiseModel(), 100 + seed);
        const absl::StatusOr<ReplayOutcome> outcome = daemon.Tune(cell, effort);
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        EXPECT_LE(outcome->regret, 1.02) << cell.n << "x" << cell.k << " M " << cell.m << " seed " << seed;
        if (seed > 0) {
          ++pairs;
          agree += std::abs(outcome->true_us / before - 1) <= 0.01 ? 1 : 0;
        }
        before = outcome->true_us;
      }
    }
    EXPECT_GE(agree, 0.98 * pairs - 1) << v1::Effort_Name(effort) << " of " << pairs;
  }
}

// What the many places are for: with one, two daemons often see another order.
TEST(ReplaySession, OperandsInOnePlaceMakeTuningsDisagree) {
  NoiseModel noise;
  noise.placements = 1;
  double worst = 1;
  for (const auto& [cell, candidates] : Sample()) {
    for (int seed = 0; seed < 8; ++seed) {
      ReplaySession daemon(Sample(), noise, seed);
      worst = std::max(worst, daemon.Tune(cell, v1::EFFORT_BALANCED)->regret);
    }
  }
  EXPECT_GT(worst, 1.02);
}

// What the untimed launch before a sample is for: without it, a kernel that shares its code with the one
// before it, or has little of it, looks faster than it is alone.
TEST(ReplaySession, CompanyMisleadsARaceThatDoesNotRewarm) {
  NoiseModel noise;
  noise.company_us = 1;
  double worst[2] = {1, 1};
  for (const bool rewarm : {false, true}) {
    for (const auto& [cell, candidates] : Sample()) {
      for (int seed = 0; seed < 4; ++seed) {
        ReplaySession daemon(Sample(), noise, seed, rewarm);
        worst[rewarm ? 1 : 0] =
            std::max(worst[rewarm ? 1 : 0], daemon.Tune(cell, v1::EFFORT_BALANCED)->regret);
      }
    }
  }
  EXPECT_GT(worst[0], 1.02);
  EXPECT_LE(worst[1], 1.02);
}

// The time on the GPU that a balanced tuning of one cell with stored kernels may take.
TEST(ReplaySession, ABalancedTuningTakesLittleGpuTime) {
  for (const auto& [cell, candidates] : Sample()) {
    ReplaySession daemon(Sample(), NoiseModel(), 7);
    const absl::StatusOr<ReplayOutcome> outcome = daemon.Tune(cell, v1::EFFORT_BALANCED);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_LE(outcome->gpu_s, 0.35) << cell.n << "x" << cell.k << " M " << cell.m;
    EXPECT_LE(outcome->timings, 70);
  }
}

// A timer without races and finer centres would be caught: with a bias of 5 % nobody can be right.
TEST(ReplaySession, NoiseThatHidesTheTruthShows) {
  NoiseModel noise;
  noise.candidate_bias = 0.05;
  double worst = 1;
  for (const auto& [cell, candidates] : Sample()) {
    for (int seed = 0; seed < 5; ++seed) {
      ReplaySession daemon(Sample(), noise, seed);
      worst = std::max(worst, daemon.Tune(cell, v1::EFFORT_EXHAUSTIVE)->regret);
    }
  }
  EXPECT_GT(worst, 1.02);
}

}  // namespace
}  // namespace qgemm
