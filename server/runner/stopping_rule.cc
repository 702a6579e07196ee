#include "server/runner/stopping_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace qgemm {
namespace {

constexpr double kEventStepUs = 0.032;  // of event times on current GPUs
constexpr double kSureSlower = 3;       // standard errors
constexpr double kSureTied = 2;
// Few samples know their own spread badly: about what Student's distribution adds, of half as many degrees of
// freedom as there are samples.
constexpr double kSmallSample = 10;
constexpr size_t kLeastRounds = 10;

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

Center CenterOf(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  const size_t cut = n / 4;
  const double kept = static_cast<double>(n - 2 * cut);
  Center center;
  for (size_t i = cut; i < n - cut; ++i) center.us += samples[i] / kept;
  if (n < 4) {
    center.error = std::numeric_limits<double>::infinity();
    return center;
  }
  // The outer quarters count as the innermost of them.
  double mean = 0;
  for (size_t i = 0; i < n; ++i) mean += std::clamp(samples[i], samples[cut], samples[n - 1 - cut]);
  mean /= static_cast<double>(n);
  double squares = 0;
  for (size_t i = 0; i < n; ++i) {
    const double deviation = std::clamp(samples[i], samples[cut], samples[n - 1 - cut]) - mean;
    squares += deviation * deviation;
  }
  const auto count = static_cast<double>(n);
  const double winsorized = std::sqrt(squares / (count - 1)) * count / kept / std::sqrt(count);
  center.error = std::hypot(winsorized, kEventStepUs / std::sqrt(12 * count));
  return center;
}

Center CenterOfDifferences(const std::vector<double>& samples, const std::vector<double>& others) {
  std::vector<double> differences(samples.size());
  for (size_t round = 0; round < differences.size(); ++round) {
    differences[round] = samples[round] - others[round];
  }
  return CenterOf(std::move(differences));
}

size_t FastestOf(absl::Span<const std::vector<double>> samples) {
  size_t fastest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < samples.size(); ++i) {
    const double us = CenterOf(samples[i]).us;
    if (us < least) {
      least = us;
      fastest = i;
    }
  }
  return fastest;
}

Ranking CompareToFastest(absl::Span<const std::vector<double>> samples, double tie_band) {
  Ranking result;
  result.standings.assign(samples.size(), Standing::kOpen);
  if (samples.empty() || samples[0].size() < kLeastRounds) return result;
  const size_t fastest = result.fastest = FastestOf(samples);
  const double band = tie_band * CenterOf(samples[fastest]).us;
  const double widening = 1 + kSmallSample / static_cast<double>(samples[0].size());
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i == fastest) {
      result.standings[i] = Standing::kTied;
      continue;
    }
    const Center difference = CenterOfDifferences(samples[i], samples[fastest]);
    if (difference.us - kSureSlower * widening * difference.error > band) {
      result.standings[i] = Standing::kSlower;
    } else if (std::fabs(difference.us) + kSureTied * widening * difference.error <= band) {
      result.standings[i] = Standing::kTied;
    }
  }
  return result;
}

}  // namespace qgemm
