#include "kernels/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <vector>

#include "kernels/bucket.h"
#include "kernels/search_space.h"

namespace qgemm {
namespace {

Problem MakeProblem(int64_t n, int64_t k, int group_size = 128) {
  Problem problem;
  problem.n = n;
  problem.k = k;
  problem.signature.format.group_size = group_size;
  return problem;
}

DeviceProfile H200() { return *FindDeviceProfile("h200"); }

double BestPrediction(const Problem& problem, int m, const DeviceProfile& device,
                      std::optional<Family> family = std::nullopt) {
  double best = INFINITY;
  for (const Candidate& candidate : LegalCandidates(problem, m, device)) {
    if (family.has_value() && candidate.config.family != *family) continue;
    best = std::min(best, PredictCost(candidate, problem, m, device).total_us);
  }
  return best;
}

Candidate Decode(int split_k) {
  Candidate candidate;
  candidate.config = {Family::kMma, 1, 1, 2, 8, 4, 2, ActivationPath::kSlice, ScaleMode::kPost};
  candidate.split_k = split_k;
  candidate.reduction = split_k > 1 ? Reduction::kWorkspace : Reduction::kNone;
  return candidate;
}

struct Measured {
  int64_t n, k;
  int m;
  double us;
};

void ExpectBestPredictionNear(Family family, double tolerance, std::initializer_list<Measured> cells) {
  for (const Measured& cell : cells) {
    const double predicted = BestPrediction(MakeProblem(cell.n, cell.k), cell.m, H200(), family);
    EXPECT_NEAR(predicted / cell.us, 1, tolerance) << cell.n << "x" << cell.k << " m " << cell.m;
  }
}

// Best measured times of family mma at 0c49b4c, cold after reads, H200, int4, bf16, group 128.
TEST(CostModel, BestPredictionOfFamilyMmaIsNearTheBestMeasured) {
  ExpectBestPredictionNear(Family::kMma, 0.2,
                           {{5376, 4096, 1, 6.697},
                            {5376, 4096, 8, 7.603},
                            {8448, 6656, 1, 10.05},
                            {8448, 6656, 16, 14.48},
                            {6656, 19968, 1, 20.24},
                            {6656, 19968, 8, 22.69},
                            {1024, 6656, 4, 5.213},
                            {256, 6656, 1, 4.181}});
}

// And of family wgmma.
TEST(CostModel, BestPredictionOfFamilyWgmmaIsNearTheBestMeasured) {
  ExpectBestPredictionNear(Family::kWgmma, 0.15,
                           {{1024, 6656, 8, 5.71},
                            {1024, 6656, 64, 7.518},
                            {5376, 4096, 8, 7.875},
                            {5376, 4096, 64, 11.51},
                            {6656, 19968, 8, 22.51},
                            {6656, 19968, 64, 36.29},
                            {8448, 6656, 1, 11.8},
                            {8448, 6656, 64, 17.23},
                            {8448, 6656, 256, 40.55},
                            {8448, 6656, 1024, 146.8}});
}

Candidate ClusterDecode(int split_k) {
  Candidate candidate = Decode(split_k);
  candidate.reduction = Reduction::kCluster;
  return candidate;
}

TEST(CostModel, ClustersReduceForLessThanAWorkspace) {
  for (const int split_k : {2, 4, 8}) {
    EXPECT_LT(PredictCost(ClusterDecode(split_k), MakeProblem(1024, 6656), 8, H200()).reduction_us,
              PredictCost(Decode(split_k), MakeProblem(1024, 6656), 8, H200()).reduction_us);
  }
}

// 22 tiles of 6 slices are 132 CTAs, but clusters of 6 fit only 102 at once.
TEST(CostModel, ClustersThatDoNotPackTakeAnotherWave) {
  const Problem problem = MakeProblem(22 * 32, 6656);
  const CostEstimate cluster = PredictCost(ClusterDecode(6), problem, 8, H200());
  const CostEstimate workspace = PredictCost(Decode(6), problem, 8, H200());
  EXPECT_DOUBLE_EQ(workspace.wave_efficiency, 1);
  EXPECT_DOUBLE_EQ(cluster.wave_efficiency, 0.5);
  EXPECT_GT(cluster.main_us, workspace.main_us);
}

TEST(CostModel, PartsArePositiveAndBelowTheTotal) {
  for (const DeviceProfile& device : DeviceProfiles()) {
    for (int m : BucketLadder()) {
      for (const Candidate& candidate : LegalCandidates(MakeProblem(5376, 4096), m, device)) {
        const CostEstimate cost = PredictCost(candidate, MakeProblem(5376, 4096), m, device);
        ASSERT_TRUE(std::isfinite(cost.total_us));
        ASSERT_GT(cost.memory_us, 0);
        ASSERT_GT(cost.mma_us, 0);
        ASSERT_GT(cost.dequant_us, 0);
        ASSERT_EQ(cost.reduction_us > 0, candidate.split_k > 1);
        ASSERT_GT(cost.wave_efficiency, 0);
        ASSERT_LE(cost.wave_efficiency, 1);
        ASSERT_DOUBLE_EQ(cost.total_us, cost.main_us + cost.reduction_us + cost.overhead_us);
        ASSERT_GE(cost.main_us, cost.memory_us);
        const double compute_us = candidate.config.family == Family::kWgmma  // runs beside the dequantization
                                      ? std::max(cost.mma_us, cost.dequant_us)
                                      : cost.mma_us + cost.dequant_us;
        ASSERT_GE(cost.main_us, compute_us);
      }
    }
  }
}

TEST(CostModel, NeverBeatsTheRoofline) {
  for (const DeviceProfile& device : DeviceProfiles()) {
    for (int m : {1, 16, 256, 4096}) {
      const double bytes = 5376.0 * 4096 / 2;
      const double flops = 2.0 * m * 5376 * 4096;
      const double floor_us = std::max(bytes / (device.dram_gb_per_s * 1e3),
                                       flops / (std::max(device.mma_tflops, device.wgmma_tflops) * 1e6));
      EXPECT_GT(BestPrediction(MakeProblem(5376, 4096), m, device), floor_us) << device.name << " m " << m;
    }
  }
}

TEST(CostModel, APassCostsLessThanAWaveAndMoreThanNothing) {
  const Problem problem = MakeProblem(5376, 4096);
  Candidate two{ParseConfig("wgmma_t22_r1_w2x1_s4_b2_staged_pre_p2").value(), 1, Reduction::kNone};
  Candidate one = two;
  one.config.passes = 1;
  const auto us = [&](const Candidate& candidate, int64_t m) {
    return PredictCost(candidate, problem, m, H200()).total_us;
  };
  EXPECT_LT(us(two, 1024), us(one, 1024));
  EXPECT_GT(us(two, 1024), us(one, 1024) - 2.3);
  EXPECT_GT(us(two, 352), us(two, 176) * 1.5);  // one CTA's two passes
  double previous = 0;
  for (int64_t m = 1; m <= 2048; m += 13) {
    EXPECT_GE(us(two, m), previous) << m;
    previous = us(two, m);
  }
}

TEST(CostModel, MoreRowsNeverCostLess) {
  for (int split_k : {1, 4}) {
    double previous = 0;
    for (int m = 1; m <= 64; ++m) {
      const double us = PredictCost(Decode(split_k), MakeProblem(5376, 4096), m, H200()).total_us;
      EXPECT_GE(us, previous) << m;
      previous = us;
    }
  }
}

// 32 tiles on 132 SMs: most of the GPU idles unless K is split; 264 tiles fill it twice over.
TEST(CostModel, SplitsWhereTilesAreFew) {
  const Problem few = MakeProblem(1024, 19968);
  EXPECT_LT(PredictCost(Decode(4), few, 8, H200()).total_us,
            0.8 * PredictCost(Decode(1), few, 8, H200()).total_us);
  const Problem many = MakeProblem(8448, 4096);
  EXPECT_LT(PredictCost(Decode(1), many, 1, H200()).total_us,
            PredictCost(Decode(8), many, 1, H200()).total_us);
}

TEST(CostModel, ChargesAPartlyFilledWave) {
  const CostEstimate full = PredictCost(Decode(1), MakeProblem(132 * 32, 4096), 1, H200());
  const CostEstimate one_more = PredictCost(Decode(1), MakeProblem(133 * 32, 4096), 1, H200());
  EXPECT_DOUBLE_EQ(full.wave_efficiency, 1);
  EXPECT_LT(one_more.wave_efficiency, 0.51);
  EXPECT_GT(one_more.dequant_us, 1.5 * full.dequant_us);
}

TEST(CostModel, PicksAreFromTheWorkingSplitsOnNarrowProblems) {
  const Problem problem = MakeProblem(1024, 6656);
  const std::vector<Candidate> candidates = LegalCandidates(problem, 8, H200());
  ASSERT_GE(candidates.size(), 60);
  const auto best =
      std::min_element(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
        return PredictCost(a, problem, 8, H200()).total_us < PredictCost(b, problem, 8, H200()).total_us;
      });
  EXPECT_GT(best->split_k, 1) << CandidateName(*best);
}

TEST(CostModel, FinerGroupsAndZeroPointsCostMore) {
  const double coarse = PredictCost(Decode(1), MakeProblem(8448, 4096), 8, H200()).total_us;
  EXPECT_GT(PredictCost(Decode(1), MakeProblem(8448, 4096, 32), 8, H200()).total_us, coarse);
  Problem zeros = MakeProblem(8448, 4096);
  zeros.signature.format.zero_point = ZeroPoint::kInteger;
  EXPECT_GT(PredictCost(Decode(1), zeros, 8, H200()).total_us, coarse);
}

// group_size 0 is channel-wise, and comes from clients.
TEST(CostModel, ChannelWiseScalesCostAboutWhatGroupsDo) {
  for (const ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
    for (const int64_t m : {1, 64, 1024}) {
      Problem channel = MakeProblem(8448, 4096);
      channel.signature.format.group_size = 0;
      channel.signature.format.zero_point = zero;
      Problem groups = channel;
      groups.signature.format.group_size = 64;
      const std::vector<Candidate> candidates = LegalCandidates(channel, BucketFor(m), H200());
      ASSERT_FALSE(candidates.empty());
      for (const Candidate& candidate : candidates) {
        const double us = PredictCost(candidate, channel, m, H200()).total_us;
        const double with_groups = PredictCost(candidate, groups, m, H200()).total_us;
        EXPECT_GT(us, 0.5 * with_groups) << CandidateName(candidate);
        EXPECT_LT(us, 1.25 * with_groups) << CandidateName(candidate);
      }
    }
  }
}

TEST(CostModel, FasterMemoryIsFaster) {
  DeviceProfile slow = H200();
  slow.dram_gb_per_s /= 4;
  EXPECT_GT(PredictCost(Decode(1), MakeProblem(8448, 6656), 1, slow).total_us,
            1.5 * PredictCost(Decode(1), MakeProblem(8448, 6656), 1, H200()).total_us);
}

}  // namespace
}  // namespace qgemm
