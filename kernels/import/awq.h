#ifndef QGEMM_KERNELS_IMPORT_AWQ_H_
#define QGEMM_KERNELS_IMPORT_AWQ_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/import/canonical_weights.h"
#include "kernels/import/import_tensor.h"

namespace qgemm {

// A layer in AWQ's form (version "gemm"), 4 bits, with w = (q - z) * s:
//   qweight  int32 [K, N / 8]        8 outputs a word; nibble i is output {0, 2, 4, 6, 1, 3, 5, 7}[i] of the
//   eight qzeros   int32 [groups, N / 8]   likewise; absent: z = 8 scales   fp16 or bf16 [groups, N]
struct AwqTensors {
  ImportTensor qweight;
  std::optional<ImportTensor> qzeros;
  ImportTensor scales;
  int64_t group_size = 128;  // of the model's configuration; -1: one group per row
};

// InvalidArgument names the tensor at fault.
[[nodiscard]] absl::StatusOr<ImportedWeights> ImportAwq(const AwqTensors& tensors);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_IMPORT_AWQ_H_
