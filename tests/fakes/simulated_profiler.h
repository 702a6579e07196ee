#ifndef QGEMM_TESTS_FAKES_SIMULATED_PROFILER_H_
#define QGEMM_TESTS_FAKES_SIMULATED_PROFILER_H_

#include <map>
#include <memory>
#include <regex>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device_profile.h"
#include "kernels/launch_spec.h"
#include "kernels/problem.h"
#include "server/runner/profiler.h"

namespace qgemm {

// Behaves like the GPU process on a GPU that is not there: every candidate is right, and its time is a
// deterministic function of launch spec and problem. For tests only; never installed.
//
// Candidates whose name matches one of these (ECMAScript, searched for) misbehave:
//   QGEMM_SIMULATED_CRASH            the process aborts
//   QGEMM_SIMULATED_STICKY           the context is lost, the process says so and exits
//   QGEMM_SIMULATED_HANG             the process does not answer any more
//   QGEMM_SIMULATED_WRONG            wrong result
//   QGEMM_SIMULATED_NOT_REPEATABLE   second run differs
//   QGEMM_SIMULATED_OUT_OF_BOUNDS    guard touched
//   QGEMM_SIMULATED_LOAD             the driver refuses the kernel
// and
//   QGEMM_SIMULATED_NO_GPU=sentence  no GPU can be used, for this reason
//   QGEMM_SIMULATED_DEVICE=profile   what it looks like (default h200)
//   QGEMM_SIMULATED_DRIVER_FILE=path whose first line is the driver's version (default "simulated 1.0")
//   QGEMM_SIMULATED_SCREEN_MS=n      real time each screening takes (default 0)
class SimulatedProfiler : public Profiler {
 public:
  // Reads the environment. InvalidArgument: an unknown profile or a malformed expression.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SimulatedProfiler>> FromEnvironment();

  internal::RunnerHello Hello() override;
  absl::StatusOr<internal::PrepareReply> Prepare(const internal::PrepareRequest& request) override;
  absl::StatusOr<internal::ScreenReply> Screen(const internal::ScreenRequest& request) override;
  absl::StatusOr<internal::FinalsReply> Finals(const internal::FinalsRequest& request) override;
  absl::StatusOr<internal::StatusReply> Status() override;

 private:
  explicit SimulatedProfiler(DeviceProfile device) : device_(std::move(device)) {}
  bool Matches(const std::string& behaviour, const std::string& name) const;
  absl::Status CheckLoaded(const internal::Candidate& candidate);
  // The same for the same candidate, problem and M in every process.
  absl::StatusOr<internal::Timing> TimingOf(const internal::Candidate& candidate) const;

  DeviceProfile device_;
  std::string no_gpu_;
  std::string driver_ = "simulated 1.0";
  int screen_ms_ = 0;
  std::map<std::string, std::regex> behaviours_;
  std::map<std::string, bool> loaded_;  // by kernel SHA-256
  bool has_support_kernels_ = false;
  bool prepared_ = false;
  Problem problem_;
  int64_t m_ = 0;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_FAKES_SIMULATED_PROFILER_H_
