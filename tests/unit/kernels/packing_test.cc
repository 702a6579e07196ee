#include "kernels/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"

namespace qgemm {
namespace {

WeightFormat Format(int group_size, ZeroPoint zero = ZeroPoint::kNone) {
  return {4, group_size, ScalarType::kBf16, zero};
}

// Every kind of plane in every width.
std::vector<WeightFormat> AllFormats() {
  std::vector<WeightFormat> formats;
  for (int bits : {4, 5, 6, 8}) {
    for (int group_size : {0, 16, 32, 64, 128, 256}) {
      for (ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
        for (int levels : {1, 2}) {
          const WeightFormat format{bits, group_size, ScalarType::kFp16, zero, levels};
          if (ValidateWeightFormat(format).ok()) formats.push_back(format);
        }
      }
    }
  }
  return formats;
}

CanonicalWeights RandomWeights(int64_t n, int64_t k, const WeightFormat& format, uint32_t seed) {
  std::mt19937 random(seed);
  CanonicalWeights weights;
  weights.n = n;
  weights.k = k;
  weights.format = format;
  const auto fill = [&random](auto& plane, int64_t count, int limit) {
    plane.resize(count);
    for (auto& value : plane) value = random() % limit;
  };
  const int64_t per_group = n * weights.groups();
  const int64_t numbers = format.two_level() ? n * weights.steps() : per_group;
  fill(weights.codes, n * k, 1 << format.bits);
  fill(weights.scales, numbers, 65536);
  if (format.two_level()) fill(weights.scale_codes, per_group, 256);
  if (format.zero_point == ZeroPoint::kInteger) fill(weights.zeros, per_group, 1 << format.bits);
  if (format.zero_point == ZeroPoint::kFloat) {
    fill(weights.offsets, numbers, 65536);
    if (format.two_level()) fill(weights.offset_codes, per_group, 256);
  }
  return weights;
}

uint32_t Word(const std::vector<uint8_t>& plane, int64_t at) {
  return plane[at] | plane[at + 1] << 8 | plane[at + 2] << 16 | uint32_t{plane[at + 3]} << 24;
}

// The code of (row, column) by LAYOUT.md's formulas, read from 32-bit little-endian words.
int PackedCode(const PackedWeights& packed, int bits, int64_t row, int64_t column) {
  const int64_t block = (row / 16) * (packed.sizes.padded_k / 64) + column / 64;
  const int64_t begin = block * 128 * bits;
  const int g = row % 16 % 8;
  const int h = row % 16 / 8;
  const int w = column % 64 / 16;
  const int in_step = column % 16;
  const int half = in_step / 8;
  const int t = in_step % 8 / 2;
  const int odd = in_step % 2;
  const int p = h + 2 * half;
  const int lane = 4 * g + t;
  const int byte = 2 * odd + p / 2;
  if (bits == 8) {
    const int word = 2 * (w % 2) + p % 2;
    const uint32_t four = Word(packed.weights, begin + w / 2 * 512 + lane * 16 + 4 * word);
    return (four >> 8 * byte & 255) ^ 128;
  }
  const int low = Word(packed.weights, begin + lane * 16 + 4 * w) >> (16 * odd + 4 * p) & 15;
  const int i = 2 * w + p % 2;
  if (bits == 5) {
    return low | (Word(packed.weights, begin + 512 + 4 * lane) >> (8 * byte + i) & 1) << 4;
  }
  if (bits == 6) {
    const uint32_t high = Word(packed.weights, begin + 512 + 8 * lane + 4 * (w / 2));
    return low | (high >> (8 * byte + 2 * (i % 4)) & 3) << 4;
  }
  return low;
}

// Element `[row / 16][j][which of per_block][row % 8][row / 8 % 2]` of a plane of 8- or 16-bit numbers.
template <typename T>
T PackedNumber(const std::vector<uint8_t>& plane, int64_t row, int64_t j, int64_t count, int which = 0,
               int per_block = 1) {
  const int64_t at = ((((row / 16) * count + j) * per_block + which) * 8 + row % 8) * 2 + row % 16 / 8;
  if (sizeof(T) == 1) return static_cast<T>(plane[at]);
  return static_cast<T>(plane[2 * at] | plane[2 * at + 1] << 8);
}

TEST(Packing, PadsSizesTo64) {
  const PackedSizes sizes = PackedSizesFor(257, 96, Format(32, ZeroPoint::kInteger));
  EXPECT_EQ(sizes.padded_n, 320);
  EXPECT_EQ(sizes.padded_k, 128);
  EXPECT_EQ(sizes.groups, 4);
  EXPECT_EQ(sizes.weight_bytes, 320 * 128 / 2);
  EXPECT_EQ(sizes.scale_bytes, 320 * 4 * 2);
  EXPECT_EQ(sizes.zero_bytes, 320 * 4);
  EXPECT_EQ(PackedSizesFor(257, 128, Format(64)).zero_bytes, 0);
  // Beyond 32 bits.
  EXPECT_EQ(PackedSizesFor(int64_t{1} << 20, int64_t{1} << 20, Format(128)).weight_bytes, int64_t{1} << 39);
}

TEST(Packing, CountsEveryPlanesBytes) {
  // bits, group, zero, levels -> groups, steps, weight, scale, zero, step bytes of 64 x 320.
  struct Case {
    WeightFormat format;
    std::vector<int64_t> sizes;
  };
  const ScalarType fp16 = ScalarType::kFp16;
  const int64_t rows = 64;
  const Case cases[] = {
      {{5, 16, fp16, ZeroPoint::kNone}, {20, 0, rows * 200, rows * 40, 0, 0}},
      {{6, 64, fp16, ZeroPoint::kFloat}, {5, 0, rows * 240, rows * 10, rows * 10, 0}},
      {{8, 0, fp16, ZeroPoint::kInteger}, {1, 0, rows * 320, rows * 2, rows, 0}},
      {{4, 32, fp16, ZeroPoint::kNone, 2}, {10, 2, rows * 160, rows * 10, 0, rows * 4}},
      {{4, 32, fp16, ZeroPoint::kFloat, 2}, {10, 2, rows * 160, rows * 10, rows * 10, rows * 8}},
  };
  for (const Case& c : cases) {
    const PackedSizes s = PackedSizesFor(60, 320, c.format);
    EXPECT_EQ(
        (std::vector<int64_t>{s.groups, s.steps, s.weight_bytes, s.scale_bytes, s.zero_bytes, s.step_bytes}),
        c.sizes)
        << WeightFormatName(c.format);
  }
}

TEST(Packing, EachSingleCodeHasItsPlace) {
  for (int bits : {4, 5, 6, 8}) {
    const WeightFormat format{bits, 64, ScalarType::kBf16};
    CanonicalWeights weights = RandomWeights(20, 64, format, 1);
    std::fill(weights.codes.begin(), weights.codes.end(), format.center());
    const auto empty = Pack(weights);
    ASSERT_TRUE(empty.ok());
    const uint8_t all = (1 << bits) - 1;
    for (int64_t row = 0; row < weights.n; ++row) {
      for (int64_t column = 0; column < weights.k; ++column) {
        weights.codes[row * weights.k + column] = format.center() ^ all;
        const auto packed = Pack(weights);
        ASSERT_TRUE(packed.ok());
        ASSERT_EQ(PackedCode(*packed, bits, row, column), format.center() ^ all) << row << ", " << column;
        // The code's bits have changed, and nothing else.
        int64_t changed_bits = 0;
        for (size_t i = 0; i < packed->weights.size(); ++i) {
          changed_bits += __builtin_popcount(packed->weights[i] ^ empty->weights[i]);
        }
        ASSERT_EQ(changed_bits, bits) << row << ", " << column;
        weights.codes[row * weights.k + column] = format.center();
      }
    }
  }
}

// Sizes that do and do not fill their blocks, for every format.
std::vector<CanonicalWeights> Shapes() {
  std::vector<CanonicalWeights> shapes;
  for (const WeightFormat& format : AllFormats()) {
    const int64_t unit = format.channel_wise() ? 8 : format.group_size;
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{1, unit}, {17, 3 * unit}, {64, 768}, {257, 5 * unit}}) {
      shapes.push_back(RandomWeights(n, k, format, n * 31 + k));
    }
  }
  shapes.push_back(RandomWeights(33, 6656, {5, 16, ScalarType::kFp16, ZeroPoint::kFloat}, 1));
  shapes.push_back(RandomWeights(33, 7392, {6, 16, ScalarType::kFp16, ZeroPoint::kFloat, 2}, 2));
  return shapes;
}

std::string Describe(const CanonicalWeights& weights) {
  return absl::StrCat(weights.n, "x", weights.k, " ", WeightFormatName(weights.format));
}

TEST(Packing, PlacesEveryValueAndPadding) {
  for (const CanonicalWeights& weights : Shapes()) {
    const auto packed = Pack(weights);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const WeightFormat& format = weights.format;
    const bool floats = format.zero_point == ZeroPoint::kFloat;
    const int64_t groups = weights.groups();
    const int64_t padded_groups = packed->sizes.groups;
    int64_t wrong = 0;
    for (int64_t row = 0; row < packed->sizes.padded_n; ++row) {
      for (int64_t column = 0; column < packed->sizes.padded_k; ++column) {
        const bool real = row < weights.n && column < weights.k;
        wrong += PackedCode(*packed, format.bits, row, column) !=
                 (real ? weights.codes[row * weights.k + column] : format.center());
      }
      for (int64_t group = 0; group < padded_groups; ++group) {
        const bool real = row < weights.n && group < groups;
        const int64_t from = row * groups + group;
        if (format.zero_point == ZeroPoint::kInteger) {
          wrong += PackedNumber<uint8_t>(packed->zeros, row, group, padded_groups) !=
                   (real ? weights.zeros[from] : format.center());
        }
        if (format.two_level()) {
          wrong += PackedNumber<int8_t>(packed->scales, row, group, padded_groups) !=
                   (real ? weights.scale_codes[from] : 0);
          if (!floats) continue;
          wrong += PackedNumber<int8_t>(packed->zeros, row, group, padded_groups) !=
                   (real ? weights.offset_codes[from] : 0);
        } else {
          wrong += PackedNumber<uint16_t>(packed->scales, row, group, padded_groups) !=
                   (real ? weights.scales[from] : 0);
          if (!floats) continue;
          wrong += PackedNumber<uint16_t>(packed->zeros, row, group, padded_groups) !=
                   (real ? weights.offsets[from] : 0);
        }
      }
      for (int64_t step = 0; step < packed->sizes.steps; ++step) {
        const bool real = row < weights.n && step < weights.steps();
        const int64_t from = row * weights.steps() + step;
        const int per_block = floats ? 2 : 1;
        wrong += PackedNumber<uint16_t>(packed->steps, row, step, packed->sizes.steps, 0, per_block) !=
                 (real ? weights.scales[from] : 0);
        if (!floats) continue;
        wrong += PackedNumber<uint16_t>(packed->steps, row, step, packed->sizes.steps, 1, 2) !=
                 (real ? weights.offsets[from] : 0);
      }
    }
    EXPECT_EQ(wrong, 0) << Describe(weights);
  }
}

void ExpectSame(const CanonicalWeights& actual, const CanonicalWeights& expected) {
  EXPECT_TRUE(actual.codes == expected.codes) << Describe(expected);
  EXPECT_TRUE(actual.scales == expected.scales) << Describe(expected);
  EXPECT_TRUE(actual.zeros == expected.zeros) << Describe(expected);
  EXPECT_TRUE(actual.offsets == expected.offsets) << Describe(expected);
  EXPECT_TRUE(actual.scale_codes == expected.scale_codes) << Describe(expected);
  EXPECT_TRUE(actual.offset_codes == expected.offset_codes) << Describe(expected);
}

TEST(Packing, UnpackInvertsPack) {
  for (const CanonicalWeights& weights : Shapes()) {
    const auto packed = Pack(weights);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto unpacked = Unpack(*packed, weights.n, weights.k, weights.format);
    ASSERT_TRUE(unpacked.ok()) << unpacked.status();
    ExpectSame(*unpacked, weights);
  }
}

TEST(Packing, RoundTripsRandomShapes) {
  const std::vector<WeightFormat> formats = AllFormats();
  std::mt19937 random(5);
  for (int i = 0; i < 150; ++i) {
    const WeightFormat& format = formats[random() % formats.size()];
    const int64_t n = 1 + random() % 200;
    const int64_t unit = format.channel_wise() ? 8 : format.group_size;
    const int64_t k = unit * static_cast<int64_t>(1 + random() % 9);
    const CanonicalWeights weights = RandomWeights(n, k, format, random());
    const auto packed = Pack(weights);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto unpacked = Unpack(*packed, n, k, format);
    ASSERT_TRUE(unpacked.ok()) << unpacked.status();
    ExpectSame(*unpacked, weights);
  }
}

// Large enough for several threads: the bytes do not depend on their number or order.
TEST(Packing, IsTheSameEveryTimeWhenThreaded) {
  const CanonicalWeights weights =
      RandomWeights(1000, 8192, {5, 32, ScalarType::kFp16, ZeroPoint::kFloat, 2}, 3);
  const auto first = Pack(weights);
  const auto second = Pack(weights);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(first->weights == second->weights);
  EXPECT_TRUE(first->scales == second->scales);
  EXPECT_TRUE(first->zeros == second->zeros);
  EXPECT_TRUE(first->steps == second->steps);
  ExpectSame(*Unpack(*first, 1000, 8192, weights.format), weights);
}

// The examples of LAYOUT.md, whose figures others check their packers with.
CanonicalWeights WrittenExample(const WeightFormat& format) {
  CanonicalWeights weights;
  weights.n = 17;
  weights.k = 96;
  weights.format = format;
  const bool floats = format.zero_point == ZeroPoint::kFloat;
  for (int row = 0; row < 17; ++row) {
    for (int column = 0; column < 96; ++column) {
      weights.codes.push_back((5 * row + 3 * column) % ((1 << format.bits) - 3));
    }
    for (int j = 0; j < (format.two_level() ? 1 : 3); ++j) {
      weights.scales.push_back(0x3c00 + 16 * row + j);
      if (floats) weights.offsets.push_back(0xbc00 + 16 * row + j);
    }
    for (int group = 0; group < 3; ++group) {
      if (format.zero_point == ZeroPoint::kInteger) weights.zeros.push_back((row + 2 * group) % 16);
      if (!format.two_level()) continue;
      weights.scale_codes.push_back(7 * row + group - 60);
      if (floats) weights.offset_codes.push_back(60 - 7 * row - group);
    }
  }
  return weights;
}

std::string Digest(const std::vector<uint8_t>& plane) {
  return Sha256Hex(absl::string_view(reinterpret_cast<const char*>(plane.data()), plane.size()));
}

TEST(Packing, MatchesTheWrittenExample) {
  const auto packed = Pack(WrittenExample(Format(32, ZeroPoint::kInteger)));
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(packed->weights[0], 0x10);
  EXPECT_EQ(packed->weights[1], 0xcb);
  EXPECT_EQ(packed->weights[2], 0x43);
  EXPECT_EQ(packed->weights[3], 0x21);
  EXPECT_EQ(Digest(packed->weights), "1dcca0f7d7ad6c50ec46b9a4f286ac2823a3e37088b125bee039b6e23d7f2486");
  EXPECT_EQ(Digest(packed->scales), "3633c55dcc4e01f784b92a97edcc04aeb1cef6e543f9f7df6536c6023603fd81");
  EXPECT_EQ(Digest(packed->zeros), "902e2d750dafe0c5b1550c7c1bc16b87d03eac770b86d30792c29ea1cf7b014f");
}

TEST(Packing, MatchesTheWrittenExamplesOfOtherWidths) {
  const std::string empty = Digest({});
  const ScalarType fp16 = ScalarType::kFp16;
  const std::string scale_codes = "e11f75faea6e1d757a03ed43b7f1e810648ca6d93a4844c64eb8ab267e46b5c3";
  struct Example {
    WeightFormat format;
    std::string weights, scales, zeros, steps;
  };
  const Example examples[] = {
      {{5, 32, fp16, ZeroPoint::kFloat, 2},
       "838ff9d3990804acce1a70199cad7e27bdf2c311a88f0e7e48a2680a35df07e9",
       scale_codes,
       "0771ae7352149d0b101a759bead76c462c518e2829092912066a26ac0fd632f7",
       "60cfc0c10512be5f0dd168c99c96aff8031e796045117e572957e5e1c7315088"},
      {{6, 32, fp16, ZeroPoint::kNone, 2},
       "5cfbef0c753545354785e535b9218288650e160dd7c4af37632a2373c48c8ece",
       scale_codes,
       empty,
       "f82c8d25c9a9868c3c6cb27e8d49a346adf735f3a7f8eed7a8e032f87faa2520"},
      {{8, 32, fp16, ZeroPoint::kFloat},
       "b092c6d696cb3e8e64cfbdafb3d68c5e08cb5205aa0028cecdfb684046c0437c",
       "3633c55dcc4e01f784b92a97edcc04aeb1cef6e543f9f7df6536c6023603fd81",
       "e2a0ea115a7d664cd7ea202be29566f949b7ff386605a924b8e1d4e84f3d0343",
       empty},
  };
  for (const Example& example : examples) {
    SCOPED_TRACE(WeightFormatName(example.format));
    const auto packed = Pack(WrittenExample(example.format));
    ASSERT_TRUE(packed.ok());
    EXPECT_EQ(Digest(packed->weights), example.weights);
    EXPECT_EQ(Digest(packed->scales), example.scales);
    EXPECT_EQ(Digest(packed->zeros), example.zeros);
    EXPECT_EQ(Digest(packed->steps), example.steps);
  }
}
TEST(Packing, RefusesAPartialGroup) {
  CanonicalWeights weights;
  weights.n = 64;
  weights.k = 96;
  weights.format = Format(64);
  EXPECT_EQ(Pack(weights).status().message(), "k 96 is not a multiple of group_size 64");
}

TEST(Packing, RefusesPlanesOfTheWrongSize) {
  const CanonicalWeights good = RandomWeights(3, 96, Format(32, ZeroPoint::kInteger), 9);
  CanonicalWeights bad = good;
  bad.codes.pop_back();
  EXPECT_EQ(Pack(bad).status().message(), "codes has 287 entries: this shape needs 288");
  bad = good;
  bad.scales.push_back(0);
  EXPECT_EQ(Pack(bad).status().message(), "scales has 10 entries: this shape needs 9");
  bad = good;
  bad.zeros.clear();
  EXPECT_EQ(Pack(bad).status().message(), "zeros has 0 entries: this shape needs 9");
  bad = good;
  bad.format.zero_point = ZeroPoint::kNone;
  EXPECT_EQ(Pack(bad).status().message(), "zeros has 9 entries: this shape needs 0");
  bad = good;
  bad.offsets.push_back(0);
  EXPECT_EQ(Pack(bad).status().message(), "offsets has 1 entries: this shape needs 0");
  bad = good;
  bad.scale_codes.push_back(0);
  EXPECT_EQ(Pack(bad).status().message(), "scale_codes has 1 entries: this shape needs 0");
  bad = good;
  bad.offset_codes.push_back(0);
  EXPECT_EQ(Pack(bad).status().message(), "offset_codes has 1 entries: this shape needs 0");
  bad = good;
  bad.n = 0;
  EXPECT_EQ(Pack(bad).status().message(), "n 0 is out of range: 1 to 2147483647");
}

TEST(Packing, RefusesTwoLevelPlanesOfTheWrongSize) {
  const CanonicalWeights good = RandomWeights(3, 288, {4, 32, ScalarType::kFp16, ZeroPoint::kFloat, 2}, 9);
  ASSERT_TRUE(Pack(good).ok());
  CanonicalWeights bad = good;
  bad.scales.pop_back();
  EXPECT_EQ(Pack(bad).status().message(), "scales has 5 entries: this shape needs 6");
  bad = good;
  bad.offsets.clear();
  EXPECT_EQ(Pack(bad).status().message(), "offsets has 0 entries: this shape needs 6");
  bad = good;
  bad.scale_codes.pop_back();
  EXPECT_EQ(Pack(bad).status().message(), "scale_codes has 26 entries: this shape needs 27");
  bad = good;
  bad.offset_codes.push_back(0);
  EXPECT_EQ(Pack(bad).status().message(), "offset_codes has 28 entries: this shape needs 27");
}

TEST(Packing, RefusesValuesBeyondTheFormatsBits) {
  for (const int bits : {4, 5, 6}) {
    const int limit = 1 << bits;
    const CanonicalWeights good =
        RandomWeights(33, 96, {bits, 32, ScalarType::kBf16, ZeroPoint::kInteger}, 9);
    for (int64_t at : {0, 95, 96 * 32 + 70, 96 * 33 - 1}) {
      CanonicalWeights bad = good;
      bad.codes[at] = limit;
      const absl::Status status = Pack(bad).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(status.message(), absl::StrCat("codes[", at / 96, "][", at % 96, "] ", limit,
                                               " is out of range: 0 to ", limit - 1));
    }
    CanonicalWeights bad = good;
    bad.zeros[3 * 20 + 1] = 200;
    EXPECT_EQ(Pack(bad).status().message(),
              absl::StrCat("zeros[20][1] 200 is out of range: 0 to ", limit - 1));
  }
}

TEST(Packing, UnpackRefusesPlanesOfAnotherShape) {
  const CanonicalWeights weights = RandomWeights(16, 128, Format(64), 2);
  auto packed = Pack(weights);
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(Unpack(*packed, 65, 128, weights.format).status().message(),
            "packed weights has 4096 entries: this shape needs 8192");
  packed->steps.push_back(0);
  EXPECT_EQ(Unpack(*packed, 16, 128, weights.format).status().message(),
            "packed steps has 1 entries: this shape needs 0");
  packed->zeros.push_back(0);
  EXPECT_EQ(Unpack(*packed, 16, 128, weights.format).status().message(),
            "packed zeros has 1 entries: this shape needs 0");
  packed->scales.clear();
  EXPECT_EQ(Unpack(*packed, 16, 128, weights.format).status().message(),
            "packed scales has 0 entries: this shape needs 256");
}

}  // namespace
}  // namespace qgemm
