#include "tests/fakes/fake_gpu.h"

#include <utility>

#include "base/clock.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace qgemm {

GpuInfo FakeGpu::H200() {
  GpuInfo info;
  info.device.set_product_name("NVIDIA H200");
  info.device.set_compute_major(9);
  info.device.set_compute_minor(0);
  info.device.set_sm_count(132);
  info.device.set_l2_bytes(62914560);
  info.device.set_memory_gib(140);
  info.uuid = "GPU-00000000-0000-0000-0000-000000000001";
  info.driver_version = "580.95";
  info.memory_total_bytes = int64_t{140} << 30;
  info.memory_free_bytes = int64_t{139} << 30;
  info.max_dynamic_smem_bytes = 232448;
  return info;
}

void FakeGpu::SetBehaviour(Behaviour behaviour) {
  MutexLock lock(mu_);
  behaviour_ = std::move(behaviour);
}

void FakeGpu::SetLost(absl::Status status) {
  MutexLock lock(mu_);
  lost_ = std::move(status);
}

void FakeGpu::Hold() {
  MutexLock lock(mu_);
  holding_ = true;
}

void FakeGpu::Release() {
  MutexLock lock(mu_);
  holding_ = false;
  changed_.NotifyAll();
}

void FakeGpu::AwaitHeld() {
  MutexLock lock(mu_);
  while (!held_) changed_.Wait(mu_);
}

int FakeGpu::screens() const {
  MutexLock lock(mu_);
  return screens_;
}

int FakeGpu::prepares() const {
  MutexLock lock(mu_);
  return prepares_;
}

int FakeGpu::finals() const {
  MutexLock lock(mu_);
  return finals_;
}

std::map<std::string, int> FakeGpu::screens_by_name() const {
  MutexLock lock(mu_);
  return screens_by_name_;
}

std::string FakeGpu::support_cubin() const {
  MutexLock lock(mu_);
  return support_cubin_;
}

absl::StatusOr<GpuInfo> FakeGpu::Describe() {
  MutexLock lock(mu_);
  if (!lost_.ok()) return lost_;
  return H200();
}

void FakeGpu::SetSupportKernels(std::string cubin) {
  MutexLock lock(mu_);
  support_cubin_ = std::move(cubin);
}

absl::Status FakeGpu::Prepare(const Problem& /*problem*/, int64_t /*m*/) {
  MutexLock lock(mu_);
  ++prepares_;
  if (support_cubin_.empty()) return absl::FailedPreconditionError("no support kernels");
  if (support_cubin_ == refused_support_) {
    return absl::DataLossError("the driver refuses the support kernels: CUDA_ERROR_INVALID_IMAGE");
  }
  return lost_;
}

absl::StatusOr<internal::ScreenReply> FakeGpu::VerdictOn(const GpuCandidate& candidate) {
  Behaviour behaviour;
  {
    MutexLock lock(mu_);
    if (!lost_.ok()) return lost_;
    behaviour = behaviour_;
  }
  return behaviour ? behaviour(candidate) : Right(MedianOf(candidate.name));
}

absl::StatusOr<internal::ScreenReply> FakeGpu::Screen(const GpuCandidate& candidate, double /*tolerance*/,
                                                      absl::Duration /*time_budget*/) {
  {
    MutexLock lock(mu_);
    ++screens_;
    ++screens_by_name_[candidate.name];
    while (holding_) {
      held_ = true;
      changed_.NotifyAll();
      changed_.Wait(mu_);
    }
    held_ = false;
  }
  if (HangsUntilWithdrawn()) return absl::CancelledError("withdrawn");
  return VerdictOn(candidate);
}

bool FakeGpu::HangsUntilWithdrawn() {
  constexpr Duration kPoll = std::chrono::milliseconds(1);
  while (true) {
    std::function<bool()> withdrawn;
    {
      MutexLock lock(mu_);
      if (!hanging_) return false;
      held_ = true;
      changed_.NotifyAll();
      // Its lock is the board's: asked outside of this one.
      withdrawn = withdrawn_;
    }
    if (withdrawn != nullptr && withdrawn()) break;
    MutexLock lock(mu_);
    changed_.WaitUntil(mu_, RealClock().Now() + kPoll);
  }
  MutexLock lock(mu_);
  hanging_ = held_ = false;
  return true;
}

void FakeGpu::HangUntilWithdrawn() {
  MutexLock lock(mu_);
  hanging_ = true;
}

void FakeGpu::SetWithdrawn(const std::function<bool()>& withdrawn) {
  MutexLock lock(mu_);
  withdrawn_ = withdrawn;
}

void FakeGpu::RefuseSupportKernels(std::string cubin) {
  MutexLock lock(mu_);
  refused_support_ = std::move(cubin);
}

void FakeGpu::SetFinalsStatus(absl::Status status) {
  MutexLock lock(mu_);
  finals_status_ = std::move(status);
}

absl::StatusOr<std::vector<internal::Timing>> FakeGpu::Finals(const std::vector<GpuCandidate>& candidates,
                                                              absl::Duration /*time_budget*/,
                                                              double /*tie_band*/) {
  {
    MutexLock lock(mu_);
    ++finals_;
    if (!finals_status_.ok()) return finals_status_;
  }
  std::vector<internal::Timing> timings;
  for (const GpuCandidate& candidate : candidates) {
    QGEMM_ASSIGN_OR_RETURN(const internal::ScreenReply reply, VerdictOn(candidate));
    timings.push_back(reply.timing());
  }
  return timings;
}

internal::ScreenReply FakeGpu::Right(double median_us) {
  internal::ScreenReply reply;
  reply.set_relative_error(0.002);
  reply.mutable_timing()->set_median_us(median_us);
  reply.mutable_timing()->set_spread_us(0.01);
  reply.mutable_timing()->set_samples(200);
  return reply;
}

internal::ScreenReply FakeGpu::Failed(internal::CandidateFailure failure, const std::string& reason) {
  internal::ScreenReply reply;
  reply.set_failure(failure);
  reply.set_reason(reason);
  return reply;
}

double FakeGpu::MedianOf(const std::string& name) {
  const std::string digest = Sha256(name);
  return 5.0 + 20.0 * static_cast<unsigned char>(digest[0]) / 255.0 +
         static_cast<unsigned char>(digest[1]) * 1e-4;
}

}  // namespace qgemm
