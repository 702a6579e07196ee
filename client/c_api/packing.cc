#include "kernels/packing.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "client/c_api/answer.h"
#include "client/qgemm/packing_c_api.h"
#include "kernels/reference_gemm.h"

namespace qgemm {
namespace {

// The format that WeightFormatName prints so.
absl::StatusOr<WeightFormat> ParseFormat(absl::string_view name) {
  WeightFormat format;
  absl::string_view rest = name;
  bool read = absl::ConsumePrefix(&rest, "int");
  const size_t bits_end = std::min(rest.find('-'), rest.size());
  read = read && absl::SimpleAtoi(rest.substr(0, bits_end), &format.bits);
  rest.remove_prefix(bits_end);
  if (absl::ConsumePrefix(&rest, "-channel")) {
    format.group_size = 0;
  } else {
    read = read && absl::ConsumePrefix(&rest, "-g");
    const size_t group_end = std::min(rest.find('-'), rest.size());
    read = read && absl::SimpleAtoi(rest.substr(0, group_end), &format.group_size);
    rest.remove_prefix(group_end);
  }
  format.scale_type = absl::ConsumePrefix(&rest, "-fp16") ? ScalarType::kFp16 : ScalarType::kBf16;
  if (format.scale_type == ScalarType::kBf16) absl::ConsumePrefix(&rest, "-bf16");
  if (absl::ConsumePrefix(&rest, "x2")) format.scale_levels = 2;
  format.zero_point = rest == "-zint"     ? ZeroPoint::kInteger
                      : rest == "-zfloat" ? ZeroPoint::kFloat
                                          : ZeroPoint::kNone;
  // Only what prints as it was written: no sign, no leading zero, nothing after it.
  if (read && ValidateWeightFormat(format).ok() && WeightFormatName(format) == name) return format;
  return absl::InvalidArgumentError(
      absl::StrCat("weight format \"", name, "\" is not allowed: use names such as int4-g128-bf16, ",
                   "int8-channel-fp16, int4-g32-fp16-zint or int5-g32-fp16x2-zfloat"));
}

absl::Status ReadPlane(absl::string_view name, const qgemm_plane& plane, int64_t size,
                       std::vector<uint8_t>& out) {
  if (plane.size != size || (size > 0 && plane.bytes == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("plane ", name, " has ", plane.size, " bytes; the format needs ", size));
  }
  const auto* const bytes = static_cast<const uint8_t*>(plane.bytes);
  out.assign(bytes, bytes + size);
  return absl::OkStatus();
}

absl::Status Dequantize(const char* format_name, int64_t n, int64_t k, const qgemm_plane (&planes)[4],
                        float* out) {
  if (format_name == nullptr || out == nullptr) return absl::InvalidArgumentError("format or out is NULL");
  QGEMM_ASSIGN_OR_RETURN(const WeightFormat format, ParseFormat(format_name));
  QGEMM_RETURN_IF_ERROR(CheckShape(n, k, format));
  PackedWeights packed;
  packed.sizes = PackedSizesFor(n, k, format);
  QGEMM_RETURN_IF_ERROR(ReadPlane("weights", planes[0], packed.sizes.weight_bytes, packed.weights));
  QGEMM_RETURN_IF_ERROR(ReadPlane("scales", planes[1], packed.sizes.scale_bytes, packed.scales));
  QGEMM_RETURN_IF_ERROR(ReadPlane("zeros", planes[2], packed.sizes.zero_bytes, packed.zeros));
  QGEMM_RETURN_IF_ERROR(ReadPlane("steps", planes[3], packed.sizes.step_bytes, packed.steps));
  QGEMM_ASSIGN_OR_RETURN(const CanonicalWeights weights, Unpack(packed, n, k, format));
  for (int64_t row = 0; row < n; ++row) {
    for (const double weight : DequantizedRow(weights, row)) *out++ = static_cast<float>(weight);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace qgemm

int qgemm_dequantize_packed(const char* format, int64_t n, int64_t k, qgemm_plane weights, qgemm_plane scales,
                            qgemm_plane zeros, qgemm_plane steps, float* out, char* error,
                            size_t error_size) {
  const qgemm_plane planes[] = {weights, scales, zeros, steps};
  return qgemm::Answer(qgemm::Dequantize(format, n, k, planes, out), error, error_size);
}
