#ifndef QGEMM_CLIENT_QGEMMCTL_CANONICAL_FILE_H_
#define QGEMM_CLIENT_QGEMMCTL_CANONICAL_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/bundle/manifest.h"
#include "client/weight_store/weight_store.h"
#include "kernels/problem.h"

namespace qgemm {

// The file of canonical weights that `bundle create --weights` reads; client/bundle/README.md describes it.

// Layers as canonical weights say: tensors "<layer>.codes" [N, K] U8, ".scales" [N, groups] BF16 or F16, and
// where the format has them ".zeros" U8, ".offsets" as the scales, ".scale_codes" and ".offset_codes" I8,
// ".bias" [N] in the activation type; ".bits" U8 [1], else `bits`. `act` and `quantization` are what the file
// does not say. InvalidArgument names the tensor; a layer has no others.
[[nodiscard]] absl::StatusOr<std::vector<BundleLayer>> LayersOfWeights(const std::string& path, int bits,
                                                                       ScalarType act,
                                                                       ActivationQuantization quantization);

// Packs the weights of these layers, which are that file's, and adds their planes, "<layer>.weights" and so
// on. InvalidArgument names the tensor whose size or values do not fit.
[[nodiscard]] absl::Status PackWeights(const std::string& path, const std::vector<BundleLayer>& layers,
                                       WeightStore& store);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_CANONICAL_FILE_H_
