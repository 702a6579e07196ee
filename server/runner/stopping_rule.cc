#include "server/runner/stopping_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace qgemm {
namespace {

constexpr double kConfidence = 0.95;

// `sorted` at a fraction of its length, linearly interpolated.
double Quantile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

SampleSummary Summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {Quantile(samples, 0.5), Quantile(samples, 0.75) - Quantile(samples, 0.25)};
}

Interval MedianInterval(std::vector<double> samples, double confidence) {
  const auto n = static_cast<int>(samples.size());
  std::sort(samples.begin(), samples.end());
  // The median lies outside [x_(k), x_(n-1-k)] (from 0) with probability 2 P(B <= k), B binomial(n, 1/2):
  // take the largest k that keeps it below 1 - confidence.
  double tail = 0;
  double term = std::exp2(-n);  // P(B = k)
  int inside = -1;
  for (int k = 0; 2 * k < n - 1; ++k) {
    tail += term;
    if (2 * tail > 1 - confidence) break;
    inside = k;
    term *= static_cast<double>(n - k) / (k + 1);
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (inside < 0) return {-kInfinity, kInfinity};
  return {samples[inside], samples[n - 1 - inside]};
}

bool OrderIsClear(absl::Span<const std::vector<double>> samples, double tie_band) {
  if (samples.size() < 2) return true;
  size_t best = 0;
  double best_median = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].empty()) return false;
    const double median = Summarize(samples[i]).median;
    if (median < best_median) {
      best_median = median;
      best = i;
    }
  }
  const double band = tie_band * best_median;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i == best) continue;
    std::vector<double> differences;
    for (size_t round = 0; round < samples[i].size(); ++round) {
      differences.push_back(samples[i][round] - samples[best][round]);
    }
    const Interval interval = MedianInterval(std::move(differences), kConfidence);
    const bool slower = interval.low > band;
    const bool tied = interval.low >= -band && interval.high <= band;
    if (!slower && !tied) return false;
  }
  return true;
}

}  // namespace qgemm
