#include "server/pausable_gpu.h"

#include <utility>

#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace qgemm {

PausableGpu::PausableGpu(Gpu& gpu, Clock& clock, Hooks hooks)
    : gpu_(gpu), clock_(clock), hooks_(std::move(hooks)), last_use_(clock.Now()) {}

absl::Status PausableGpu::Enter() {
  bool acquire = false;
  {
    MutexLock lock(mu_);
    while ((paused_ || busy_) && !stopped_) changed_.Wait(mu_);
    if (stopped_) return absl::UnavailableError("the daemon is stopping; try again later");
    busy_ = true;
    acquire = !held_;
  }
  if (!acquire) return absl::OkStatus();
  absl::Status acquired = hooks_.acquire();
  {
    MutexLock lock(mu_);
    held_ = acquired.ok();
  }
  if (!acquired.ok()) Leave();
  return acquired;
}

void PausableGpu::Leave() {
  bool release = false;
  {
    MutexLock lock(mu_);
    last_use_ = clock_.Now();
    // A pause that did not want to wait for this.
    release = paused_ && held_;
  }
  if (release) Release();
  MutexLock lock(mu_);
  busy_ = false;
  changed_.NotifyAll();
}

void PausableGpu::Release() {
  hooks_.release();
  MutexLock lock(mu_);
  held_ = false;
}

absl::Status PausableGpu::Pause(Duration patience) {
  const TimePoint deadline = clock_.Now() + patience;
  {
    MutexLock lock(mu_);
    if (!paused_) spdlog::info("the GPU is paused: nothing is timed until it is resumed");
    paused_ = true;
    while (busy_ && clock_.WaitUntil(mu_, changed_, deadline)) {
    }
    if (busy_) {
      return absl::DeadlineExceededError(
          "the GPU is paused, but the kernel that runs on it has not ended yet; the GPU is given back as "
          "soon as it "
          "has");
    }
    if (!held_ || !paused_) return absl::OkStatus();
    busy_ = true;
  }
  Leave();
  return absl::OkStatus();
}

absl::Status PausableGpu::Resume() {
  bool acquire = false;
  {
    MutexLock lock(mu_);
    if (!paused_) return absl::OkStatus();
    while (busy_ && !stopped_) changed_.Wait(mu_);
    busy_ = true;
    acquire = !held_;
  }
  absl::Status acquired = acquire ? hooks_.acquire() : absl::OkStatus();
  MutexLock lock(mu_);
  if (acquired.ok()) {
    spdlog::info("the GPU is resumed");
    held_ = true;
    paused_ = false;
    last_use_ = clock_.Now();
  }
  busy_ = false;
  changed_.NotifyAll();
  return acquired;
}

void PausableGpu::ReleaseIfIdle(Duration idle) {
  {
    MutexLock lock(mu_);
    if (busy_ || !held_ || stopped_ || clock_.Now() - last_use_ < idle) return;
    busy_ = true;
  }
  spdlog::info("the GPU was idle for {} s and is given back until it is needed",
               std::chrono::duration_cast<std::chrono::seconds>(idle).count());
  Release();
  MutexLock lock(mu_);
  busy_ = false;
  changed_.NotifyAll();
}

void PausableGpu::Stop() {
  MutexLock lock(mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

bool PausableGpu::paused() {
  MutexLock lock(mu_);
  return paused_;
}

bool PausableGpu::held() {
  MutexLock lock(mu_);
  return held_;
}

absl::StatusOr<GpuInfo> PausableGpu::Describe() {
  QGEMM_RETURN_IF_ERROR(Enter());
  absl::StatusOr<GpuInfo> info = gpu_.Describe();
  Leave();
  return info;
}

void PausableGpu::SetSupportKernels(std::string cubin) { support_ = std::move(cubin); }

absl::Status PausableGpu::Prepare(const Problem& problem, int64_t m) {
  QGEMM_RETURN_IF_ERROR(Enter());
  gpu_.SetSupportKernels(support_);
  absl::Status status = gpu_.Prepare(problem, m);
  Leave();
  return status;
}

absl::StatusOr<internal::ScreenReply> PausableGpu::Screen(const GpuCandidate& candidate, double tolerance,
                                                          absl::Duration time_budget) {
  QGEMM_RETURN_IF_ERROR(Enter());
  absl::StatusOr<internal::ScreenReply> reply = gpu_.Screen(candidate, tolerance, time_budget);
  Leave();
  return reply;
}

absl::StatusOr<std::vector<internal::Timing>> PausableGpu::Finals(const std::vector<GpuCandidate>& candidates,
                                                                  absl::Duration time_budget,
                                                                  double tie_band) {
  QGEMM_RETURN_IF_ERROR(Enter());
  absl::StatusOr<std::vector<internal::Timing>> timings = gpu_.Finals(candidates, time_budget, tie_band);
  Leave();
  return timings;
}

}  // namespace qgemm
