#include "kernels/import/gptq.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ceil_div.h"
#include "base/status_macros.h"
#include "kernels/import/bit_unpack.h"
#include "kernels/import/column_order.h"

namespace qgemm {
namespace {

// Rows of the result per pass over qweight: their cache lines stay in L1 while the words of K go by.
constexpr int64_t kRowsPerPass = 32;

uint8_t CodeAt(const ImportTensor& packed, int64_t row, int64_t index, int bits) {
  const int per_word = 32 / bits;
  const uint32_t word = packed.U32(row * packed.shape[1] + index / per_word);
  return static_cast<uint8_t>(word >> (index % per_word * bits) & ((1u << bits) - 1));
}

// qweight [k * bits / 32][n] -> [n][k].
std::vector<uint8_t> UnpackCodes(const ImportTensor& qweight, int64_t n, int64_t k, int bits) {
  std::vector<uint8_t> codes(n * k);
  const int64_t words = qweight.shape[0];
  const int64_t per_word = 32 / bits;
  for (int64_t first = 0; first < n; first += kRowsPerPass) {
    const int64_t end = std::min(first + kRowsPerPass, n);
    for (int64_t word = 0; word < words; ++word) {
      for (int64_t row = first; row < end; ++row) {
        const uint32_t packed = qweight.U32(word * n + row);
        uint8_t* target = codes.data() + row * k + word * per_word;
        if (bits == 4) {
          const uint64_t bytes = NibblesToBytes(packed);
          std::memcpy(target, &bytes, sizeof(bytes));
        } else {
          std::memcpy(target, &packed, sizeof(packed));
        }
      }
    }
  }
  return codes;
}

}  // namespace

absl::StatusOr<GptqZeros> DetectGptqZeros(const ImportTensor& qzeros, int bits) {
  QGEMM_RETURN_IF_ERROR(CheckBits(qzeros.name, bits, {4, 8}));
  QGEMM_RETURN_IF_ERROR(CheckTensor(qzeros, 2, {ElementType::kInt32}));
  const uint32_t ones = bits == 4 ? 0x11111111u : 0x01010101u;
  const uint32_t middle = ones << (bits - 1);
  bool v1 = true;
  bool v2 = true;
  const int64_t words = qzeros.shape[0] * qzeros.shape[1];
  for (int64_t i = 0; i < words && (v1 || v2); ++i) {
    const uint32_t word = qzeros.U32(i);
    v1 = v1 && word == middle - ones;
    v2 = v2 && word == middle;
  }
  return v1 ? GptqZeros::kV1 : v2 ? GptqZeros::kV2 : GptqZeros::kDetect;
}

absl::StatusOr<ImportedWeights> ImportGptq(const GptqTensors& tensors) {
  const int bits = tensors.bits;
  const ImportTensor& qweight = tensors.qweight;
  QGEMM_RETURN_IF_ERROR(CheckBits(qweight.name, bits, {4, 8}));
  QGEMM_RETURN_IF_ERROR(CheckTensor(qweight, 2, {ElementType::kInt32}));
  const int64_t per_word = 32 / bits;
  const int64_t n = qweight.shape[1];
  const int64_t k = qweight.shape[0] * per_word;
  QGEMM_RETURN_IF_ERROR(CheckMatrixSize(qweight.name, n, k));
  QGEMM_ASSIGN_OR_RETURN(const int64_t group_size, ResolveGroupSize(qweight.name, tensors.group_size, k));

  // With a group index the file may hold more groups than these columns use.
  QGEMM_RETURN_IF_ERROR(CheckTensor(tensors.scales, 2, {ElementType::kFp16, ElementType::kBf16}));
  const int64_t file_groups = tensors.g_idx.has_value() ? tensors.scales.shape[0] : CeilDiv(k, group_size);
  const std::string why = absl::StrCat("for ", n, " outputs and ", k, " inputs in groups of ", group_size);
  QGEMM_RETURN_IF_ERROR(
      CheckTensorShape(tensors.scales, {file_groups, n}, {ElementType::kFp16, ElementType::kBf16}, why));
  QGEMM_RETURN_IF_ERROR(
      CheckTensorShape(tensors.qzeros, {file_groups, CeilDiv(n, per_word)}, {ElementType::kInt32}, why));

  GptqZeros convention = tensors.zeros;
  if (convention == GptqZeros::kDetect) {
    QGEMM_ASSIGN_OR_RETURN(convention, DetectGptqZeros(tensors.qzeros, bits));
    if (convention == GptqZeros::kDetect) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensors.qzeros.Describe(),
                       " does not show whether it stores z - 1 (v1) or z (v2): the zero points differ "
                       "from the symmetric one; say v1 or v2"));
    }
  }

  ColumnOrder order = GroupsInOrder(k, group_size);
  if (tensors.g_idx.has_value()) {
    QGEMM_ASSIGN_OR_RETURN(order, OrderByGroupIndex(*tensors.g_idx, k, group_size, file_groups));
  }

  ImportedWeights weights;
  weights.n = n;
  weights.k = k;
  weights.bits = bits;
  weights.group_size = group_size;
  weights.scale_type = ScalarTypeOf(tensors.scales);
  weights.codes = UnpackCodes(qweight, n, k, bits);
  PermuteColumns(order.permutation, n, &weights.codes);
  weights.permutation = std::move(order.permutation);

  const int64_t groups = weights.groups();
  const int mask = (1 << bits) - 1;
  const int add = convention == GptqZeros::kV1 ? 1 : 0;
  weights.scales.resize(n * groups);
  weights.zeros.resize(n * groups);
  bool symmetric = true;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t from = order.file_groups[group];
    for (int64_t row = 0; row < n; ++row) {
      const int zero = (CodeAt(tensors.qzeros, from, row, bits) + add) & mask;
      weights.scales[row * groups + group] = tensors.scales.U16(from * n + row);
      weights.zeros[row * groups + group] = static_cast<uint8_t>(zero);
      symmetric = symmetric && zero == 1 << (bits - 1);
    }
  }
  weights.zero = symmetric ? ImportedZero::kMiddle : ImportedZero::kInteger;
  if (symmetric) weights.zeros.clear();
  return weights;
}

}  // namespace qgemm
