#include "kernels/import/awq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kernels/import/import_test_data.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kOutputOfNibble[8] = {0, 2, 4, 6, 1, 3, 5, 7};

std::vector<uint32_t> Pack(const std::vector<uint8_t>& codes) {
  std::vector<uint32_t> words(codes.size() / 8);
  for (size_t word = 0; word < words.size(); ++word) {
    for (int nibble = 0; nibble < 8; ++nibble) {
      words[word] |= uint32_t{codes[word * 8 + kOutputOfNibble[nibble]]} << (4 * nibble);
    }
  }
  return words;
}

TEST(Awq, ReadsCodesZerosAndScalesOfEveryShape) {
  for (auto [n, k, group] : std::vector<std::array<int64_t, 3>>{
           {8, 32, 32}, {40, 192, 64}, {264, 100, 32}, {16, 7392, 32}, {24, 7, 7}, {64, 256, 128}}) {
    SCOPED_TRACE(absl::StrCat(n, "x", k, " g", group));
    const int64_t groups = (k + group - 1) / group;
    const std::vector<uint8_t> codes = RandomCodes(k * n, 4, 1);
    const std::vector<uint8_t> zeros = RandomCodes(groups * n, 4, 2);
    const OwnedTensor qweight("w", ElementType::kInt32, {k, n / 8}, Pack(codes));
    const OwnedTensor qzeros("z", ElementType::kInt32, {groups, n / 8}, Pack(zeros));
    const OwnedTensor scales = RandomScalars("s", {groups, n}, ScalarType::kBf16, 3);
    const auto weights = ImportAwq({qweight.view(), qzeros.view(), scales.view(), group});
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->scale_type, ScalarType::kBf16);
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t column = 0; column < k; ++column) {
        ASSERT_EQ(weights->codes[row * k + column], codes[column * n + row]);
      }
      for (int64_t g = 0; g < groups; ++g) {
        ASSERT_EQ(weights->zeros[row * groups + g], zeros[g * n + row]);
        ASSERT_EQ(weights->scales[row * groups + g], scales.view().U16(g * n + row));
      }
    }
  }
}

TEST(Awq, ReadsAWordWrittenByHand) {
  const OwnedTensor qweight("w", ElementType::kInt32, {1, 1}, std::vector<uint32_t>{0x76543210});
  const OwnedTensor scales("s", ElementType::kFp16, {1, 8}, std::vector<uint16_t>(8, 0x3c00));
  const auto weights = ImportAwq({qweight.view(), std::nullopt, scales.view(), -1});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(weights->codes, ElementsAre(0, 4, 1, 5, 2, 6, 3, 7));
  EXPECT_EQ(weights->zero, ImportedZero::kMiddle);
  EXPECT_THAT(DequantizeRow(*weights, 1), Each(-4));
}

TEST(Awq, NamesTheTensorThatDoesNotFit) {
  const OwnedTensor qweight = RandomWords("m.qweight", {64, 2}, 1);
  const OwnedTensor qzeros = RandomWords("m.qzeros", {2, 2}, 2);
  const OwnedTensor scales = RandomScalars("m.scales", {2, 16}, ScalarType::kFp16, 3);
  const AwqTensors good{qweight.view(), qzeros.view(), scales.view(), 32};
  ASSERT_TRUE(ImportAwq(good).ok());
  AwqTensors bad = good;
  bad.group_size = 64;
  EXPECT_THAT(std::string(ImportAwq(bad).status().message()),
              AllOf(HasSubstr("m.scales (fp16 [2, 16])"), HasSubstr("must be [1, 16]")));
  bad = good;
  bad.qzeros->shape = {4, 1};
  EXPECT_THAT(std::string(ImportAwq(bad).status().message()),
              AllOf(HasSubstr("m.qzeros"), HasSubstr("must be [2, 2]")));
  bad = good;
  bad.qweight.bytes = bad.qweight.bytes.first(511);
  EXPECT_THAT(std::string(ImportAwq(bad).status().message()),
              HasSubstr("m.qweight (int32 [64, 2]) ends at byte offset 511"));
  bad = good;
  bad.scales.type = ElementType::kFp32;
  EXPECT_THAT(std::string(ImportAwq(bad).status().message()), HasSubstr("fp16 or bf16"));
}

}  // namespace
}  // namespace qgemm
