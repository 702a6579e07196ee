// qgemm-time: the only process with a CUDA context. Answers the daemon's frames on descriptor 3; ends when
// the daemon closes it, or after the context was lost (exit code 3).
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/clock.h"
#include "base/framed_stream.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "kernels/cuda/nvml.h"
#include "server/runner/cuda_device.h"
#include "server/runner/disturbance.h"
#include "server/runner/frame_server.h"
#include "server/runner/graph_profiler.h"

namespace qgemm {
namespace {

constexpr int kChannel = 3;

absl::StatusOr<std::unique_ptr<GraphProfiler>> MakeProfiler(const std::string& device_name,
                                                            int64_t memory_limit_bytes) {
  QGEMM_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device,
                         CudaDevice::Open(device_name, memory_limit_bytes));
  QGEMM_ASSIGN_OR_RETURN(const Device::Memory memory, device->MemoryInfo());
  const DeviceProperties& properties = device->properties();
  internal::RunnerHello hello;
  hello.set_protocol_version(kRunnerProtocolVersion);
  v1::DeviceClass* device_class = hello.mutable_device();
  device_class->set_product_name(properties.product_name);
  device_class->set_compute_major(properties.compute_major);
  device_class->set_compute_minor(properties.compute_minor);
  device_class->set_sm_count(properties.sm_count);
  device_class->set_l2_bytes(properties.l2_bytes);
  device_class->set_memory_gib(properties.memory_gib());
  hello.set_uuid(properties.uuid);
  hello.set_driver_version("cuda " + device->cuda_version());
  hello.set_memory_total_bytes(memory.total_bytes);
  hello.set_memory_free_bytes(memory.free_bytes);
  hello.set_max_dynamic_smem_bytes(properties.max_dynamic_smem_bytes);

  std::unique_ptr<DisturbanceMonitor> monitor = std::make_unique<NoMonitor>();
  absl::StatusOr<Nvml> nvml = Nvml::Open(properties.uuid);
  if (nvml.ok()) {
    hello.set_driver_version(nvml->driver_version());
    monitor = std::make_unique<NvmlMonitor>(*std::move(nvml), &RealClock());
  }
  return std::make_unique<GraphProfiler>(std::move(hello), std::move(device), std::move(monitor),
                                         &RealClock());
}

int Main(int argc, char** argv) {
  std::string device = "auto";
  bool host_timed = false;
  bool rewarm = true;
  int placements = ProblemData::kMaxPlacements;
  int64_t memory_limit_bytes = 0;
  std::ofstream sample_log;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--device" && i + 1 < argc) {
      device = argv[++i];
      continue;
    }
    if (argument == "--host-timed") {
      host_timed = true;
      continue;
    }
    if (argument == "--no-rewarm") {
      rewarm = false;
      continue;
    }
    if (argument == "--placements" && i + 1 < argc && absl::SimpleAtoi(argv[i + 1], &placements)) {
      ++i;
      continue;
    }
    if (argument == "--memory-limit" && i + 1 < argc && absl::SimpleAtoi(argv[i + 1], &memory_limit_bytes)) {
      ++i;
      continue;
    }
    if (argument == "--sample-log" && i + 1 < argc) {
      sample_log.open(argv[++i], std::ios::app);
      continue;
    }
    std::fprintf(
        stderr,
        "usage: qgemm-time [--device auto|UUID] [--host-timed] [--no-rewarm] [--placements N] "
        "[--memory-limit BYTES] [--sample-log FILE]; started by qgemmd with a channel as descriptor 3\n");
    return 2;
  }
  // A kernel is loaded as a whole when its module is, not at its first launch, which may be a timed one.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  FramedStream channel{UniqueFd(kChannel)};
  const auto profiler = MakeProfiler(device, memory_limit_bytes);
  if (profiler.ok() && host_timed) (*profiler)->TimeFromTheHost();
  if (profiler.ok() && !rewarm) (*profiler)->RaceWithoutRewarming();
  if (profiler.ok()) (*profiler)->LimitPlacements(placements);
  if (profiler.ok() && sample_log.is_open()) (*profiler)->LogSamplesTo(&sample_log);
  if (!profiler.ok()) {
    internal::RunnerHello hello;
    hello.set_protocol_version(kRunnerProtocolVersion);
    hello.set_error(std::string(profiler.status().message()));
    static_cast<void>(channel.Write(hello));
    return 1;
  }
  const absl::Status served = ServeFrames(channel, **profiler);
  if (absl::IsAborted(served)) {
    // Nothing of a lost context can be given back in order; the driver frees it with the process.
    std::_Exit(3);
  }
  if (!served.ok()) std::fprintf(stderr, "qgemm-time: %s\n", served.ToString().c_str());
  return served.ok() ? 0 : 1;
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) { return qgemm::Main(argc, argv); }
