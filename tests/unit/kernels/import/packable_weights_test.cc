#include "kernels/import/packable_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/import/awq.h"
#include "kernels/import/gguf.h"
#include "kernels/import/torchao.h"
#include "kernels/reference_gemm.h"
#include "tests/unit/kernels/import/import_test_data.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

// Packs and unpacks, and compares all weights with those of the importer, up to `tolerance` of a weight.
void ExpectSameWeights(const ImportedWeights& imported, double tolerance) {
  const auto packable = PackableWeights(imported);
  ASSERT_TRUE(packable.ok()) << packable.status();
  const auto packed = Pack(*packable);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const auto unpacked = Unpack(*packed, imported.n, imported.k, packable->format);
  ASSERT_TRUE(unpacked.ok()) << unpacked.status();
  for (int64_t row = 0; row < imported.n; ++row) {
    const std::vector<float> expected = DequantizeRow(imported, row);
    const std::vector<double> actual = DequantizedRow(*unpacked, row);
    for (int64_t column = 0; column < imported.k; ++column) {
      ASSERT_NEAR(actual[column], expected[column], tolerance) << row << " " << column;
    }
  }
}

absl::StatusOr<ImportedWeights> RandomGguf(GgufType type, int64_t n, int64_t k, int64_t block_bytes,
                                           int64_t block_weights, std::initializer_list<int64_t> halves) {
  std::vector<uint8_t> bytes = RandomCodes(n * k / block_weights * block_bytes, 8, 1);
  for (size_t block = 0; block < bytes.size(); block += block_bytes) {
    for (int64_t half : halves) {
      bytes[block + half + 1] = static_cast<uint8_t>((bytes[block + half] & 0x8f) | 0x20);
    }
  }
  const OwnedTensor data("w", ElementType::kUint8, {static_cast<int64_t>(bytes.size())}, bytes);
  return ImportGguf({data.view(), type, n, k});
}

TEST(PackableWeights, KeepsTheWeightsOfGgufBlocks) {
  const auto q4 = RandomGguf(GgufType::kQ4K, 5, 512, 144, 256, {0, 2});
  ASSERT_TRUE(q4.ok()) << q4.status();
  ExpectSameWeights(*q4, 1e-5);  // fp32 sums of the importer's formula
  const auto q5 = RandomGguf(GgufType::kQ5K, 5, 512, 176, 256, {0, 2});
  ASSERT_TRUE(q5.ok()) << q5.status();
  ExpectSameWeights(*q5, 1e-5);
  const auto q6 = RandomGguf(GgufType::kQ6K, 5, 512, 210, 256, {208});
  ASSERT_TRUE(q6.ok()) << q6.status();
  ExpectSameWeights(*q6, 0);
  const auto q8 = RandomGguf(GgufType::kQ80, 5, 512, 34, 32, {0});
  ASSERT_TRUE(q8.ok()) << q8.status();
  ExpectSameWeights(*q8, 0);
  const auto q41 = RandomGguf(GgufType::kQ41, 5, 512, 20, 32, {0, 2});
  ASSERT_TRUE(q41.ok()) << q41.status();
  ExpectSameWeights(*q41, 1e-6);
}

TEST(PackableWeights, MovesTheOriginOfTorchaosOffsets) {
  const OwnedTensor qdata = RandomWords("q", {2, 4, 32, 4}, 1);
  const OwnedTensor scales = RandomScalars("sz", {4, 16, 2}, ScalarType::kBf16, 2);
  const auto weights = ImportTorchao({qdata.view(), scales.view(), 16, 512, 128});
  ASSERT_TRUE(weights.ok()) << weights.status();
  // Offsets here are below 2 in size: half a step of bf16 there is 2^-8.
  ExpectSameWeights(*weights, 1.0 / 256);
}

TEST(PackableWeights, RoundsOffsetsToTheNearestHalf) {
  ImportedWeights weights;
  weights.n = 1;
  weights.k = 32;
  weights.bits = 4;
  weights.group_size = 32;
  weights.zero = ImportedZero::kFloat;
  weights.origin = 1;
  weights.codes.resize(32);
  const auto offset = [&](uint16_t b, uint16_t s) {
    weights.scales = {s};
    weights.offsets = {b};
    return PackableWeights(weights)->offsets[0];
  };
  EXPECT_EQ(offset(0x4000, 0x3c00), 0x3c00);  // 2 - 1
  EXPECT_EQ(offset(0x3c00, 0x0001), 0x3c00);  // 1 - 2^-24, back to 1
  EXPECT_EQ(offset(0x3c00, 0x9000), 0x3c00);  // 1 + 2^-11, half a step: to even
  EXPECT_EQ(offset(0x3c00, 0x9001), 0x3c01);  // a little more than that
  EXPECT_EQ(offset(0x0003, 0x0001), 0x0002);  // subnormal halves
  EXPECT_EQ(offset(0x8001, 0x8001), 0x0000);
  EXPECT_EQ(offset(0xfbff, 0x7bff), 0xfc00);  // beyond the largest half
}

TEST(PackableWeights, TakesRowsOfOneGroupAndRefusesWhatNoFormatHas) {
  const auto awq = [](int64_t k, int64_t group) {
    const OwnedTensor qweight = RandomWords("w", {k, 2}, 1);
    const OwnedTensor scales = RandomScalars("s", {(k + group - 1) / group, 16}, ScalarType::kFp16, 2);
    return *ImportAwq({qweight.view(), std::nullopt, scales.view(), group});
  };
  EXPECT_EQ(PackableWeights(awq(96, 96))->format.group_size, 0);
  EXPECT_EQ(PackableWeights(awq(128, 128))->format.group_size, 128);
  ExpectSameWeights(awq(192, 64), 0);
  EXPECT_THAT(std::string(PackableWeights(awq(100, 32)).status().message()),
              HasSubstr("groups of two lengths"));
  EXPECT_THAT(std::string(PackableWeights(awq(96, 48)).status().message()), HasSubstr("group_size 48"));
}

}  // namespace
}  // namespace qgemm
