#ifndef QGEMM_SERVER_RUNNER_PROFILER_H_
#define QGEMM_SERVER_RUNNER_PROFILER_H_

#include "absl/status/statusor.h"
#include "qgemm/internal/runner.pb.h"

namespace qgemm {

// What the GPU process does, one call per request of runner.proto. A bad candidate is data
// (ScreenReply::failure), not a failed call; Aborted: the GPU's context is lost and the process must be
// replaced; FailedPrecondition: nothing is prepared, or a kernel's bytes were not sent; DataLoss: the
// driver refuses the support kernels that were sent. Used by one thread.
class Profiler {
 public:
  virtual ~Profiler() = default;
  virtual internal::RunnerHello Hello() = 0;
  [[nodiscard]] virtual absl::StatusOr<internal::PrepareReply> Prepare(
      const internal::PrepareRequest& request) = 0;
  [[nodiscard]] virtual absl::StatusOr<internal::ScreenReply> Screen(
      const internal::ScreenRequest& request) = 0;
  [[nodiscard]] virtual absl::StatusOr<internal::FinalsReply> Finals(
      const internal::FinalsRequest& request) = 0;
  [[nodiscard]] virtual absl::StatusOr<internal::StatusReply> Status() = 0;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_PROFILER_H_
