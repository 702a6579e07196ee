#include "kernels/import/torchao.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

constexpr int64_t kTileRows = 8;
constexpr int64_t kTileColumns = 16;
constexpr int64_t kLanes = 32;
constexpr int kColumnOfNibble[8] = {0, 8, 16, 24, 1, 9, 17, 25};

std::vector<uint8_t> UnpackCodes(const ImportTensor& qdata, int64_t n, int64_t k) {
  std::vector<uint8_t> codes(n * k);
  const int64_t outer_tiles = qdata.shape[1];
  const int64_t words = qdata.shape[3];
  for (int64_t row = 0; row < n; ++row) {
    uint8_t* target = codes.data() + row * k;
    for (int64_t outer = 0; outer < outer_tiles; ++outer) {
      for (int64_t quarter = 0; quarter < 4; ++quarter) {
        const int64_t lane = row % kTileRows * 4 + quarter;
        for (int64_t i = 0; i < words; ++i) {
          const uint32_t word =
              qdata.U32(((row / kTileRows * outer_tiles + outer) * kLanes + lane) * words + i);
          const int64_t first = (outer * words + i) * 2 * kTileColumns + 2 * quarter;
          for (int nibble = 0; nibble < 8; ++nibble) {
            const int64_t column = first + kColumnOfNibble[nibble];
            if (column < k) target[column] = static_cast<uint8_t>(word >> (4 * nibble) & 15);
          }
        }
      }
    }
  }
  return codes;
}

}  // namespace

absl::StatusOr<ImportedWeights> ImportTorchao(const TorchaoTensors& tensors) {
  const ImportTensor& qdata = tensors.qdata;
  const int64_t n = tensors.n;
  const int64_t k = tensors.k;
  QGEMM_RETURN_IF_ERROR(CheckMatrixSize(qdata.name, n, k));
  QGEMM_RETURN_IF_ERROR(CheckTensor(qdata, 4, {ElementType::kInt32}));
  const int64_t words = qdata.shape[3];
  if (qdata.shape[2] != kLanes || (words != 1 && words != 2 && words != 4)) {
    return absl::InvalidArgumentError(absl::StrCat(
        qdata.Describe(),
        " has the wrong shape: its last dimensions must be 32 and 1, 2 or 4 (inner_k_tiles 2, 4, 8)"));
  }
  // The bytes of qdata bound these products.
  const int64_t padded_n = qdata.shape[0] * kTileRows;
  const int64_t padded_k = qdata.shape[1] * words * 2 * kTileColumns;
  if (padded_n < n || padded_k < k) {
    return absl::InvalidArgumentError(absl::StrCat(qdata.Describe(), " holds ", padded_n, " x ", padded_k,
                                                   " codes: the weight is ", n, " x ", k));
  }
  if (tensors.group_size < 1 || padded_k % tensors.group_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(qdata.name, ": group_size ", tensors.group_size,
                                                   " must divide the ", padded_k,
                                                   " columns of the padded weight"));
  }
  QGEMM_RETURN_IF_ERROR(CheckTensorShape(
      tensors.scale_and_zero, {padded_k / tensors.group_size, padded_n, 2}, {ElementType::kBf16},
      absl::StrCat("for ", padded_n, " x ", padded_k, " codes in groups of ", tensors.group_size)));

  ImportedWeights weights;
  weights.n = n;
  weights.k = k;
  weights.bits = 4;
  weights.group_size = tensors.group_size;
  weights.scale_type = ScalarType::kBf16;
  weights.zero = ImportedZero::kFloat;
  weights.origin = 8;
  weights.codes = UnpackCodes(qdata, n, k);
  const int64_t groups = weights.groups();
  weights.scales.resize(n * groups);
  weights.offsets.resize(n * groups);
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t row = 0; row < n; ++row) {
      const int64_t from = (group * padded_n + row) * 2;
      weights.scales[row * groups + group] = tensors.scale_and_zero.U16(from);
      weights.offsets[row * groups + group] = tensors.scale_and_zero.U16(from + 1);
    }
  }
  return weights;
}

}  // namespace qgemm
