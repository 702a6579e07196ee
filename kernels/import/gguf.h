#ifndef QGEMM_KERNELS_IMPORT_GGUF_H_
#define QGEMM_KERNELS_IMPORT_GGUF_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/import/canonical_weights.h"
#include "kernels/import/import_tensor.h"

namespace qgemm {

// Block types, by their numbers in GGUF files.
enum class GgufType { kQ40 = 2, kQ41 = 3, kQ80 = 8, kQ4K = 12, kQ5K = 13, kQ6K = 14 };

// "Q4_K". Of a number that is not in the enumeration: "unknown".
absl::string_view GgufTypeName(GgufType type);

// A matrix of a GGUF file: rows of blocks, each a few fields in order (fp16 fields stand at any even offset).
//   Q4_0  18 bytes per 32    fp16 d; 16 bytes: code j low nibble of byte j, code 16 + j high; w = d (q - 8)
//   Q4_1  20 bytes per 32    fp16 d, m; codes as Q4_0; w = d q + m
//   Q8_0  34 bytes per 32    fp16 d; 32 signed bytes; w = d q, here with code q + 128
//   Q4_K  144 bytes per 256  fp16 d, dmin; 12 bytes of 6-bit scales and minima of 8 groups of 32; 128 bytes
//   of codes,
//                            byte j of each 32 holds group 2i low, 2i + 1 high; w = d sc q - dmin m
//   Q5_K  176 bytes per 256  as Q4_K, with 32 bytes before the codes: bit g of byte j is bit 4 of code j of
//   group g Q6_K  210 bytes per 256  128 bytes low nibbles, 64 bytes high pairs of bits, 16 signed scales of
//   groups of 16,
//                            fp16 d; w = d sc (q - 32)
struct GgufTensor {
  ImportTensor data;  // uint8, [bytes] or [n, bytes of a row]
  GgufType type = GgufType::kQ4K;
  int64_t n = 0;
  int64_t k = 0;  // a multiple of the block's weights
};

// InvalidArgument names the tensor at fault.
[[nodiscard]] absl::StatusOr<ImportedWeights> ImportGguf(const GgufTensor& tensor);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_IMPORT_GGUF_H_
