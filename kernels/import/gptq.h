#ifndef QGEMM_KERNELS_IMPORT_GPTQ_H_
#define QGEMM_KERNELS_IMPORT_GPTQ_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/import/canonical_weights.h"
#include "kernels/import/import_tensor.h"

namespace qgemm {

// What a file's zero codes mean. Checkpoints do not always say, and some say the wrong one.
enum class GptqZeros {
  kDetect = 0,  // from the codes themselves; see DetectGptqZeros
  kV1 = 1,      // the file stores z - 1 modulo 2^bits (AutoGPTQ, checkpoint_format "gptq")
  kV2 = 2,      // the file stores z ("gptq_v2")
};

// A layer in GPTQ's form, with w = (q - z) * s:
//   qweight  int32 [K * bits / 32, N]       32 / bits codes of one column of the file, lowest bits first
//   along K qzeros   int32 [groups, N * bits / 32]  the same along N scales   fp16 or bf16 [groups, N] g_idx
//   int32 [K]                      the group of each input; absent: input k is in group k / group_size
struct GptqTensors {
  ImportTensor qweight;
  ImportTensor qzeros;
  ImportTensor scales;
  std::optional<ImportTensor> g_idx;
  int bits = 4;             // 4 or 8
  int64_t group_size = -1;  // of the model's configuration; -1: one group per row
  GptqZeros zeros = GptqZeros::kDetect;
};

// Symmetric models give themselves away: all zero codes of `qzeros` are 2^(bits-1) - 1 in v1 and 2^(bits-1)
// in v2. kDetect where the codes say neither. InvalidArgument for a malformed tensor. Asked for all layers of
// a model, one answer settles it for those that give none.
[[nodiscard]] absl::StatusOr<GptqZeros> DetectGptqZeros(const ImportTensor& qzeros, int bits);

// A stored 2^bits - 1 in v1 is z = 0: the sum wraps within its code and never carries into the next one. The
// zero is kMiddle where all zero points are 2^(bits-1). InvalidArgument names the tensor at fault; with
// kDetect also where the codes do not say which convention it is.
[[nodiscard]] absl::StatusOr<ImportedWeights> ImportGptq(const GptqTensors& tensors);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_IMPORT_GPTQ_H_
