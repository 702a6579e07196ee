#ifndef QGEMM_SERVER_RUNNER_VERIFIER_H_
#define QGEMM_SERVER_RUNNER_VERIFIER_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/launch_spec.h"
#include "qgemm/internal/runner.pb.h"
#include "server/runner/device.h"
#include "server/runner/problem_data.h"
#include "server/runner/support_library.h"

namespace qgemm {

// What was found out about a candidate.
struct Verdict {
  internal::CandidateFailure failure = internal::CANDIDATE_FAILURE_NONE;
  std::string reason;  // one sentence when failed
  double relative_error = 0;

  bool ok() const { return failure == internal::CANDIDATE_FAILURE_NONE; }
};

// Runs a candidate twice on the prepared data and judges it: its output is poisoned before each run, guards
// stand around output and workspace, the first output is compared with the reference and the second one with
// the first. The workspace's partials are poisoned too; its tickets are zeroed once, so that the second run
// finds them as the first one left them. `launch` puts the candidate on the stream.
//
// An error status: the GPU failed, not the candidate, or (Aborted) the candidate took the context down.
[[nodiscard]] absl::StatusOr<Verdict> VerifyCandidate(Device& device, SupportLibrary& support,
                                                      const ProblemData& data, const LaunchSpec& spec,
                                                      double tolerance,
                                                      const std::function<absl::Status()>& launch);

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_VERIFIER_H_
