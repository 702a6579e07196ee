#ifndef QGEMM_CLIENT_QGEMMCTL_FILE_OUTPUT_H_
#define QGEMM_CLIENT_QGEMMCTL_FILE_OUTPUT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace qgemm {

// Writes all of it to standard output. ResourceExhausted: the disk is full; FailedPrecondition: it cannot be
// written to, the message says why.
[[nodiscard]] absl::Status WriteStdout(absl::string_view text);

// Makes `path` a file of these bytes, or leaves what was there: the bytes go to a temporary file beside it,
// which is synced and renamed. A path that is no regular file (a pipe, /dev/null) is written directly.
// ResourceExhausted: the disk is full; FailedPrecondition: the file cannot be made, the message says why.
[[nodiscard]] absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_FILE_OUTPUT_H_
