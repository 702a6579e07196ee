#ifndef QGEMM_SERVER_RUNNER_DISTURBANCE_H_
#define QGEMM_SERVER_RUNNER_DISTURBANCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "kernels/cuda/nvml.h"

namespace qgemm {

// Tells whether something else than the kernel decides a timing right now.
class DisturbanceMonitor {
 public:
  virtual ~DisturbanceMonitor() = default;
  // One sentence, or empty: nothing known.
  virtual std::string Check() = 0;
};

// Knows of nothing: where NVML is missing.
class NoMonitor : public DisturbanceMonitor {
 public:
  std::string Check() override { return ""; }
};

// Clock slow-downs (heat, hardware) and compute processes of others, by NVML. A container shows other process
// ids than ours, so "others" are all processes but one. Their list is refreshed every 250 ms at most: it
// takes a millisecond.
class NvmlMonitor : public DisturbanceMonitor {
 public:
  // The clock is borrowed.
  NvmlMonitor(Nvml nvml, Clock* clock) : nvml_(std::move(nvml)), clock_(clock) {}
  std::string Check() override;

 private:
  Nvml nvml_;
  Clock* const clock_;
  TimePoint next_listing_{};
  size_t processes_ = 0;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_DISTURBANCE_H_
