#ifndef QGEMM_SERVER_RUNNER_CUDA_DEVICE_H_
#define QGEMM_SERVER_RUNNER_CUDA_DEVICE_H_

#include <deque>
#include <memory>
#include <string>

#include "kernels/cuda/driver.h"
#include "server/runner/device.h"

namespace qgemm {

// A CUDA GPU.
class CudaDevice : public Device {
 public:
  // `device`: "auto" (the first one) or a UUID. Unavailable: no driver or no device; NotFound lists the UUIDs
  // there are.
  // `memory_limit_bytes`: allocations beyond it answer ResourceExhausted, as if the GPU had no more; 0: none
  // do.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(const std::string& device,
                                                                        int64_t memory_limit_bytes = 0);

  const DeviceProperties& properties() const { return context_.properties(); }
  const std::string& cuda_version() const { return driver_->cuda_version(); }

  int sm_count() const override { return properties().sm_count; }
  int64_t l2_bytes() const override { return properties().l2_bytes; }
  absl::StatusOr<Memory> MemoryInfo() override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<DeviceModule>> Load(absl::string_view cubin) override;
  absl::Status EncodeTensorMap(const TensorMapShape& shape, absl::Span<std::byte> out) override;
  absl::Status Launch(const DeviceKernel& kernel, Dim3 grid, int block_threads, int dynamic_smem_bytes,
                      absl::Span<void* const> params, int cluster_z) override;
  absl::Status SetBytes(uint64_t address, uint8_t value, int64_t bytes) override;
  absl::Status CopyOnDevice(uint64_t dst, uint64_t src, int64_t bytes) override;
  absl::Status RecordEvent(int event) override;
  absl::Status MarkEventsBy(const DeviceKernel* mark) override;
  absl::Status LaunchGraph(const DeviceGraph& graph) override;
  absl::Status BeginCapture() override;
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override;
  void AbandonCapture() override;
  absl::Status Synchronize() override;
  absl::Status ReadBack(uint64_t address, absl::Span<std::byte> target) override;
  absl::StatusOr<double> ElapsedMicroseconds(int begin, int end) override;

  // For tests: puts host data on the device.
  [[nodiscard]] absl::Status Write(uint64_t address, absl::Span<const std::byte> source);

 private:
  absl::Status PutMark(int event);
  absl::Status ReadMarks();

  CudaDevice(const Driver* driver, Context context, Stream stream, int64_t memory_limit_bytes)
      : driver_(driver),
        context_(std::move(context)),
        stream_(std::move(stream)),
        memory_limit_bytes_(memory_limit_bytes) {}

  const Driver* driver_;
  Context context_;
  Stream stream_;
  std::deque<Event> events_;
  const DeviceKernel* mark_ = nullptr;   // null: events are the driver's
  std::unique_ptr<DeviceMemory> marks_;  // kMaxMarks times in nanoseconds, by event
  std::vector<uint64_t> marks_read_;     // those in use, on the host
  bool marks_changed_ = false;           // since they were read
  const int64_t memory_limit_bytes_;
  const std::shared_ptr<int64_t> allocated_bytes_ = std::make_shared<int64_t>(0);
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_CUDA_DEVICE_H_
