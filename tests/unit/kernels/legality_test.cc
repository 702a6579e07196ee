#include "kernels/legality.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/search_space.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

struct Case {
  Problem problem;
  Candidate candidate;
  DeviceProfile device = FindDeviceProfile("h200").value();
};

Case MakeCase() {
  Case c;
  c.problem.n = 5376;
  c.problem.k = 4096;
  c.candidate.config = ParseConfig("mma_t1_r1_w2x4_s4_b2_slice_post").value();
  return c;
}

TEST(Legality, AcceptsAnOrdinaryCandidate) {
  const Case c = MakeCase();
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1, c.device).ok());
}

TEST(Legality, RejectsEmptySlices) {
  Case c = MakeCase();
  c.candidate.reduction = Reduction::kWorkspace;
  c.candidate.split_k = 32;  // 4096 / 128 units
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1, c.device).ok());
  c.candidate.split_k = 33;
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 1, c.device).message(),
              HasSubstr("split_k 33 leaves empty slices"));
  c.candidate.split_k = 0;
  EXPECT_FALSE(IsLegal(c.candidate, c.problem, 1, c.device).ok());
}

TEST(Legality, RejectsAReductionThatDoesNotGoWithTheSplit) {
  Case c = MakeCase();
  c.candidate.split_k = 2;
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 1, c.device).message(), HasSubstr("reduction none"));
  c.candidate.split_k = 1;
  c.candidate.reduction = Reduction::kWorkspace;
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 1, c.device).message(), HasSubstr("reduction workspace"));
}

TEST(Legality, RejectsASliceThatDoesNotFitSharedMemory) {
  Case c = MakeCase();
  c.problem.k = 19968;
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1, c.device).ok());
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 8, c.device).message(), HasSubstr("shared memory"));
  c.candidate.split_k = 4;
  c.candidate.reduction = Reduction::kWorkspace;
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 8, c.device).ok());
}

TEST(Legality, RejectsAWorkspaceAboveTheLimit) {
  Case c = MakeCase();
  c.candidate.config = ParseConfig("mma_t8_r2_w4x1_s4_b1_staged_pre").value();
  c.candidate.split_k = 2;
  c.candidate.reduction = Reduction::kWorkspace;
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1024, c.device).ok());
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 4096, c.device).message(), HasSubstr("workspace"));
}

TEST(Legality, RejectsAGridBeyondTheLaunchLimits) {
  Case c = MakeCase();
  c.candidate.config = ParseConfig("mma_t1_r1_w1x8_s4_b2_slice_post").value();
  c.problem.n = int64_t{65535} * 16;
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1, c.device).ok());
  c.problem.n += 1;
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 1, c.device).message(), HasSubstr("grid"));
}

TEST(Legality, LeavesNarrowProblemsToFamilyMma) {
  Case c = MakeCase();
  c.problem.n = 63;
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1, c.device).ok());
  c.candidate.config = ParseConfig("wgmma_t1_r1_w1x1_s4_b2_staged_pre").value();
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 1, c.device).message(),
              HasSubstr("n 63 is left to family mma"));
  c.problem.n = 64;
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1, c.device).ok());
}

TEST(Legality, ClusterNeedsHopperAndAtMostEightSlices) {
  Case c = MakeCase();
  c.candidate.reduction = Reduction::kCluster;
  c.candidate.split_k = 8;
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1, c.device).ok());
  c.candidate.split_k = 10;
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 1, c.device).message(), HasSubstr("8 CTAs of a cluster"));
  c.candidate.split_k = 8;
  c.device = FindDeviceProfile("a100").value();
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 1, c.device).message(), HasSubstr("reduction cluster needs"));
}

TEST(Legality, LargeTilesAreNotAddedInClusters) {
  Case c = MakeCase();
  for (const auto& [name, legal] : {std::pair("mma_t8_r2_w4x1_s3_b1_staged_pre", false),
                                    std::pair("mma_t8_r1_w4x2_s3_b1_staged_pre", true),
                                    std::pair("wgmma_t16_r1_w1x1_s3_b2_staged_pre", true),
                                    std::pair("wgmma_t16_r1_w2x1_s3_b2_staged_pre", false)}) {
    const KernelConfig config = ParseConfig(name).value();
    const absl::Status status = IsLegal({config, 2, Reduction::kCluster}, c.problem, 64, c.device);
    EXPECT_EQ(status.ok(), legal) << status;
    EXPECT_THAT(status.message(), HasSubstr(legal ? "" : "reduction must be workspace"));
    EXPECT_TRUE(IsLegal({config, 2, Reduction::kWorkspace}, c.problem, 64, c.device).ok());
  }
}

TEST(Legality, TilesOfManyFragmentsNeedAnUnsplitK) {
  Case c = MakeCase();
  for (const auto& [name, legal] : {std::pair("wgmma_t16_r2_w1x1_s3_b2_staged_pre", true),
                                    std::pair("wgmma_t17_r2_w1x1_s3_b2_staged_pre", false)}) {
    const absl::Status status =
        IsLegal({ParseConfig(name).value(), 2, Reduction::kWorkspace}, c.problem, 1024, c.device);
    EXPECT_EQ(status.ok(), legal) << status;
    EXPECT_THAT(status.message(), HasSubstr(legal ? "" : "split_k must be 1"));
    EXPECT_TRUE(IsLegal({ParseConfig(name).value(), 1, Reduction::kNone}, c.problem, 1024, c.device).ok());
  }
}

TEST(Legality, PassesNeedFamilyWgmmaAndAnUnsplitK) {
  Case c = MakeCase();
  c.candidate.config = ParseConfig("wgmma_t16_r1_w2x1_s4_b2_staged_pre_p2").value();
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1024, c.device).ok());
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1, c.device).ok());
  for (const Reduction reduction : {Reduction::kWorkspace, Reduction::kCluster}) {
    Candidate split{c.candidate.config, 2, reduction};
    EXPECT_THAT(IsLegal(split, c.problem, 1024, c.device).message(), HasSubstr("2 passes need"));
    split.config = ParseConfig("wgmma_t16_r1_w1x1_s4_b2_staged_pre").value();
    EXPECT_TRUE(IsLegal(split, c.problem, 1024, c.device).ok());
  }
  c.candidate.config.passes = 0;
  EXPECT_FALSE(IsLegal(c.candidate, c.problem, 1024, c.device).ok());
  c = MakeCase();
  c.candidate.config.passes = 2;
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 1, c.device).message(), HasSubstr("family wgmma"));
}

TEST(Legality, TailsNeedThreeSlicesInTheWorkspaceAndOneKGroup) {
  Case c = MakeCase();
  c.candidate = {ParseConfig("wgmma_t16_r1_w2x1_s4_b2_staged_pre_tails").value(), 3, Reduction::kWorkspace};
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 256, c.device).ok());
  EXPECT_TRUE(IsLegal(c.candidate, c.problem, 1, c.device).ok());
  for (const auto& [split, reduction] : {std::pair(1, Reduction::kNone), std::pair(2, Reduction::kWorkspace),
                                         std::pair(3, Reduction::kCluster)}) {
    EXPECT_THAT(IsLegal({c.candidate.config, split, reduction}, c.problem, 256, c.device).message(),
                HasSubstr("tails need split_k"));
  }
  for (const auto& [field, value] :
       {std::pair(&KernelConfig::warps_k, 2), std::pair(&KernelConfig::passes, 2)}) {
    Candidate other = c.candidate;
    other.config.*field = value;
    EXPECT_FALSE(IsLegal(other, c.problem, 256, c.device).ok());
  }
  c.problem.k = 256;  // two units
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 256, c.device).message(), HasSubstr("empty slices"));
}

TEST(Legality, RejectsADeviceBeforeAmpere) {
  Case c = MakeCase();
  c.device.compute_major = 7;
  c.device.compute_minor = 5;
  EXPECT_THAT(IsLegal(c.candidate, c.problem, 1, c.device).message(), HasSubstr("compute capability 8.0"));
}

}  // namespace
}  // namespace qgemm
