#ifndef QGEMM_CLIENT_PROBLEM_PROTO_H_
#define QGEMM_CLIENT_PROBLEM_PROTO_H_

#include "absl/strings/string_view.h"
#include "kernels/problem.h"
#include "proto/convert/problem.h"
#include "qgemm/v1/types.pb.h"

namespace qgemm {

// The words of the command line and of its output for the API's enumerators; "" for unspecified and unknown
// ones.
absl::string_view ScalarTypeWord(v1::ScalarType type);        // "bf16", "fp16", "fp32"
absl::string_view ZeroPointWord(v1::ZeroPoint zero);          // "none", "int", "float"
absl::string_view ActivationWord(v1::Activation activation);  // "none" (also for unspecified), "silu", ...
// "none" (also for unspecified), "int8"
absl::string_view ActivationQuantizationWord(v1::ActivationQuantization quantization);
absl::string_view PickSourceWord(v1::PickSource source);   // "MEASURED", "MODEL"
absl::string_view ReductionWord(v1::Reduction reduction);  // "none", "workspace", "cluster"
absl::string_view EffortWord(v1::Effort effort);           // "exhaustive", "balanced", "model-only"

}  // namespace qgemm

#endif  // QGEMM_CLIENT_PROBLEM_PROTO_H_
