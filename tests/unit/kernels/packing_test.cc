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

CanonicalWeights RandomWeights(int64_t n, int64_t k, const WeightFormat& format, uint32_t seed) {
  std::mt19937 random(seed);
  CanonicalWeights weights;
  weights.n = n;
  weights.k = k;
  weights.format = format;
  for (int64_t i = 0; i < n * k; ++i) weights.codes.push_back(random() % 16);
  const int64_t groups = n * (k / format.group_size);
  for (int64_t i = 0; i < groups; ++i) weights.scales.push_back(random() % 65536);
  if (format.zero_point == ZeroPoint::kInteger) {
    for (int64_t i = 0; i < groups; ++i) weights.zeros.push_back(random() % 16);
  }
  return weights;
}

// The code of (row, column) by LAYOUT.md's formula, read from 32-bit little-endian words.
int PackedCode(const PackedWeights& packed, int64_t row, int64_t column) {
  const int64_t block = (row / 16) * (packed.sizes.padded_k / 64) + column / 64;
  const int g = row % 16 % 8;
  const int h = row % 16 / 8;
  const int w = column % 64 / 16;
  const int in_step = column % 16;
  const int half = in_step / 8;
  const int t = in_step % 8 / 2;
  const int odd = in_step % 2;
  const uint8_t* bytes = &packed.weights[block * 512 + (4 * g + t) * 16 + 4 * w];
  const uint32_t word = bytes[0] | bytes[1] << 8 | bytes[2] << 16 | uint32_t{bytes[3]} << 24;
  return word >> (16 * odd + 4 * (h + 2 * half)) & 15;
}

int PackedScale(const PackedWeights& packed, int64_t row, int64_t group) {
  const int64_t at = (((row / 16) * packed.sizes.groups + group) * 8 + row % 8) * 4 + row % 16 / 8 * 2;
  return packed.scales[at] | packed.scales[at + 1] << 8;
}

int PackedZero(const PackedWeights& packed, int64_t row, int64_t group) {
  return packed.zeros[(((row / 16) * packed.sizes.groups + group) * 8 + row % 8) * 2 + row % 16 / 8];
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

TEST(Packing, EachSingleCodeHasItsPlace) {
  const WeightFormat format = Format(64);
  CanonicalWeights weights = RandomWeights(20, 128, format, 1);
  std::fill(weights.codes.begin(), weights.codes.end(), 0);
  for (int64_t row = 0; row < weights.n; ++row) {
    for (int64_t column = 0; column < weights.k; ++column) {
      weights.codes[row * weights.k + column] = 15;
      const auto packed = Pack(weights);
      ASSERT_TRUE(packed.ok());
      ASSERT_EQ(PackedCode(*packed, row, column), 15) << row << ", " << column;
      // Nothing but this nibble is set within the rows that exist: 4 bits, and those of the padding's
      // codes, 8.
      int64_t set_bits = 0;
      for (uint8_t byte : packed->weights) set_bits += __builtin_popcount(byte);
      ASSERT_EQ(set_bits, 4 + (64 - weights.n) * weights.k) << row << ", " << column;
      weights.codes[row * weights.k + column] = 0;
    }
  }
}

// Sizes that do and do not fill their blocks, for every group size and zero point.
std::vector<CanonicalWeights> Shapes() {
  std::vector<CanonicalWeights> shapes;
  for (int64_t n : {1, 17, 64, 257}) {
    for (int64_t k : {32, 96, 192, 6656}) {
      for (int group_size : {32, 64, 128}) {
        if (k % group_size != 0) continue;
        for (ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger}) {
          shapes.push_back(RandomWeights(n, k, Format(group_size, zero), n * 31 + k + group_size));
        }
      }
    }
  }
  return shapes;
}

std::string Describe(const CanonicalWeights& weights) {
  return absl::StrCat(weights.n, "x", weights.k, " ", WeightFormatName(weights.format));
}

TEST(Packing, PlacesEveryValueAndPadding) {
  for (const CanonicalWeights& weights : Shapes()) {
    const auto packed = Pack(weights);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const int64_t groups = weights.k / weights.format.group_size;
    int64_t wrong = 0;
    for (int64_t row = 0; row < packed->sizes.padded_n; ++row) {
      for (int64_t column = 0; column < packed->sizes.padded_k; ++column) {
        const bool real = row < weights.n && column < weights.k;
        wrong += PackedCode(*packed, row, column) != (real ? weights.codes[row * weights.k + column] : 8);
      }
      for (int64_t group = 0; group < packed->sizes.groups; ++group) {
        const bool real = row < weights.n && group < groups;
        wrong += PackedScale(*packed, row, group) != (real ? weights.scales[row * groups + group] : 0);
        if (!weights.zeros.empty()) {
          wrong += PackedZero(*packed, row, group) != (real ? weights.zeros[row * groups + group] : 8);
        }
      }
    }
    EXPECT_EQ(wrong, 0) << Describe(weights);
  }
}

TEST(Packing, UnpackInvertsPack) {
  for (const CanonicalWeights& weights : Shapes()) {
    const auto packed = Pack(weights);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto unpacked = Unpack(*packed, weights.n, weights.k, weights.format);
    ASSERT_TRUE(unpacked.ok()) << unpacked.status();
    EXPECT_EQ(unpacked->codes, weights.codes) << Describe(weights);
    EXPECT_EQ(unpacked->scales, weights.scales) << Describe(weights);
    EXPECT_EQ(unpacked->zeros, weights.zeros) << Describe(weights);
  }
}

TEST(Packing, RoundTripsRandomShapes) {
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    const int group_size = 32 << random() % 3;
    const int64_t n = 1 + random() % 200;
    const int64_t k = group_size * static_cast<int64_t>(1 + random() % 9);
    const ZeroPoint zero = random() % 2 == 0 ? ZeroPoint::kNone : ZeroPoint::kInteger;
    const CanonicalWeights weights = RandomWeights(n, k, Format(group_size, zero), random());
    const auto packed = Pack(weights);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto unpacked = Unpack(*packed, n, k, weights.format);
    ASSERT_TRUE(unpacked.ok()) << unpacked.status();
    EXPECT_EQ(unpacked->codes, weights.codes) << n << "x" << k;
    EXPECT_EQ(unpacked->scales, weights.scales) << n << "x" << k;
    EXPECT_EQ(unpacked->zeros, weights.zeros) << n << "x" << k;
  }
}

// Large enough for several threads: the bytes do not depend on their number or order.
TEST(Packing, IsTheSameEveryTimeWhenThreaded) {
  const CanonicalWeights weights = RandomWeights(1000, 8192, Format(128), 3);
  const auto first = Pack(weights);
  const auto second = Pack(weights);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(first->weights == second->weights);
  EXPECT_TRUE(first->scales == second->scales);
  EXPECT_TRUE(Unpack(*first, 1000, 8192, weights.format)->codes == weights.codes);
}

// The example of LAYOUT.md, whose figures others check their packers with.
TEST(Packing, MatchesTheWrittenExample) {
  CanonicalWeights weights;
  weights.n = 17;
  weights.k = 96;
  weights.format = Format(32, ZeroPoint::kInteger);
  for (int row = 0; row < 17; ++row) {
    for (int column = 0; column < 96; ++column) weights.codes.push_back((5 * row + 3 * column) % 13);
    for (int group = 0; group < 3; ++group) {
      weights.scales.push_back(0x3c00 + 16 * row + group);
      weights.zeros.push_back((row + 2 * group) % 16);
    }
  }
  const auto packed = Pack(weights);
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(packed->weights[0], 0x10);
  EXPECT_EQ(packed->weights[1], 0xcb);
  EXPECT_EQ(packed->weights[2], 0x43);
  EXPECT_EQ(packed->weights[3], 0x21);
  const auto digest = [](const std::vector<uint8_t>& plane) {
    return Sha256Hex(absl::string_view(reinterpret_cast<const char*>(plane.data()), plane.size()));
  };
  EXPECT_EQ(digest(packed->weights), "1dcca0f7d7ad6c50ec46b9a4f286ac2823a3e37088b125bee039b6e23d7f2486");
  EXPECT_EQ(digest(packed->scales), "3633c55dcc4e01f784b92a97edcc04aeb1cef6e543f9f7df6536c6023603fd81");
  EXPECT_EQ(digest(packed->zeros), "902e2d750dafe0c5b1550c7c1bc16b87d03eac770b86d30792c29ea1cf7b014f");
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
  bad.n = 0;
  EXPECT_EQ(Pack(bad).status().message(), "n 0 is out of range: 1 to 2147483647");
}

TEST(Packing, RefusesValuesBeyondFourBits) {
  const CanonicalWeights good = RandomWeights(33, 96, Format(32, ZeroPoint::kInteger), 9);
  for (int64_t at : {0, 95, 96 * 32 + 70, 96 * 33 - 1}) {
    CanonicalWeights bad = good;
    bad.codes[at] = 16;
    const absl::Status status = Pack(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              absl::StrCat("codes[", at / 96, "][", at % 96, "] 16 is out of range: 0 to 15"));
  }
  CanonicalWeights bad = good;
  bad.zeros[3 * 20 + 1] = 200;
  EXPECT_EQ(Pack(bad).status().message(), "zeros[20][1] 200 is out of range: 0 to 15");
}

TEST(Packing, UnpackRefusesPlanesOfAnotherShape) {
  const CanonicalWeights weights = RandomWeights(16, 128, Format(64), 2);
  auto packed = Pack(weights);
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(Unpack(*packed, 65, 128, weights.format).status().message(),
            "packed weights has 4096 entries: this shape needs 8192");
  packed->scales.clear();
  EXPECT_EQ(Unpack(*packed, 16, 128, weights.format).status().message(),
            "packed scales has 0 entries: this shape needs 256");
}

}  // namespace
}  // namespace qgemm
