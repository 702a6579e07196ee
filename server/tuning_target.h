#ifndef QGEMM_SERVER_TUNING_TARGET_H_
#define QGEMM_SERVER_TUNING_TARGET_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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

// Decides between the pinned GPU and the built-in profiles. Constant after construction.
class TargetResolver {
 public:
  // `arch`: empty, or overrides every profile's. InvalidArgument: unknown profile, malformed arch, or a GPU
  // that no kernel family supports.
  [[nodiscard]] static absl::StatusOr<TargetResolver> Create(absl::string_view default_target,
                                                             absl::string_view arch,
                                                             const std::optional<GpuInfo>& gpu);

  // Empty: the pinned GPU, else the default target. InvalidArgument lists the known profiles.
  [[nodiscard]] absl::StatusOr<TuningTarget> Resolve(absl::string_view requested) const;

  const std::optional<GpuInfo>& gpu() const { return gpu_; }

 private:
  TargetResolver() = default;

  TuningTarget default_;
  std::string arch_;
  std::optional<GpuInfo> gpu_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_TUNING_TARGET_H_
