#ifndef QGEMM_CLIENT_QGEMMCTL_EXIT_CODE_H_
#define QGEMM_CLIENT_QGEMMCTL_EXIT_CODE_H_

#include "absl/status/status.h"

namespace qgemm {

// qgemmctl's exit codes: scripts rely on them.
enum class ExitCode {
  kOk = 0,
  kFailed = 1,       // a job failed, and everything that has no code of its own
  kUsage = 2,        // the request must be changed
  kUnavailable = 3,  // no daemon answers, or it cannot serve now
  kAuth = 4,
  kDeadline = 5,
  kNotFound = 6,
  kExhausted = 7,  // quota or disk
  kCorrupt = 8,
  kInterrupted = 130,  // SIGINT or SIGTERM
};

ExitCode ExitCodeFor(const absl::Status& status);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_EXIT_CODE_H_
