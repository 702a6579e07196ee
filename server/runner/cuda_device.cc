#include "server/runner/cuda_device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

constexpr int kMaxMarks = 4096;

class CudaKernel : public DeviceKernel {
 public:
  explicit CudaKernel(Kernel kernel) : kernel_(kernel) {}
  const Kernel& kernel() const { return kernel_; }

 private:
  Kernel kernel_;
};

class CudaModule : public DeviceModule {
 public:
  explicit CudaModule(Module module) : module_(std::move(module)) {}
  absl::StatusOr<std::unique_ptr<DeviceKernel>> Find(const std::string& entry,
                                                     int dynamic_smem_bytes) override {
    QGEMM_ASSIGN_OR_RETURN(const Kernel kernel, module_.Find(entry));
    QGEMM_RETURN_IF_ERROR(kernel.AllowDynamicSmem(dynamic_smem_bytes));
    return std::make_unique<CudaKernel>(kernel);
  }

 private:
  Module module_;
};

class CudaMemory : public DeviceMemory {
 public:
  CudaMemory(DeviceBuffer buffer, std::shared_ptr<int64_t> allocated_bytes)
      : buffer_(std::move(buffer)), allocated_bytes_(std::move(allocated_bytes)) {
    *allocated_bytes_ += buffer_.bytes();
  }
  ~CudaMemory() override { *allocated_bytes_ -= buffer_.bytes(); }
  uint64_t address() const override { return buffer_.address(); }
  int64_t bytes() const override { return buffer_.bytes(); }

 private:
  DeviceBuffer buffer_;
  const std::shared_ptr<int64_t> allocated_bytes_;
};

class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(GraphExec exec) : exec_(std::move(exec)) {}
  const GraphExec& exec() const { return exec_; }

 private:
  GraphExec exec_;
};

absl::StatusOr<int> FindOrdinal(const Driver& driver, const std::string& device) {
  if (device == "auto") return 0;
  std::vector<std::string> uuids;
  for (int ordinal = 0; ordinal < driver.device_count(); ++ordinal) {
    QGEMM_ASSIGN_OR_RETURN(const DeviceProperties properties, driver.Properties(ordinal));
    if (properties.uuid == device) return ordinal;
    uuids.push_back(properties.uuid);
  }
  return absl::NotFoundError(
      absl::StrCat("device '", device, "' is not here; there is: auto, ", absl::StrJoin(uuids, ", ")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(const std::string& device,
                                                             int64_t memory_limit_bytes) {
  QGEMM_ASSIGN_OR_RETURN(const Driver* driver, Driver::Load());
  QGEMM_ASSIGN_OR_RETURN(const int ordinal, FindOrdinal(*driver, device));
  QGEMM_ASSIGN_OR_RETURN(Context context, Context::Open(*driver, ordinal));
  QGEMM_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  return std::unique_ptr<CudaDevice>(
      new CudaDevice(driver, std::move(context), std::move(stream), memory_limit_bytes));
}

absl::StatusOr<Device::Memory> CudaDevice::MemoryInfo() {
  QGEMM_ASSIGN_OR_RETURN(const Context::Memory memory, context_.MemoryInfo());
  if (memory_limit_bytes_ == 0) return Memory{memory.free_bytes, memory.total_bytes};
  return Memory{std::min(memory.free_bytes, std::max<int64_t>(0, memory_limit_bytes_ - *allocated_bytes_)),
                memory.total_bytes};
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> CudaDevice::Allocate(int64_t bytes) {
  if (memory_limit_bytes_ > 0 && *allocated_bytes_ + bytes > memory_limit_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(bytes,
                                                     " bytes on the GPU are more than what is left of ",
                                                     memory_limit_bytes_, " (gpu_memory_limit)"));
  }
  QGEMM_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Allocate(bytes));
  return std::make_unique<CudaMemory>(std::move(buffer), allocated_bytes_);
}

absl::StatusOr<std::unique_ptr<DeviceModule>> CudaDevice::Load(absl::string_view cubin) {
  QGEMM_ASSIGN_OR_RETURN(Module module, Module::Load(cubin));
  return std::make_unique<CudaModule>(std::move(module));
}

absl::Status CudaDevice::EncodeTensorMap(const TensorMapShape& shape, absl::Span<std::byte> out) {
  return qgemm::EncodeTensorMap(shape, out);
}

absl::Status CudaDevice::Launch(const DeviceKernel& kernel, Dim3 grid, int block_threads,
                                int dynamic_smem_bytes, absl::Span<void* const> params, int cluster_z) {
  return stream_.Launch(static_cast<const CudaKernel&>(kernel).kernel(), grid, block_threads,
                        dynamic_smem_bytes, params, cluster_z);
}

absl::Status CudaDevice::SetBytes(uint64_t address, uint8_t value, int64_t bytes) {
  return stream_.SetBytes(address, value, bytes);
}

absl::Status CudaDevice::CopyOnDevice(uint64_t dst, uint64_t src, int64_t bytes) {
  return stream_.CopyOnDevice(dst, src, bytes);
}

absl::Status CudaDevice::MarkEventsBy(const DeviceKernel* mark) {
  if (mark != nullptr && marks_ == nullptr) {
    QGEMM_ASSIGN_OR_RETURN(marks_, Allocate(kMaxMarks * int64_t{sizeof(uint64_t)}));
  }
  mark_ = mark;
  return absl::OkStatus();
}

absl::Status CudaDevice::PutMark(int event) {
  if (event >= kMaxMarks) {
    return absl::InvalidArgumentError(absl::StrCat("event ", event, " is not below ", kMaxMarks));
  }
  if (event >= static_cast<int>(marks_read_.size())) marks_read_.resize(event + 1);
  marks_changed_ = true;
  uint64_t address = marks_->address() + event * sizeof(uint64_t);
  void* params[] = {&address};
  return Launch(*mark_, {1, 1, 1}, 1, 0, params, 1);
}

absl::Status CudaDevice::ReadMarks() {
  if (!marks_changed_) return absl::OkStatus();
  QGEMM_RETURN_IF_ERROR(ReadBack(marks_->address(), {reinterpret_cast<std::byte*>(marks_read_.data()),
                                                     marks_read_.size() * sizeof(uint64_t)}));
  marks_changed_ = false;
  return absl::OkStatus();
}

absl::Status CudaDevice::RecordEvent(int event) {
  if (mark_ != nullptr) return PutMark(event);
  while (static_cast<int>(events_.size()) <= event) {
    QGEMM_ASSIGN_OR_RETURN(Event created, Event::Create());
    events_.push_back(std::move(created));
  }
  return stream_.Record(events_[event]);
}

absl::Status CudaDevice::LaunchGraph(const DeviceGraph& graph) {
  marks_changed_ = true;
  return static_cast<const CudaGraph&>(graph).exec().Launch(stream_);
}

absl::Status CudaDevice::BeginCapture() { return stream_.BeginCapture(); }

absl::StatusOr<std::unique_ptr<DeviceGraph>> CudaDevice::EndCapture() {
  QGEMM_ASSIGN_OR_RETURN(GraphExec exec, stream_.EndCapture());
  return std::make_unique<CudaGraph>(std::move(exec));
}

void CudaDevice::AbandonCapture() { stream_.AbandonCapture(); }

absl::Status CudaDevice::Synchronize() { return stream_.Synchronize(); }

absl::Status CudaDevice::ReadBack(uint64_t address, absl::Span<std::byte> target) {
  QGEMM_RETURN_IF_ERROR(stream_.Synchronize());
  return CopyToHost(address, target);
}

absl::Status CudaDevice::Write(uint64_t address, absl::Span<const std::byte> source) {
  QGEMM_RETURN_IF_ERROR(stream_.Synchronize());
  return CopyToDevice(address, source);
}

absl::StatusOr<double> CudaDevice::ElapsedMicroseconds(int begin, int end) {
  if (mark_ != nullptr) {
    QGEMM_RETURN_IF_ERROR(ReadMarks());
    return 1e-3 * static_cast<double>(static_cast<int64_t>(marks_read_[end] - marks_read_[begin]));
  }
  return qgemm::ElapsedMicroseconds(events_[begin], events_[end]);
}

}  // namespace qgemm
