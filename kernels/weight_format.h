#ifndef QGEMM_KERNELS_WEIGHT_FORMAT_H_
#define QGEMM_KERNELS_WEIGHT_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

enum class ScalarType { kBf16, kFp16, kFp32 };  // fp32: outputs only
enum class ZeroPoint { kNone, kInteger, kFloat };

// "bf16", "fp16", "fp32"; "none", "int", "float".
absl::string_view ScalarTypeName(ScalarType type);
absl::string_view ZeroPointName(ZeroPoint zero);
// InvalidArgument names `field`, the value and the allowed names.
[[nodiscard]] absl::StatusOr<ScalarType> ParseScalarType(absl::string_view field, absl::string_view text);
[[nodiscard]] absl::StatusOr<ZeroPoint> ParseZeroPoint(absl::string_view field, absl::string_view text);
inline int ScalarBytes(ScalarType type) { return type == ScalarType::kFp32 ? 4 : 2; }

inline constexpr int kStepWeights = 256;  // weights along K that share a step of a two-level scale

// How weights are quantized, q in [0, 2^bits), s one scale per row and group of `group_size` weights along K:
//   zero point none     w = (q - 2^(bits-1)) * s
//              integer  w = (q - z) * s, z one code per row and group
//              float    w = q * s + b, b one offset per row and group, of the scale's type
// With two scale levels s = step * code: an fp16 step per row and 256 weights, a signed 8-bit code per group;
// b likewise, with steps and codes of its own (the form of Q4_K, Q5_K and Q6_K).
struct WeightFormat {
  int bits = 4;
  int group_size = 128;  // 0: channel-wise, one group per row
  ScalarType scale_type = ScalarType::kBf16;
  ZeroPoint zero_point = ZeroPoint::kNone;
  int scale_levels = 1;

  bool channel_wise() const { return group_size == 0; }
  bool two_level() const { return scale_levels == 2; }
  // The code of weight 0 of a symmetric format.
  int center() const { return 1 << (bits - 1); }

  friend bool operator==(const WeightFormat&, const WeightFormat&) = default;
};

// InvalidArgument for a format outside of: bits 4, 5, 6, 8; group_size 16, 32, 64, 128, 256 or 0; two levels
// only with fp16 steps, groups of 16 to 128 and zero point none or float. Names the field, its value and what
// is allowed.
[[nodiscard]] absl::Status ValidateWeightFormat(const WeightFormat& format);
// "int4-g128-bf16", "int4-g32-fp16-zint", "int4-g32-fp16x2-zfloat" (two levels), "int8-channel-bf16".
std::string WeightFormatName(const WeightFormat& format);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_WEIGHT_FORMAT_H_
