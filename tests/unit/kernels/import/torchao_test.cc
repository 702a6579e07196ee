#include "kernels/import/torchao.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kernels/import/import_test_data.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
                              PackInt4Tiles(codes, padded_n, padded_k, tiles));
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
