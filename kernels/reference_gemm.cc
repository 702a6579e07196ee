#include "kernels/reference_gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace qgemm {
namespace {

// A 16-bit floating-point format: 1 sign bit, 15 - mantissa_bits of exponent, mantissa_bits.
struct Layout {
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number, and of subnormals

  uint16_t InfinityBits() const { return 0x7fff >> mantissa_bits << mantissa_bits; }
  // Exponent of the distance between subnormal numbers.
  int MinQuantum() const { return min_exponent - mantissa_bits; }
};

Layout LayoutOf(ScalarType type) { return type == ScalarType::kBf16 ? Layout{7, -126} : Layout{10, -14}; }

}  // namespace

double ScalarToDouble(uint16_t bits, ScalarType type) {
  const Layout layout = LayoutOf(type);
  const int magnitude = bits & 0x7fff;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (magnitude > layout.InfinityBits()) return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
  if (magnitude == layout.InfinityBits()) return sign * std::numeric_limits<double>::infinity();
  const int exponent_field = magnitude >> layout.mantissa_bits;
  const int mantissa = magnitude - (exponent_field << layout.mantissa_bits);
  if (exponent_field == 0) return sign * std::ldexp(mantissa, layout.MinQuantum());
  return sign * std::ldexp(mantissa + (1 << layout.mantissa_bits), layout.MinQuantum() + exponent_field - 1);
}

uint16_t ScalarFromDouble(double value, ScalarType type) {
  const Layout layout = LayoutOf(type);
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | layout.InfinityBits() | 1 << (layout.mantissa_bits - 1);
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(value)) return sign | layout.InfinityBits();
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent-1), 2^exponent)
  const int quantum = std::max(exponent - 1 - layout.mantissa_bits, layout.MinQuantum());
  const int steps_above_min = quantum - layout.MinQuantum();
  if ((steps_above_min + 1) << layout.mantissa_bits >= layout.InfinityBits()) {
    return sign | layout.InfinityBits();
  }
  const double scaled = std::ldexp(magnitude, -quantum);  // below 2^(mantissa_bits + 1): exact
  double rounded = std::floor(scaled);
  const double rest = scaled - rounded;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(rounded, 2.0) == 1.0)) rounded += 1.0;
  // A mantissa that rounds up to the next power of two carries into the exponent field, and from the largest
  // finite number to infinity.
  return sign | ((steps_above_min << layout.mantissa_bits) + static_cast<int>(rounded));
}

std::vector<double> ReferenceGemm(const CanonicalWeights& weights, absl::Span<const uint16_t> x, int64_t m,
                                  ScalarType act, absl::Span<const uint16_t> bias) {
  const int64_t n = weights.n;
  const int64_t k = weights.k;
  const int64_t group_size = weights.format.group_size;
  const int64_t groups = k / group_size;
  QGEMM_CHECK(static_cast<int64_t>(weights.codes.size()) == n * k);
  QGEMM_CHECK(static_cast<int64_t>(weights.scales.size()) == n * groups);
  QGEMM_CHECK(weights.zeros.empty() || static_cast<int64_t>(weights.zeros.size()) == n * groups);
  QGEMM_CHECK(static_cast<int64_t>(x.size()) == m * k);
  QGEMM_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == n);

  std::vector<double> activations(x.size());
  for (size_t i = 0; i < x.size(); ++i) activations[i] = ScalarToDouble(x[i], act);

  std::vector<double> y(m * n);
  std::vector<double> row(k);
  for (int64_t col = 0; col < n; ++col) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t group = col * groups + i / group_size;
      const int zero = weights.zeros.empty() ? 1 << (weights.format.bits - 1) : weights.zeros[group];
      row[i] = (weights.codes[col * k + i] - zero) *
               ScalarToDouble(weights.scales[group], weights.format.scale_type);
    }
    for (int64_t j = 0; j < m; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += activations[j * k + i] * row[i];
      y[j * n + col] = bias.empty() ? sum : sum + ScalarToDouble(bias[col], act);
    }
  }
  return y;
}

double RelativeError(absl::Span<const double> actual, absl::Span<const double> expected) {
  QGEMM_CHECK(actual.size() == expected.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i]) || !std::isfinite(expected[i])) {
      return std::numeric_limits<double>::infinity();
    }
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  if (difference == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / norm);
}

double ToleranceFor(ScalarType act) { return act == ScalarType::kBf16 ? 3e-3 : 6e-4; }

}  // namespace qgemm
