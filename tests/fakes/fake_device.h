#ifndef QGEMM_TESTS_FAKES_FAKE_DEVICE_H_
#define QGEMM_TESTS_FAKES_FAKE_DEVICE_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/runner/device.h"

namespace qgemm {

// A device whose memory is the host's and whose kernels are C++ functions. It keeps a log of what was done in
// which order, has a clock that only kernels move, and fails any call a test chooses.
class FakeDevice : public Device {
 public:
  using KernelFunction = std::function<absl::Status(Dim3 grid, absl::Span<void* const> params)>;

  // Support kernels are built in; the clock's step is not known, so events are the driver's. A module's image
  // is "support" or the names of its entries, separated by spaces.
  FakeDevice();

  // Defines an entry. `sizes`: one digit per parameter, its bytes ("848"). `us` is what a launch takes on the
  // device's clock.
  void Define(const std::string& entry, std::string sizes, KernelFunction function,
              std::function<double()> us);

  // Gives a defined entry another function and time.
  void Redefine(const std::string& entry, KernelFunction function, std::function<double()> us);

  // Call number `call` from now (0 = the next) fails with `status`.
  void FailAt(int call, absl::Status status) {
    fail_at_ = calls_ + call;
    fail_with_ = std::move(status);
  }
  void FailNever() { fail_at_ = -1; }
  // From now on no graph can be made.
  void FailEveryCapture(absl::Status status) { capture_status_ = std::move(status); }
  int calls() const { return calls_; }
  // What ran on the stream: "entry", "record 3", "set", "copy", and "graph" before a graph's contents.
  std::vector<std::string> log;
  bool capturing() const { return capturing_; }
  int allocations() const { return static_cast<int>(alive_->size()); }
  int loads = 0;

  int sm_count() const override { return 4; }
  int64_t l2_bytes() const override { return 1 << 10; }
  absl::StatusOr<Memory> MemoryInfo() override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<DeviceModule>> Load(absl::string_view cubin) override;
  // Writes the address alone: a parameter of 8 bytes.
  absl::Status EncodeTensorMap(const TensorMapShape& shape, absl::Span<std::byte> out) override;
  // Clusters show in the log: "name in clusters of 4".
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

 private:
  struct Entry {
    std::string sizes;
    KernelFunction function;
    std::function<double()> us;
  };
  class FakeModule;
  class FakeKernel;
  class FakeMemory;
  class FakeGraph;

  void DefineSupportKernels();
  // Counts the call; the error it was chosen to fail with.
  absl::Status Enter();
  // Runs or captures.
  absl::Status Put(std::function<absl::Status()> work);

  std::map<std::string, Entry> entries_;
  std::vector<std::function<absl::Status()>> captured_;
  bool capturing_ = false;
  std::shared_ptr<std::set<const void*>> alive_ = std::make_shared<std::set<const void*>>();
  std::map<int, double> events_;
  const DeviceKernel* mark_ = nullptr;
  std::map<int, uint64_t> marks_;  // nanoseconds; elements stay where they are
  double now_us_ = 0;
  int calls_ = 0;
  int fail_at_ = -1;
  absl::Status fail_with_;
  absl::Status capture_status_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_FAKES_FAKE_DEVICE_H_
