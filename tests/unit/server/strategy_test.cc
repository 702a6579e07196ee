#include "server/strategy/strategy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/search_space.h"
#include "server/strategy/balanced.h"

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

TEST_P(StrategyTest, BalancedKeepsAThirdAndFewConfigs) {
  const Plan plan =
      StrategyFor(v1::EFFORT_BALANCED).MakePlan(SomeProblem(5376, 4096), GetParam(), H200(), /*timed=*/true);
  EXPECT_GE(static_cast<int>(plan.candidates.size()), std::min(plan.legal, BalancedStrategy::kMinCandidates));
  EXPECT_LE(static_cast<int>(plan.candidates.size()),
            std::max(BalancedStrategy::kMinCandidates, plan.legal / 3 + 1));
  EXPECT_LE(ConfigsOf(plan).size(), static_cast<size_t>(BalancedStrategy::kMaxConfigs));
  EXPECT_TRUE(SortedByPrediction(plan));
}

TEST_P(StrategyTest, BalancedHasThePredictedBest) {
  const Problem problem = SomeProblem(5376, 4096);
  const Plan plan = StrategyFor(v1::EFFORT_BALANCED).MakePlan(problem, GetParam(), H200(), /*timed=*/true);
  const std::vector<PlannedCandidate> all = LegalByPrediction(problem, GetParam(), H200());
  ASSERT_FALSE(plan.candidates.empty());
  EXPECT_EQ(plan.candidates[0].candidate, all[0].candidate);
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
