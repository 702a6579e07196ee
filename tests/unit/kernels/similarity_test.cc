#include "kernels/similarity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kernels/bucket.h"
#include "kernels/cost_model.h"
#include "kernels/launch_spec.h"
#include "kernels/legality.h"
#include "kernels/search_space.h"

namespace qgemm {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

const DeviceProfile& H200() {
  static const DeviceProfile& profile = *new DeviceProfile(*FindDeviceProfile("h200"));
  return profile;
}

Problem Shape(int64_t n, int64_t k) { return {n, k, {}}; }

// The candidate that the cost model prefers stands for a tuned pick.
ShapeHint TunedHint(int64_t n, int64_t k, int m_bucket) {
  ShapeHint hint{Shape(n, k), m_bucket, {}};
  double least = 1e30;
  for (const Candidate& candidate : LegalCandidates(hint.problem, m_bucket, H200())) {
    const double us = PredictCost(candidate, hint.problem, m_bucket, H200()).total_us;
    if (us >= least) continue;
    least = us;
    hint.candidate = candidate;
  }
  return hint;
}

std::vector<size_t> Order(const Problem& problem, int64_t m, const std::vector<ShapeHint>& hints,
                          ShapeDistance distance) {
  std::vector<size_t> order;
  for (const SimilarHint& hint : RankSimilar(problem, m, H200(), hints, distance, hints.size())) {
    order.push_back(hint.index);
  }
  return order;
}

TEST(ShapeDistance, HasAStableNameForEach) {
  for (const ShapeDistance distance : AllShapeDistances()) {
    EXPECT_EQ(*ParseShapeDistance(ShapeDistanceName(distance)), distance);
  }
  EXPECT_EQ(*ParseShapeDistance(""), ShapeDistance::kLog2L1);
  const absl::Status unknown = ParseShapeDistance("euclid").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), testing::HasSubstr("log2-l1, log2-l2, weighted, cost"));
}

TEST(RankSimilar, TheSameShapeIsAtDistanceZeroAndFirst) {
  const std::vector<ShapeHint> hints = {TunedHint(1024, 6656, 16), TunedHint(5376, 4096, 16),
                                        TunedHint(5376, 4096, 64)};
  for (const ShapeDistance distance : AllShapeDistances()) {
    const auto ranked = RankSimilar(Shape(5376, 4096), 16, H200(), hints, distance, 3);
    ASSERT_THAT(ranked, SizeIs(3));
    EXPECT_EQ(ranked[0].distance, 0) << ShapeDistanceName(distance);
    EXPECT_EQ(ranked[0].index, 1u) << ShapeDistanceName(distance);
  }
}

TEST(RankSimilar, DistancesDiffer) {
  // From (4096, 4096, 16): a is far in one dimension, b a little in each of two.
  const std::vector<ShapeHint> hints = {TunedHint(4096 * 3, 4096, 16), TunedHint(8192, 8192, 16)};
  EXPECT_EQ(Order(Shape(4096, 4096), 16, hints, ShapeDistance::kLog2L1), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(Order(Shape(4096, 4096), 16, hints, ShapeDistance::kLog2L2), (std::vector<size_t>{1, 0}));
  EXPECT_EQ(Order(Shape(4096, 4096), 16, hints, ShapeDistance::kWeighted), (std::vector<size_t>{1, 0}));
}

TEST(RankSimilar, WeightedPrefersTheRightBucketOverTheRightShape) {
  const std::vector<ShapeHint> hints = {TunedHint(4096, 4096, 32), TunedHint(4096, 8192, 16)};
  EXPECT_EQ(Order(Shape(4096, 4096), 16, hints, ShapeDistance::kWeighted), (std::vector<size_t>{1, 0}));
}

TEST(RankSimilar, CostPrefersTheCandidateThatIsPredictedFastest) {
  const std::vector<ShapeHint> hints = {TunedHint(256, 6656, 16), TunedHint(6656, 19968, 16),
                                        TunedHint(5376, 4096, 16)};
  const Problem problem = Shape(8448, 6656);
  const auto ranked = RankSimilar(problem, 16, H200(), hints, ShapeDistance::kCost, 3);
  ASSERT_FALSE(ranked.empty());
  const double first = PredictCost(hints[ranked[0].index].candidate, problem, 16, H200()).total_us;
  for (const SimilarHint& hint : ranked) {
    EXPECT_LE(first, PredictCost(hints[hint.index].candidate, problem, 16, H200()).total_us);
  }
}

TEST(RankSimilar, AnotherSignatureIsNoHint) {
  std::vector<ShapeHint> hints = {TunedHint(5376, 4096, 16)};
  hints[0].problem.signature.format.group_size = 32;
  EXPECT_THAT(Order(Shape(5376, 4096), 16, hints, ShapeDistance::kLog2L1), IsEmpty());
  hints[0].problem.signature = {};
  hints[0].problem.signature.quantization = ActivationQuantization::kInt8;
  EXPECT_THAT(Order(Shape(5376, 4096), 16, hints, ShapeDistance::kLog2L1), IsEmpty());
  hints[0].problem.signature = {};
  hints[0].problem.signature.epilogue.bias = true;
  EXPECT_THAT(Order(Shape(5376, 4096), 16, hints, ShapeDistance::kLog2L1), IsEmpty());
}

TEST(RankSimilar, ABucketThatDoesNotHoldMIsNoHint) {
  const std::vector<ShapeHint> hints = {TunedHint(5376, 4096, 16), TunedHint(5376, 4096, 4096)};
  EXPECT_EQ(Order(Shape(5376, 4096), 17, hints, ShapeDistance::kLog2L1), (std::vector<size_t>{1}));
  EXPECT_EQ(Order(Shape(5376, 4096), 100000, hints, ShapeDistance::kLog2L1), (std::vector<size_t>{1}));
}

TEST(RankSimilar, ASplitThatWouldLeaveEmptySlicesIsNoHint) {
  ShapeHint hint = TunedHint(256, 6656, 16);
  hint.candidate.split_k = 26;
  hint.candidate.reduction = Reduction::kWorkspace;
  EXPECT_THAT(Order(Shape(256, 128), 16, {hint}, ShapeDistance::kLog2L1), IsEmpty());
}

TEST(RankSimilar, AFittedSplitIsTheAskedShapes) {
  // Few tiles of a long K, split often; for many tiles no split is right.
  const ShapeHint hint = TunedHint(256, 6656, 16);
  ASSERT_GT(hint.candidate.split_k, 1);
  const Problem wide = Shape(28672, 2048);
  const auto fitted =
      RankSimilar(wide, 16, H200(), {&hint, 1}, ShapeDistance::kLog2L1, 1, SplitChoice::kFitted);
  ASSERT_THAT(fitted, SizeIs(1));
  EXPECT_EQ(fitted[0].candidate.config, hint.candidate.config);
  EXPECT_LT(fitted[0].candidate.split_k, hint.candidate.split_k);
  EXPECT_LT(PredictCost(fitted[0].candidate, wide, 16, H200()).total_us,
            PredictCost(hint.candidate, wide, 16, H200()).total_us);
  // The shape that was tuned keeps what was measured.
  const auto own =
      RankSimilar(hint.problem, 12, H200(), {&hint, 1}, ShapeDistance::kCost, 1, SplitChoice::kFitted);
  ASSERT_THAT(own, SizeIs(1));
  EXPECT_EQ(own[0].candidate, hint.candidate);
}

TEST(RankSimilar, ASplitThatIsIllegalElsewhereIsFitted) {
  ShapeHint hint = TunedHint(256, 6656, 16);
  hint.candidate.split_k = 26;
  hint.candidate.reduction = Reduction::kWorkspace;
  const auto ranked =
      RankSimilar(Shape(256, 128), 16, H200(), {&hint, 1}, ShapeDistance::kLog2L1, 1, SplitChoice::kFitted);
  ASSERT_THAT(ranked, SizeIs(1));
  EXPECT_EQ(ranked[0].candidate.split_k, 1);
}

TEST(RankSimilar, KeepsToItsLimitAndToHints) {
  const std::vector<ShapeHint> hints = {TunedHint(1024, 6656, 16), TunedHint(5376, 4096, 16)};
  EXPECT_THAT(RankSimilar(Shape(2048, 2048), 16, H200(), hints, ShapeDistance::kLog2L1, 1), SizeIs(1));
  EXPECT_THAT(RankSimilar(Shape(2048, 2048), 16, H200(), {}, ShapeDistance::kLog2L1, 5), IsEmpty());
}

// Novel shapes, awkward ones among them: whatever is offered is legal for the real shape.
TEST(RankSimilar, OffersOnlyWhatIsLegalForGeneratedShapes) {
  std::vector<ShapeHint> hints;
  for (const int64_t n : {256, 1024, 5376, 8448}) {
    for (const int bucket : {1, 16, 64, 256, 4096}) hints.push_back(TunedHint(n, 6656, bucket));
  }
  std::mt19937 random(7);
  int offered = 0;
  for (int i = 0; i < 60; ++i) {
    const Problem problem = Shape(1 + random() % 20000, 128 * (1 + random() % 160));
    const int64_t m = 1 + random() % (i % 2 == 0 ? 64 : 5000);
    const SplitChoice choice = i % 3 == 0 ? SplitChoice::kAsTuned : SplitChoice::kFitted;
    for (const ShapeDistance distance : AllShapeDistances()) {
      const auto ranked = RankSimilar(problem, m, H200(), hints, distance, 4, choice);
      double before = 0;
      for (const SimilarHint& hint : ranked) {
        ++offered;
        const Candidate& candidate = hint.candidate;
        EXPECT_TRUE(IsLegal(candidate, problem, m, H200()).ok());
        EXPECT_GE(hint.distance, before);
        before = hint.distance;
        const LaunchSpec spec = MakeLaunchSpec(candidate, problem, BucketFor(m));
        EXPECT_GE(spec.Grid(m).x * spec.tile_m, m);
        EXPECT_LE(spec.WorkspaceBytes(m), kMaxWorkspaceBytes);
      }
    }
  }
  EXPECT_GT(offered, 400);
}

}  // namespace
}  // namespace qgemm
