#include "kernels/reference_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

namespace qgemm {
namespace {

constexpr ScalarType kTypes[] = {ScalarType::kBf16, ScalarType::kFp16};
constexpr double kInf = std::numeric_limits<double>::infinity();

// bf16 is the upper half of a float; fp16 is written as a hexadecimal literal and parsed by the C library.
double Independent(uint16_t bits, ScalarType type) {
  if (type == ScalarType::kBf16) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  const int exponent = bits >> 10 & 31;
  if (exponent == 31) return bits >> 15 ? -kInf : kInf;
  char text[32];
  std::snprintf(text, sizeof(text), "%c0x%d.%03xp%d", bits >> 15 ? '-' : '+', exponent > 0,
                (bits & 0x3ff) << 2, exponent > 0 ? exponent - 15 : -14);
  return std::strtod(text, nullptr);
}

bool IsNan(uint16_t bits, ScalarType type) {
  return (bits & 0x7fff) > (type == ScalarType::kBf16 ? 0x7f80 : 0x7c00);
}

TEST(Scalar, EveryValueConvertsToDouble) {
  for (ScalarType type : kTypes) {
    for (int bits = 0; bits < 65536; ++bits) {
      const double value = ScalarToDouble(bits, type);
      if (IsNan(bits, type)) {
        ASSERT_TRUE(std::isnan(value)) << bits;
      } else {
        ASSERT_EQ(value, Independent(bits, type)) << bits;
        ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
      }
    }
  }
}

TEST(Scalar, EveryValueRoundTrips) {
  for (ScalarType type : kTypes) {
    for (int bits = 0; bits < 65536; ++bits) {
      if (IsNan(bits, type)) {
        ASSERT_TRUE(IsNan(ScalarFromDouble(ScalarToDouble(bits, type), type), type)) << bits;
      } else {
        ASSERT_EQ(ScalarFromDouble(ScalarToDouble(bits, type), type), bits);
      }
    }
  }
}

// Between every two neighbours: the midpoint goes to the even one, anything beside it to the nearer.
TEST(Scalar, RoundsToNearestEven) {
  for (ScalarType type : kTypes) {
    const int infinity = type == ScalarType::kBf16 ? 0x7f80 : 0x7c00;
    for (int bits = 0; bits + 1 < infinity; ++bits) {
      const double low = ScalarToDouble(bits, type);
      const double high = ScalarToDouble(bits + 1, type);
      const double middle = (low + high) / 2;
      const int even = bits % 2 == 0 ? bits : bits + 1;
      ASSERT_EQ(ScalarFromDouble(middle, type), even);
      ASSERT_EQ(ScalarFromDouble(-middle, type), even | 0x8000);
      ASSERT_EQ(ScalarFromDouble(std::nextafter(middle, 0), type), bits);
      ASSERT_EQ(ScalarFromDouble(std::nextafter(middle, kInf), type), bits + 1);
    }
  }
}

TEST(Scalar, OverflowsToInfinityFromHalfAStepAboveTheLargest) {
  EXPECT_EQ(ScalarFromDouble(65504, ScalarType::kFp16), 0x7bff);
  EXPECT_EQ(ScalarFromDouble(std::nextafter(65520.0, 0), ScalarType::kFp16), 0x7bff);
  EXPECT_EQ(ScalarFromDouble(65520, ScalarType::kFp16), 0x7c00);
  EXPECT_EQ(ScalarFromDouble(65536, ScalarType::kFp16), 0x7c00);
  EXPECT_EQ(ScalarFromDouble(-1e300, ScalarType::kFp16), 0xfc00);
  const double largest = std::ldexp(255, 120);
  EXPECT_EQ(ScalarFromDouble(largest, ScalarType::kBf16), 0x7f7f);
  EXPECT_EQ(ScalarFromDouble(std::ldexp(255.5, 120), ScalarType::kBf16), 0x7f80);
  EXPECT_EQ(ScalarFromDouble(std::nextafter(std::ldexp(255.5, 120), 0), ScalarType::kBf16), 0x7f7f);
  EXPECT_EQ(ScalarFromDouble(std::ldexp(1, 128), ScalarType::kBf16), 0x7f80);
  EXPECT_EQ(ScalarFromDouble(std::ldexp(1.99, 128), ScalarType::kBf16), 0x7f80);
  EXPECT_EQ(ScalarFromDouble(std::numeric_limits<double>::max(), ScalarType::kBf16), 0x7f80);
}

TEST(Scalar, TinyValuesBecomeSubnormalOrSignedZero) {
  EXPECT_EQ(ScalarFromDouble(std::ldexp(1, -24), ScalarType::kFp16), 0x0001);
  EXPECT_EQ(ScalarFromDouble(std::ldexp(1, -25), ScalarType::kFp16), 0x0000);
  EXPECT_EQ(ScalarFromDouble(std::ldexp(1.01, -25), ScalarType::kFp16), 0x0001);
  EXPECT_EQ(ScalarFromDouble(std::ldexp(1, -133), ScalarType::kBf16), 0x0001);
  EXPECT_EQ(ScalarFromDouble(-std::numeric_limits<double>::denorm_min(), ScalarType::kBf16), 0x8000);
  EXPECT_EQ(ScalarFromDouble(-0.0, ScalarType::kFp16), 0x8000);
}

TEST(Scalar, KeepsInfinitiesAndNan) {
  EXPECT_EQ(ScalarFromDouble(kInf, ScalarType::kBf16), 0x7f80);
  EXPECT_EQ(ScalarFromDouble(-kInf, ScalarType::kFp16), 0xfc00);
  EXPECT_EQ(ScalarFromDouble(std::nan(""), ScalarType::kBf16) & 0x7fff, 0x7fc0);
  EXPECT_EQ(ScalarFromDouble(std::nan(""), ScalarType::kFp16) & 0x7fff, 0x7e00);
}

TEST(Scalar, ReadsNumbersOfEveryTypeFromMemory) {
  const std::vector<uint8_t> bytes = {0x00, 0x3c, 0x80, 0x3f};
  EXPECT_EQ(ScalarsToDouble(bytes, ScalarType::kFp16)[0], 1.0);
  EXPECT_EQ(ScalarsToDouble(bytes, ScalarType::kBf16)[1], 1.0);
  EXPECT_EQ(ScalarsToDouble(bytes, ScalarType::kFp32),
            std::vector<double>{Independent(0x3f80, ScalarType::kBf16) + std::ldexp(0x3c00, -23)});
}

CanonicalWeights SmallWeights(ScalarType type, ZeroPoint zero) {
  std::mt19937 random(4);
  CanonicalWeights weights;
  weights.n = 5;
  weights.k = 96;
  weights.format = {4, 32, type, zero};
  for (int i = 0; i < 5 * 96; ++i) weights.codes.push_back(random() % 16);
  for (int i = 0; i < 5 * 3; ++i) weights.scales.push_back(ScalarFromDouble(0.25 * (1 + random() % 8), type));
  if (zero == ZeroPoint::kInteger) {
    for (int i = 0; i < 5 * 3; ++i) weights.zeros.push_back(random() % 16);
  }
  return weights;
}

// Values that are exact in integers: quarters times integers.
TEST(ReferenceGemm, MatchesIntegerArithmetic) {
  for (ScalarType type : kTypes) {
    for (ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger}) {
      const CanonicalWeights weights = SmallWeights(type, zero);
      std::mt19937 random(8);
      std::vector<uint16_t> x, bias;
      std::vector<int64_t> x_int, bias_int;
      for (int i = 0; i < 3 * 96; ++i) {
        x_int.push_back(static_cast<int>(random() % 33) - 16);
        x.push_back(ScalarFromDouble(x_int.back(), type));
      }
      for (int i = 0; i < 5; ++i) {
        bias_int.push_back(static_cast<int>(random() % 9) - 4);
        bias.push_back(ScalarFromDouble(bias_int.back(), type));
      }
      const auto y = ReferenceGemm(weights, x, 3, type, {});
      const auto y_bias = ReferenceGemm(weights, x, 3, type, bias);
      ASSERT_EQ(y.size(), 15);
      for (int m = 0; m < 3; ++m) {
        for (int n = 0; n < 5; ++n) {
          int64_t quarters = 0;
          for (int k = 0; k < 96; ++k) {
            const int group = n * 3 + k / 32;
            const int z = zero == ZeroPoint::kInteger ? weights.zeros[group] : 8;
            const int64_t scale = std::llround(4 * Independent(weights.scales[group], type));
            quarters += x_int[m * 96 + k] * (weights.codes[n * 96 + k] - z) * scale;
          }
          EXPECT_EQ(y[m * 5 + n], quarters / 4.0);
          EXPECT_EQ(y_bias[m * 5 + n], quarters / 4.0 + bias_int[n]);
        }
      }
    }
  }
}

// A weight of each kind by hand: rows of one group each, the second code of a row.
TEST(ReferenceGemm, DequantizesEveryKindOfFormat) {
  const ScalarType fp16 = ScalarType::kFp16;
  const auto row = [&](const WeightFormat& format, int code, double scale, double offset = 0, int zero = 0,
                       int scale_code = 0, int offset_code = 0) {
    CanonicalWeights weights;
    weights.n = 1;
    weights.k = 32;
    weights.format = format;
    weights.codes.assign(32, code);
    weights.scales = {ScalarFromDouble(scale, format.scale_type)};
    if (format.zero_point == ZeroPoint::kInteger) weights.zeros = {static_cast<uint8_t>(zero)};
    if (format.zero_point == ZeroPoint::kFloat) {
      weights.offsets = {ScalarFromDouble(offset, format.scale_type)};
    }
    if (format.two_level()) {
      weights.scale_codes = {static_cast<int8_t>(scale_code)};
      if (format.zero_point == ZeroPoint::kFloat) weights.offset_codes = {static_cast<int8_t>(offset_code)};
    }
    EXPECT_TRUE(CheckPlanes(weights).ok());
    return DequantizedRow(weights, 0)[31];
  };
  EXPECT_EQ(row({4, 32, fp16}, 15, 0.25), 7 * 0.25);
  EXPECT_EQ(row({5, 32, fp16}, 3, 0.25), -13 * 0.25);
  EXPECT_EQ(row({6, 32, fp16}, 63, 2), 62);
  EXPECT_EQ(row({8, 0, fp16}, 0, 0.5), -64);
  EXPECT_EQ(row({8, 32, ScalarType::kBf16, ZeroPoint::kInteger}, 200, 0.5, 0, 250), -25);
  EXPECT_EQ(row({5, 32, ScalarType::kBf16, ZeroPoint::kFloat}, 31, 0.5, -3), 12.5);
  EXPECT_EQ(row({6, 32, fp16, ZeroPoint::kNone, 2}, 31, 0.125, 0, 0, -100), 12.5);
  EXPECT_EQ(row({4, 32, fp16, ZeroPoint::kFloat, 2}, 15, 0.125, 0.5, 0, 40, -128), 15 * 5 - 64);
}

TEST(ReferenceGemm, TakesEachGroupsScaleAndEachStepsStep) {
  CanonicalWeights weights;
  weights.n = 2;
  weights.k = 320;  // a second step of 64 weights
  weights.format = {4, 64, ScalarType::kFp16, ZeroPoint::kFloat, 2};
  weights.codes.assign(2 * 320, 1);
  for (int i = 0; i < 4; ++i) {
    weights.scales.push_back(ScalarFromDouble(1 << i, ScalarType::kFp16));
    weights.offsets.push_back(ScalarFromDouble(1 << (4 + i), ScalarType::kFp16));
  }
  for (int i = 0; i < 10; ++i) {
    weights.scale_codes.push_back(static_cast<int8_t>(i + 1));
    weights.offset_codes.push_back(static_cast<int8_t>(-i));
  }
  for (int row = 0; row < 2; ++row) {
    const std::vector<double> values = DequantizedRow(weights, row);
    for (int k = 0; k < 320; ++k) {
      const int group = row * 5 + k / 64;
      const int step = row * 2 + k / 256;
      ASSERT_EQ(values[k], (1 << step) * (group + 1) - (16 << step) * group) << row << ", " << k;
    }
  }
}

double Silu(double v) { return v / (1 + std::exp(-v)); }

TEST(ReferenceGemm, EpiloguesRunInTheirOrder) {
  const CanonicalWeights weights = [] {
    CanonicalWeights w = SmallWeights(ScalarType::kBf16, ZeroPoint::kNone);
    w.n = 4;
    w.codes.resize(4 * 96);
    w.scales.resize(4 * 3);
    return w;
  }();
  std::mt19937 random(8);
  std::vector<uint16_t> x;
  for (int i = 0; i < 2 * 96; ++i) {
    x.push_back(ScalarFromDouble((static_cast<int>(random() % 33) - 16) / 256.0, ScalarType::kBf16));
  }
  const std::vector<double> bias = {0.5, -1, 2, 0.25};
  const std::vector<double> residual = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<double> sums = ReferenceGemm(weights, x, 2, ScalarType::kBf16, {});
  const auto run = [&](const Epilogue& epilogue) {
    const size_t outputs = epilogue.gated ? 4 : 8;
    return ReferenceGemm(weights, x, 2, ScalarType::kBf16, epilogue,
                         epilogue.bias ? absl::MakeConstSpan(bias) : absl::Span<const double>(),
                         absl::MakeConstSpan(residual).first(epilogue.residual ? outputs : 0));
  };
  const auto silu = run({true, Activation::kSilu, false, true});
  const auto relu = run({false, Activation::kRelu, false, false});
  const auto gelu = run({true, Activation::kGeluTanh, false, false});
  const auto gated = run({true, Activation::kSilu, true, true});
  ASSERT_EQ(silu.size(), 8);
  ASSERT_EQ(gated.size(), 4);
  for (int i = 0; i < 8; ++i) {
    const double v = sums[i] + bias[i % 4];
    EXPECT_DOUBLE_EQ(silu[i], Silu(v) + residual[i]);
    EXPECT_EQ(relu[i], std::max(sums[i], 0.0));
    EXPECT_NEAR(gelu[i], 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))), 1e-12);
  }
  for (int m = 0; m < 2; ++m) {
    for (int j = 0; j < 2; ++j) {
      const double gate = sums[m * 4 + 2 * j] + bias[2 * j];
      const double up = sums[m * 4 + 2 * j + 1] + bias[2 * j + 1];
      EXPECT_DOUBLE_EQ(gated[m * 2 + j], Silu(gate) * up + residual[m * 2 + j]);
    }
  }
}

TEST(ReferenceGemm, KeepsDigitsThatFloatWouldLose) {
  CanonicalWeights weights;
  weights.n = 1;
  weights.k = 32;
  weights.format = {4, 32, ScalarType::kBf16, ZeroPoint::kNone};
  weights.codes.assign(32, 8);
  weights.codes[0] = 9;  // +1
  weights.codes[1] = 9;  // +1
  weights.codes[2] = 7;  // -1
  weights.scales = {0x3f80};
  std::vector<uint16_t> x(32, 0);
  x[0] = ScalarFromDouble(std::ldexp(1, 30), ScalarType::kBf16);
  x[1] = ScalarFromDouble(std::ldexp(1, -10), ScalarType::kBf16);
  x[2] = x[0];
  EXPECT_EQ(ReferenceGemm(weights, x, 1, ScalarType::kBf16, {})[0], std::ldexp(1, -10));
}

TEST(ReferenceGemm, PropagatesNanAndInfinity) {
  const CanonicalWeights weights = SmallWeights(ScalarType::kBf16, ZeroPoint::kNone);
  std::vector<uint16_t> x(96 * 2, 0);
  x[0] = 0x7fc0;
  EXPECT_TRUE(std::isnan(ReferenceGemm(weights, x, 2, ScalarType::kBf16, {})[0]));
  EXPECT_EQ(ReferenceGemm(weights, x, 2, ScalarType::kBf16, {})[5], 0);
  x[0] = 0x7f80;
  EXPECT_FALSE(std::isfinite(ReferenceGemm(weights, x, 2, ScalarType::kBf16, {})[0]));
}

TEST(ReferenceGemm, EveryActivationKeepsANan) {
  const CanonicalWeights weights = SmallWeights(ScalarType::kBf16, ZeroPoint::kNone);
  std::vector<uint16_t> x(96, 0);
  x[0] = 0x7fc0;
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kRelu}) {
    const auto y = ReferenceGemm(weights, x, 1, ScalarType::kBf16, {false, activation}, {}, {});
    EXPECT_TRUE(std::isnan(y[0])) << ActivationName(activation);
  }
}

TEST(ReferenceGemm, NoRowsGiveNoOutput) {
  EXPECT_TRUE(
      ReferenceGemm(SmallWeights(ScalarType::kBf16, ZeroPoint::kNone), {}, 0, ScalarType::kBf16, {}).empty());
}

TEST(RelativeError, IsTheFrobeniusRatio) {
  EXPECT_DOUBLE_EQ(RelativeError({3.0, 5.0}, {3.0, 4.0}), 0.2);
  EXPECT_EQ(RelativeError({3.0, 4.0}, {3.0, 4.0}), 0);
  EXPECT_EQ(RelativeError({0.0}, {0.0}), 0);
  EXPECT_EQ(RelativeError({1.0}, {0.0}), kInf);
  EXPECT_EQ(RelativeError({std::nan(""), 1.0}, {1.0, 1.0}), kInf);
  EXPECT_EQ(RelativeError({1.0}, {kInf}), kInf);
  EXPECT_EQ(RelativeError({kInf}, {kInf}), kInf);
}

TEST(ActivationsOf, Int8IsTheNearestByteOfABlocksLargest) {
  const auto bits = [](double value) { return ScalarFromDouble(value, ScalarType::kBf16); };
  std::vector<uint16_t> x(40, bits(0));  // a row of one block and a part of one
  x[3] = bits(-127);
  x[4] = bits(2.5);  // a tie, to even
  x[5] = bits(3.5);
  x[31] = bits(0.25);
  x[32] = bits(254);  // of the next block
  x[33] = bits(1);    // half a step of 2: to even, 0
  const std::vector<double> values = ActivationsOf(x, 1, ScalarType::kBf16, ActivationQuantization::kInt8);
  EXPECT_EQ(values[3], -127);
  EXPECT_EQ(values[4], 2);
  EXPECT_EQ(values[5], 4);
  EXPECT_EQ(values[31], 0);
  EXPECT_EQ(values[32], 254);
  EXPECT_EQ(values[33], 0);
  EXPECT_EQ(values[0], 0);
  EXPECT_EQ(ActivationsOf(x, 1, ScalarType::kBf16, ActivationQuantization::kNone)[4], 2.5);
  for (int i = 0; i < 32; ++i) x[i] = bits(i == 3 ? -127 * 1e-38 : 0);
  EXPECT_EQ(ActivationsOf(x, 1, ScalarType::kBf16, ActivationQuantization::kInt8)[3], 0);
  x[7] = bits(std::nan(""));
  EXPECT_TRUE(std::isnan(ActivationsOf(x, 1, ScalarType::kBf16, ActivationQuantization::kInt8)[3]));
}

// Rounding an output once to its type must pass, an error of one part in a hundred must not.
TEST(RelativeError, TolerancesAdmitRoundingOnly) {
  std::mt19937 random(6);
  std::normal_distribution<double> normal;
  for (ScalarType type : kTypes) {
    std::vector<double> expected, rounded, wrong;
    for (int i = 0; i < 10000; ++i) {
      expected.push_back(normal(random));
      rounded.push_back(ScalarToDouble(ScalarFromDouble(expected.back(), type), type));
      wrong.push_back(expected.back() * 1.01);
    }
    EXPECT_LT(RelativeError(rounded, expected), ToleranceFor(type));
    EXPECT_GT(RelativeError(wrong, expected), ToleranceFor(type));
  }
}

TEST(RelativeError, ToleranceIsThatOfTheActivationsAndOfWhatTheEpilogueAdds) {
  KernelSignature signature;
  EXPECT_EQ(ToleranceFor(signature), 3e-3);
  signature.out = ScalarType::kFp32;
  EXPECT_EQ(ToleranceFor(signature), 3e-3);
  signature.act = signature.out = ScalarType::kFp16;
  EXPECT_EQ(ToleranceFor(signature), 6e-4);
  signature.epilogue = {.activation = Activation::kRelu, .gated = true};
  EXPECT_DOUBLE_EQ(ToleranceFor(signature), 6e-4 * std::sqrt(2.0));
  signature.epilogue = {.activation = Activation::kSilu};
  EXPECT_DOUBLE_EQ(ToleranceFor(signature), 6e-4 * 1.22);
}

}  // namespace
}  // namespace qgemm
