#include "server/runner/disturbance.h"

#include <chrono>

#include "absl/strings/str_cat.h"

namespace qgemm {

std::string NvmlMonitor::Check() {
  // What NVML cannot tell on this GPU or to this user is no disturbance. Nor is the power cap: a long GEMM
  // reaches it by itself, in use as much as here; clocks that move meanwhile show in the probe.
  constexpr uint64_t kReasons = kClocksDisturbing & ~kClocksSwPowerCap;
  if (const auto reasons = nvml_.ClocksReasons(); reasons.ok() && (*reasons & kReasons) != 0) {
    return absl::StrCat("the GPU's clocks are reduced: ", DescribeClocksReasons(*reasons));
  }
  if (const TimePoint now = clock_->Now(); now >= next_listing_) {
    next_listing_ = now + std::chrono::milliseconds(250);
    const auto processes = nvml_.ComputeProcesses();
    processes_ = processes.ok() ? processes->size() : 0;
  }
  if (processes_ > 1) return absl::StrCat(processes_ - 1, " other processes use the GPU");
  return "";
}

}  // namespace qgemm
