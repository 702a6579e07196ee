#include "kernels/import/awq.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/ceil_div.h"
#include "base/status_macros.h"
#include "kernels/import/bit_unpack.h"

namespace qgemm {
namespace {

constexpr int64_t kPerWord = 8;
// Where output j of eight stands in its word.
constexpr int kNibbleOfOutput[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};
// Inputs per tile: a tile of 8 outputs fills whole cache lines of the result.
constexpr int64_t kTile = 64;

// packed [rows][n / 8] -> [n][rows].
std::vector<uint8_t> UnpackTransposed(const ImportTensor& packed, int64_t rows, int64_t n) {
  std::vector<uint8_t> codes(n * rows);
  const int64_t words = n / kPerWord;
  uint8_t tile[kPerWord][kTile];
  for (int64_t first = 0; first < rows; first += kTile) {
    const int64_t count = std::min(kTile, rows - first);
    for (int64_t word = 0; word < words; ++word) {
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t bytes = NibblesToBytes(packed.U32((first + i) * words + word));
        for (int64_t j = 0; j < kPerWord; ++j) {
          tile[j][i] = static_cast<uint8_t>(bytes >> (8 * kNibbleOfOutput[j]));
        }
      }
      for (int64_t j = 0; j < kPerWord; ++j) {
        std::memcpy(codes.data() + (word * kPerWord + j) * rows + first, tile[j], count);
      }
    }
  }
  return codes;
}

}  // namespace

absl::StatusOr<ImportedWeights> ImportAwq(const AwqTensors& tensors) {
  const ImportTensor& qweight = tensors.qweight;
  QGEMM_RETURN_IF_ERROR(CheckTensor(qweight, 2, {ElementType::kInt32}));
  const int64_t k = qweight.shape[0];
  const int64_t n = qweight.shape[1] * kPerWord;
  QGEMM_RETURN_IF_ERROR(CheckMatrixSize(qweight.name, n, k));
  QGEMM_ASSIGN_OR_RETURN(const int64_t group_size, ResolveGroupSize(qweight.name, tensors.group_size, k));
  const int64_t groups = CeilDiv(k, group_size);
  const std::string why = absl::StrCat("for ", n, " outputs and ", k, " inputs in groups of ", group_size);
  QGEMM_RETURN_IF_ERROR(
      CheckTensorShape(tensors.scales, {groups, n}, {ElementType::kFp16, ElementType::kBf16}, why));

  ImportedWeights weights;
  weights.n = n;
  weights.k = k;
  weights.bits = 4;
  weights.group_size = group_size;
  weights.scale_type = ScalarTypeOf(tensors.scales);
  if (tensors.qzeros.has_value()) {
    QGEMM_RETURN_IF_ERROR(
        CheckTensorShape(*tensors.qzeros, {groups, n / kPerWord}, {ElementType::kInt32}, why));
    weights.zero = ImportedZero::kInteger;
    weights.zeros = UnpackTransposed(*tensors.qzeros, groups, n);
  }
  weights.codes = UnpackTransposed(qweight, k, n);
  weights.scales.resize(n * groups);
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t row = 0; row < n; ++row) {
      weights.scales[row * groups + group] = tensors.scales.U16(group * n + row);
    }
  }
  return weights;
}

}  // namespace qgemm
