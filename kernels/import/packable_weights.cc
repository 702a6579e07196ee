#include "kernels/import/packable_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

// To nearest, ties to even; beyond the largest number, infinity.
uint16_t RoundToScalar(double value, ScalarType type) {
  const bool bf16 = type == ScalarType::kBf16;
  const int mantissa_bits = bf16 ? 7 : 10;
  const int smallest_step = bf16 ? -133 : -24;  // log2 of the smallest number
  const uint16_t infinity = bf16 ? 0x7f80 : 0x7c00;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return infinity | 1 << (mantissa_bits - 1);
  if (magnitude == 0) return sign;
  if (std::isinf(value)) return sign | infinity;
  // The number of last-bit steps. Rounding up to a power of two carries into the exponent, as it should.
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int step = std::max(exponent - mantissa_bits - 1, smallest_step);
  const auto steps = static_cast<int64_t>(std::nearbyint(std::ldexp(magnitude, -step)));
  const int64_t bits = steps + (static_cast<int64_t>(step - smallest_step) << mantissa_bits);
  return static_cast<uint16_t>(sign | std::min<int64_t>(bits, infinity));
}

bool IsGroupSize(int64_t size) {
  return size == 16 || size == 32 || size == 64 || size == 128 || size == 256;
}

}  // namespace

absl::StatusOr<CanonicalWeights> PackableWeights(const ImportedWeights& weights) {
  if (weights.groups() > 1 && weights.k % weights.group_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last group of ", weights.k, " columns in groups of ", weights.group_size, " has ",
                     weights.k % weights.group_size, ": no kernel has groups of two lengths"));
  }
  CanonicalWeights packable;
  packable.n = weights.n;
  packable.k = weights.k;
  packable.format.bits = weights.bits;
  const bool channel_wise = weights.groups() == 1 && !IsGroupSize(weights.group_size);
  packable.format.group_size =
      channel_wise ? 0 : static_cast<int>(std::min<int64_t>(weights.group_size, 1 << 30));
  packable.format.scale_type = weights.scale_type;
  packable.format.scale_levels = weights.super_size == 0 ? 1 : 2;
  switch (weights.zero) {
    case ImportedZero::kMiddle:
      packable.format.zero_point = ZeroPoint::kNone;
      break;
    case ImportedZero::kInteger:
      packable.format.zero_point = ZeroPoint::kInteger;
      break;
    case ImportedZero::kFloat:
      packable.format.zero_point = ZeroPoint::kFloat;
      break;
  }
  QGEMM_RETURN_IF_ERROR(ValidateWeightFormat(packable.format));

  packable.codes = weights.codes;
  packable.zeros = weights.zeros;
  if (weights.super_size != 0) {
    packable.scales = weights.d;
    packable.scale_codes = weights.scale_codes;
    packable.offsets = weights.dmin;
    for (uint16_t& step : packable.offsets) step ^= 0x8000;
    packable.offset_codes.assign(weights.zero_codes.begin(), weights.zero_codes.end());
    return packable;
  }
  packable.scales = weights.scales;
  packable.offsets = weights.offsets;
  if (weights.origin != 0) {
    for (size_t i = 0; i < packable.offsets.size(); ++i) {
      const double scale = ScalarToFloat(weights.scales[i], weights.scale_type);
      const double offset = ScalarToFloat(weights.offsets[i], weights.scale_type);
      packable.offsets[i] = RoundToScalar(offset - weights.origin * scale, weights.scale_type);
    }
  }
  return packable;
}

}  // namespace qgemm
