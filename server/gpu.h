#ifndef QGEMM_SERVER_GPU_H_
#define QGEMM_SERVER_GPU_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/launch_spec.h"
#include "kernels/problem.h"
#include "qgemm/internal/runner.pb.h"

namespace qgemm {

struct GpuInfo {
  v1::DeviceClass device;
  std::string uuid;
  std::string driver_version;
  int64_t memory_total_bytes = 0;
  int64_t memory_free_bytes = 0;
  int max_dynamic_smem_bytes = 0;
};

// One kernel launch to verify and time.
struct GpuCandidate {
  std::string name;
  std::string kernel_sha256;
  const std::string* cubin = nullptr;  // borrowed for the call
  LaunchSpec launch;
  double hopeless_us = 0;  // Screen: slower than this is not worth the whole time budget; 0: nothing is
};

// The pinned GPU, seen from the daemon. A bad candidate is data (ScreenReply::failure), not a failed call.
// Calls block; one caller at a time (the tuner's GPU thread). Everything that belongs to a (problem, M) is
// prepared once by Prepare; after a crash of the GPU process the implementation restarts it and prepares
// again by itself, so that only the culprit is lost.
class Gpu {
 public:
  virtual ~Gpu() = default;
  // Unavailable: the GPU is lost or its process cannot be started.
  [[nodiscard]] virtual absl::StatusOr<GpuInfo> Describe() = 0;
  // The cubin of SupportKernelSource() for this GPU's arch; before the first Prepare.
  virtual void SetSupportKernels(std::string cubin) = 0;
  // DataLoss: the support kernels are not ones that this GPU can load.
  [[nodiscard]] virtual absl::Status Prepare(const Problem& problem, int64_t m) = 0;
  // Verifies and, when right and budget > 0, times. Also answers HANG when the process had to be killed and
  // LAUNCH after a sticky error; earlier results stand.
  [[nodiscard]] virtual absl::StatusOr<internal::ScreenReply> Screen(const GpuCandidate& candidate,
                                                                     double tolerance,
                                                                     absl::Duration time_budget) = 0;
  // One timing per candidate, in order.
  [[nodiscard]] virtual absl::StatusOr<std::vector<internal::Timing>> Finals(
      const std::vector<GpuCandidate>& candidates, absl::Duration time_budget, double tie_band) = 0;
  // Asked, until it is replaced, while a later call waits for the GPU: true = nobody wants that call's answer
  // any more. The call may then answer Cancelled, and what it ran is ended, be it hung; null: never.
  virtual void SetWithdrawn(const std::function<bool()>& /*withdrawn*/) {}
  // GPU-process seconds spent since the start, for statistics.
  virtual double busy_seconds() const = 0;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_GPU_H_
