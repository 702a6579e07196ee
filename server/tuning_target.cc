#include "server/tuning_target.h"

#include <utility>

#include "base/status_macros.h"

namespace qgemm {

absl::StatusOr<TargetResolver> TargetResolver::Create(absl::string_view default_target,
                                                      absl::string_view arch,
                                                      const std::optional<GpuInfo>& gpu) {
  TargetResolver resolver;
  resolver.gpu_ = gpu;
  resolver.arch_ = std::string(arch);
  if (!arch.empty()) QGEMM_RETURN_IF_ERROR(ValidateArch(arch));
  TuningTarget& target = resolver.default_;
  if (gpu.has_value()) {
    const v1::DeviceClass& device = gpu->device;
    QGEMM_ASSIGN_OR_RETURN(target.profile,
                           ProfileForDevice(device.product_name(), device.compute_major(),
                                            device.compute_minor(), device.sm_count(), device.l2_bytes(),
                                            device.memory_gib(), gpu->max_dynamic_smem_bytes));
    target.measured = true;
    target.device = device;
    static_cast<void>(resolver.SetDriverVersion(gpu->driver_version));
    // A default target is checked even where the GPU makes it unused, so that a typo does not wait for the
    // GPU's end.
    QGEMM_RETURN_IF_ERROR(FindDeviceProfile(default_target).status());
  } else {
    QGEMM_ASSIGN_OR_RETURN(target.profile, FindDeviceProfile(default_target));
  }
  target.name = target.profile.name;
  if (!arch.empty()) target.profile.arch = std::string(arch);
  return resolver;
}

absl::StatusOr<TuningTarget> TargetResolver::Resolve(absl::string_view requested) const {
  TuningTarget target;
  if (requested.empty() || requested == absl::string_view(default_.name)) {
    target = default_;
    target.driver_version = driver_version();
    return target;
  }
  QGEMM_ASSIGN_OR_RETURN(target.profile, FindDeviceProfile(requested));
  target.name = target.profile.name;
  if (!arch_.empty()) target.profile.arch = arch_;
  return target;
}

std::string TargetResolver::driver_version() const {
  MutexLock lock(driver_->mu);
  return driver_->version;
}

bool TargetResolver::SetDriverVersion(const std::string& version) const {
  MutexLock lock(driver_->mu);
  if (driver_->version == version) return false;
  driver_->version = version;
  return true;
}

}  // namespace qgemm
