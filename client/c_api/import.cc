#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/qgemm/import_c_api.h"
#include "kernels/import/awq.h"
#include "kernels/import/canonical_weights.h"
#include "kernels/import/compressed_tensors.h"
#include "kernels/import/gguf.h"
#include "kernels/import/gptq.h"
#include "kernels/import/import_tensor.h"
#include "kernels/import/torchao.h"

struct qgemm_import_weights {  // NOLINT(readability-identifier-naming): the C interface's name
  qgemm::ImportedWeights weights;
};

namespace qgemm {
namespace {

constexpr int kMaxRank = 8;

absl::StatusOr<ImportTensor> ReadTensor(absl::string_view role, const qgemm_import_tensor* tensor) {
  if (tensor == nullptr) return absl::InvalidArgumentError(absl::StrCat(role, " is missing"));
  ImportTensor result;
  result.name = tensor->name != nullptr ? tensor->name : std::string(role);
  if (tensor->type < QGEMM_IMPORT_INT32 || tensor->type > QGEMM_IMPORT_FP32) {
    return absl::InvalidArgumentError(absl::StrCat(result.name, ": element type ", tensor->type,
                                                   " is out of range: ", QGEMM_IMPORT_INT32, " to ",
                                                   QGEMM_IMPORT_FP32));
  }
  if (tensor->rank < 0 || tensor->rank > kMaxRank || (tensor->rank > 0 && tensor->shape == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat(result.name, ": rank ", tensor->rank, " must be 0 to ", kMaxRank, ", with a shape"));
  }
  if (tensor->size < 0 || (tensor->size > 0 && tensor->data == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat(result.name, ": size ", tensor->size, " must be at least 0, with data"));
  }
  result.type = static_cast<ElementType>(tensor->type);
  if (tensor->rank > 0) result.shape.assign(tensor->shape, tensor->shape + tensor->rank);
  result.bytes = absl::MakeConstSpan(static_cast<const uint8_t*>(tensor->data), tensor->size);
  return result;
}

absl::StatusOr<std::optional<ImportTensor>> ReadOptional(absl::string_view role,
                                                         const qgemm_import_tensor* tensor) {
  if (tensor == nullptr) return std::optional<ImportTensor>();
  QGEMM_ASSIGN_OR_RETURN(ImportTensor read, ReadTensor(role, tensor));
  return std::optional<ImportTensor>(std::move(read));
}

int Finish(const absl::Status& status, char* error, size_t error_size) {
  if (status.ok()) return QGEMM_IMPORT_OK;
  if (error != nullptr && error_size > 0) {
    const std::string message(status.message());
    const size_t length = std::min(message.size(), error_size - 1);
    std::memcpy(error, message.data(), length);
    error[length] = '\0';
  }
  return QGEMM_IMPORT_INVALID;
}

int Finish(absl::StatusOr<ImportedWeights> weights, qgemm_import_weights** out, char* error,
           size_t error_size) {
  if (!weights.ok()) return Finish(weights.status(), error, error_size);
  *out = new qgemm_import_weights{*std::move(weights)};
  return QGEMM_IMPORT_OK;
}

absl::Status CheckChoice(absl::string_view field, int32_t value, int32_t last) {
  if (value >= 0 && value <= last) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " ", value, " is out of range: 0 to ", last));
}

absl::StatusOr<ImportedWeights> Gptq(const qgemm_import_tensor* qweight, const qgemm_import_tensor* qzeros,
                                     const qgemm_import_tensor* scales, const qgemm_import_tensor* g_idx,
                                     int32_t bits, int64_t group_size, int32_t zeros) {
  GptqTensors tensors;
  QGEMM_ASSIGN_OR_RETURN(tensors.qweight, ReadTensor("qweight", qweight));
  QGEMM_ASSIGN_OR_RETURN(tensors.qzeros, ReadTensor("qzeros", qzeros));
  QGEMM_ASSIGN_OR_RETURN(tensors.scales, ReadTensor("scales", scales));
  QGEMM_ASSIGN_OR_RETURN(tensors.g_idx, ReadOptional("g_idx", g_idx));
  QGEMM_RETURN_IF_ERROR(CheckChoice("zeros", zeros, 2));
  tensors.bits = bits;
  tensors.group_size = group_size;
  tensors.zeros = static_cast<GptqZeros>(zeros);
  return ImportGptq(tensors);
}

absl::StatusOr<ImportedWeights> Awq(const qgemm_import_tensor* qweight, const qgemm_import_tensor* qzeros,
                                    const qgemm_import_tensor* scales, int64_t group_size) {
  AwqTensors tensors;
  QGEMM_ASSIGN_OR_RETURN(tensors.qweight, ReadTensor("qweight", qweight));
  QGEMM_ASSIGN_OR_RETURN(tensors.qzeros, ReadOptional("qzeros", qzeros));
  QGEMM_ASSIGN_OR_RETURN(tensors.scales, ReadTensor("scales", scales));
  tensors.group_size = group_size;
  return ImportAwq(tensors);
}

absl::StatusOr<ImportedWeights> Compressed(const qgemm_import_tensor* weight_packed,
                                           const qgemm_import_tensor* weight_shape,
                                           const qgemm_import_tensor* weight_scale,
                                           const qgemm_import_tensor* weight_zero_point,
                                           const qgemm_import_tensor* weight_g_idx, int32_t bits,
                                           int64_t group_size, int32_t encoding) {
  CompressedTensors tensors;
  QGEMM_ASSIGN_OR_RETURN(tensors.weight_packed, ReadTensor("weight_packed", weight_packed));
  QGEMM_ASSIGN_OR_RETURN(tensors.weight_shape, ReadTensor("weight_shape", weight_shape));
  QGEMM_ASSIGN_OR_RETURN(tensors.weight_scale, ReadTensor("weight_scale", weight_scale));
  QGEMM_ASSIGN_OR_RETURN(tensors.weight_zero_point, ReadOptional("weight_zero_point", weight_zero_point));
  QGEMM_ASSIGN_OR_RETURN(tensors.weight_g_idx, ReadOptional("weight_g_idx", weight_g_idx));
  QGEMM_RETURN_IF_ERROR(CheckChoice("encoding", encoding, 2));
  tensors.bits = bits;
  tensors.group_size = group_size;
  tensors.encoding = static_cast<PackedEncoding>(encoding);
  return ImportCompressedTensors(tensors);
}

absl::StatusOr<ImportedWeights> Torchao(const qgemm_import_tensor* qdata,
                                        const qgemm_import_tensor* scale_and_zero, int64_t n, int64_t k,
                                        int64_t group_size) {
  TorchaoTensors tensors;
  QGEMM_ASSIGN_OR_RETURN(tensors.qdata, ReadTensor("qdata", qdata));
  QGEMM_ASSIGN_OR_RETURN(tensors.scale_and_zero, ReadTensor("scale_and_zero", scale_and_zero));
  tensors.n = n;
  tensors.k = k;
  tensors.group_size = group_size;
  return ImportTorchao(tensors);
}

absl::StatusOr<ImportedWeights> Gguf(const qgemm_import_tensor* data, int32_t type, int64_t n, int64_t k) {
  GgufTensor tensor;
  QGEMM_ASSIGN_OR_RETURN(tensor.data, ReadTensor("data", data));
  tensor.type = static_cast<GgufType>(type);
  tensor.n = n;
  tensor.k = k;
  return ImportGguf(tensor);
}

template <typename T>
const T* PlaneOrNull(const std::vector<T>& plane) {
  return plane.empty() ? nullptr : plane.data();
}

}  // namespace
}  // namespace qgemm

void qgemm_import_view_of(const qgemm_import_weights* weights, qgemm_import_view* view) {
  const qgemm::ImportedWeights& from = weights->weights;
  view->n = from.n;
  view->k = from.k;
  view->group_size = from.group_size;
  view->groups = from.groups();
  view->super_size = from.super_size;
  view->supers = from.supers();
  view->bits = from.bits;
  view->scale_type = from.scale_type == qgemm::ScalarType::kBf16 ? QGEMM_IMPORT_BF16 : QGEMM_IMPORT_FP16;
  view->zero = static_cast<int32_t>(from.zero);
  view->origin = from.origin;
  view->codes = qgemm::PlaneOrNull(from.codes);
  view->scales = qgemm::PlaneOrNull(from.scales);
  view->zeros = qgemm::PlaneOrNull(from.zeros);
  view->offsets = qgemm::PlaneOrNull(from.offsets);
  view->d = qgemm::PlaneOrNull(from.d);
  view->dmin = qgemm::PlaneOrNull(from.dmin);
  view->scale_codes = qgemm::PlaneOrNull(from.scale_codes);
  view->zero_codes = qgemm::PlaneOrNull(from.zero_codes);
  view->permutation = qgemm::PlaneOrNull(from.permutation);
}

void qgemm_import_free(qgemm_import_weights* weights) { delete weights; }

int qgemm_import_dequantize(const qgemm_import_weights* weights, int64_t first_row, int64_t rows, float* out,
                            char* error, size_t error_size) {
  const qgemm::ImportedWeights& from = weights->weights;
  if (first_row < 0 || rows < 0 || rows > from.n || first_row > from.n - rows) {
    return qgemm::Finish(
        absl::InvalidArgumentError(absl::StrCat("rows ", first_row, " to ", first_row, " + ", rows,
                                                " are out of range: the weight has ", from.n)),
        error, error_size);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<float> values = qgemm::DequantizeRow(from, first_row + row);
    std::copy(values.begin(), values.end(), out + row * from.k);
  }
  return QGEMM_IMPORT_OK;
}

int qgemm_import_gptq(const qgemm_import_tensor* qweight, const qgemm_import_tensor* qzeros,
                      const qgemm_import_tensor* scales, const qgemm_import_tensor* g_idx, int32_t bits,
                      int64_t group_size, int32_t zeros, qgemm_import_weights** out, char* error,
                      size_t error_size) {
  return qgemm::Finish(qgemm::Gptq(qweight, qzeros, scales, g_idx, bits, group_size, zeros), out, error,
                       error_size);
}

int qgemm_import_gptq_zeros(const qgemm_import_tensor* qzeros, int32_t bits, int32_t* zeros, char* error,
                            size_t error_size) {
  const absl::StatusOr<qgemm::ImportTensor> tensor = qgemm::ReadTensor("qzeros", qzeros);
  if (!tensor.ok()) return qgemm::Finish(tensor.status(), error, error_size);
  const absl::StatusOr<qgemm::GptqZeros> shown = qgemm::DetectGptqZeros(*tensor, bits);
  if (shown.ok()) *zeros = static_cast<int32_t>(*shown);
  return qgemm::Finish(shown.status(), error, error_size);
}

int qgemm_import_awq(const qgemm_import_tensor* qweight, const qgemm_import_tensor* qzeros,
                     const qgemm_import_tensor* scales, int64_t group_size, qgemm_import_weights** out,
                     char* error, size_t error_size) {
  return qgemm::Finish(qgemm::Awq(qweight, qzeros, scales, group_size), out, error, error_size);
}

int qgemm_import_compressed_tensors(const qgemm_import_tensor* weight_packed,
                                    const qgemm_import_tensor* weight_shape,
                                    const qgemm_import_tensor* weight_scale,
                                    const qgemm_import_tensor* weight_zero_point,
                                    const qgemm_import_tensor* weight_g_idx, int32_t bits, int64_t group_size,
                                    int32_t encoding, qgemm_import_weights** out, char* error,
                                    size_t error_size) {
  return qgemm::Finish(qgemm::Compressed(weight_packed, weight_shape, weight_scale, weight_zero_point,
                                         weight_g_idx, bits, group_size, encoding),
                       out, error, error_size);
}

int qgemm_import_torchao(const qgemm_import_tensor* qdata, const qgemm_import_tensor* scale_and_zero,
                         int64_t n, int64_t k, int64_t group_size, qgemm_import_weights** out, char* error,
                         size_t error_size) {
  return qgemm::Finish(qgemm::Torchao(qdata, scale_and_zero, n, k, group_size), out, error, error_size);
}

int qgemm_import_gguf(const qgemm_import_tensor* data, int32_t type, int64_t n, int64_t k,
                      qgemm_import_weights** out, char* error, size_t error_size) {
  return qgemm::Finish(qgemm::Gguf(data, type, n, k), out, error, error_size);
}
