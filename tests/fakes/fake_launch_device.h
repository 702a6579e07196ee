#ifndef QGEMM_TESTS_FAKES_FAKE_LAUNCH_DEVICE_H_
#define QGEMM_TESTS_FAKES_FAKE_LAUNCH_DEVICE_H_

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/runtime/launch_device.h"

namespace qgemm {

// A device that keeps what it is told: kernels are their cubin's text, memory is the host's, a launch is a
// record of its arguments' bytes.
class FakeLaunchDevice : public LaunchDevice {
 public:
  struct Loaded {
    std::string cubin;
    std::string entry;
    int dynamic_smem_bytes = 0;
  };
  struct Launched {
    std::string cubin;
    LaunchCall call;                      // params are no longer valid
    std::vector<std::string> parameters;  // the bytes of each, as far as sizes say
  };

  const std::string& arch() const override { return arch_; }
  const DeviceProfile& profile() const override { return profile_; }
  absl::StatusOr<LaunchFunction> LoadKernel(absl::string_view cubin, const std::string& entry,
                                            int dynamic_smem_bytes) override {
    if (refuse_kernels) return absl::FailedPreconditionError("no kernel image is available");
    loaded.push_back(std::make_unique<Loaded>(Loaded{std::string(cubin), entry, dynamic_smem_bytes}));
    return loaded.back().get();
  }
  absl::StatusOr<uint64_t> Allocate(int64_t bytes) override {
    const uint64_t address = next_;
    next_ += static_cast<uint64_t>(bytes + 255) / 256 * 256 + 256;
    memory[address] = std::string(bytes, '\0');
    return address;
  }
  absl::StatusOr<uint64_t> AllocateForGraph(int64_t bytes, void* stream) override {
    if (captured.count(stream) == 0) return absl::FailedPreconditionError("the stream is not being captured");
    QGEMM_ASSIGN_OR_RETURN(const uint64_t address, Allocate(bytes));
    of_graphs[stream].push_back(address);
    return address;
  }
  void Free(uint64_t address) override { memory.erase(address); }
  absl::Status CopyIn(uint64_t address, absl::string_view bytes) override {
    auto at = memory.upper_bound(address);
    if (at == memory.begin()) return absl::InvalidArgumentError("no memory there");
    --at;
    if (address - at->first + bytes.size() > at->second.size()) return absl::InvalidArgumentError("too long");
    at->second.replace(address - at->first, bytes.size(), bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  absl::Status CopyOut(uint64_t address, absl::Span<char> bytes) override {
    const auto at = memory.find(address);
    if (at == memory.end() || at->second.size() < bytes.size()) {
      return absl::InvalidArgumentError("no memory there");
    }
    std::memcpy(bytes.data(), at->second.data(), bytes.size());
    return absl::OkStatus();
  }
  // The map says what it is of.
  absl::Status EncodeTensorMap(const TensorMapShape& shape, absl::Span<std::byte> out) override {
    ++encoded;
    const std::string text =
        absl::StrCat(shape.address, " ", shape.rows, "x", shape.columns, " pitch ", shape.row_pitch_bytes,
                     " box ", shape.box_rows, "x", shape.box_columns);
    std::memset(out.data(), 0, out.size());
    std::memcpy(out.data(), text.data(), std::min(text.size(), out.size()));
    return absl::OkStatus();
  }
  absl::Status Launch(const LaunchCall& call) override {
    Launched launch{static_cast<const Loaded*>(call.function)->cubin, call, {}};
    for (size_t i = 0; i < parameter_bytes.size(); ++i) {
      launch.parameters.emplace_back(static_cast<const char*>(call.params[i]), parameter_bytes[i]);
    }
    MutexLock lock(mu_);
    launches.push_back(std::move(launch));
    return absl::OkStatus();
  }

  bool refuse_kernels = false;
  std::vector<size_t> parameter_bytes;  // of the kernels launched: what is kept of each parameter
  std::vector<std::unique_ptr<Loaded>> loaded;
  std::map<uint64_t, std::string> memory;
  std::set<void*> captured;                          // streams
  std::map<void*, std::vector<uint64_t>> of_graphs;  // memory, by the stream of the capture
  std::atomic<int> encoded = 0;
  std::vector<Launched> launches;

 private:
  const std::string arch_ = "sm_90a";
  const DeviceProfile profile_ = FindDeviceProfile("h200").value();
  uint64_t next_ = 0x10000;
  Mutex mu_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_FAKES_FAKE_LAUNCH_DEVICE_H_
