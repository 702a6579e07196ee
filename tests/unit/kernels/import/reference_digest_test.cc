// The weights of each ecosystem's own dequantizer, as digests that tests/system/importer_reference.py wrote:
// the same tensors made by the same formulas must give the same weights here, without any of the packages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/ceil_div.h"
#include "base/digest.h"
#include "kernels/import/awq.h"
#include "kernels/import/compressed_tensors.h"
#include "kernels/import/gguf.h"
#include "kernels/import/gptq.h"
#include "kernels/import/torchao.h"
#include "tests/unit/kernels/import/import_test_data.h"

namespace qgemm {
namespace {

// A line of the file.
struct Case {
  std::string format;
  int bits = 0;
  int64_t n = 0, k = 0, group_size = 0;
  bool act_order = false;
  std::string digest;
};

// How the reference rounds its weights.
enum class Rounding { kNone, kFp16, kBf16 };

float Rounded(float value, Rounding rounding) {
  if (rounding == Rounding::kFp16) return static_cast<float>(static_cast<_Float16>(value));
  if (rounding == Rounding::kNone) return value;
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

// SHA-256 of the weights [n][k] in the model's order. `add_zero`: the reference's -0 are +0.
std::string DigestOf(const ImportedWeights& weights, Rounding rounding, bool add_zero) {
  std::vector<float> all(weights.n * weights.k);
  for (int64_t row = 0; row < weights.n; ++row) {
    const std::vector<float> values = DequantizeRow(weights, row);
    for (int64_t j = 0; j < weights.k; ++j) {
      const int64_t column = weights.permutation.empty() ? j : weights.permutation[j];
      const float value = Rounded(values[j], rounding);
      all[row * weights.k + column] = add_zero ? value + 0.0f : value;
    }
  }
  return Sha256Hex(absl::string_view(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(float)));
}

std::optional<OwnedTensor> GroupIndexOf(const Case& test) {
  if (!test.act_order) return std::nullopt;
  return OwnedTensor("g_idx", ElementType::kInt32, {test.k}, RandomGroupIndex(test.k, test.group_size, 4));
}

absl::StatusOr<ImportedWeights> ImportGptqCase(const Case& test) {
  const bool v1 = test.format == "gptq-v1";
  const int64_t groups = test.k / test.group_size;
  const OwnedTensor qweight = RandomWords("qweight", {test.k * test.bits / 32, test.n}, 1);
  OwnedTensor qzeros = RandomWords("qzeros", {groups, test.n * test.bits / 32}, 2);
  if (v1 && test.act_order) {
    for (uint8_t& byte : qzeros.bytes()) byte &= test.bits == 4 ? 0x77 : 0x7f;
  }
  const OwnedTensor scales = RandomScalars("scales", {groups, test.n}, ScalarType::kFp16, 3);
  const std::optional<OwnedTensor> g_idx = GroupIndexOf(test);
  GptqTensors tensors{qweight.view(), qzeros.view(), scales.view(), std::nullopt, test.bits, test.group_size};
  if (g_idx.has_value()) tensors.g_idx = g_idx->view();
  tensors.zeros = v1 ? GptqZeros::kV1 : GptqZeros::kV2;
  return ImportGptq(tensors);
}

absl::StatusOr<ImportedWeights> ImportAwqCase(const Case& test) {
  const int64_t groups = test.k / test.group_size;
  const OwnedTensor qweight = RandomWords("qweight", {test.k, test.n / 8}, 1);
  const OwnedTensor qzeros = RandomWords("qzeros", {groups, test.n / 8}, 2);
  const OwnedTensor scales = RandomScalars("scales", {groups, test.n}, ScalarType::kFp16, 3);
  return ImportAwq({qweight.view(), qzeros.view(), scales.view(), test.group_size});
}

absl::StatusOr<ImportedWeights> ImportCompressedCase(const Case& test) {
  const bool dense = absl::StrContains(test.format, "-dense");
  const auto words = [&](int64_t codes) {
    return dense ? CeilDiv(codes * test.bits, 32) : CeilDiv(codes, 32 / test.bits);
  };
  const int64_t groups = test.k / test.group_size;
  const OwnedTensor packed = RandomWords("packed", {test.n, words(test.k)}, 1);
  const OwnedTensor shape("shape", ElementType::kInt64, {2}, std::vector<int64_t>{test.n, test.k});
  const OwnedTensor scale = RandomScalars("scale", {test.n, groups}, ScalarType::kBf16, 3);
  const OwnedTensor zero = RandomWords("zero", {words(test.n), groups}, 2);
  const std::optional<OwnedTensor> g_idx = GroupIndexOf(test);
  CompressedTensors tensors{packed.view(), shape.view(), scale.view(), std::nullopt, std::nullopt};
  if (absl::EndsWith(test.format, "-asym")) tensors.weight_zero_point = zero.view();
  if (g_idx.has_value()) tensors.weight_g_idx = g_idx->view();
  tensors.bits = test.bits;
  tensors.group_size = test.group_size;
  return ImportCompressedTensors(tensors);
}

absl::StatusOr<ImportedWeights> ImportGgufCase(const Case& test) {
  struct Block {
    GgufType type;
    int64_t weights, bytes;
    std::vector<int64_t> halves;  // where fp16 fields stand
  };
  const Block blocks[] = {{GgufType::kQ40, 32, 18, {0}},      {GgufType::kQ41, 32, 20, {0, 2}},
                          {GgufType::kQ80, 32, 34, {0}},      {GgufType::kQ4K, 256, 144, {0, 2}},
                          {GgufType::kQ5K, 256, 176, {0, 2}}, {GgufType::kQ6K, 256, 210, {208}}};
  const auto* block = std::find_if(std::begin(blocks), std::end(blocks), [&](const Block& candidate) {
    return GgufTypeName(candidate.type) == absl::StripPrefix(test.format, "gguf-");
  });
  if (block == std::end(blocks)) return absl::NotFoundError(test.format);
  const int64_t count = test.n * test.k / block->weights;
  std::vector<uint8_t> bytes(count * block->bytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(StreamWord(1, i));
  for (int64_t i = 0; i < count; ++i) {
    for (size_t field = 0; field < block->halves.size(); ++field) {
      const uint16_t half = RandomScalar(ScalarType::kFp16, 3 + field, i);
      std::memcpy(bytes.data() + i * block->bytes + block->halves[field], &half, sizeof(half));
    }
  }
  const OwnedTensor data("data", ElementType::kUint8, {static_cast<int64_t>(bytes.size())}, bytes);
  return ImportGguf({data.view(), block->type, test.n, test.k});
}

absl::StatusOr<ImportedWeights> ImportTorchaoCase(const Case& test) {
  int64_t tiles = 0;
  if (!absl::SimpleAtoi(absl::StripPrefix(test.format, "torchao-"), &tiles)) {
    return absl::NotFoundError(test.format);
  }
  const int64_t n = CeilDiv(test.n, 8) * 8;
  const int64_t k = CeilDiv(test.k, 1024) * 1024;
  const OwnedTensor qdata("qdata", ElementType::kInt32, {n / 8, k / 16 / tiles, 32, tiles / 2},
                          PackInt4Tiles(RandomCodes(n * k, 4, 1), n, k, tiles));
  const OwnedTensor numbers =
      RandomScalars("scale_and_zero", {k / test.group_size, n, 2}, ScalarType::kBf16, 3);
  return ImportTorchao({qdata.view(), numbers.view(), test.n, test.k, test.group_size});
}

TEST(ReferenceDigest, IsThatOfTheImportedWeightsInEveryCase) {
  std::ifstream file(QGEMM_REFERENCE_DIGESTS);
  ASSERT_TRUE(file.is_open()) << QGEMM_REFERENCE_DIGESTS;
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    SCOPED_TRACE(line);
    Case test;
    std::istringstream fields(line);
    fields >> test.format >> test.bits >> test.n >> test.k >> test.group_size >> test.act_order >>
        test.digest;
    ASSERT_TRUE(!fields.fail());
    absl::StatusOr<ImportedWeights> weights = absl::NotFoundError("no such format");
    Rounding rounding = Rounding::kFp16;
    if (absl::StartsWith(test.format, "gptq")) {
      weights = ImportGptqCase(test);
    } else if (test.format == "awq") {
      weights = ImportAwqCase(test);
    } else if (absl::StartsWith(test.format, "compressed-tensors")) {
      weights = ImportCompressedCase(test);
      rounding = Rounding::kBf16;
    } else if (absl::StartsWith(test.format, "torchao")) {
      weights = ImportTorchaoCase(test);
      rounding = Rounding::kNone;
    } else if (absl::StartsWith(test.format, "gguf")) {
      weights = ImportGgufCase(test);
      rounding = Rounding::kNone;
    }
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(DigestOf(*weights, rounding, test.format == "gptq-v1"), test.digest);
  }
  EXPECT_GE(cases, 173);
}

}  // namespace
}  // namespace qgemm
