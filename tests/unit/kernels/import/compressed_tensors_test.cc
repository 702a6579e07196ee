#include "kernels/import/compressed_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kernels/import/import_test_data.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One run of codes as a bit string, cut into words: the dense encoding; padded, each word ends after the last
// whole code.
std::vector<uint32_t> PackRun(const std::vector<uint8_t>& codes, int bits, PackedEncoding encoding) {
  std::vector<uint32_t> words;
  int at = 32;
  for (uint8_t code : codes) {
    if (encoding == PackedEncoding::kPadded && at + bits > 32) at = 32;
    for (int bit = 0; bit < bits; ++bit) {
      if (at == 32) {
        words.push_back(0);
        at = 0;
      }
      words.back() |= (uint32_t{code} >> bit & 1) << at++;
    }
  }
  return words;
}

struct Layer {
  Layer(int64_t n, int64_t k, int64_t group_size, int bits, PackedEncoding encoding, bool asymmetric)
      : n(n), k(k), groups((k + group_size - 1) / group_size), codes(RandomCodes(n * k, bits, 1)) {
    std::vector<uint32_t> words;
    for (int64_t row = 0; row < n; ++row) {
      const auto begin = codes.begin() + row * k;
      const std::vector<uint32_t> run = PackRun({begin, begin + k}, bits, encoding);
      words.insert(words.end(), run.begin(), run.end());
    }
    const int64_t row_words = static_cast<int64_t>(words.size()) / n;
    packed.emplace("l.weight_packed", ElementType::kInt32, std::vector<int64_t>{n, row_words}, words);
    shape.emplace("l.weight_shape", ElementType::kInt64, std::vector<int64_t>{2}, std::vector<int64_t>{n, k});
    scale = RandomScalars("l.weight_scale", {n, groups}, ScalarType::kBf16, 3);
    tensors = {packed->view(), shape->view(), scale->view(), std::nullopt, std::nullopt, bits, group_size};
    if (!asymmetric) return;
    zeros = RandomCodes(n * groups, bits, 2);
    std::vector<std::vector<uint32_t>> runs;
    for (int64_t group = 0; group < groups; ++group) {
      std::vector<uint8_t> run(n);
      for (int64_t row = 0; row < n; ++row) run[row] = zeros[row * groups + group];
      runs.push_back(PackRun(run, bits, encoding));
    }
    std::vector<uint32_t> zero_words;
    for (size_t word = 0; word < runs[0].size(); ++word) {
      for (const auto& run : runs) zero_words.push_back(run[word]);
    }
    zero_point.emplace("l.weight_zero_point", ElementType::kInt32,
                       std::vector<int64_t>{static_cast<int64_t>(runs[0].size()), groups}, zero_words);
    tensors.weight_zero_point = zero_point->view();
  }

  int64_t n, k, groups;
  std::vector<uint8_t> codes, zeros;
  std::optional<OwnedTensor> packed, shape, scale, zero_point;
  CompressedTensors tensors;
};

std::string Message(const CompressedTensors& tensors) {
  const auto weights = ImportCompressedTensors(tensors);
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(weights.status().message());
}

TEST(CompressedTensors, ReadsBothEncodingsOfEveryWidthAndShape) {
  for (PackedEncoding encoding : {PackedEncoding::kPadded, PackedEncoding::kDense}) {
    for (int bits : {4, 5, 6, 8}) {
      for (auto [n, k, group] : std::vector<std::array<int64_t, 3>>{
               {8, 32, 32}, {33, 192, 64}, {7, 100, 32}, {64, 160, 16}, {31, 64, 64}, {1, 37, 128}}) {
        for (bool asymmetric : {false, true}) {
          SCOPED_TRACE(
              absl::StrCat(bits, " bits ", n, "x", k, " g", group, " encoding ", static_cast<int>(encoding)));
          const Layer layer(n, k, group, bits, encoding, asymmetric);
          const auto weights = ImportCompressedTensors(layer.tensors);
          ASSERT_TRUE(weights.ok()) << weights.status();
          EXPECT_EQ(weights->codes, layer.codes);
          EXPECT_EQ(weights->zeros, layer.zeros);
          EXPECT_EQ(weights->zero, asymmetric ? ImportedZero::kInteger : ImportedZero::kMiddle);
          for (int64_t i = 0; i < n * layer.groups; ++i) {
            ASSERT_EQ(weights->scales[i], layer.scale->view().U16(i));
          }
        }
      }
    }
  }
}

TEST(CompressedTensors, ReadsWordsWrittenByHand) {
  // 7 codes of 5 bits, 1 to 7: dense, the last one spans the two words.
  const OwnedTensor shape("shape", ElementType::kInt64, {2}, std::vector<int64_t>{1, 7});
  const OwnedTensor scale("scale", ElementType::kFp16, {1, 1}, std::vector<uint16_t>{0x3c00});
  const uint32_t six = 1 | 2 << 5 | 3 << 10 | 4 << 15 | 5 << 20 | 6 << 25;
  const OwnedTensor dense("packed", ElementType::kInt32, {1, 2}, std::vector<uint32_t>{six | 3u << 30, 1});
  const OwnedTensor padded("packed", ElementType::kInt32, {1, 2}, std::vector<uint32_t>{six, 7});
  CompressedTensors tensors{dense.view(), shape.view(),          scale.view(), std::nullopt, std::nullopt, 5,
                            -1,           PackedEncoding::kDense};
  EXPECT_THAT(ImportCompressedTensors(tensors)->codes, ElementsAre(1, 2, 3, 4, 5, 6, 7));
  tensors.weight_packed = padded.view();
  tensors.encoding = PackedEncoding::kPadded;
  EXPECT_THAT(ImportCompressedTensors(tensors)->codes, ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST(CompressedTensors, AsksForTheEncodingWhereTheSizeDoesNotShowIt) {
  const Layer layer(4, 12, 12, 5, PackedEncoding::kDense, false);  // 60 bits: two words in both encodings
  EXPECT_THAT(Message(layer.tensors), AllOf(HasSubstr("l.weight_packed"), HasSubstr("padded or dense")));
  CompressedTensors tensors = layer.tensors;
  tensors.encoding = PackedEncoding::kDense;
  EXPECT_EQ(ImportCompressedTensors(tensors)->codes, layer.codes);
}

TEST(CompressedTensors, TakesScalesPerRowAndPerTensor) {
  const Layer layer(8, 64, 64, 8, PackedEncoding::kDense, false);
  CompressedTensors tensors = layer.tensors;
  tensors.group_size = -1;
  tensors.weight_scale.shape = {8};
  auto weights = ImportCompressedTensors(tensors);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->scales[5], layer.scale->view().U16(5));
  tensors.weight_scale.shape = {1};
  tensors.weight_scale.bytes = tensors.weight_scale.bytes.first(2);
  weights = ImportCompressedTensors(tensors);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->scales, std::vector<uint16_t>(8, layer.scale->view().U16(0)));
  const OwnedTensor zero("l.weight_zero_point", ElementType::kInt8, {1}, std::vector<int8_t>{-3});
  tensors.weight_zero_point = zero.view();
  weights = ImportCompressedTensors(tensors);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->zeros, std::vector<uint8_t>(8, 125));
}

TEST(CompressedTensors, LetsTheZeroPointsShowTheirEncodingWhereTheWeightCannot) {
  for (PackedEncoding encoding : {PackedEncoding::kPadded, PackedEncoding::kDense}) {
    const Layer layer(64, 5, 5, 6, encoding, true);  // one word a row in both encodings
    const auto weights = ImportCompressedTensors(layer.tensors);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->codes, layer.codes);
    EXPECT_EQ(weights->zeros, layer.zeros);
  }
}

TEST(CompressedTensors, TakesSignedZeroPointsInBytes) {
  const Layer layer(4, 32, 32, 4, PackedEncoding::kDense, false);
  const OwnedTensor zero("l.weight_zero_point", ElementType::kInt8, {4, 1},
                         std::vector<int8_t>{-8, -1, 0, 7});
  CompressedTensors tensors = layer.tensors;
  tensors.weight_zero_point = zero.view();
  const auto weights = ImportCompressedTensors(tensors);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(weights->zeros, ElementsAre(0, 7, 8, 15));
  const OwnedTensor bad("l.weight_zero_point", ElementType::kInt8, {4, 1}, std::vector<int8_t>{-8, -9, 0, 7});
  tensors.weight_zero_point = bad.view();
  EXPECT_THAT(Message(tensors), AllOf(HasSubstr("element 1 at byte offset 1 is -9"), HasSubstr("-8 to 7")));
}

TEST(CompressedTensors, SortsColumnsByGroupIndexAndIgnoresAnUnsetOne) {
  const Layer layer(8, 128, 32, 4, PackedEncoding::kDense, true);
  const std::vector<int32_t> g_idx = RandomGroupIndex(128, 32, 4);
  const OwnedTensor index("l.weight_g_idx", ElementType::kInt32, {128}, g_idx);
  CompressedTensors tensors = layer.tensors;
  tensors.weight_g_idx = index.view();
  auto weights = ImportCompressedTensors(tensors);
  ASSERT_TRUE(weights.ok()) << weights.status();
  for (int64_t j = 0; j < 128; ++j) {
    const int64_t source = weights->permutation[j];
    ASSERT_EQ(g_idx[source], j / 32);
    ASSERT_EQ(weights->codes[3 * 128 + j], layer.codes[3 * 128 + source]);
  }
  const OwnedTensor unset("l.weight_g_idx", ElementType::kInt32, {128}, std::vector<int32_t>(128, -1));
  tensors.weight_g_idx = unset.view();
  weights = ImportCompressedTensors(tensors);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(weights->permutation.empty());
  EXPECT_EQ(weights->codes, layer.codes);
}

TEST(CompressedTensors, NamesTheTensorThatDoesNotFit) {
  const Layer layer(8, 128, 32, 5, PackedEncoding::kDense, true);
  CompressedTensors bad = layer.tensors;
  const OwnedTensor huge("l.weight_shape", ElementType::kInt64, {2},
                         std::vector<int64_t>{8, int64_t{1} << 40});
  bad.weight_shape = huge.view();
  EXPECT_THAT(Message(bad), AllOf(HasSubstr("l.weight_shape"), HasSubstr("1099511627776 columns")));
  const OwnedTensor rows("l.weight_shape", ElementType::kInt64, {2}, std::vector<int64_t>{9, 128});
  bad.weight_shape = rows.view();
  EXPECT_THAT(Message(bad),
              AllOf(HasSubstr("l.weight_shape"), HasSubstr("is 9"), HasSubstr("l.weight_packed")));
  const OwnedTensor columns("l.weight_shape", ElementType::kInt64, {2}, std::vector<int64_t>{8, 256});
  bad.weight_shape = columns.view();
  EXPECT_THAT(Message(bad),
              AllOf(HasSubstr("l.weight_packed"), HasSubstr("43 words padded, 40 words dense")));
  bad = layer.tensors;
  bad.group_size = 64;
  EXPECT_THAT(Message(bad), AllOf(HasSubstr("l.weight_scale"), HasSubstr("must be [8, 2]")));
  bad = layer.tensors;
  bad.weight_zero_point->shape = {1, 8};
  EXPECT_THAT(Message(bad), HasSubstr("l.weight_zero_point"));
  bad = layer.tensors;
  bad.bits = 7;
  EXPECT_THAT(Message(bad), HasSubstr("bits 7 is not supported: 4, 5, 6, 8"));
}

}  // namespace
}  // namespace qgemm
