#include "kernels/weight_format.h"

#include "absl/strings/str_cat.h"

namespace qgemm {

absl::string_view ScalarTypeName(ScalarType type) {
  switch (type) {
    case ScalarType::kBf16:
      return "bf16";
    case ScalarType::kFp16:
      return "fp16";
  }
  return "invalid";
}

absl::string_view ZeroPointName(ZeroPoint zero) {
  switch (zero) {
    case ZeroPoint::kNone:
      return "none";
    case ZeroPoint::kInteger:
      return "int";
  }
  return "invalid";
}

absl::StatusOr<ScalarType> ParseScalarType(absl::string_view field, absl::string_view text) {
  for (ScalarType type : {ScalarType::kBf16, ScalarType::kFp16}) {
    if (text == ScalarTypeName(type)) return type;
  }
  return absl::InvalidArgumentError(absl::StrCat(field, " \"", text, "\" is not allowed: use bf16 or fp16"));
}

absl::StatusOr<ZeroPoint> ParseZeroPoint(absl::string_view field, absl::string_view text) {
  for (ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger}) {
    if (text == ZeroPointName(zero)) return zero;
  }
  return absl::InvalidArgumentError(absl::StrCat(field, " \"", text, "\" is not allowed: use none or int"));
}

absl::Status ValidateWeightFormat(const WeightFormat& format) {
  if (format.bits != 4) {
    return absl::InvalidArgumentError(absl::StrCat("bits ", format.bits, " is not allowed: use 4"));
  }
  if (format.group_size != 32 && format.group_size != 64 && format.group_size != 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_size ", format.group_size, " is not allowed: use 32, 64 or 128"));
  }
  if (format.scale_type != ScalarType::kBf16 && format.scale_type != ScalarType::kFp16) {
    return absl::InvalidArgumentError(absl::StrCat("scale_type ", static_cast<int>(format.scale_type),
                                                   " is not allowed: use bf16 or fp16"));
  }
  if (format.zero_point != ZeroPoint::kNone && format.zero_point != ZeroPoint::kInteger) {
    return absl::InvalidArgumentError(
        absl::StrCat("zero_point ", static_cast<int>(format.zero_point), " is not allowed: use none or int"));
  }
  return absl::OkStatus();
}

std::string WeightFormatName(const WeightFormat& format) {
  return absl::StrCat("int", format.bits, "-g", format.group_size, "-", ScalarTypeName(format.scale_type),
                      format.zero_point == ZeroPoint::kInteger ? "-zint" : "");
}

}  // namespace qgemm
