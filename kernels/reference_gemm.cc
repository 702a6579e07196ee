#include "kernels/reference_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

double Activate(Activation activation, double v) {
  switch (activation) {
    case Activation::kNone:
      return v;
    case Activation::kSilu:
      return v / (1 + std::exp(-v));
    case Activation::kGeluTanh:
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case Activation::kRelu:
      return v < 0 ? 0 : v;  // a NaN stays one
  }
  return v;
}

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

std::vector<double> ScalarsToDouble(absl::Span<const uint8_t> bytes, ScalarType type) {
  const size_t size = ScalarBytes(type);
  QGEMM_CHECK(bytes.size() % size == 0);
  std::vector<double> values;
  values.reserve(bytes.size() / size);
  for (size_t i = 0; i < bytes.size(); i += size) {
    if (type == ScalarType::kFp32) {
      float value;
      std::memcpy(&value, &bytes[i], sizeof(value));
      values.push_back(value);
    } else {
      uint16_t bits;
      std::memcpy(&bits, &bytes[i], sizeof(bits));
      values.push_back(ScalarToDouble(bits, type));
    }
  }
  return values;
}

std::vector<double> DequantizedRow(const CanonicalWeights& weights, int64_t row) {
  const WeightFormat& format = weights.format;
  const int64_t group_size = format.channel_wise() ? weights.k : format.group_size;
  const auto number = [&](const std::vector<uint16_t>& numbers, const std::vector<int8_t>& codes, int64_t k) {
    const int64_t group = row * weights.groups() + k / group_size;
    if (!format.two_level()) return ScalarToDouble(numbers[group], format.scale_type);
    const double step = ScalarToDouble(numbers[row * weights.steps() + k / kStepWeights], format.scale_type);
    return step * codes[group];
  };
  std::vector<double> values(weights.k);
  double scale = 0;
  double zero = format.center();
  double offset = 0;
  for (int64_t k = 0; k < weights.k; ++k) {
    if (k % group_size == 0) {
      scale = number(weights.scales, weights.scale_codes, k);
      if (format.zero_point == ZeroPoint::kInteger) {
        zero = weights.zeros[row * weights.groups() + k / group_size];
      }
      if (format.zero_point == ZeroPoint::kFloat) {
        zero = 0;
        offset = number(weights.offsets, weights.offset_codes, k);
      }
    }
    values[k] = (weights.codes[row * weights.k + k] - zero) * scale + offset;
  }
  return values;
}

std::vector<double> ActivationsOf(absl::Span<const uint16_t> x, int64_t m, ScalarType act,
                                  ActivationQuantization quantization) {
  std::vector<double> values(x.size());
  for (size_t i = 0; i < x.size(); ++i) values[i] = ScalarToDouble(x[i], act);
  if (quantization == ActivationQuantization::kNone || m == 0) return values;
  const auto k = static_cast<int64_t>(x.size()) / m;
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t first = 0; first < k; first += kActivationBlock) {
      double* const block = &values[row * k + first];
      const int64_t count = std::min<int64_t>(kActivationBlock, k - first);
      float most = 0;
      for (int64_t i = 0; i < count; ++i) {
        const auto magnitude = static_cast<float>(std::fabs(block[i]));
        most = std::isnan(magnitude) || magnitude > most ? magnitude : most;
      }
      const float scale = most / 127.f;
      const float inverse = most > kLeastActivation ? 127.f / most : 0.f;
      for (int64_t i = 0; i < count; ++i) {
        block[i] =
            double{scale} * static_cast<double>(std::nearbyintf(static_cast<float>(block[i]) * inverse));
      }
    }
  }
  return values;
}

std::vector<double> ReferenceGemm(const CanonicalWeights& weights, absl::Span<const uint16_t> x, int64_t m,
                                  ScalarType act, const Epilogue& epilogue, absl::Span<const double> bias,
                                  absl::Span<const double> residual, ActivationQuantization quantization) {
  const int64_t n = weights.n;
  const int64_t k = weights.k;
  const int64_t columns = epilogue.gated ? n / 2 : n;
  QGEMM_CHECK(CheckPlanes(weights).ok());
  QGEMM_CHECK(static_cast<int64_t>(x.size()) == m * k);
  QGEMM_CHECK(static_cast<int64_t>(bias.size()) == (epilogue.bias ? n : 0));
  QGEMM_CHECK(static_cast<int64_t>(residual.size()) == (epilogue.residual ? m * columns : 0));
  QGEMM_CHECK(!epilogue.gated || n % 2 == 0);

  const std::vector<double> activations = ActivationsOf(x, m, act, quantization);

  std::vector<double> sums(m * n);
  for (int64_t row = 0; row < n; ++row) {
    const std::vector<double> w = DequantizedRow(weights, row);
    for (int64_t j = 0; j < m; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += activations[j * k + i] * w[i];
      sums[j * n + row] = bias.empty() ? sum : sum + bias[row];
    }
  }

  std::vector<double> y(m * columns);
  for (int64_t i = 0; i < m * columns; ++i) {
    y[i] = epilogue.gated ? Activate(epilogue.activation, sums[2 * i]) * sums[2 * i + 1]
                          : Activate(epilogue.activation, sums[i]);
    if (!residual.empty()) y[i] += residual[i];
  }
  return y;
}

std::vector<double> ReferenceGemm(const CanonicalWeights& weights, absl::Span<const uint16_t> x, int64_t m,
                                  ScalarType act, absl::Span<const uint16_t> bias) {
  std::vector<double> bias_values;
  for (const uint16_t bits : bias) bias_values.push_back(ScalarToDouble(bits, act));
  return ReferenceGemm(weights, x, m, act, Epilogue{.bias = !bias.empty()}, bias_values, {});
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

double ToleranceFor(const KernelSignature& signature) {
  const Activation activation = signature.epilogue.activation;
  const bool steeper = activation == Activation::kSilu || activation == Activation::kGeluTanh;
  return ToleranceFor(signature.act) * (signature.epilogue.gated ? std::sqrt(2.0) : 1.0) *
         (steeper ? 1.22 : 1.0);
}

double ToleranceFor(ScalarType act) { return act == ScalarType::kBf16 ? 3e-3 : 6e-4; }

}  // namespace qgemm
