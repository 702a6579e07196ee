#include "client/qgemmctl/exit_code.h"

namespace qgemm {

ExitCode ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return ExitCode::kUsage;
    case absl::StatusCode::kUnavailable:
      return ExitCode::kUnavailable;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return ExitCode::kAuth;
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kDeadline;
    case absl::StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case absl::StatusCode::kResourceExhausted:
      return ExitCode::kExhausted;
    case absl::StatusCode::kDataLoss:
      return ExitCode::kCorrupt;
    default:
      return ExitCode::kFailed;
  }
}

}  // namespace qgemm
