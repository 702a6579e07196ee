#include "kernels/import/compressed_tensors.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/ceil_div.h"
#include "base/status_macros.h"
#include "kernels/import/bit_unpack.h"
#include "kernels/import/column_order.h"

namespace qgemm {
namespace {

int64_t PaddedWords(int64_t codes, int bits) { return CeilDiv(codes, 32 / bits); }
int64_t DenseWords(int64_t codes, int bits) { return CeilDiv(codes * bits, 32); }

// Whether a run of `codes` codes has the same words in both encodings.
bool EncodingsAgree(int64_t codes, int bits) { return 32 % bits == 0 || codes <= 32 / bits; }

// Which encoding `words` words of `codes` codes have. Where a row has so few codes that both encodings take
// the same words and put every code at the same bits, the answer is kDense.
absl::StatusOr<PackedEncoding> ResolveEncoding(const ImportTensor& packed, int64_t words, int64_t codes,
                                               int bits, PackedEncoding asked) {
  const int64_t padded = PaddedWords(codes, bits);
  const int64_t dense = DenseWords(codes, bits);
  PackedEncoding encoding = asked;
  if (asked == PackedEncoding::kDetect) {
    if (words == padded && words == dense && !EncodingsAgree(codes, bits)) {
      return absl::InvalidArgumentError(
          absl::StrCat(packed.Describe(), " does not show its encoding: ", codes, " codes of ", bits,
                       " bits take ", words, " words padded and dense; say padded or dense"));
    }
    encoding = words == dense || words != padded ? PackedEncoding::kDense : PackedEncoding::kPadded;
  }
  if (words == (encoding == PackedEncoding::kDense ? dense : padded)) return encoding;
  return absl::InvalidArgumentError(absl::StrCat(packed.Describe(), " has the wrong shape: ", codes,
                                                 " codes of ", bits, " bits take ", padded, " words padded, ",
                                                 dense, " words dense"));
}

// Code `index` of a run whose word i is word base + i * stride.
uint8_t CodeAt(const ImportTensor& packed, int64_t base, int64_t stride, int64_t index, int bits,
               PackedEncoding encoding) {
  const uint32_t mask = (1u << bits) - 1;
  if (encoding == PackedEncoding::kPadded) {
    const int64_t per_word = 32 / bits;
    return static_cast<uint8_t>(packed.U32(base + index / per_word * stride) >> (index % per_word * bits) &
                                mask);
  }
  const int64_t bit = index * bits;
  const int shift = static_cast<int>(bit % 32);
  uint64_t window = packed.U32(base + bit / 32 * stride);
  if (shift + bits > 32) window |= uint64_t{packed.U32(base + (bit / 32 + 1) * stride)} << 32;
  return static_cast<uint8_t>(window >> shift & mask);
}

std::vector<uint8_t> UnpackCodes(const ImportTensor& packed, int64_t n, int64_t k, int bits,
                                 PackedEncoding encoding) {
  std::vector<uint8_t> codes(n * k);
  const int64_t words = packed.shape[1];
  for (int64_t row = 0; row < n; ++row) {
    uint8_t* target = codes.data() + row * k;
    int64_t column = 0;
    if (bits == 8) {
      std::memcpy(target, packed.bytes.data() + row * words * 4, k);
      column = k;
    } else if (bits == 4) {
      for (; column + 8 <= k; column += 8) {
        const uint64_t bytes = NibblesToBytes(packed.U32(row * words + column / 8));
        std::memcpy(target + column, &bytes, sizeof(bytes));
      }
    }
    for (; column < k; ++column) target[column] = CodeAt(packed, row * words, 1, column, bits, encoding);
  }
  return codes;
}

struct Shape {
  int64_t n = 0;
  int64_t k = 0;
};

absl::StatusOr<Shape> ReadShape(const CompressedTensors& tensors) {
  const ImportTensor& shape = tensors.weight_shape;
  QGEMM_RETURN_IF_ERROR(
      CheckTensorShape(shape, {2}, {ElementType::kInt64, ElementType::kInt32}, "for rows and columns"));
  Shape result;
  if (shape.type == ElementType::kInt64) {
    result = {shape.I64(0), shape.I64(1)};
  } else {
    result = {shape.I32(0), shape.I32(1)};
  }
  QGEMM_RETURN_IF_ERROR(CheckMatrixSize(shape.name, result.n, result.k));
  if (result.n != tensors.weight_packed.shape[0]) {
    return BadElement(shape, 0, result.n, absl::StrCat("the rows of ", tensors.weight_packed.Describe()));
  }
  return result;
}

bool HasGroupIndex(const CompressedTensors& tensors) {
  if (!tensors.weight_g_idx.has_value()) return false;
  const ImportTensor& g_idx = *tensors.weight_g_idx;
  if (g_idx.type != ElementType::kInt32) return true;  // the check of the index names the fault
  const int64_t count = static_cast<int64_t>(g_idx.bytes.size()) / 4;
  for (int64_t i = 0; i < count; ++i) {
    if (g_idx.I32(i) != -1) return true;
  }
  return count == 0;
}

// How many groups of scales a row of the file has: the strategy is written in the shape of the scales.
absl::StatusOr<int64_t> ScaleGroups(const ImportTensor& scale, int64_t n, int64_t groups, bool has_g_idx) {
  const std::initializer_list<ElementType> types = {ElementType::kFp16, ElementType::kBf16};
  QGEMM_RETURN_IF_ERROR(CheckTensor(scale, scale.rank(), types));
  const std::vector<int64_t>& shape = scale.shape;
  const bool per_tensor = scale.bytes.size() == 2 && scale.rank() <= 2;
  if (groups == 1 && (per_tensor || shape == std::vector<int64_t>{n})) return 1;
  const bool rows_fit = scale.rank() == 2 && shape[0] == n;
  if (rows_fit && (shape[1] == groups || (has_g_idx && groups > 1))) return shape[1];
  return absl::InvalidArgumentError(absl::StrCat(scale.Describe(), " has the wrong shape: it must be [", n,
                                                 ", ", groups, "]",
                                                 groups == 1 ? absl::StrCat(", [", n, "] or [1]") : ""));
}

// Zero codes [n][groups], the groups of the file in the order `groups`.
absl::StatusOr<std::vector<uint8_t>> ReadZeros(const ImportTensor& zero, int64_t n, int bits,
                                               PackedEncoding shown, int64_t file_groups,
                                               const std::vector<int32_t>& groups) {
  QGEMM_RETURN_IF_ERROR(CheckTensor(zero, zero.rank(), {ElementType::kInt32, ElementType::kInt8}));
  const bool per_tensor = zero.type == ElementType::kInt8 && zero.bytes.size() == 1 && file_groups == 1;
  const bool is_packed = zero.type == ElementType::kInt32;
  if (!per_tensor &&
      (zero.rank() != 2 || zero.shape[1] != file_groups || (!is_packed && zero.shape[0] != n))) {
    return absl::InvalidArgumentError(absl::StrCat(zero.Describe(), " has the wrong shape: it must have ", n,
                                                   " rows of zero points and ", file_groups, " groups"));
  }
  PackedEncoding encoding = shown;
  if (is_packed) {
    QGEMM_ASSIGN_OR_RETURN(encoding, ResolveEncoding(zero, zero.shape[0], n, bits, shown));
  }
  std::vector<uint8_t> zeros;
  zeros.reserve(n * groups.size());
  const int middle = 1 << (bits - 1);
  for (int64_t row = 0; row < n; ++row) {
    for (const int32_t group : groups) {
      if (is_packed) {
        zeros.push_back(CodeAt(zero, group, file_groups, row, bits, encoding));
        continue;
      }
      const int64_t at = per_tensor ? 0 : row * file_groups + group;
      const int code = zero.bytes[at] < 128 ? zero.bytes[at] : zero.bytes[at] - 256;
      if (code < -middle || code >= middle) {
        return BadElement(zero, at, code, absl::StrCat("in ", -middle, " to ", middle - 1));
      }
      zeros.push_back(static_cast<uint8_t>(code + middle));
    }
  }
  return zeros;
}

}  // namespace

absl::StatusOr<ImportedWeights> ImportCompressedTensors(const CompressedTensors& tensors) {
  const int bits = tensors.bits;
  const ImportTensor& packed = tensors.weight_packed;
  QGEMM_RETURN_IF_ERROR(CheckBits(packed.name, bits, {4, 5, 6, 8}));
  QGEMM_RETURN_IF_ERROR(CheckTensor(packed, 2, {ElementType::kInt32}));
  QGEMM_ASSIGN_OR_RETURN(const Shape shape, ReadShape(tensors));
  const auto [n, k] = shape;
  QGEMM_ASSIGN_OR_RETURN(const PackedEncoding encoding,
                         ResolveEncoding(packed, packed.shape[1], k, bits, tensors.encoding));
  QGEMM_ASSIGN_OR_RETURN(const int64_t group_size, ResolveGroupSize(packed.name, tensors.group_size, k));

  const ImportTensor& scale = tensors.weight_scale;
  const bool has_g_idx = HasGroupIndex(tensors);
  QGEMM_ASSIGN_OR_RETURN(const int64_t file_groups, ScaleGroups(scale, n, CeilDiv(k, group_size), has_g_idx));
  ColumnOrder order = GroupsInOrder(k, group_size);
  if (has_g_idx) {
    QGEMM_ASSIGN_OR_RETURN(order, OrderByGroupIndex(*tensors.weight_g_idx, k, group_size, file_groups));
  }

  ImportedWeights weights;
  weights.n = n;
  weights.k = k;
  weights.bits = bits;
  weights.group_size = group_size;
  weights.scale_type = ScalarTypeOf(scale);
  const int64_t groups = weights.groups();
  const bool per_tensor = scale.bytes.size() == 2;
  weights.scales.resize(n * groups);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      weights.scales[row * groups + group] =
          scale.U16(per_tensor ? 0 : row * file_groups + order.file_groups[group]);
    }
  }

  if (tensors.weight_zero_point.has_value()) {
    // Both planes of a file are packed by one release: what the weight shows of the encoding holds for the
    // zero points.
    const PackedEncoding shown = tensors.encoding == PackedEncoding::kDetect && EncodingsAgree(k, bits)
                                     ? PackedEncoding::kDetect
                                     : encoding;
    QGEMM_ASSIGN_OR_RETURN(
        weights.zeros, ReadZeros(*tensors.weight_zero_point, n, bits, shown, file_groups, order.file_groups));
    weights.zero = ImportedZero::kInteger;
  }

  weights.codes = UnpackCodes(packed, n, k, bits, encoding);
  PermuteColumns(order.permutation, n, &weights.codes);
  weights.permutation = std::move(order.permutation);
  return weights;
}

}  // namespace qgemm
