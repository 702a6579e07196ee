#ifndef QGEMM_KERNELS_SIMILARITY_H_
#define QGEMM_KERNELS_SIMILARITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/device_profile.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"

namespace qgemm {

// Chooses among tuned shapes for one that was never tuned: legality first, then distance over (M, N, K). A
// candidate is a config and a split: its grid, workspace and tensor maps are always made from the real shape,
// so that nothing of the tuned shape's size is left in a launch. Idea of the log2 distance over tensor
// dimensions: PyTorch PR #163090. All pure.

enum class ShapeDistance {
  kLog2L1,    // sum of |log2 ratio| of N, K and M (as buckets)
  kLog2L2,    // root of the sum of their squares
  kWeighted,  // as kLog2L1, M counting twice (it decides the tile) and K half (a slice more or less of it)
  kCost,      // log2 of the candidate's predicted time on the asked shape over the smallest of any hint's
};

absl::Span<const ShapeDistance> AllShapeDistances();
absl::string_view ShapeDistanceName(ShapeDistance distance);  // "log2-l1", "log2-l2", "weighted", "cost"
// Empty: log2-l1. InvalidArgument lists the names.
[[nodiscard]] absl::StatusOr<ShapeDistance> ParseShapeDistance(absl::string_view text);

// What was tuned: the pick's candidate for a problem and bucket.
struct ShapeHint {
  Problem problem;
  int m_bucket = 0;
  Candidate candidate;
};

// The split of K is a launch's own: a tuned shape's kernel runs another shape with any legal split.
enum class SplitChoice {
  kAsTuned,  // the hint's split and reduction, or the hint is not legal
  kFitted,   // for another N or K, the split and reduction of its config that the cost model prefers, unless
            // the hint's own is predicted to be nearly as fast
};

struct SimilarHint {
  size_t index = 0;  // into the hints
  double distance = 0;
  Candidate candidate;  // the hint's config with the split to use
};

// The hints whose candidate may run the problem with `m` rows on the device, nearest first, at most `limit`:
// same signature (format, types, epilogue), a bucket that holds m, and IsLegal for the real shape. Equal
// distances: smaller predicted time on the asked shape, then candidate order. Thread-safe.
std::vector<SimilarHint> RankSimilar(const Problem& problem, int64_t m, const DeviceProfile& device,
                                     absl::Span<const ShapeHint> hints, ShapeDistance distance, size_t limit,
                                     SplitChoice choice = SplitChoice::kAsTuned);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_SIMILARITY_H_
