#include "tests/fuzz/import_input.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/import/awq.h"
#include "kernels/import/canonical_weights.h"
#include "kernels/import/compressed_tensors.h"
#include "kernels/import/gguf.h"
#include "kernels/import/gptq.h"
#include "kernels/import/import_tensor.h"
#include "kernels/import/torchao.h"
#include "tests/fuzz/byte_source.h"

namespace qgemm {
namespace {

// Tensors whose bytes lie in heap blocks of exactly their size, so that AddressSanitizer sees any read
// beyond.
class TensorMaker {
 public:
  explicit TensorMaker(ByteSource* source) : source_(*source) {}

  ImportTensor Make(std::string name, ElementType type, std::vector<int64_t> shape) {
    ImportTensor tensor;
    tensor.name = std::move(name);
    tensor.type = source_.Rarely(64) ? static_cast<ElementType>(source_.Below(7)) : type;
    int64_t size = ElementBytes(type);
    for (int64_t dimension : shape) size = std::clamp<int64_t>(size * dimension, 0, 1 << 16);
    for (int64_t& dimension : shape) dimension = source_.Nearly(dimension);
    if (source_.Rarely(64)) shape.push_back(source_.Nearly(1));
    if (source_.Rarely(64) && !shape.empty()) shape.pop_back();
    tensor.shape = std::move(shape);
    blocks_.emplace_back(std::clamp<int64_t>(source_.Nearly(size), 0, 1 << 17));
    std::vector<uint8_t>& block = blocks_.back();
    // The input's bytes first, then a pattern: short inputs fill large tensors too.
    const uint8_t pattern = source_.Byte();
    for (size_t i = 0; i < block.size(); ++i) {
      block[i] = i < 64 ? source_.Byte() : static_cast<uint8_t>(pattern * (i % 7));
    }
    tensor.bytes = absl::MakeConstSpan(block);
    return tensor;
  }

  // int32 [k], the groups in reverse order, now and then an index that is off.
  ImportTensor MakeGroupIndex(std::string name, int64_t k, int64_t group_size) {
    ImportTensor tensor = Make(std::move(name), ElementType::kInt32, {k});
    std::vector<uint8_t>& block = blocks_.back();
    const int64_t offset = source_.Below(3);
    for (size_t i = 0; i + 4 <= block.size(); i += 4) {
      const int64_t column = static_cast<int64_t>(i) / 4;
      int64_t group = (k - 1 - column) / group_size + offset;
      if (column < 32 && source_.Rarely(128)) group = source_.Number();
      const auto stored = static_cast<int32_t>(group);
      __builtin_memcpy(block.data() + i, &stored, 4);
    }
    return tensor;
  }

 private:
  ByteSource& source_;
  std::vector<std::vector<uint8_t>> blocks_;  // a vector that moves keeps its block
};

absl::StatusOr<ImportedWeights> Gptq(ByteSource* source) {
  TensorMaker make(source);
  const int bits = source->Rarely(2) ? 8 : 4;
  const int64_t n = 1 + source->Below(20);
  const int64_t k = (1 + source->Below(8)) * 32;
  const int64_t group = source->Rarely(4) ? -1 : int64_t{16} << source->Below(3);
  const int64_t size = group < 0 ? k : group;
  const bool has_g_idx = source->Rarely(2);
  const int64_t groups = (k + size - 1) / size + (has_g_idx ? 2 : 0);
  GptqTensors tensors;
  tensors.qweight = make.Make("qweight", ElementType::kInt32, {k * bits / 32, n});
  tensors.qzeros = make.Make("qzeros", ElementType::kInt32, {groups, (n * bits + 31) / 32});
  tensors.scales = make.Make("scales", ElementType::kFp16, {groups, n});
  if (has_g_idx) tensors.g_idx = make.MakeGroupIndex("g_idx", k, size);
  tensors.bits = static_cast<int>(source->Nearly(bits));
  tensors.group_size = source->Nearly(group);
  tensors.zeros = static_cast<GptqZeros>(source->Below(3));
  return ImportGptq(tensors);
}

absl::StatusOr<ImportedWeights> Awq(ByteSource* source) {
  TensorMaker make(source);
  const int64_t n = (1 + source->Below(5)) * 8;
  const int64_t k = 1 + source->Below(200);
  const int64_t group = int64_t{16} << source->Below(3);
  const int64_t groups = (k + group - 1) / group;
  AwqTensors tensors;
  tensors.qweight = make.Make("qweight", ElementType::kInt32, {k, n / 8});
  if (!source->Rarely(4)) tensors.qzeros = make.Make("qzeros", ElementType::kInt32, {groups, n / 8});
  tensors.scales = make.Make("scales", ElementType::kFp16, {groups, n});
  tensors.group_size = source->Nearly(group);
  return ImportAwq(tensors);
}

absl::StatusOr<ImportedWeights> Compressed(ByteSource* source) {
  TensorMaker make(source);
  constexpr int kBits[] = {4, 5, 6, 8};
  const int bits = kBits[source->Below(4)];
  const int64_t n = 1 + source->Below(40);
  const int64_t k = 1 + source->Below(200);
  const int64_t group = source->Rarely(4) ? k : int64_t{16} << source->Below(3);
  const int64_t groups = (k + group - 1) / group;
  const bool padded = source->Rarely(2);
  const auto words = [&](int64_t codes) {
    return padded ? (codes + 32 / bits - 1) / (32 / bits) : (codes * bits + 31) / 32;
  };
  CompressedTensors tensors;
  tensors.weight_packed = make.Make("weight_packed", ElementType::kInt32, {n, words(k)});
  const int64_t shape[2] = {source->Nearly(n), source->Nearly(k)};
  tensors.weight_shape.name = "weight_shape";
  tensors.weight_shape.type = ElementType::kInt64;
  tensors.weight_shape.shape = {2};
  tensors.weight_shape.bytes = absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(shape), sizeof(shape));
  tensors.weight_scale = make.Make("weight_scale", ElementType::kBf16, {n, groups});
  if (source->Rarely(2)) {
    tensors.weight_zero_point = source->Rarely(4)
                                    ? make.Make("zero", ElementType::kInt8, {n, groups})
                                    : make.Make("zero", ElementType::kInt32, {words(n), groups});
  }
  if (source->Rarely(4)) tensors.weight_g_idx = make.MakeGroupIndex("g_idx", k, group);
  tensors.bits = static_cast<int>(source->Nearly(bits));
  tensors.group_size = source->Nearly(group);
  if (source->Rarely(4)) tensors.encoding = static_cast<PackedEncoding>(source->Below(3));
  return ImportCompressedTensors(tensors);
}

absl::StatusOr<ImportedWeights> Torchao(ByteSource* source) {
  TensorMaker make(source);
  const int64_t tiles = int64_t{2} << source->Below(3);
  const int64_t padded_n = (1 + source->Below(3)) * 8;
  const int64_t padded_k = (1 + source->Below(3)) * 128;
  const int64_t group = int64_t{32} << source->Below(3);
  TorchaoTensors tensors;
  tensors.qdata =
      make.Make("qdata", ElementType::kInt32, {padded_n / 8, padded_k / 16 / tiles, 32, tiles / 2});
  tensors.scale_and_zero = make.Make("scale_and_zero", ElementType::kBf16, {padded_k / group, padded_n, 2});
  tensors.n = source->Nearly(padded_n - source->Below(8));
  tensors.k = source->Nearly(padded_k - source->Below(100));
  tensors.group_size = source->Nearly(group);
  return ImportTorchao(tensors);
}

absl::StatusOr<ImportedWeights> Gguf(ByteSource* source) {
  TensorMaker make(source);
  struct Block {
    GgufType type;
    int64_t weights, bytes;
  };
  constexpr Block kBlocks[] = {{GgufType::kQ40, 32, 18},   {GgufType::kQ41, 32, 20},
                               {GgufType::kQ80, 32, 34},   {GgufType::kQ4K, 256, 144},
                               {GgufType::kQ5K, 256, 176}, {GgufType::kQ6K, 256, 210}};
  const Block block = kBlocks[source->Below(6)];
  const int64_t n = 1 + source->Below(6);
  const int64_t blocks = 1 + source->Below(3);
  const bool flat = source->Rarely(2);
  const std::vector<int64_t> shape =
      flat ? std::vector<int64_t>{n * blocks * block.bytes} : std::vector<int64_t>{n, blocks * block.bytes};
  GgufTensor tensor;
  tensor.data = make.Make("data", ElementType::kUint8, shape);
  tensor.type = source->Rarely(32) ? static_cast<GgufType>(source->Byte()) : block.type;
  tensor.n = source->Nearly(n);
  tensor.k = source->Nearly(blocks * block.weights);
  return ImportGguf(tensor);
}

void CheckContract(const ImportedWeights& weights) {
  const size_t groups = weights.n * weights.groups();
  const size_t supers = weights.n * weights.supers();
  const bool two_levels = weights.super_size != 0;
  const bool has_offset = weights.zero == ImportedZero::kFloat;
  QGEMM_CHECK(weights.codes.size() == static_cast<size_t>(weights.n * weights.k));
  QGEMM_CHECK(weights.scales.size() == (two_levels ? 0 : groups));
  QGEMM_CHECK(weights.zeros.size() == (weights.zero == ImportedZero::kInteger ? groups : 0));
  QGEMM_CHECK(weights.offsets.size() == (has_offset && !two_levels ? groups : 0));
  QGEMM_CHECK(weights.d.size() == supers);
  QGEMM_CHECK(weights.dmin.size() == (has_offset ? supers : 0));
  QGEMM_CHECK(weights.scale_codes.size() == (two_levels ? groups : 0));
  QGEMM_CHECK(weights.zero_codes.size() == (two_levels && has_offset ? groups : 0));
  const auto fits = [&](uint8_t code) { return code < 1 << weights.bits; };
  QGEMM_CHECK(std::all_of(weights.codes.begin(), weights.codes.end(), fits));
  QGEMM_CHECK(std::all_of(weights.zeros.begin(), weights.zeros.end(), fits));
  if (!weights.permutation.empty()) {
    std::vector<int32_t> sorted = weights.permutation;
    std::sort(sorted.begin(), sorted.end());
    for (int64_t i = 0; i < weights.k; ++i) QGEMM_CHECK(sorted[i] == i);
  }
  QGEMM_CHECK(DequantizeRow(weights, weights.n - 1).size() == static_cast<size_t>(weights.k));
}

absl::StatusOr<ImportedWeights> ImportSome(ByteSource* source) {
  switch (source->Below(5)) {
    case 0:
      return Gptq(source);
    case 1:
      return Awq(source);
    case 2:
      return Compressed(source);
    case 3:
      return Torchao(source);
    default:
      return Gguf(source);
  }
}

}  // namespace

bool ImportArbitraryLayer(absl::Span<const uint8_t> input) {
  ByteSource source(input);
  const absl::StatusOr<ImportedWeights> weights = ImportSome(&source);
  if (weights.ok()) {
    CheckContract(*weights);
    return true;
  }
  QGEMM_CHECK(weights.status().code() == absl::StatusCode::kInvalidArgument);
  QGEMM_CHECK(!weights.status().message().empty());
  return false;
}

}  // namespace qgemm
