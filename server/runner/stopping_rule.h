#ifndef QGEMM_SERVER_RUNNER_STOPPING_RULE_H_
#define QGEMM_SERVER_RUNNER_STOPPING_RULE_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

namespace qgemm {

// Middle of the samples: median and interquartile range.
struct SampleSummary {
  double median = 0;
  double spread = 0;
};
// `samples` must not be empty. Quartiles by linear interpolation.
SampleSummary Summarize(std::vector<double> samples);

// Where the samples lie, finer than by their median (event times come in steps of 32 ns): the mean of their
// middle half, and its standard error from the winsorized variance (Yuen, Biometrika 61, 1974).
struct Center {
  double us = 0;
  double error = 0;
};
// `samples` must not be empty. The error is never below what the event clock's steps leave open; it is
// infinite for fewer than four samples.
Center CenterOf(std::vector<double> samples);

// The centre of the differences that `samples` have from `others` round by round, over the rounds that there
// are of `samples`.
Center CenterOfDifferences(const std::vector<double>& samples, const std::vector<double>& others);

// The one with the smallest centre; `samples` must not be empty, nor any of it.
size_t FastestOf(absl::Span<const std::vector<double>> samples);

// How a candidate of a race stands against the fastest one.
enum class Standing {
  kOpen,    // more rounds are needed
  kTied,    // within the tie band of the fastest, with 95 % confidence; also the fastest itself
  kSlower,  // slower by more than the tie band, beyond three standard errors: more rounds will not change it
};

// What a race has shown so far.
struct Ranking {
  size_t fastest = 0;  // the one that the standings are against; 0 where there are too few rounds
  std::vector<Standing> standings;
};

// Compares candidates by the paired differences of their rounds to the fastest one's (smallest centre):
// samples[candidate][round], all of the same length. Samples of one round were taken within milliseconds, so
// drift that candidates share cancels. `tie_band` is a fraction of the fastest centre: 0.003 = 0.3 %. All
// open while there are fewer than 10 rounds.
Ranking CompareToFastest(absl::Span<const std::vector<double>> samples, double tie_band);

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_STOPPING_RULE_H_
