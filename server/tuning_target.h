#ifndef QGEMM_SERVER_TUNING_TARGET_H_
#define QGEMM_SERVER_TUNING_TARGET_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "kernels/device_profile.h"
#include "qgemm/v1/types.pb.h"
#include "server/gpu.h"

namespace qgemm {

// What a request tunes for.
struct TuningTarget {
  std::string name;            // of the profile; for a GPU without one, its product name
  DeviceProfile profile;       // with `arch` as kernels are compiled for it
  bool measured = false;       // candidates run on the pinned GPU; else picks are MODEL
  v1::DeviceClass device;      // measured only
  std::string driver_version;  // measured only
};

// Decides between the pinned GPU and the built-in profiles. Constant after construction, but for the GPU's
// driver, which may be upgraded while the daemon runs: all copies share it. Thread-safe.
class TargetResolver {
 public:
  // `arch`: empty, or overrides every profile's. InvalidArgument: unknown profile, malformed arch, or a GPU
  // that no kernel family supports.
  [[nodiscard]] static absl::StatusOr<TargetResolver> Create(absl::string_view default_target,
                                                             absl::string_view arch,
                                                             const std::optional<GpuInfo>& gpu);

  // Empty: the pinned GPU, else the default target. InvalidArgument lists the known profiles.
  [[nodiscard]] absl::StatusOr<TuningTarget> Resolve(absl::string_view requested) const;

  // The GPU as it was found at the start.
  const std::optional<GpuInfo>& gpu() const { return gpu_; }
  // Its driver now; empty without a GPU.
  std::string driver_version() const;
  // For what is resolved from now on. False: it is the same as before.
  bool SetDriverVersion(const std::string& version) const;

 private:
  struct Driver {
    Mutex mu;
    std::string version QGEMM_GUARDED_BY(mu);
  };

  TargetResolver() : driver_(std::make_shared<Driver>()) {}

  TuningTarget default_;
  std::string arch_;
  std::optional<GpuInfo> gpu_;
  std::shared_ptr<Driver> driver_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_TUNING_TARGET_H_
