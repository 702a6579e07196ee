#ifndef QGEMM_TESTS_REPLAY_RECORDED_TIMINGS_H_
#define QGEMM_TESTS_REPLAY_RECORDED_TIMINGS_H_

#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/kernel_config.h"

namespace qgemm {

// One (N, K, M) of a sweep.
struct Cell {
  int64_t n = 0;
  int64_t k = 0;
  int64_t m = 0;

  friend auto operator<=>(const Cell&, const Cell&) = default;
};

// Measured microseconds by candidate, per cell.
using RecordedTimings = std::map<Cell, std::map<Candidate, double>>;

// Reads lines [N, K, M, us, "<config>/k<split>/<reduction>"], or lines of the prototype's sweep [N, K, M, us,
// "A_<path>_<token tiles>_<row tiles>_<warps N>_<warps K>_<blocks>_<stages>_<scale>_<activations>_...",
// split, reduction, ...], of which those like family mma count: cp.async (path 1), post scale (0, 2),
// activations resident (1, 2), no reduction or workspace. Other lines are skipped. A candidate measured twice
// counts with its smaller time.
RecordedTimings ReadRecordedTimings(std::istream& in);

// Adds a later run's timings, which count where both measured the same candidate; returns the ratios, later
// over earlier, of those.
std::vector<double> MergeRecordedTimings(const RecordedTimings& later, RecordedTimings* timings);

}  // namespace qgemm

#endif  // QGEMM_TESTS_REPLAY_RECORDED_TIMINGS_H_
