#include "kernels/import/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kernels/import/import_test_data.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void PutHalf(uint16_t bits, std::vector<uint8_t>* out) {
  out->push_back(static_cast<uint8_t>(bits));
  out->push_back(static_cast<uint8_t>(bits >> 8));
}

absl::StatusOr<ImportedWeights> Import(GgufType type, const std::vector<uint8_t>& bytes, int64_t n,
                                       int64_t k) {
  const OwnedTensor data("blk.0.w", ElementType::kUint8, {static_cast<int64_t>(bytes.size())}, bytes);
  return ImportGguf({data.view(), type, n, k});
}

// The 12 bytes of eight 6-bit scales and minima.
std::vector<uint8_t> PackScales(const std::vector<int8_t>& scales, const std::vector<uint8_t>& mins) {
  std::vector<uint8_t> out(12);
  for (int i = 0; i < 4; ++i) {
    out[i] = static_cast<uint8_t>(scales[i] | scales[i + 4] >> 4 << 6);
    out[i + 4] = static_cast<uint8_t>(mins[i] | mins[i + 4] >> 4 << 6);
    out[i + 8] = static_cast<uint8_t>((scales[i + 4] & 15) | (mins[i + 4] & 15) << 4);
  }
  return out;
}

TEST(Gguf, ReadsQ4_0BlocksWrittenByHand) {
  std::vector<uint8_t> bytes;
  PutHalf(0x4000, &bytes);  // 2
  for (int j = 0; j < 16; ++j) bytes.push_back(static_cast<uint8_t>(j | (15 - j) << 4));
  const auto weights = Import(GgufType::kQ40, bytes, 1, 32);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const std::vector<float> row = DequantizeRow(*weights, 0);
  for (int j = 0; j < 16; ++j) {
    EXPECT_EQ(row[j], 2 * (j - 8));
    EXPECT_EQ(row[j + 16], 2 * (7 - j));
  }
}

TEST(Gguf, ReadsQ4_1AndQ8_0BlocksWrittenByHand) {
  std::vector<uint8_t> bytes;
  PutHalf(0x3800, &bytes);  // 0.5
  PutHalf(0xc000, &bytes);  // -2
  for (int j = 0; j < 16; ++j) bytes.push_back(static_cast<uint8_t>(j | j << 4));
  auto weights = Import(GgufType::kQ41, bytes, 1, 32);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(DequantizeRow(*weights, 0)[3], -0.5f);
  EXPECT_EQ(DequantizeRow(*weights, 0)[31], 5.5f);

  bytes.clear();
  PutHalf(0x3c00, &bytes);  // 1
  for (int j = 0; j < 32; ++j) bytes.push_back(static_cast<uint8_t>(j * 8 - 128));
  weights = Import(GgufType::kQ80, bytes, 1, 32);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->codes[0], 0);
  EXPECT_EQ(DequantizeRow(*weights, 0)[0], -128);
  EXPECT_EQ(DequantizeRow(*weights, 0)[31], 120);
}

TEST(Gguf, ReadsKnownCodesAndScalesOfQ4_KAndQ5_K) {
  for (GgufType type : {GgufType::kQ4K, GgufType::kQ5K}) {
    const int bits = type == GgufType::kQ4K ? 4 : 5;
    const int64_t n = 3;
    const int64_t k = 512;
    const std::vector<uint8_t> codes = RandomCodes(n * k, bits, 1);
    const std::vector<uint8_t> scales = RandomCodes(n * k / 32, 6, 2);
    const std::vector<uint8_t> mins = RandomCodes(n * k / 32, 6, 3);
    std::vector<uint8_t> bytes;
    for (int64_t block = 0; block < n * 2; ++block) {
      const uint8_t* code = codes.data() + block * 256;
      PutHalf(RandomScalar(ScalarType::kFp16, 4, block), &bytes);
      PutHalf(RandomScalar(ScalarType::kFp16, 5, block), &bytes);
      const auto packed = PackScales({scales.begin() + block * 8, scales.begin() + block * 8 + 8},
                                     {mins.begin() + block * 8, mins.begin() + block * 8 + 8});
      bytes.insert(bytes.end(), packed.begin(), packed.end());
      for (int j = 0; bits == 5 && j < 32; ++j) {
        int high = 0;
        for (int group = 0; group < 8; ++group) high |= code[group * 32 + j] >> 4 << group;
        bytes.push_back(static_cast<uint8_t>(high));
      }
      for (int pair = 0; pair < 4; ++pair) {
        for (int j = 0; j < 32; ++j) {
          bytes.push_back(
              static_cast<uint8_t>((code[pair * 64 + j] & 15) | (code[pair * 64 + 32 + j] & 15) << 4));
        }
      }
    }
    const auto weights = Import(type, bytes, n, k);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->codes, codes);
    EXPECT_EQ(weights->zero_codes, mins);
    EXPECT_EQ(weights->scale_codes, std::vector<int8_t>(scales.begin(), scales.end()));
    EXPECT_EQ(weights->d[3], RandomScalar(ScalarType::kFp16, 4, 3));
    EXPECT_EQ(weights->dmin[3], RandomScalar(ScalarType::kFp16, 5, 3));
    const float d = ScalarToFloat(weights->d[3], ScalarType::kFp16);
    const float dmin = ScalarToFloat(weights->dmin[3], ScalarType::kFp16);
    const int at = 3 * 256 + 77;  // row 1, column 333: group 2 of the row's second block
    EXPECT_EQ(DequantizeRow(*weights, 1)[333], d * scales[3 * 8 + 2] * codes[at] - dmin * mins[3 * 8 + 2]);
  }
}

TEST(Gguf, ReadsKnownCodesAndScalesOfQ6_K) {
  const int64_t n = 2;
  const int64_t k = 512;
  const std::vector<uint8_t> codes = RandomCodes(n * k, 6, 1);
  const std::vector<uint8_t> scales = RandomCodes(n * k / 16, 8, 2);
  std::vector<uint8_t> bytes;
  for (int64_t block = 0; block < n * 2; ++block) {
    std::vector<uint8_t> out(208);
    for (int i = 0; i < 256; ++i) {
      const int code = codes[block * 256 + i];
      const int half = i / 128;
      const int in_half = i % 128;
      out[half * 64 + in_half % 64] |= (code & 15) << (in_half / 64 * 4);
      out[128 + half * 32 + in_half % 32] |= code >> 4 << (in_half / 32 * 2);
    }
    std::copy_n(scales.begin() + block * 16, 16, out.begin() + 192);
    bytes.insert(bytes.end(), out.begin(), out.end());
    PutHalf(RandomScalar(ScalarType::kFp16, 3, block), &bytes);
  }
  const auto weights = Import(GgufType::kQ6K, bytes, n, k);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->codes, codes);
  for (size_t i = 0; i < scales.size(); ++i) {
    ASSERT_EQ(weights->scale_codes[i], static_cast<int8_t>(scales[i]));
  }
  EXPECT_EQ(weights->d[2], RandomScalar(ScalarType::kFp16, 3, 2));
  const float d = ScalarToFloat(weights->d[2], ScalarType::kFp16);
  EXPECT_EQ(DequantizeRow(*weights, 1)[40], d * weights->scale_codes[2 * 16 + 2] * (codes[512 + 40] - 32));
}

TEST(Gguf, UnderstandsEveryHalf) {
  EXPECT_EQ(ScalarToFloat(0x0001, ScalarType::kFp16), 5.9604644775390625e-8f);
  EXPECT_EQ(ScalarToFloat(0x83ff, ScalarType::kFp16), -6.097555160522461e-05f);
  EXPECT_EQ(ScalarToFloat(0x7bff, ScalarType::kFp16), 65504);
  EXPECT_EQ(ScalarToFloat(0xfc00, ScalarType::kFp16), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(ScalarToFloat(0x7e00, ScalarType::kFp16)));
  EXPECT_TRUE(std::signbit(ScalarToFloat(0x8000, ScalarType::kFp16)));
  EXPECT_EQ(ScalarToFloat(0xbf80, ScalarType::kBf16), -1);
}

TEST(Gguf, NamesTheTensorThatDoesNotFit) {
  const std::vector<uint8_t> block(144);
  ASSERT_TRUE(Import(GgufType::kQ4K, block, 1, 256).ok());
  const auto message = [](const absl::StatusOr<ImportedWeights>& weights) {
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(weights.status().message());
  };
  EXPECT_THAT(message(Import(GgufType::kQ4K, block, 1, 300)),
              AllOf(HasSubstr("blk.0.w"), HasSubstr("multiple of 256")));
  EXPECT_THAT(message(Import(GgufType::kQ4K, block, 2, 256)),
              AllOf(HasSubstr("blk.0.w (uint8 [144])"), HasSubstr("[288]")));
  EXPECT_THAT(message(Import(static_cast<GgufType>(10), block, 1, 256)),
              HasSubstr("GGUF type 10 is not supported"));
  const OwnedTensor data("blk.0.w", ElementType::kUint8, {1, 144}, std::vector<uint8_t>(143));
  EXPECT_THAT(message(ImportGguf({data.view(), GgufType::kQ4K, 1, 256})),
              HasSubstr("ends at byte offset 143"));
  EXPECT_THAT(message(Import(GgufType::kQ4K, block, INT64_MAX, 256)), HasSubstr("out of range"));
}

}  // namespace
}  // namespace qgemm
