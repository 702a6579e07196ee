#ifndef QGEMM_SERVER_RUNNER_DEVICE_H_
#define QGEMM_SERVER_RUNNER_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/cuda/driver.h"
#include "kernels/launch_spec.h"

namespace qgemm {

// The GPU as the profiler uses it: one stream, numbered events, graphs captured from the stream. An interface
// so that the order of calls, and what happens when any of them fails, are tested without a GPU. Errors are
// those of kernels/cuda/driver.h: Aborted = the context is lost. Used by one thread.

class DeviceKernel {
 public:
  virtual ~DeviceKernel() = default;
};

class DeviceModule {
 public:
  virtual ~DeviceModule() = default;
  // A kernel that may be launched with up to `dynamic_smem_bytes`; valid while the module is.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceKernel>> Find(const std::string& entry,
                                                                           int dynamic_smem_bytes) = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual uint64_t address() const = 0;
  virtual int64_t bytes() const = 0;
};

// The modules of the kernels that it launches must outlive it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

class Device {
 public:
  struct Memory {
    int64_t free_bytes = 0;
    int64_t total_bytes = 0;
  };

  virtual ~Device() = default;
  virtual int sm_count() const = 0;
  virtual int64_t l2_bytes() const = 0;
  [[nodiscard]] virtual absl::StatusOr<Memory> MemoryInfo() = 0;
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) = 0;
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceModule>> Load(absl::string_view cubin) = 0;

  // Fills in a tensor map among a kernel's arguments, 128 bytes.
  [[nodiscard]] virtual absl::Status EncodeTensorMap(const TensorMapShape& shape,
                                                     absl::Span<std::byte> out) = 0;

  // Put work on the stream. `cluster_z` above 1: clusters of (1, 1, cluster_z) CTAs.
  [[nodiscard]] virtual absl::Status Launch(const DeviceKernel& kernel, Dim3 grid, int block_threads,
                                            int dynamic_smem_bytes, absl::Span<void* const> params,
                                            int cluster_z) = 0;
  [[nodiscard]] virtual absl::Status SetBytes(uint64_t address, uint8_t value, int64_t bytes) = 0;
  [[nodiscard]] virtual absl::Status CopyOnDevice(uint64_t dst, uint64_t src, int64_t bytes) = 0;
  [[nodiscard]] virtual absl::Status RecordEvent(int event) = 0;
  // From now on RecordEvent launches `mark` instead, one thread that writes the GPU's clock in nanoseconds to
  // the address that is its parameter; null: it records the driver's events again. Borrowed until the next
  // call, and while graphs record with it.
  [[nodiscard]] virtual absl::Status MarkEventsBy(const DeviceKernel* mark) = 0;
  [[nodiscard]] virtual absl::Status LaunchGraph(const DeviceGraph& graph) = 0;

  // From BeginCapture to EndCapture, work goes into a graph instead; AbandonCapture drops it.
  [[nodiscard]] virtual absl::Status BeginCapture() = 0;
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() = 0;
  virtual void AbandonCapture() = 0;

  // Waits for all work.
  [[nodiscard]] virtual absl::Status Synchronize() = 0;
  // Waits for all work, then copies from the device.
  [[nodiscard]] virtual absl::Status ReadBack(uint64_t address, absl::Span<std::byte> target) = 0;
  // Device time between two events that have happened, microseconds.
  [[nodiscard]] virtual absl::StatusOr<double> ElapsedMicroseconds(int begin, int end) = 0;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_DEVICE_H_
