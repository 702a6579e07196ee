#include "kernels/weight_format.h"

#include <gtest/gtest.h>

#include <set>

namespace qgemm {
namespace {

constexpr ScalarType kTypes[] = {ScalarType::kBf16, ScalarType::kFp16, ScalarType::kFp32};
constexpr ZeroPoint kZeroPoints[] = {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat};

std::string Refusal(const WeightFormat& format) {
  const absl::Status status = ValidateWeightFormat(format);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(WeightFormat, AcceptsEveryOneLevelCombinationUnderItsOwnName) {
  std::set<std::string> names;
  for (int bits : {4, 5, 6, 8}) {
    for (int group_size : {0, 16, 32, 64, 128, 256}) {
      for (ScalarType type : {ScalarType::kBf16, ScalarType::kFp16}) {
        for (ZeroPoint zero : kZeroPoints) {
          const WeightFormat format{bits, group_size, type, zero};
          EXPECT_TRUE(ValidateWeightFormat(format).ok());
          names.insert(WeightFormatName(format));
        }
      }
    }
  }
  EXPECT_EQ(names.size(), 4 * 6 * 2 * 3);
}

TEST(WeightFormat, AcceptsTwoLevelsOfFp16StepsWithoutIntegerZeros) {
  std::set<std::string> names;
  for (int bits : {4, 5, 6, 8}) {
    for (int group_size : {16, 32, 64, 128}) {
      for (ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kFloat}) {
        const WeightFormat format{bits, group_size, ScalarType::kFp16, zero, 2};
        EXPECT_TRUE(ValidateWeightFormat(format).ok());
        names.insert(WeightFormatName(format));
        names.insert(WeightFormatName({bits, group_size, ScalarType::kFp16, zero, 1}));
      }
    }
  }
  EXPECT_EQ(names.size(), 2 * 4 * 4 * 2);
}

TEST(WeightFormat, NamesItsFields) {
  EXPECT_EQ(WeightFormatName({}), "int4-g128-bf16");
  EXPECT_EQ(WeightFormatName({4, 32, ScalarType::kFp16, ZeroPoint::kInteger}), "int4-g32-fp16-zint");
  EXPECT_EQ(WeightFormatName({5, 64, ScalarType::kBf16, ZeroPoint::kFloat}), "int5-g64-bf16-zfloat");
  EXPECT_EQ(WeightFormatName({8, 0, ScalarType::kBf16}), "int8-channel-bf16");
  EXPECT_EQ(WeightFormatName({6, 16, ScalarType::kFp16, ZeroPoint::kNone, 2}), "int6-g16-fp16x2");
  EXPECT_EQ(WeightFormatName({4, 32, ScalarType::kFp16, ZeroPoint::kFloat, 2}), "int4-g32-fp16x2-zfloat");
}

TEST(WeightFormat, CenterIsTheCodeOfZero) {
  EXPECT_EQ(WeightFormat{.bits = 4}.center(), 8);
  EXPECT_EQ(WeightFormat{.bits = 5}.center(), 16);
  EXPECT_EQ(WeightFormat{.bits = 6}.center(), 32);
  EXPECT_EQ(WeightFormat{.bits = 8}.center(), 128);
}

TEST(WeightFormat, RefusesOtherBits) {
  for (int bits : {0, -4, 3, 7, 16}) {
    EXPECT_EQ(Refusal({.bits = bits}), "bits " + std::to_string(bits) + " is not allowed: use 4, 5, 6 or 8");
  }
}

TEST(WeightFormat, RefusesOtherGroups) {
  for (int group_size : {-1, 8, 48, 512}) {
    EXPECT_EQ(Refusal({.group_size = group_size}),
              "group_size " + std::to_string(group_size) +
                  " is not allowed: use 16, 32, 64, 128, 256 or 0 (channel-wise)");
  }
}

TEST(WeightFormat, RefusesOtherScaleTypes) {
  EXPECT_EQ(Refusal({.scale_type = ScalarType::kFp32}), "scale_type fp32 is not allowed: use bf16 or fp16");
  EXPECT_EQ(Refusal({.scale_type = static_cast<ScalarType>(7)}),
            "scale_type invalid is not allowed: use bf16 or fp16");
}

TEST(WeightFormat, RefusesOtherZeroPoints) {
  EXPECT_EQ(Refusal({.zero_point = static_cast<ZeroPoint>(9)}),
            "zero_point 9 is not allowed: use none, int or float");
}

TEST(WeightFormat, RefusesOtherScaleLevels) {
  for (int levels : {0, -1, 3}) {
    EXPECT_EQ(Refusal({.scale_levels = levels}),
              "scale_levels " + std::to_string(levels) + " is not allowed: use 1 or 2");
  }
}

TEST(WeightFormat, RefusesWhatTwoLevelsCannotHave) {
  const WeightFormat good{4, 32, ScalarType::kFp16, ZeroPoint::kNone, 2};
  WeightFormat bad = good;
  bad.scale_type = ScalarType::kBf16;
  EXPECT_EQ(Refusal(bad), "scale_type bf16 is not allowed with scale_levels 2: use fp16");
  for (int group_size : {0, 256}) {
    bad = good;
    bad.group_size = group_size;
    EXPECT_EQ(Refusal(bad), "group_size " + std::to_string(group_size) +
                                " is not allowed with scale_levels 2: use 16, 32, 64 or 128");
  }
  bad = good;
  bad.zero_point = ZeroPoint::kInteger;
  EXPECT_EQ(Refusal(bad), "zero_point int is not allowed with scale_levels 2: use none or float");
}

TEST(WeightFormat, NamesOfTypesAndZeroPointsRoundTrip) {
  for (ScalarType type : kTypes) EXPECT_EQ(ParseScalarType("act", ScalarTypeName(type)).value(), type);
  for (ZeroPoint zero : kZeroPoints) EXPECT_EQ(ParseZeroPoint("zero", ZeroPointName(zero)).value(), zero);
}

TEST(WeightFormat, ParsersNameFieldValueAndChoices) {
  const auto type = ParseScalarType("act", "fp8");
  EXPECT_EQ(type.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(type.status().message(), "act \"fp8\" is not allowed: use bf16, fp16 or (output only) fp32");
  const auto zero = ParseZeroPoint("zero_point", "asym");
  EXPECT_EQ(zero.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(zero.status().message(), "zero_point \"asym\" is not allowed: use none, int or float");
  EXPECT_FALSE(ParseScalarType("act", "").ok());
  EXPECT_FALSE(ParseScalarType("act", "BF16").ok());
}

}  // namespace
}  // namespace qgemm
