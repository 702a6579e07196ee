#include "kernels/import/gptq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "tests/unit/kernels/import/import_test_data.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Packs [rows][columns] codes along rows into words, lowest bits first.
std::vector<uint32_t> PackAlongRows(const std::vector<uint8_t>& codes, int64_t rows, int64_t columns,
                                    int bits) {
  const int64_t per_word = 32 / bits;
  std::vector<uint32_t> words(rows / per_word * columns);
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t row = i / columns;
    words[row / per_word * columns + i % columns] |= uint32_t{codes[i]} << (row % per_word * bits);
  }
  return words;
}

std::vector<uint32_t> PackAlongColumns(const std::vector<uint8_t>& codes, int64_t rows, int64_t columns,
                                       int bits) {
  const int64_t per_word = 32 / bits;
  const int64_t row_words = (columns + per_word - 1) / per_word;
  std::vector<uint32_t> words(rows * row_words);
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t column = i % columns;
    words[i / columns * row_words + column / per_word] |= uint32_t{codes[i]} << (column % per_word * bits);
  }
  return words;
}

// A layer whose file is packed from known codes [k][n] and zero codes [groups][n].
struct Layer {
  Layer(int64_t n, int64_t k, int64_t group_size, int bits, std::vector<uint8_t> zero_codes = {})
      : n(n),
        k(k),
        group_size(group_size),
        groups((k + group_size - 1) / group_size),
        bits(bits),
        codes(RandomCodes(k * n, bits, 1)),
        zeros(zero_codes.empty() ? RandomCodes(groups * n, bits, 2) : std::move(zero_codes)),
        qweight("layer.qweight", ElementType::kInt32, {k * bits / 32, n}, PackAlongRows(codes, k, n, bits)),
        qzeros("layer.qzeros", ElementType::kInt32, {groups, (n * bits + 31) / 32},
               PackAlongColumns(zeros, groups, n, bits)),
        scales(RandomScalars("layer.scales", {groups, n}, ScalarType::kFp16, 3)) {}

  void SetGroupIndex(const std::vector<int32_t>& values) {
    g_idx.emplace("layer.g_idx", ElementType::kInt32, std::vector<int64_t>{k}, values);
  }

  GptqTensors Tensors(GptqZeros convention) const {
    GptqTensors tensors{qweight.view(), qzeros.view(), scales.view(), std::nullopt,
                        bits,           group_size,    convention};
    if (g_idx.has_value()) tensors.g_idx = g_idx->view();
    return tensors;
  }

  int64_t n, k, group_size, groups;
  int bits;
  std::vector<uint8_t> codes, zeros;
  OwnedTensor qweight, qzeros, scales;
  std::optional<OwnedTensor> g_idx;
};

std::string Message(const absl::StatusOr<ImportedWeights>& weights) {
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(weights.status().message());
}

TEST(Gptq, ReadsCodesZerosAndScalesOfEveryShape) {
  for (int bits : {4, 8}) {
    for (auto [n, k, group] : std::vector<std::array<int64_t, 3>>{
             {8, 32, 32}, {40, 192, 64}, {33, 64, 32}, {64, 7392, 32}, {3, 80, 32}, {70, 256, 128}}) {
      SCOPED_TRACE(absl::StrCat(bits, " bits ", n, "x", k, " g", group));
      const Layer layer(n, k, group, bits);
      for (GptqZeros convention : {GptqZeros::kV1, GptqZeros::kV2}) {
        const auto weights = ImportGptq(layer.Tensors(convention));
        ASSERT_TRUE(weights.ok()) << weights.status();
        EXPECT_EQ(weights->n, n);
        EXPECT_EQ(weights->k, k);
        EXPECT_EQ(weights->zero, ImportedZero::kInteger);
        EXPECT_TRUE(weights->permutation.empty());
        const int add = convention == GptqZeros::kV1 ? 1 : 0;
        for (int64_t row = 0; row < n; ++row) {
          for (int64_t column = 0; column < k; ++column) {
            ASSERT_EQ(weights->codes[row * k + column], layer.codes[column * n + row])
                << row << " " << column;
          }
          for (int64_t g = 0; g < layer.groups; ++g) {
            ASSERT_EQ(weights->zeros[row * layer.groups + g], (layer.zeros[g * n + row] + add) % (1 << bits));
            ASSERT_EQ(weights->scales[row * layer.groups + g], layer.scales.view().U16(g * n + row));
          }
        }
      }
    }
  }
}

TEST(Gptq, ReadsAWordWrittenByHand) {
  // Inputs 0 to 7 of the one output have codes 1, 2, ... 8; z - 1 = 6 of output 0.
  const OwnedTensor qweight("w", ElementType::kInt32, {1, 1}, std::vector<uint32_t>{0x87654321});
  const OwnedTensor qzeros("z", ElementType::kInt32, {1, 1}, std::vector<uint32_t>{0x6});
  const OwnedTensor scales("s", ElementType::kFp16, {1, 1}, std::vector<uint16_t>{0x3800});  // 0.5
  const auto weights =
      ImportGptq({qweight.view(), qzeros.view(), scales.view(), std::nullopt, 4, -1, GptqZeros::kV1});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(weights->codes, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(weights->zeros, ElementsAre(7));
  EXPECT_THAT(DequantizeRow(*weights, 0), ElementsAre(-3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5));
}

TEST(Gptq, WrapsAStoredFifteenToZeroWithoutCarry) {
  // Stored in v1: 15, 0, 15, 7, ... : every sum stays in its own nibble.
  const std::vector<uint8_t> stored = {15, 0, 15, 7, 15, 15, 14, 1};
  const Layer layer(8, 32, 32, 4, stored);
  const auto weights = ImportGptq(layer.Tensors(GptqZeros::kV1));
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(weights->zeros, ElementsAre(0, 1, 0, 8, 0, 0, 15, 2));
}

TEST(Gptq, DetectsTheConventionOfSymmetricZeros) {
  for (int bits : {4, 8}) {
    const uint8_t middle = 1 << (bits - 1);
    for (auto [stored, expected] :
         {std::pair<int, GptqZeros>{middle - 1, GptqZeros::kV1}, {middle, GptqZeros::kV2}}) {
      const Layer layer(16, 64, 32, bits, std::vector<uint8_t>(32, stored));
      const auto shown = DetectGptqZeros(layer.qzeros.view(), bits);
      ASSERT_TRUE(shown.ok()) << shown.status();
      EXPECT_EQ(*shown, expected);
      const auto weights = ImportGptq(layer.Tensors(GptqZeros::kDetect));
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_EQ(weights->zero, ImportedZero::kMiddle);
      EXPECT_TRUE(weights->zeros.empty());
    }
  }
}

TEST(Gptq, AsksForTheConventionOfOtherZeros) {
  const Layer layer(16, 64, 32, 4);
  EXPECT_THAT(Message(ImportGptq(layer.Tensors(GptqZeros::kDetect))),
              AllOf(HasSubstr("layer.qzeros"), HasSubstr("v1 or v2")));
}

TEST(Gptq, SortsColumnsOfActOrderByGroup) {
  const int64_t n = 24;
  const int64_t k = 256;
  const int64_t group = 32;
  Layer layer(n, k, group, 4);
  const std::vector<int32_t> g_idx = RandomGroupIndex(k, group, 9);
  layer.SetGroupIndex(g_idx);
  const auto weights = ImportGptq(layer.Tensors(GptqZeros::kV2));
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_EQ(weights->permutation.size(), k);
  EXPECT_EQ(std::set<int32_t>(weights->permutation.begin(), weights->permutation.end()).size(), k);
  for (int64_t j = 0; j < k; ++j) {
    const int64_t source = weights->permutation[j];
    ASSERT_EQ(g_idx[source], j / group);
    for (int64_t row = 0; row < n; ++row) {
      ASSERT_EQ(weights->codes[row * k + j], layer.codes[source * n + row]);
      ASSERT_EQ(weights->scales[row * layer.groups + j / group],
                layer.scales.view().U16(g_idx[source] * n + row));
    }
  }
}

TEST(Gptq, KeepsTheOrderWhereTheGroupIndexSaysNothingNew) {
  Layer layer(8, 64, 32, 4);
  std::vector<int32_t> g_idx(64);
  for (int64_t i = 0; i < 64; ++i) g_idx[i] = static_cast<int32_t>(i / 32);
  layer.SetGroupIndex(g_idx);
  const auto weights = ImportGptq(layer.Tensors(GptqZeros::kV2));
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(weights->permutation.empty());
}

TEST(Gptq, TakesAShardThatUsesSomeOfTheGroups) {
  // The file's scales cover 8 groups; these 64 columns use groups 6 and 3 of 32 columns each.
  Layer layer(8, 64, 32, 4);
  layer.groups = 8;
  layer.zeros = RandomCodes(8 * 8, 4, 5);
  layer.qzeros =
      OwnedTensor("layer.qzeros", ElementType::kInt32, {8, 1}, PackAlongColumns(layer.zeros, 8, 8, 4));
  layer.scales = RandomScalars("layer.scales", {8, 8}, ScalarType::kFp16, 6);
  std::vector<int32_t> g_idx(64, 6);
  for (int64_t i = 0; i < 32; ++i) g_idx[2 * i] = 3;
  layer.SetGroupIndex(g_idx);
  const auto weights = ImportGptq(layer.Tensors(GptqZeros::kV2));
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->permutation[0], 0);
  EXPECT_EQ(weights->permutation[1], 2);
  EXPECT_EQ(weights->permutation[32], 1);
  EXPECT_EQ(weights->zeros[0], layer.zeros[3 * 8]);
  EXPECT_EQ(weights->zeros[1], layer.zeros[6 * 8]);
}

TEST(Gptq, RefusesAShardWhoseGroupsAreUneven) {
  Layer layer(8, 64, 32, 4);
  std::vector<int32_t> g_idx(64, 0);
  for (int64_t i = 0; i < 31; ++i) g_idx[i] = 1;
  layer.SetGroupIndex(g_idx);
  EXPECT_THAT(
      Message(ImportGptq(layer.Tensors(GptqZeros::kV2))),
      AllOf(HasSubstr("layer.g_idx"), HasSubstr("33 columns into group 0"), HasSubstr("whole layer")));
}

TEST(Gptq, RefusesAGroupIndexOutOfRange) {
  for (int32_t bad : {-1, 2, INT32_MIN, INT32_MAX}) {
    Layer layer(8, 64, 32, 4);
    std::vector<int32_t> g_idx(64, 0);
    g_idx[7] = bad;
    layer.SetGroupIndex(g_idx);
    EXPECT_THAT(
        Message(ImportGptq(layer.Tensors(GptqZeros::kV2))),
        AllOf(HasSubstr("layer.g_idx"), HasSubstr("element 7 at byte offset 28"), HasSubstr("0 to 1")));
  }
}

TEST(Gptq, NamesTheTensorThatDoesNotFit) {
  const Layer good(16, 64, 32, 4);
  {
    Layer layer = good;
    layer.qweight.bytes().resize(100);
    EXPECT_THAT(
        Message(ImportGptq(layer.Tensors(GptqZeros::kV2))),
        AllOf(HasSubstr("layer.qweight (int32 [8, 16]) ends at byte offset 100"), HasSubstr("512 bytes")));
  }
  {
    Layer layer = good;
    layer.scales.bytes().push_back(0);
    EXPECT_THAT(Message(ImportGptq(layer.Tensors(GptqZeros::kV2))),
                AllOf(HasSubstr("layer.scales"), HasSubstr("1 bytes more from byte offset 64")));
  }
  {
    Layer layer = good;
    layer.qzeros.shape() = {1, 4};
    EXPECT_THAT(Message(ImportGptq(layer.Tensors(GptqZeros::kV2))),
                AllOf(HasSubstr("layer.qzeros (int32 [1, 4])"), HasSubstr("must be [2, 2]")));
  }
  {
    GptqTensors tensors = good.Tensors(GptqZeros::kV2);
    tensors.qweight.type = ElementType::kFp32;
    EXPECT_THAT(Message(ImportGptq(tensors)), AllOf(HasSubstr("layer.qweight"), HasSubstr("must be int32")));
  }
  {
    GptqTensors tensors = good.Tensors(GptqZeros::kV2);
    tensors.qweight.shape = {0, 16};
    EXPECT_THAT(Message(ImportGptq(tensors)), HasSubstr("dimension of 0"));
    tensors.qweight.shape = {INT64_MAX, INT64_MAX};
    EXPECT_THAT(Message(ImportGptq(tensors)), HasSubstr("2^63"));
    tensors.qweight.shape = {128};
    EXPECT_THAT(Message(ImportGptq(tensors)), HasSubstr("1 dimensions: it must have 2"));
  }
  {
    GptqTensors tensors = good.Tensors(GptqZeros::kV2);
    tensors.bits = 3;
    EXPECT_THAT(Message(ImportGptq(tensors)), HasSubstr("bits 3 is not supported: 4, 8"));
    tensors.bits = 4;
    tensors.group_size = -2;
    EXPECT_THAT(Message(ImportGptq(tensors)), HasSubstr("group_size -2"));
  }
}

}  // namespace
}  // namespace qgemm
