#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/runtime/launch_device.h"

namespace qgemm {
namespace {

class CudaLaunchDevice final : public LaunchDevice {
 public:
  CudaLaunchDevice(Context context, DeviceProfile profile)
      : context_(std::move(context)),
        arch_(ArchFor(context_.properties().compute_major, context_.properties().compute_minor)),
        profile_(std::move(profile)) {}
  ~CudaLaunchDevice() override {
    const CurrentContext current(context_);
    buffers_.clear();
    modules_.clear();
  }

  const std::string& arch() const override { return arch_; }
  const DeviceProfile& profile() const override { return profile_; }

  absl::StatusOr<LaunchFunction> LoadKernel(absl::string_view cubin, const std::string& entry,
                                            int dynamic_smem_bytes) override {
    const CurrentContext current(context_);
    QGEMM_ASSIGN_OR_RETURN(Module module, Module::Load(cubin));
    QGEMM_ASSIGN_OR_RETURN(const Kernel kernel, module.Find(entry));
    QGEMM_RETURN_IF_ERROR(kernel.AllowDynamicSmem(dynamic_smem_bytes));
    MutexLock lock(mu_);
    modules_.push_back(std::move(module));
    return kernel.get();
  }

  absl::StatusOr<uint64_t> Allocate(int64_t bytes) override {
    const CurrentContext current(context_);
    QGEMM_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Allocate(bytes));
    QGEMM_ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
    QGEMM_RETURN_IF_ERROR(stream.SetBytes(buffer.address(), 0, bytes));
    QGEMM_RETURN_IF_ERROR(stream.Synchronize());
    const uint64_t address = buffer.address();
    MutexLock lock(mu_);
    buffers_.emplace(address, std::move(buffer));
    return address;
  }
  absl::StatusOr<uint64_t> AllocateForGraph(int64_t bytes, void* stream) override {
    const CurrentContext current(context_);
    const RelaxedCapture relaxed;
    FreeOfGraphsThatAreGone();
    QGEMM_ASSIGN_OR_RETURN(CUgraph_st* const graph, GraphOfCapture(static_cast<CUstream_st*>(stream)));
    QGEMM_ASSIGN_OR_RETURN(const uint64_t address, Allocate(bytes));
    using Flag = std::shared_ptr<std::atomic<bool>>;
    const Flag is_gone = std::make_shared<std::atomic<bool>>(false);
    {
      MutexLock lock(mu_);
      of_graphs_.emplace_back(is_gone, address);
    }
    // The driver's thread may outlive the device, and must not call CUDA: it raises a flag.
    const auto raise = [](void* flag) {
      const std::unique_ptr<Flag> held(static_cast<Flag*>(flag));
      (*held)->store(true);
    };
    QGEMM_RETURN_IF_ERROR(OnGraphDestroyed(graph, raise, new Flag(is_gone)));
    return address;
  }
  void Free(uint64_t address) override {
    const CurrentContext current(context_);
    MutexLock lock(mu_);
    // Also of a graph: whoever gets the address next keeps it when that graph is gone.
    of_graphs_.erase(std::remove_if(of_graphs_.begin(), of_graphs_.end(),
                                    [address](const auto& block) { return block.second == address; }),
                     of_graphs_.end());
    buffers_.erase(address);
  }

  absl::Status CopyIn(uint64_t address, absl::string_view bytes) override {
    const CurrentContext current(context_);
    return CopyToDevice(address,
                        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
  }
  absl::Status CopyOut(uint64_t address, absl::Span<char> bytes) override {
    const CurrentContext current(context_);
    return CopyToHost(address, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()));
  }

  absl::Status EncodeTensorMap(const TensorMapShape& shape, absl::Span<std::byte> out) override {
    const CurrentContext current(context_);  // the driver refuses without one
    return qgemm::EncodeTensorMap(shape, out);
  }

  absl::Status Launch(const LaunchCall& call) override {
    const CurrentContext current(context_);
    return LaunchOnStream(static_cast<CUfunc_st*>(const_cast<void*>(call.function)), call.grid,
                          call.block_threads, call.dynamic_smem_bytes, call.params,
                          static_cast<CUstream_st*>(call.stream), call.cluster_z, call.programmatic);
  }

 private:
  void FreeOfGraphsThatAreGone() {
    MutexLock lock(mu_);
    const auto gone = std::partition(of_graphs_.begin(), of_graphs_.end(),
                                     [](const auto& block) { return !block.first->load(); });
    for (auto block = gone; block != of_graphs_.end(); ++block) buffers_.erase(block->second);
    of_graphs_.erase(gone, of_graphs_.end());
  }

  const Context context_;
  const std::string arch_;
  const DeviceProfile profile_;
  Mutex mu_;
  std::vector<Module> modules_ QGEMM_GUARDED_BY(mu_);
  std::map<uint64_t, DeviceBuffer> buffers_ QGEMM_GUARDED_BY(mu_);
  // Buffers that belong to graphs, and whether the graph is gone.
  std::vector<std::pair<std::shared_ptr<std::atomic<bool>>, uint64_t>> of_graphs_ QGEMM_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<LaunchDevice>> LaunchDevice::Open(int ordinal) {
  QGEMM_ASSIGN_OR_RETURN(const Driver* const driver, Driver::Load());
  QGEMM_ASSIGN_OR_RETURN(Context context, Context::Retain(*driver, ordinal));
  const DeviceProperties& has = context.properties();
  QGEMM_ASSIGN_OR_RETURN(
      DeviceProfile profile,
      ProfileForDevice(has.product_name, has.compute_major, has.compute_minor, has.sm_count, has.l2_bytes,
                       has.memory_gib(), has.max_dynamic_smem_bytes));
  return std::make_unique<CudaLaunchDevice>(std::move(context), std::move(profile));
}

}  // namespace qgemm
