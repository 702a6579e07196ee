#ifndef QGEMM_SERVER_LAUNCH_SPEC_PROTO_H_
#define QGEMM_SERVER_LAUNCH_SPEC_PROTO_H_

#include "absl/status/statusor.h"
#include "kernels/launch_spec.h"
#include "qgemm/v1/types.pb.h"

namespace qgemm {

v1::LaunchSpec LaunchSpecToProto(const LaunchSpec& spec);

// InvalidArgument: another ABI version, a size out of range, or an argument of a kind that is not known here.
[[nodiscard]] absl::StatusOr<LaunchSpec> LaunchSpecFromProto(const v1::LaunchSpec& proto);

}  // namespace qgemm

#endif  // QGEMM_SERVER_LAUNCH_SPEC_PROTO_H_
