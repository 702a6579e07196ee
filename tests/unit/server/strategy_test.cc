#include "server/strategy/strategy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "kernels/search_space.h"
#include "server/strategy/balanced.h"
#include "server/strategy/quick.h"

namespace qgemm {
namespace {

Problem SomeProblem(int64_t n, int64_t k) {
  Problem problem;
  problem.n = n;
  problem.k = k;
  return problem;
}

DeviceProfile H200() { return *FindDeviceProfile("h200"); }

std::set<KernelConfig> ConfigsOf(const Plan& plan) {
  std::set<KernelConfig> configs;
  for (const PlannedCandidate& planned : plan.candidates) configs.insert(planned.candidate.config);
  return configs;
}

bool SortedByPrediction(const Plan& plan) {
  return std::is_sorted(
      plan.candidates.begin(), plan.candidates.end(),
      [](const PlannedCandidate& a, const PlannedCandidate& b) { return a.predicted_us < b.predicted_us; });
}

class StrategyTest : public ::testing::TestWithParam<int> {};

TEST_P(StrategyTest, ExhaustiveTriesEveryLegalCandidateOnce) {
  const Problem problem = SomeProblem(5376, 4096);
  const Plan plan = StrategyFor(v1::EFFORT_EXHAUSTIVE).MakePlan(problem, GetParam(), H200(), /*timed=*/true);
  std::vector<Candidate> planned;
  for (const PlannedCandidate& one : plan.candidates) planned.push_back(one.candidate);
  std::sort(planned.begin(), planned.end());
  EXPECT_EQ(planned, LegalCandidates(problem, GetParam(), H200()));
  EXPECT_EQ(plan.legal, static_cast<int>(planned.size()));
  EXPECT_TRUE(plan.also_compile.empty());
  EXPECT_TRUE(SortedByPrediction(plan));
}

TEST_P(StrategyTest, ExhaustiveWithoutAGpuCompilesTheWholeSpace) {
  const Problem problem = SomeProblem(5376, 4096);
  const Plan plan = StrategyFor(v1::EFFORT_EXHAUSTIVE).MakePlan(problem, GetParam(), H200(), /*timed=*/false);
  std::set<KernelConfig> configs = ConfigsOf(plan);
  configs.insert(plan.also_compile.begin(), plan.also_compile.end());
  const std::vector<KernelConfig> space = ConfigSpace(problem.signature, GetParam(), H200());
  EXPECT_EQ(configs, std::set<KernelConfig>(space.begin(), space.end()));
  EXPECT_EQ(plan.configs_at_once, 0);
}

TEST_P(StrategyTest, BalancedKeepsFewCandidatesOfFewConfigs) {
  for (const auto& [n, k] : {std::pair{256, 6656}, {5376, 4096}, {6656, 19968}}) {
    const Plan plan =
        StrategyFor(v1::EFFORT_BALANCED).MakePlan(SomeProblem(n, k), GetParam(), H200(), /*timed=*/true);
    EXPECT_LE(static_cast<int>(plan.candidates.size()), BalancedStrategy::kMaxCandidates);
    EXPECT_LE(static_cast<int>(ConfigsOf(plan).size()), BalancedStrategy::kMaxConfigs);
    // One of the two limits ends the plan: none is left out for another cause.
    EXPECT_TRUE(static_cast<int>(plan.candidates.size()) ==
                    std::min(plan.legal, BalancedStrategy::kMaxCandidates) ||
                static_cast<int>(ConfigsOf(plan).size()) == BalancedStrategy::kMaxConfigs)
        << plan.candidates.size() << " of " << plan.legal;
    EXPECT_TRUE(SortedByPrediction(plan));
  }
}

PlannedCandidate Predicted(Family family, int warps_n, int stages, int split_k, double us) {
  PlannedCandidate planned;
  planned.candidate.config.family = family;
  planned.candidate.config.warps_n = warps_n;
  planned.candidate.config.stages = stages;
  planned.candidate.split_k = split_k;
  planned.predicted_us = us;
  return planned;
}

// 200 twins of one family and mechanism, and one other that `us` is predicted for.
std::vector<PlannedCandidate> TwinsAnd(Family family, int warps_n, double us) {
  std::vector<PlannedCandidate> all;
  for (int i = 0; i < 200; ++i) {
    all.push_back(Predicted(Family::kMma, 4, 2 + i % 10, 1 + i / 10, 10 + 0.01 * i));
  }
  all.push_back(Predicted(family, warps_n, 3, 1, us));
  return all;
}

// A formula that favours one family or mechanism wrongly must not hide the other.
TEST(BalancedStrategy, KeepsAFamilyAndAMechanismThatManyTwinsPrecede) {
  for (const auto& [family, warps_n] : {std::pair{Family::kWgmma, 4}, {Family::kMma, 1}}) {
    const std::vector<PlannedCandidate> chosen = BalancedStrategy::Choose(TwinsAnd(family, warps_n, 14));
    ASSERT_EQ(static_cast<int>(chosen.size()), BalancedStrategy::kMaxCandidates);
    EXPECT_EQ(chosen.back().candidate.config.family, family);
    EXPECT_EQ(chosen.back().candidate.config.warps_n, warps_n);
    EXPECT_EQ(chosen.front().predicted_us, 10);
  }
}

TEST(BalancedStrategy, LeavesOutAFamilyFarBehind) {
  for (const PlannedCandidate& planned : BalancedStrategy::Choose(TwinsAnd(Family::kWgmma, 4, 15.1))) {
    EXPECT_EQ(planned.candidate.config.family, Family::kMma);
  }
}

TEST(BalancedStrategy, KeepsAllSplitsOfAConfigRatherThanAConfigTooMany) {
  std::vector<PlannedCandidate> all;
  for (int i = 0; i < 100; ++i) {
    all.push_back(Predicted(Family::kMma, 1, 2 + i % 50, 1 + i / 50, 10 + 0.01 * i));
  }
  const std::vector<PlannedCandidate> chosen = BalancedStrategy::Choose(all);
  std::set<KernelConfig> configs;
  for (const PlannedCandidate& planned : chosen) configs.insert(planned.candidate.config);
  EXPECT_EQ(static_cast<int>(configs.size()), BalancedStrategy::kMaxConfigs);
  EXPECT_EQ(chosen.size(), 2 * configs.size());
}

TEST(BalancedStrategy, NothingOfNothing) { EXPECT_TRUE(BalancedStrategy::Choose({}).empty()); }

TEST_P(StrategyTest, BalancedHasThePredictedBest) {
  const Problem problem = SomeProblem(5376, 4096);
  const Plan plan = StrategyFor(v1::EFFORT_BALANCED).MakePlan(problem, GetParam(), H200(), /*timed=*/true);
  const std::vector<PlannedCandidate> all = LegalByPrediction(problem, GetParam(), H200());
  ASSERT_FALSE(plan.candidates.empty());
  EXPECT_EQ(plan.candidates[0].candidate, all[0].candidate);
}

TEST_P(StrategyTest, QuickTriesAFewOfWhatBalancedTries) {
  const Problem problem = SomeProblem(5376, 4096);
  const Plan quick = StrategyFor(v1::EFFORT_QUICK).MakePlan(problem, GetParam(), H200(), /*timed=*/true);
  EXPECT_LE(static_cast<int>(quick.candidates.size()), QuickStrategy::kMaxCandidates);
  EXPECT_LE(static_cast<int>(ConfigsOf(quick).size()), QuickStrategy::kMaxConfigs);
  EXPECT_GE(quick.candidates.size(), 6u);
  EXPECT_LT(quick.race_share, 1);
  EXPECT_TRUE(SortedByPrediction(quick));
  EXPECT_EQ(quick.candidates[0].candidate, LegalByPrediction(problem, GetParam(), H200())[0].candidate);
}

TEST_P(StrategyTest, AllowedCandidatesAreChosenBeforeThePlanIsMade) {
  const Problem problem = SomeProblem(5376, 4096);
  PlanHints hints;
  hints.allowed = [](const Candidate& candidate) { return candidate.config.family == Family::kMma; };
  for (const v1::Effort effort : {v1::EFFORT_QUICK, v1::EFFORT_BALANCED, v1::EFFORT_EXHAUSTIVE}) {
    const Plan plan = StrategyFor(effort).MakePlan(problem, GetParam(), H200(), /*timed=*/true, hints);
    EXPECT_TRUE(plan.restricted);
    ASSERT_FALSE(plan.candidates.empty());
    for (const PlannedCandidate& planned : plan.candidates) {
      EXPECT_EQ(planned.candidate.config.family, Family::kMma);
    }
  }
}

TEST_P(StrategyTest, TheCountBudgetKeepsTheBestPredictions) {
  const Problem problem = SomeProblem(5376, 4096);
  const Strategy& strategy = StrategyFor(v1::EFFORT_EXHAUSTIVE);
  const Plan whole = strategy.MakePlan(problem, GetParam(), H200(), /*timed=*/true);
  const Plan some = strategy.MakePlan(problem, GetParam(), H200(), /*timed=*/true, {.max_candidates = 5});
  ASSERT_EQ(some.candidates.size(), 5u);
  EXPECT_TRUE(some.restricted);
  EXPECT_FALSE(whole.restricted);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(some.candidates[i].candidate, whole.candidates[i].candidate);
}

TEST_P(StrategyTest, SeedsAreTriedIfTheyAreLegal) {
  const Problem problem = SomeProblem(5376, 4096);
  const std::vector<PlannedCandidate> all = LegalByPrediction(problem, GetParam(), H200());
  Candidate illegal = all.back().candidate;
  illegal.split_k = 4096;
  const Plan plan = StrategyFor(v1::EFFORT_BALANCED)
                        .MakePlan(problem, GetParam(), H200(), /*timed=*/true,
                                  {.seeds = {all.back().candidate, all.front().candidate, illegal}});
  const auto tries = [&](const Candidate& candidate) {
    return std::count_if(plan.candidates.begin(), plan.candidates.end(),
                         [&](const PlannedCandidate& planned) { return planned.candidate == candidate; });
  };
  EXPECT_EQ(tries(all.back().candidate), 1);
  EXPECT_EQ(tries(all.front().candidate), 1);
  EXPECT_EQ(tries(illegal), 0);
  EXPECT_TRUE(SortedByPrediction(plan));
}

TEST_P(StrategyTest, ModelOnlyCompilesOneConfigAtATime) {
  const Plan plan = StrategyFor(v1::EFFORT_MODEL_ONLY)
                        .MakePlan(SomeProblem(1024, 6656), GetParam(), H200(), /*timed=*/false);
  EXPECT_EQ(plan.configs_at_once, 1);
  EXPECT_EQ(static_cast<int>(plan.candidates.size()), plan.legal);
  EXPECT_TRUE(SortedByPrediction(plan));
}

INSTANTIATE_TEST_SUITE_P(Buckets, StrategyTest, ::testing::Values(1, 8, 16, 32, 64, 256, 4096));

}  // namespace
}  // namespace qgemm
