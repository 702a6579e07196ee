#ifndef QGEMM_CLIENT_QGEMMCTL_BUNDLE_CREATE_H_
#define QGEMM_CLIENT_QGEMMCTL_BUNDLE_CREATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/bundle/manifest.h"
#include "client/qgemm/client.h"
#include "client/qgemmctl/problem_arguments.h"

namespace qgemm {

struct BundleCreateArguments {
  ProblemArguments problems;
  std::string output;                // directory, or *.tar
  std::vector<std::string> methods;  // NAME=M or NAME=dynamic
  std::string weights;               // canonical weights in safetensors; empty: the bundle has none
  std::string picks;                 // a bundle whose picks and kernels are taken; empty: the daemon's
  bool no_tune = false;              // refuse what is not tuned
};

struct CreatedBundle {
  int layers = 0;  // of each method
  int picks = 0;
  int kernels = 0;
  int64_t weight_bytes = 0;
  int64_t compiles = 0;
  int64_t timings = 0;
};

// Makes the bundle. InvalidArgument: the command line or the weights must change; NotFound names what is not
// tuned or not among the picks of the old bundle; else what the daemon or the disk answers.
[[nodiscard]] absl::StatusOr<CreatedBundle> CreateBundle(const BundleCreateArguments& arguments,
                                                         Client& client);

// Layers as canonical weights say: tensors "<layer>.codes" [N, K] U8, ".scales" [N, groups] BF16 or F16, and
// where the format has them ".zeros" U8, ".offsets" as the scales, ".scale_codes" and ".offset_codes" I8,
// ".bias" [N] in the activation type; ".bits" U8 [1], else `bits`. `act` and `quantization` are what the file
// does not say. InvalidArgument names the tensor; a layer has no others.
[[nodiscard]] absl::StatusOr<std::vector<BundleLayer>> LayersOfWeights(const std::string& path, int bits,
                                                                       ScalarType act,
                                                                       ActivationQuantization quantization);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_BUNDLE_CREATE_H_
