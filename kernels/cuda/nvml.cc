#include "kernels/cuda/nvml.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/cuda/dynamic_library.h"

namespace qgemm {
namespace {

// The few declarations needed; the toolkit's header is not always installed with the driver.
using NvmlReturn = int;
constexpr NvmlReturn kNvmlSuccess = 0;
constexpr NvmlReturn kNvmlInsufficientSize = 7;
// nvmlProcessInfo_v2_t.
struct NvmlProcessInfo {
  unsigned pid;
  unsigned long long used_gpu_memory;
  unsigned gpu_instance_id;
  unsigned compute_instance_id;
};

}  // namespace

struct Nvml::Api {
  NvmlReturn (*Init)();
  const char* (*ErrorString)(NvmlReturn);
  NvmlReturn (*SystemGetDriverVersion)(char*, unsigned);
  NvmlReturn (*DeviceGetHandleByUuid)(const char*, nvmlDevice_st**);
  NvmlReturn (*ClocksReasons)(nvmlDevice_st*, unsigned long long*);
  NvmlReturn (*ComputeProcesses)(nvmlDevice_st*, unsigned*, NvmlProcessInfo*);
};

namespace {

absl::Status ToStatus(const Nvml::Api& api, NvmlReturn result, const char* call) {
  if (result == kNvmlSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(call, ": ", api.ErrorString(result)));
}

// Opened and initialised once per process.
absl::StatusOr<const Nvml::Api*> LoadApi() {
  QGEMM_ASSIGN_OR_RETURN(const DynamicLibrary library, DynamicLibrary::Open("NVML", {"libnvidia-ml.so.1"}));
  auto* const api = new Nvml::Api;
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvmlInit_v2", &api->Init));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvmlErrorString", &api->ErrorString));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvmlSystemGetDriverVersion", &api->SystemGetDriverVersion));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvmlDeviceGetHandleByUUID", &api->DeviceGetHandleByUuid));
  // Renamed in driver 535; older ones have only the old name.
  if (!library.Resolve("nvmlDeviceGetCurrentClocksEventReasons", &api->ClocksReasons).ok()) {
    QGEMM_RETURN_IF_ERROR(library.Resolve("nvmlDeviceGetCurrentClocksThrottleReasons", &api->ClocksReasons));
  }
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvmlDeviceGetComputeRunningProcesses_v3", &api->ComputeProcesses));
  QGEMM_RETURN_IF_ERROR(ToStatus(*api, api->Init(), "nvmlInit"));
  return api;
}

}  // namespace

std::string DescribeClocksReasons(uint64_t reasons) {
  std::vector<std::string> names;
  if (reasons & kClocksSwPowerCap) names.push_back("power cap");
  if (reasons & kClocksHwSlowdown) names.push_back("hardware slowdown");
  if (reasons & (kClocksSwThermal | kClocksHwThermal)) names.push_back("thermal slowdown");
  if (reasons & kClocksHwPowerBrake) names.push_back("power brake");
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<Nvml> Nvml::Open(const std::string& uuid) {
  static const auto* const loaded = new absl::StatusOr<const Api*>(LoadApi());
  if (!loaded->ok()) return absl::UnavailableError(loaded->status().message());
  const Api& api = ***loaded;
  char version[96] = {};
  QGEMM_RETURN_IF_ERROR(
      ToStatus(api, api.SystemGetDriverVersion(version, sizeof(version)), "nvmlSystemGetDriverVersion"));
  nvmlDevice_st* device = nullptr;
  QGEMM_RETURN_IF_ERROR(
      ToStatus(api, api.DeviceGetHandleByUuid(uuid.c_str(), &device), "nvmlDeviceGetHandleByUUID"));
  return Nvml(&api, device, version);
}

absl::StatusOr<uint64_t> Nvml::ClocksReasons() const {
  unsigned long long reasons = 0;
  QGEMM_RETURN_IF_ERROR(
      ToStatus(*api_, api_->ClocksReasons(device_, &reasons), "nvmlDeviceGetCurrentClocksEventReasons"));
  return reasons;
}

absl::StatusOr<std::vector<uint32_t>> Nvml::ComputeProcesses() const {
  std::vector<NvmlProcessInfo> processes(64);
  auto count = static_cast<unsigned>(processes.size());
  NvmlReturn result = api_->ComputeProcesses(device_, &count, processes.data());
  if (result == kNvmlInsufficientSize) {
    processes.resize(count + 16);
    count = static_cast<unsigned>(processes.size());
    result = api_->ComputeProcesses(device_, &count, processes.data());
  }
  QGEMM_RETURN_IF_ERROR(ToStatus(*api_, result, "nvmlDeviceGetComputeRunningProcesses"));
  std::vector<uint32_t> pids;
  for (unsigned i = 0; i < count; ++i) pids.push_back(processes[i].pid);
  return pids;
}

}  // namespace qgemm
