#ifndef QGEMM_KERNELS_IMPORT_COMPRESSED_TENSORS_H_
#define QGEMM_KERNELS_IMPORT_COMPRESSED_TENSORS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/import/canonical_weights.h"
#include "kernels/import/import_tensor.h"

namespace qgemm {

// How codes stand in 32-bit words. With 4 and 8 bits the two are the same.
enum class PackedEncoding {
  kDetect = 0,  // by the number of words; refused where both have the same number and differ
  kPadded =
      1,  // floor(32 / bits) codes a word, the bits above them unused: releases that unpack by whole words
  kDense = 2,  // code i at bits i * bits of the row, across words: releases since the dense packing
};

// A layer in the form "pack-quantized", with signed codes q - 2^(bits-1) and w = (q - z) * s:
//   weight_packed      int32 [N, words]           codes along K
//   weight_shape       int64 or int32 [2]         N, K
//   weight_scale       fp16 or bf16 [N, groups]; [N, 1] or [N] per row; [1] for the whole tensor
//   weight_zero_point  int32 [words of N, groups] packed along N, or int8 [N, groups] signed codes; absent:
//   symmetric weight_g_idx       int32 [K]                  the group of each column; absent, or all -1: k /
//   group_size
struct CompressedTensors {
  ImportTensor weight_packed;
  ImportTensor weight_shape;
  ImportTensor weight_scale;
  std::optional<ImportTensor> weight_zero_point;
  std::optional<ImportTensor> weight_g_idx;
  int bits = 4;             // 4, 5, 6 or 8
  int64_t group_size = -1;  // of the model's configuration; -1: one group per row
  PackedEncoding encoding = PackedEncoding::kDetect;
};

// InvalidArgument names the tensor at fault.
[[nodiscard]] absl::StatusOr<ImportedWeights> ImportCompressedTensors(const CompressedTensors& tensors);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_IMPORT_COMPRESSED_TENSORS_H_
