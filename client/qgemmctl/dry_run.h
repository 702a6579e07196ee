#ifndef QGEMM_CLIENT_QGEMMCTL_DRY_RUN_H_
#define QGEMM_CLIENT_QGEMMCTL_DRY_RUN_H_

#include "client/qgemmctl/command.h"

namespace qgemm {

// Prints what a tune would compile and time: `tune --dry-run`.
absl::StatusOr<ExitCode> RunDryRun(const v1::TuneRequest& request, CommandContext& context);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_DRY_RUN_H_
