#ifndef QGEMM_KERNELS_IMPORT_IMPORT_TENSOR_H_
#define QGEMM_KERNELS_IMPORT_IMPORT_TENSOR_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/weight_format.h"

namespace qgemm {

// The element types of checkpoint files. The values are those of qgemm_import_type in the C interface.
enum class ElementType { kInt32 = 0, kInt64 = 1, kUint8 = 2, kInt8 = 3, kFp16 = 4, kBf16 = 5, kFp32 = 6 };

// "int32", "bf16", ...
absl::string_view ElementTypeName(ElementType type);
int64_t ElementBytes(ElementType type);

// One tensor of a file, borrowed: little-endian, row-major, without gaps, aligned to nothing. Whoever reads
// elements checks the tensor first; the accessors do not.
struct ImportTensor {
  std::string name;  // as the file calls it; stands in every message about it
  ElementType type = ElementType::kUint8;
  std::vector<int64_t> shape;
  absl::Span<const uint8_t> bytes;

  // "model.layers.0.q_proj.qweight (int32 [512, 4096])".
  std::string Describe() const;
  int64_t rank() const { return static_cast<int64_t>(shape.size()); }

  uint16_t U16(int64_t index) const { return Load<uint16_t>(index); }
  uint32_t U32(int64_t index) const { return Load<uint32_t>(index); }
  int32_t I32(int64_t index) const { return Load<int32_t>(index); }
  int64_t I64(int64_t index) const { return Load<int64_t>(index); }

 private:
  template <typename T>
  T Load(int64_t index) const {
    T value;
    __builtin_memcpy(&value, bytes.data() + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
};

// InvalidArgument, naming the tensor, unless its rank is `rank`, no dimension is below 1, its type is one of
// `types`, and its bytes are exactly those that shape and type need; of a shorter one the message gives the
// offset at which it ends.
[[nodiscard]] absl::Status CheckTensor(const ImportTensor& tensor, int64_t rank,
                                       std::initializer_list<ElementType> types);

// As CheckTensor, and the shape must be `shape`; `why` ends the message: "for 4096 rows in groups of 128".
[[nodiscard]] absl::Status CheckTensorShape(const ImportTensor& tensor, absl::Span<const int64_t> shape,
                                            std::initializer_list<ElementType> types, absl::string_view why);

// InvalidArgument about an element: "<tensor>: element 7 at byte 28 is 300: it must be in 0 to 31".
absl::Status BadElement(const ImportTensor& tensor, int64_t index, int64_t value, absl::string_view allowed);

// Of a checked fp16 or bf16 tensor.
ScalarType ScalarTypeOf(const ImportTensor& tensor);

// InvalidArgument unless `bits` is among `allowed`.
[[nodiscard]] absl::Status CheckBits(absl::string_view what, int bits, std::initializer_list<int> allowed);

// `group_size` as a model's configuration gives it: -1 and 0 mean the whole row. InvalidArgument for other
// values below 1.
[[nodiscard]] absl::StatusOr<int64_t> ResolveGroupSize(absl::string_view what, int64_t group_size, int64_t k);

// InvalidArgument unless an n x k matrix of codes has fewer than 2^40 of them: what follows is then free of
// overflow.
[[nodiscard]] absl::Status CheckMatrixSize(absl::string_view what, int64_t n, int64_t k);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_IMPORT_IMPORT_TENSOR_H_
