#include "kernels/import/import_tensor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

absl::string_view ElementTypeName(ElementType type) {
  switch (type) {
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
    case ElementType::kUint8:
      return "uint8";
    case ElementType::kInt8:
      return "int8";
    case ElementType::kFp16:
      return "fp16";
    case ElementType::kBf16:
      return "bf16";
    case ElementType::kFp32:
      return "fp32";
  }
  return "unknown";
}

int64_t ElementBytes(ElementType type) {
  switch (type) {
    case ElementType::kInt64:
      return 8;
    case ElementType::kInt32:
    case ElementType::kFp32:
      return 4;
    case ElementType::kFp16:
    case ElementType::kBf16:
      return 2;
    case ElementType::kUint8:
    case ElementType::kInt8:
      return 1;
  }
  return 1;
}

std::string ImportTensor::Describe() const {
  return absl::StrCat(name, " (", ElementTypeName(type), " ", ShapeText(shape), ")");
}

absl::Status CheckTensor(const ImportTensor& tensor, int64_t rank, std::initializer_list<ElementType> types) {
  if (std::find(types.begin(), types.end(), tensor.type) == types.end()) {
    std::vector<absl::string_view> names;
    for (ElementType type : types) names.push_back(ElementTypeName(type));
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.Describe(), " has the wrong element type: it must be ", absl::StrJoin(names, " or ")));
  }
  if (tensor.rank() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.Describe(), " has ", tensor.rank(), " dimensions: it must have ", rank));
  }
  const int64_t element = ElementBytes(tensor.type);
  int64_t needed = element;
  for (int64_t size : tensor.shape) {
    if (size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor.Describe(), " has a dimension of ", size, ": every one must be at least 1"));
    }
    if (__builtin_mul_overflow(needed, size, &needed)) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor.Describe(), " needs more than 2^63 bytes: no file holds it"));
    }
  }
  const int64_t actual = static_cast<int64_t>(tensor.bytes.size());
  if (actual < needed) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.Describe(), " ends at byte offset ", actual,
                                                   ": its shape and type need ", needed, " bytes"));
  }
  if (actual > needed) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.Describe(), " has ", actual - needed,
                                                   " bytes more from byte offset ", needed,
                                                   ": its shape and type need ", needed, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckTensorShape(const ImportTensor& tensor, absl::Span<const int64_t> shape,
                              std::initializer_list<ElementType> types, absl::string_view why) {
  QGEMM_RETURN_IF_ERROR(CheckTensor(tensor, static_cast<int64_t>(shape.size()), types));
  if (shape == absl::MakeConstSpan(tensor.shape)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(tensor.Describe(), " has the wrong shape: it must be ", ShapeText(shape), " ", why));
}

absl::Status BadElement(const ImportTensor& tensor, int64_t index, int64_t value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(tensor.Describe(), ": element ", index, " at byte offset ",
                                                 index * ElementBytes(tensor.type), " is ", value,
                                                 ": it must be ", allowed));
}

ScalarType ScalarTypeOf(const ImportTensor& tensor) {
  return tensor.type == ElementType::kBf16 ? ScalarType::kBf16 : ScalarType::kFp16;
}

absl::Status CheckBits(absl::string_view what, int bits, std::initializer_list<int> allowed) {
  if (std::find(allowed.begin(), allowed.end(), bits) != allowed.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": bits ", bits, " is not supported: ", absl::StrJoin(allowed, ", ")));
}

absl::StatusOr<int64_t> ResolveGroupSize(absl::string_view what, int64_t group_size, int64_t k) {
  if (group_size == 0 || group_size == -1) return k;
  if (group_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": group_size ", group_size, " is out of range: at least 1, or -1 for one group per row"));
  }
  return std::min(group_size, k);
}

absl::Status CheckMatrixSize(absl::string_view what, int64_t n, int64_t k) {
  constexpr int64_t kLimit = int64_t{1} << 40;
  if (n >= 1 && k >= 1 && n < kLimit && k <= INT32_MAX && n < kLimit / k) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": a weight of ", n, " rows and ", k,
                   " columns is out of range: at least 1 x 1, fewer than 2^31 columns and 2^40 elements"));
}

}  // namespace qgemm
