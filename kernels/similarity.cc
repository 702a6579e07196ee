#include "kernels/similarity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/bucket.h"
#include "kernels/cost_model.h"
#include "kernels/legality.h"
#include "kernels/search_space.h"

namespace qgemm {
namespace {

constexpr ShapeDistance kAll[] = {ShapeDistance::kLog2L1, ShapeDistance::kLog2L2, ShapeDistance::kWeighted,
                                  ShapeDistance::kCost};
constexpr double kWeightOfM = 2;
constexpr double kWeightOfK = 0.5;
// A hint's own split was measured: it stays unless another is predicted to be faster by this factor.
constexpr double kWorthFitting = 1.03;

double Log2Ratio(int64_t a, int64_t b) {
  return std::fabs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

double Between(const Problem& problem, int m_bucket, const ShapeHint& hint, ShapeDistance distance) {
  const double n = Log2Ratio(problem.n, hint.problem.n);
  const double k = Log2Ratio(problem.k, hint.problem.k);
  const double m = Log2Ratio(m_bucket, hint.m_bucket);
  switch (distance) {
    case ShapeDistance::kLog2L2:
      return std::sqrt(n * n + k * k + m * m);
    case ShapeDistance::kWeighted:
      return n + kWeightOfK * k + kWeightOfM * m;
    default:
      return n + k + m;
  }
}

// A candidate and its predicted time; none when nothing is legal.
struct Choice {
  Candidate candidate;
  double predicted_us = std::numeric_limits<double>::infinity();
};

Choice AsTuned(const ShapeHint& hint, const Problem& problem, int64_t m, const DeviceProfile& device) {
  if (!IsLegal(hint.candidate, problem, m, device).ok()) return {};
  return {hint.candidate, PredictCost(hint.candidate, problem, m, device).total_us};
}

Choice Fitted(const ShapeHint& hint, const Problem& problem, int64_t m, const DeviceProfile& device) {
  const Choice tuned = AsTuned(hint, problem, m, device);
  const bool same_shape = hint.problem.n == problem.n && hint.problem.k == problem.k;
  if (same_shape && std::isfinite(tuned.predicted_us)) return tuned;
  Choice best;
  for (const Candidate& one : LegalSplits(hint.candidate.config, problem, BucketFor(m), device)) {
    if (!IsLegal(one, problem, m, device).ok()) continue;
    const double us = PredictCost(one, problem, m, device).total_us;
    if (us < best.predicted_us) best = {one, us};
  }
  return tuned.predicted_us <= best.predicted_us * kWorthFitting ? tuned : best;
}

}  // namespace

absl::Span<const ShapeDistance> AllShapeDistances() { return kAll; }

absl::string_view ShapeDistanceName(ShapeDistance distance) {
  switch (distance) {
    case ShapeDistance::kLog2L1:
      return "log2-l1";
    case ShapeDistance::kLog2L2:
      return "log2-l2";
    case ShapeDistance::kWeighted:
      return "weighted";
    case ShapeDistance::kCost:
      return "cost";
  }
  return "";
}

absl::StatusOr<ShapeDistance> ParseShapeDistance(absl::string_view text) {
  if (text.empty()) return ShapeDistance::kLog2L1;
  for (const ShapeDistance distance : kAll) {
    if (text == ShapeDistanceName(distance)) return distance;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("distance \"", text, "\" is not allowed: use ",
                   absl::StrJoin(kAll, ", ", [](std::string* out, ShapeDistance distance) {
                     absl::StrAppend(out, ShapeDistanceName(distance));
                   })));
}

std::vector<SimilarHint> RankSimilar(const Problem& problem, int64_t m, const DeviceProfile& device,
                                     absl::Span<const ShapeHint> hints, ShapeDistance distance, size_t limit,
                                     SplitChoice choice) {
  struct Legal {
    SimilarHint hint;
    double predicted_us = 0;
  };
  const int m_bucket = BucketFor(m);
  std::vector<Legal> legal;
  double least_us = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < hints.size(); ++i) {
    const ShapeHint& hint = hints[i];
    if (!(hint.problem.signature == problem.signature) || !BucketServes(hint.m_bucket, m)) continue;
    const Choice chosen =
        choice == SplitChoice::kFitted ? Fitted(hint, problem, m, device) : AsTuned(hint, problem, m, device);
    if (!std::isfinite(chosen.predicted_us)) continue;
    least_us = std::min(least_us, chosen.predicted_us);
    legal.push_back({{i, Between(problem, m_bucket, hint, distance), chosen.candidate}, chosen.predicted_us});
  }
  if (distance == ShapeDistance::kCost) {
    for (Legal& one : legal) one.hint.distance = std::log2(one.predicted_us / least_us);
  }
  std::sort(legal.begin(), legal.end(), [&](const Legal& a, const Legal& b) {
    return std::tie(a.hint.distance, a.predicted_us, a.hint.candidate) <
           std::tie(b.hint.distance, b.predicted_us, b.hint.candidate);
  });
  std::vector<SimilarHint> ranked;
  for (size_t i = 0; i < std::min(limit, legal.size()); ++i) ranked.push_back(legal[i].hint);
  return ranked;
}

}  // namespace qgemm
