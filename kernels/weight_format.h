#ifndef QGEMM_KERNELS_WEIGHT_FORMAT_H_
#define QGEMM_KERNELS_WEIGHT_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

enum class ScalarType { kBf16, kFp16 };
enum class ZeroPoint { kNone, kInteger };

// "bf16", "fp16"; "none", "int".
absl::string_view ScalarTypeName(ScalarType type);
absl::string_view ZeroPointName(ZeroPoint zero);
// InvalidArgument names `field`, the value and the allowed names.
[[nodiscard]] absl::StatusOr<ScalarType> ParseScalarType(absl::string_view field, absl::string_view text);
[[nodiscard]] absl::StatusOr<ZeroPoint> ParseZeroPoint(absl::string_view field, absl::string_view text);
inline int ScalarBytes(ScalarType) { return 2; }

// How weights are quantized: w = (q - z) * s with q in [0, 2^bits); z = 2^(bits-1) without a zero point, else
// one code per group and row. Groups of `group_size` weights run along K.
struct WeightFormat {
  int bits = 4;
  int group_size = 128;
  ScalarType scale_type = ScalarType::kBf16;
  ZeroPoint zero_point = ZeroPoint::kNone;

  friend bool operator==(const WeightFormat&, const WeightFormat&) = default;
};

// InvalidArgument for a format that no kernel family serves: names the field, its value and what is allowed.
[[nodiscard]] absl::Status ValidateWeightFormat(const WeightFormat& format);
// "int4-g128-bf16", "int4-g32-fp16-zint".
std::string WeightFormatName(const WeightFormat& format);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_WEIGHT_FORMAT_H_
