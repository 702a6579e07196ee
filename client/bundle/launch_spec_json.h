#ifndef QGEMM_CLIENT_BUNDLE_LAUNCH_SPEC_JSON_H_
#define QGEMM_CLIENT_BUNDLE_LAUNCH_SPEC_JSON_H_

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "kernels/launch_spec.h"
#include "kernels/problem.h"

namespace qgemm {

// The form of `qgemmctl kernel get --launch-spec`: field names of proto/qgemm/v1/types.proto, enumerators as
// lower-case words, every number a JSON number.
nlohmann::ordered_json ToJson(const LaunchSpec& spec);
nlohmann::ordered_json ToJson(const Problem& problem);

// DataLoss names the field that is missing or cannot be read; FailedPrecondition: another ABI version than
// this program's.
[[nodiscard]] absl::StatusOr<LaunchSpec> LaunchSpecFromJson(const nlohmann::ordered_json& json);
[[nodiscard]] absl::StatusOr<Problem> ProblemFromJson(const nlohmann::ordered_json& json);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_BUNDLE_LAUNCH_SPEC_JSON_H_
