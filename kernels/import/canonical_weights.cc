#include "kernels/import/canonical_weights.h"

#include <cmath>
#include <cstring>

namespace qgemm {
namespace {

float FromBits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

float ScalarToFloat(uint16_t bits, ScalarType type) {
  if (type == ScalarType::kBf16) return FromBits(uint32_t{bits} << 16);
  const uint32_t sign = uint32_t{bits} >> 15 << 31;
  const uint32_t exponent = bits >> 10 & 31;
  const uint32_t mantissa = bits & 1023;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) return FromBits(sign | 0x7f800000 | mantissa << 13);
  return FromBits(sign | (exponent + 112) << 23 | mantissa << 13);
}

std::vector<float> DequantizeRow(const ImportedWeights& weights, int64_t row) {
  const int64_t groups = weights.groups();
  const bool two_levels = weights.super_size != 0;
  std::vector<float> values(weights.k);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t at = row * groups + group;
    int subtract = weights.zero == ImportedZero::kMiddle ? 1 << (weights.bits - 1) : weights.origin;
    float scale = 0;
    float offset = 0;
    if (two_levels) {
      const int64_t super = row * weights.supers() + group * weights.group_size / weights.super_size;
      scale = ScalarToFloat(weights.d[super], weights.scale_type) * weights.scale_codes[at];
      if (weights.zero == ImportedZero::kFloat) {
        offset = -(ScalarToFloat(weights.dmin[super], weights.scale_type) * weights.zero_codes[at]);
      }
    } else {
      scale = ScalarToFloat(weights.scales[at], weights.scale_type);
      if (weights.zero == ImportedZero::kFloat) {
        offset = ScalarToFloat(weights.offsets[at], weights.scale_type);
      } else if (weights.zero == ImportedZero::kInteger) {
        subtract = weights.zeros[at];
      }
    }
    const int64_t begin = group * weights.group_size;
    const int64_t end = begin + weights.group_size < weights.k ? begin + weights.group_size : weights.k;
    for (int64_t column = begin; column < end; ++column) {
      const float product = scale * static_cast<float>(weights.codes[row * weights.k + column] - subtract);
      values[column] = weights.zero == ImportedZero::kFloat ? product + offset : product;
    }
  }
  return values;
}

}  // namespace qgemm
