#ifndef QGEMM_TESTS_BENCH_REGRET_MODES_H_
#define QGEMM_TESTS_BENCH_REGRET_MODES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/tuning_bench.h"

namespace qgemm {

// What `regret --mode` knows beside the experiment itself; each takes about `seconds`, prints progress and
// returns its JSON.

// Per (pair, split): a tuning that may use this split alone, against the five fastest of that split.
[[nodiscard]] absl::StatusOr<Json> RegretOfSplits(TuningBench& bench, const std::vector<BenchPair>& pairs,
                                                  double seconds);

// Generated shapes that were never tuned: the pick of the nearest of a grid of tuned shapes by each distance,
// the model's first choice, and the shape's own pick at buckets 64 and 4096, against its own tuned pick.
[[nodiscard]] absl::StatusOr<Json> NovelShapes(TuningBench& bench, int count, double seconds);
// The same shapes, served from every hint that is legal and each verified, nothing timed: to be run under
// compute-sanitizer. Tunes nothing: the model's first choices for the grid stand for tuned picks.
[[nodiscard]] absl::StatusOr<Json> VerifyNovelShapes(TuningBench& bench, int count, double seconds);

// How far a candidate's time depends on the process and on where its operands lie: short pairs, timed in
// fresh processes with the operands in one place, and in as many as the tuner uses.
[[nodiscard]] absl::StatusOr<Json> SpreadOfPlacements(TuningBench& bench, const std::vector<BenchPair>& pairs,
                                                      double seconds);

// What its company does to a candidate's time: fast candidates of pairs with short kernels, timed alone, with
// each other, and with each other in the opposite order; with RoundsOptions.rewarm and without.
[[nodiscard]] absl::StatusOr<Json> CostOfCompany(TuningBench& bench, const std::vector<BenchPair>& pairs,
                                                 double seconds);

}  // namespace qgemm

#endif  // QGEMM_TESTS_BENCH_REGRET_MODES_H_
