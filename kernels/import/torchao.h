#ifndef QGEMM_KERNELS_IMPORT_TORCHAO_H_
#define QGEMM_KERNELS_IMPORT_TORCHAO_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/import/canonical_weights.h"
#include "kernels/import/import_tensor.h"

namespace qgemm {

// A layer in torchao's tile-packed int4 form for tensor cores (tinygemm), with w = (q - 8) * s + b:
//   qdata           int32 [N' / 8, K' / (16 T), 32, T / 2]   T = inner_k_tiles, 2, 4 or 8: read from the
//   shape scale_and_zero  bf16 [K' / group_size, N', 2]            s and b
// N' and K' are N and K padded by torchao; the padding is dropped. Word i of lane t of a tile holds the codes
// of row t / 4 in two tiles of 16 columns, 2i and 2i + 1: its nibbles 0, 1, 2, 3 are columns 2 (t % 4) + {0,
// 8, 16, 24}, its nibbles 4 to 7 the columns after these.
struct TorchaoTensors {
  ImportTensor qdata;
  ImportTensor scale_and_zero;
  int64_t n = 0;
  int64_t k = 0;
  int64_t group_size = 128;
};

// The zero is kFloat with origin 8. InvalidArgument names the tensor at fault.
[[nodiscard]] absl::StatusOr<ImportedWeights> ImportTorchao(const TorchaoTensors& tensors);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_IMPORT_TORCHAO_H_
