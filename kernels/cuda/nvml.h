#ifndef QGEMM_KERNELS_CUDA_NVML_H_
#define QGEMM_KERNELS_CUDA_NVML_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct nvmlDevice_st;

namespace qgemm {

// Why the clocks are below what was asked for: bits as NVML reports them.
inline constexpr uint64_t kClocksSwPowerCap = 0x4;
inline constexpr uint64_t kClocksHwSlowdown = 0x8;
inline constexpr uint64_t kClocksSwThermal = 0x20;
inline constexpr uint64_t kClocksHwThermal = 0x40;
inline constexpr uint64_t kClocksHwPowerBrake = 0x80;
// Those that make a timing unlike another one: all but idle clocks and settings somebody chose.
inline constexpr uint64_t kClocksDisturbing =
    kClocksSwPowerCap | kClocksHwSlowdown | kClocksSwThermal | kClocksHwThermal | kClocksHwPowerBrake;

// "power cap, thermal slowdown"; empty when no disturbing bit is set.
std::string DescribeClocksReasons(uint64_t reasons);

// NVIDIA's management library, opened with dlopen, for one GPU. Not thread-safe.
class Nvml {
 public:
  // `uuid` as in DeviceProperties. Unavailable: no library, or it does not know the GPU. Never unloaded.
  [[nodiscard]] static absl::StatusOr<Nvml> Open(const std::string& uuid);

  // "580.159.04".
  const std::string& driver_version() const { return driver_version_; }
  [[nodiscard]] absl::StatusOr<uint64_t> ClocksReasons() const;
  // Process ids with a compute context on the GPU, as the driver numbers them: those of the host, which
  // inside a container are not the caller's.
  [[nodiscard]] absl::StatusOr<std::vector<uint32_t>> ComputeProcesses() const;

  struct Api;

 private:
  Nvml(const Api* api, nvmlDevice_st* device, std::string driver_version)
      : api_(api), device_(device), driver_version_(std::move(driver_version)) {}
  const Api* api_;
  nvmlDevice_st* device_;
  std::string driver_version_;
};

}  // namespace qgemm

#endif  // QGEMM_KERNELS_CUDA_NVML_H_
