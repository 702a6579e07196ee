#include "kernels/import/torchao.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kernels/import/import_test_data.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The code (row, column) of a padded weight goes where the B fragment of an m16n8k16 MMA wants it: within 16
// columns, lane 4 (row % 8) + (column % 8) / 2 holds it as value 2 (column / 8) + column % 2 of four. A word
// holds two such fragments of four; its eight values v stand at nibbles 0 2 4 6 | 1 3 5 7 -> v0 v4 v1 v5 v2
// v6 v3 v7 by position.
std::vector<uint32_t> PackTiles(const std::vector<uint8_t>& codes, int64_t n, int64_t k,
                                int64_t inner_k_tiles) {
  std::vector<uint32_t> words(n * k / 8);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const int64_t k_tile = column / 16;
      const int64_t lane = row % 8 * 4 + column % 8 / 2;
      const int64_t value = k_tile % 2 * 4 + column % 16 / 8 * 2 + column % 2;
      const int64_t nibble = value / 2 + value % 2 * 4;
      const int64_t outer = k_tile / inner_k_tiles;
      const int64_t word = ((row / 8 * (k / 16 / inner_k_tiles) + outer) * 32 + lane) * (inner_k_tiles / 2) +
                           k_tile % inner_k_tiles / 2;
      words[word] |= uint32_t{codes[row * k + column]} << (4 * nibble);
    }
  }
  return words;
}

TEST(Torchao, ReadsCodesScalesAndOffsetsWithoutThePadding) {
  for (int64_t tiles : {2, 4, 8}) {
    for (auto [n, k, padded_n, padded_k, group] :
         std::vector<std::array<int64_t, 5>>{{8, 256, 8, 256, 32},
                                             {13, 1000, 16, 1024, 128},
                                             {64, 512, 64, 512, 256},
                                             {257, 192, 264, 1024, 64}}) {
      SCOPED_TRACE(absl::StrCat("tiles ", tiles, " ", n, "x", k));
      const std::vector<uint8_t> codes = RandomCodes(padded_n * padded_k, 4, 1);
      const OwnedTensor qdata("q", ElementType::kInt32, {padded_n / 8, padded_k / 16 / tiles, 32, tiles / 2},
                              PackTiles(codes, padded_n, padded_k, tiles));
      const OwnedTensor scales = RandomScalars("sz", {padded_k / group, padded_n, 2}, ScalarType::kBf16, 3);
      const auto weights = ImportTorchao({qdata.view(), scales.view(), n, k, group});
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_EQ(weights->origin, 8);
      const int64_t groups = weights->groups();
      for (int64_t row = 0; row < n; ++row) {
        for (int64_t column = 0; column < k; ++column) {
          ASSERT_EQ(weights->codes[row * k + column], codes[row * padded_k + column]) << row << " " << column;
        }
        for (int64_t g = 0; g < groups; ++g) {
          ASSERT_EQ(weights->scales[row * groups + g], scales.view().U16((g * padded_n + row) * 2));
          ASSERT_EQ(weights->offsets[row * groups + g], scales.view().U16((g * padded_n + row) * 2 + 1));
        }
      }
    }
  }
}

TEST(Torchao, NamesTheTensorThatDoesNotFit) {
  const OwnedTensor qdata = RandomWords("l.qdata", {2, 4, 32, 4}, 1);
  const OwnedTensor scales = RandomScalars("l.scale_and_zero", {4, 16, 2}, ScalarType::kBf16, 2);
  const TorchaoTensors good{qdata.view(), scales.view(), 16, 512, 128};
  ASSERT_TRUE(ImportTorchao(good).ok());
  const auto message = [](const TorchaoTensors& tensors) {
    return std::string(ImportTorchao(tensors).status().message());
  };
  TorchaoTensors bad = good;
  bad.n = 17;
  EXPECT_THAT(message(bad), AllOf(HasSubstr("l.qdata"), HasSubstr("holds 16 x 512"), HasSubstr("17 x 512")));
  bad = good;
  bad.group_size = 96;
  EXPECT_THAT(message(bad), HasSubstr("group_size 96"));
  bad = good;
  bad.qdata.shape = {4, 4, 16, 4};
  EXPECT_THAT(message(bad), HasSubstr("inner_k_tiles 2, 4, 8"));
  bad = good;
  bad.scale_and_zero.shape = {16, 4, 2};
  EXPECT_THAT(message(bad), AllOf(HasSubstr("l.scale_and_zero"), HasSubstr("[4, 16, 2]")));
  bad = good;
  bad.scale_and_zero.type = ElementType::kFp16;
  EXPECT_THAT(message(bad), HasSubstr("must be bf16"));
}

}  // namespace
}  // namespace qgemm
