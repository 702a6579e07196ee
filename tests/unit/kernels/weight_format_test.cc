#include "kernels/weight_format.h"

#include <gtest/gtest.h>

#include <set>

namespace qgemm {
namespace {

TEST(WeightFormat, AcceptsEveryServedCombination) {
  std::set<std::string> names;
  for (int group_size : {32, 64, 128}) {
    for (ScalarType type : {ScalarType::kBf16, ScalarType::kFp16}) {
      for (ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger}) {
        const WeightFormat format{4, group_size, type, zero};
        EXPECT_TRUE(ValidateWeightFormat(format).ok());
        names.insert(WeightFormatName(format));
      }
    }
  }
  EXPECT_EQ(names.size(), 12);
}

TEST(WeightFormat, NamesItsFields) {
  EXPECT_EQ(WeightFormatName({}), "int4-g128-bf16");
  EXPECT_EQ(WeightFormatName({4, 32, ScalarType::kFp16, ZeroPoint::kInteger}), "int4-g32-fp16-zint");
}

TEST(WeightFormat, RefusesOtherBitsAndGroups) {
  WeightFormat format;
  format.group_size = 48;
  absl::Status status = ValidateWeightFormat(format);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "group_size 48 is not allowed: use 32, 64 or 128");
  format.group_size = -1;
  EXPECT_EQ(ValidateWeightFormat(format).message(), "group_size -1 is not allowed: use 32, 64 or 128");
  format = {};
  format.bits = 8;
  status = ValidateWeightFormat(format);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "bits 8 is not allowed: use 4");
}

TEST(WeightFormat, RefusesValuesOutsideTheEnumerations) {
  WeightFormat format;
  format.scale_type = static_cast<ScalarType>(7);
  EXPECT_EQ(ValidateWeightFormat(format).message(), "scale_type 7 is not allowed: use bf16 or fp16");
  format = {};
  format.zero_point = static_cast<ZeroPoint>(9);
  EXPECT_EQ(ValidateWeightFormat(format).message(), "zero_point 9 is not allowed: use none or int");
}

TEST(WeightFormat, NamesOfTypesAndZeroPointsRoundTrip) {
  for (ScalarType type : {ScalarType::kBf16, ScalarType::kFp16}) {
    EXPECT_EQ(ParseScalarType("act", ScalarTypeName(type)).value(), type);
  }
  for (ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger}) {
    EXPECT_EQ(ParseZeroPoint("zero", ZeroPointName(zero)).value(), zero);
  }
}

TEST(WeightFormat, ParsersNameFieldValueAndChoices) {
  const auto type = ParseScalarType("act", "fp32");
  EXPECT_EQ(type.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(type.status().message(), "act \"fp32\" is not allowed: use bf16 or fp16");
  const auto zero = ParseZeroPoint("zero_point", "float");
  EXPECT_EQ(zero.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(zero.status().message(), "zero_point \"float\" is not allowed: use none or int");
  EXPECT_FALSE(ParseScalarType("act", "").ok());
  EXPECT_FALSE(ParseScalarType("act", "BF16").ok());
}

}  // namespace
}  // namespace qgemm
