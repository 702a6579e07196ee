#ifndef QGEMM_SERVER_RUNNER_STOPPING_RULE_H_
#define QGEMM_SERVER_RUNNER_STOPPING_RULE_H_

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

// A distribution-free confidence interval of the median: the order statistics between which it lies with at
// least `confidence` probability (binomial; Conover, Practical Nonparametric Statistics, 3.2). Wide open
// (-inf, inf) when there are too few samples for that confidence.
struct Interval {
  double low = 0;
  double high = 0;
};
Interval MedianInterval(std::vector<double> samples, double confidence);

// Whether more rounds would not change which candidate is fastest, or whether they tie: for every candidate
// but the one with the smallest median, the paired differences to it have a median that lies, with 95 %
// confidence, wholly above or wholly within `tie_band` (0.003 = 0.3 % of the smallest median).
// samples[candidate][round], all of the same length; pairs of one round were taken within milliseconds, so
// that drift cancels.
bool OrderIsClear(absl::Span<const std::vector<double>> samples, double tie_band);

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_STOPPING_RULE_H_
