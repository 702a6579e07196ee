#ifndef QGEMM_SERVER_PROTO_CONVERT_H_
#define QGEMM_SERVER_PROTO_CONVERT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device_profile.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"
#include "proto/convert/problem.h"
#include "qgemm/internal/runner.pb.h"
#include "qgemm/v1/types.pb.h"

namespace qgemm {

// Between the public messages and the domain types of kernels/; proto/convert/problem.h has the way of a
// problem into its message. Pure functions.

// The canonical problem: every unspecified field has its default, and ValidateProblem holds. InvalidArgument
// names the field, its value and what is allowed.
[[nodiscard]] absl::StatusOr<Problem> ProblemFromProto(const v1::Problem& proto);

v1::Reduction ReductionToProto(Reduction reduction);

// BALANCED for an unspecified effort; InvalidArgument for an enumerator that is not known here.
[[nodiscard]] absl::StatusOr<v1::Effort> CanonicalEffort(v1::Effort effort);

// A failed candidate in a few words: "wrong result". Empty for NONE.
absl::string_view FailureText(internal::CandidateFailure failure);

}  // namespace qgemm

#endif  // QGEMM_SERVER_PROTO_CONVERT_H_
