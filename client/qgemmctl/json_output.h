#ifndef QGEMM_CLIENT_QGEMMCTL_JSON_OUTPUT_H_
#define QGEMM_CLIENT_QGEMMCTL_JSON_OUTPUT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "qgemm/v1/types.pb.h"

namespace qgemm {

// The API's messages as JSON with the .proto files' field names; unlike protobuf's own mapping every number
// is a JSON number, also 64-bit ones.
nlohmann::ordered_json KernelInfoToJson(const v1::KernelInfo& kernel);
nlohmann::ordered_json AccessReportToJson(const v1::AccessReport& report);
nlohmann::ordered_json LaunchSpecToJson(const v1::LaunchSpec& spec);

// {"error": {"code": "NOT_FOUND", "message": ...}}: what a failed command prints in place of its result.
nlohmann::ordered_json ErrorToJson(const absl::Status& status);

// Indented text with a last line break. Bytes that are no UTF-8 are replaced, so that it never fails.
std::string JsonText(const nlohmann::ordered_json& json);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_JSON_OUTPUT_H_
