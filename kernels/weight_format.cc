#include "kernels/weight_format.h"

#include "absl/strings/str_cat.h"

namespace qgemm {

absl::string_view ScalarTypeName(ScalarType type) {
  switch (type) {
    case ScalarType::kBf16:
      return "bf16";
    case ScalarType::kFp16:
      return "fp16";
    case ScalarType::kFp32:
      return "fp32";
  }
  return "invalid";
}

absl::string_view ZeroPointName(ZeroPoint zero) {
  switch (zero) {
    case ZeroPoint::kNone:
      return "none";
    case ZeroPoint::kInteger:
      return "int";
    case ZeroPoint::kFloat:
      return "float";
  }
  return "invalid";
}

absl::StatusOr<ScalarType> ParseScalarType(absl::string_view field, absl::string_view text) {
  for (ScalarType type : {ScalarType::kBf16, ScalarType::kFp16, ScalarType::kFp32}) {
    if (text == ScalarTypeName(type)) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " \"", text, "\" is not allowed: use bf16, fp16 or (output only) fp32"));
}

absl::StatusOr<ZeroPoint> ParseZeroPoint(absl::string_view field, absl::string_view text) {
  for (ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
    if (text == ZeroPointName(zero)) return zero;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " \"", text, "\" is not allowed: use none, int or float"));
}

absl::Status ValidateWeightFormat(const WeightFormat& format) {
  if (format.bits != 4 && format.bits != 5 && format.bits != 6 && format.bits != 8) {
    return absl::InvalidArgumentError(
        absl::StrCat("bits ", format.bits, " is not allowed: use 4, 5, 6 or 8"));
  }
  const int group = format.group_size;
  if (group != 0 && group != 16 && group != 32 && group != 64 && group != 128 && group != 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_size ", group, " is not allowed: use 16, 32, 64, 128, 256 or 0 (channel-wise)"));
  }
  if (format.scale_type != ScalarType::kBf16 && format.scale_type != ScalarType::kFp16) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale_type ", ScalarTypeName(format.scale_type), " is not allowed: use bf16 or fp16"));
  }
  if (format.zero_point != ZeroPoint::kNone && format.zero_point != ZeroPoint::kInteger &&
      format.zero_point != ZeroPoint::kFloat) {
    return absl::InvalidArgumentError(absl::StrCat("zero_point ", static_cast<int>(format.zero_point),
                                                   " is not allowed: use none, int or float"));
  }
  if (format.scale_levels != 1 && format.scale_levels != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale_levels ", format.scale_levels, " is not allowed: use 1 or 2"));
  }
  if (!format.two_level()) return absl::OkStatus();
  if (format.scale_type != ScalarType::kFp16) {
    return absl::InvalidArgumentError(absl::StrCat("scale_type ", ScalarTypeName(format.scale_type),
                                                   " is not allowed with scale_levels 2: use fp16"));
  }
  if (group == 0 || group >= kStepWeights) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_size ", group, " is not allowed with scale_levels 2: use 16, 32, 64 or 128"));
  }
  if (format.zero_point == ZeroPoint::kInteger) {
    return absl::InvalidArgumentError("zero_point int is not allowed with scale_levels 2: use none or float");
  }
  return absl::OkStatus();
}

std::string WeightFormatName(const WeightFormat& format) {
  return absl::StrCat("int", format.bits, "-",
                      format.channel_wise() ? std::string("channel") : absl::StrCat("g", format.group_size),
                      "-", ScalarTypeName(format.scale_type), format.two_level() ? "x2" : "",
                      format.zero_point == ZeroPoint::kInteger ? "-zint"
                      : format.zero_point == ZeroPoint::kFloat ? "-zfloat"
                                                               : "");
}

}  // namespace qgemm
