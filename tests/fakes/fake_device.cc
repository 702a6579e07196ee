#include "tests/fakes/fake_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "kernels/reference_gemm.h"
#include "kernels/support_kernels.h"

namespace qgemm {
namespace {

template <typename T>
T Param(absl::Span<void* const> params, int index) {
  T value;
  std::memcpy(&value, params[index], sizeof(value));
  return value;
}

template <typename T>
T* Pointer(absl::Span<void* const> params, int index) {
  return reinterpret_cast<T*>(Param<uint64_t>(params, index));
}

void CountBytes(const uint8_t* a, const std::function<uint8_t(int64_t)>& expected, int64_t count,
                uint64_t* result) {
  for (int64_t i = 0; i < count; ++i) {
    if (a[i] == expected(i)) continue;
    ++result[0];
    result[1] = std::max<uint64_t>(result[1], count - i);
  }
}

}  // namespace

class FakeDevice::FakeMemory : public DeviceMemory {
 public:
  FakeMemory(int64_t bytes, std::shared_ptr<std::set<const void*>> alive)
      : bytes_(bytes), data_(new (std::align_val_t(256)) std::byte[bytes]), alive_(std::move(alive)) {
    alive_->insert(this);
  }
  ~FakeMemory() override {
    alive_->erase(this);
    ::operator delete[](data_, std::align_val_t(256));
  }
  uint64_t address() const override { return reinterpret_cast<uint64_t>(data_); }
  int64_t bytes() const override { return bytes_; }

 private:
  int64_t bytes_;
  std::byte* data_;
  std::shared_ptr<std::set<const void*>> alive_;
};

class FakeDevice::FakeKernel : public DeviceKernel {
 public:
  FakeKernel(std::string name, const Entry* entry) : name(std::move(name)), entry(entry) {}
  const std::string name;
  const Entry* const entry;
};

class FakeDevice::FakeModule : public DeviceModule {
 public:
  FakeModule(FakeDevice* device, std::vector<std::string> names)
      : device_(device), names_(std::move(names)) {}
  absl::StatusOr<std::unique_ptr<DeviceKernel>> Find(const std::string& entry, int) override {
    QGEMM_RETURN_IF_ERROR(device_->Enter());
    for (const std::string& name : names_) {
      if (name == entry) return std::make_unique<FakeKernel>(entry, &device_->entries_.at(entry));
    }
    return absl::NotFoundError(absl::StrCat("entry '", entry, "'"));
  }

 private:
  FakeDevice* device_;
  std::vector<std::string> names_;
};

class FakeDevice::FakeGraph : public DeviceGraph {
 public:
  explicit FakeGraph(std::vector<std::function<absl::Status()>> work) : work(std::move(work)) {}
  const std::vector<std::function<absl::Status()>> work;
};

FakeDevice::FakeDevice() { DefineSupportKernels(); }

void FakeDevice::Define(const std::string& entry, std::string sizes, KernelFunction function,
                        std::function<double()> us) {
  entries_[entry] = {std::move(sizes), std::move(function), std::move(us)};
}

void FakeDevice::Redefine(const std::string& entry, KernelFunction function, std::function<double()> us) {
  Define(entry, entries_.at(entry).sizes, std::move(function), std::move(us));
}

void FakeDevice::DefineSupportKernels() {
  const auto nothing = [](Dim3, absl::Span<void* const>) { return absl::OkStatus(); };
  const auto quick = [] { return 1.0; };
  for (const support::Entry& entry : support::kEntries) {
    Define(entry.name, entry.parameter_bytes, nothing, quick);
  }
  Redefine(
      support::kMark,
      [this](Dim3, absl::Span<void* const> params) {
        *Pointer<uint64_t>(params, 0) = static_cast<uint64_t>(std::llround(now_us_ * 1e3));
        return absl::OkStatus();
      },
      quick);
  // The reference is 1 everywhere: candidates are right when they write that.
  Redefine(
      support::kReferenceGemm,
      [](Dim3, absl::Span<void* const> params) {
        auto* out = Pointer<float>(params, 9);
        const int64_t columns = Param<int64_t>(params, 11) / (Param<int>(params, 21) != 0 ? 2 : 1);
        const int64_t count = Param<int64_t>(params, 10) * columns;
        std::fill(out, out + count, 1.0f);
        return absl::OkStatus();
      },
      quick);
  Redefine(
      support::kCompare,
      [](Dim3 grid, absl::Span<void* const> params) {
        const auto* y = Pointer<const uint8_t>(params, 0);
        const auto* reference = Pointer<const float>(params, 1);
        auto* partials = Pointer<double>(params, 2);
        const auto m = Param<int64_t>(params, 3);
        const auto n = Param<int64_t>(params, 4);
        const auto ldy = Param<int64_t>(params, 5);
        constexpr ScalarType kTypes[] = {ScalarType::kBf16, ScalarType::kFp16, ScalarType::kFp32};
        const ScalarType type = kTypes[Param<int>(params, 6)];
        const int64_t size = ScalarBytes(type);
        const auto poison = Param<uint32_t>(params, 7);
        std::fill(partials, partials + grid.x * support::kCompareFields, 0.0);
        for (int64_t i = 0; i < m * n; ++i) {
          const uint8_t* at = y + (i / n * ldy + i % n) * size;
          const double value = ScalarsToDouble(absl::MakeConstSpan(at, size), type)[0];
          const double expected = reference[i];
          partials[support::kSquaredReference] += expected * expected;
          if (std::memcmp(at, &poison, size) == 0) ++partials[support::kUnwritten];
          if (!std::isfinite(value)) {
            ++partials[support::kNotFinite];
          } else {
            partials[support::kSquaredDifference] += (value - expected) * (value - expected);
          }
        }
        return absl::OkStatus();
      },
      quick);
  Redefine(
      support::kCountUnequal,
      [](Dim3, absl::Span<void* const> params) {
        const auto value = static_cast<uint8_t>(Param<uint32_t>(params, 2));
        CountBytes(
            Pointer<const uint8_t>(params, 0), [&](int64_t) { return value; }, Param<int64_t>(params, 1),
            Pointer<uint64_t>(params, 3));
        return absl::OkStatus();
      },
      quick);
  Redefine(
      support::kCountDifferent,
      [](Dim3, absl::Span<void* const> params) {
        const auto* b = Pointer<const uint8_t>(params, 1);
        CountBytes(
            Pointer<const uint8_t>(params, 0), [&](int64_t i) { return b[i]; }, Param<int64_t>(params, 2),
            Pointer<uint64_t>(params, 3));
        return absl::OkStatus();
      },
      quick);
}

absl::Status FakeDevice::Enter() {
  if (calls_++ == fail_at_) return fail_with_;
  return absl::OkStatus();
}

absl::Status FakeDevice::Put(std::function<absl::Status()> work) {
  if (!capturing_) return work();
  captured_.push_back(std::move(work));
  return absl::OkStatus();
}

absl::StatusOr<Device::Memory> FakeDevice::MemoryInfo() {
  QGEMM_RETURN_IF_ERROR(Enter());
  return Memory{64 << 20, 128 << 20};
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> FakeDevice::Allocate(int64_t bytes) {
  QGEMM_RETURN_IF_ERROR(Enter());
  return std::make_unique<FakeMemory>(bytes, alive_);
}

absl::StatusOr<std::unique_ptr<DeviceModule>> FakeDevice::Load(absl::string_view cubin) {
  QGEMM_RETURN_IF_ERROR(Enter());
  ++loads;
  std::vector<std::string> names;
  if (cubin == "support") {
    for (const support::Entry& entry : support::kEntries) names.push_back(entry.name);
  } else {
    names = absl::StrSplit(cubin, ' ');
  }
  return std::make_unique<FakeModule>(this, std::move(names));
}

absl::Status FakeDevice::EncodeTensorMap(const TensorMapShape& shape, absl::Span<std::byte> out) {
  QGEMM_RETURN_IF_ERROR(Enter());
  std::memcpy(out.data(), &shape.address, sizeof(shape.address));
  return absl::OkStatus();
}

absl::Status FakeDevice::Launch(const DeviceKernel& kernel, Dim3 grid, int, int,
                                absl::Span<void* const> params, int cluster_z) {
  QGEMM_RETURN_IF_ERROR(Enter());
  const auto& fake = static_cast<const FakeKernel&>(kernel);
  if (params.size() != fake.entry->sizes.size()) {
    return absl::InternalError(
        absl::StrCat(fake.name, " takes ", fake.entry->sizes.size(), " parameters, not ", params.size()));
  }
  // Like the driver, takes the values at the call.
  auto values = std::make_shared<std::vector<uint64_t>>(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    std::memcpy(&(*values)[i], params[i], fake.entry->sizes[i] - '0');
  }
  std::string name = fake.name;
  if (cluster_z > 1) absl::StrAppend(&name, " in clusters of ", cluster_z);
  return Put([this, name, entry = fake.entry, grid, values] {
    log.push_back(name);
    std::vector<void*> pointers;
    for (uint64_t& value : *values) pointers.push_back(&value);
    now_us_ += entry->us();
    return entry->function(grid, pointers);
  });
}

absl::Status FakeDevice::SetBytes(uint64_t address, uint8_t value, int64_t bytes) {
  QGEMM_RETURN_IF_ERROR(Enter());
  return Put([=, this] {
    log.push_back("set");
    std::memset(reinterpret_cast<void*>(address), value, bytes);
    return absl::OkStatus();
  });
}

absl::Status FakeDevice::CopyOnDevice(uint64_t dst, uint64_t src, int64_t bytes) {
  QGEMM_RETURN_IF_ERROR(Enter());
  return Put([=, this] {
    log.push_back("copy");
    std::memcpy(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    return absl::OkStatus();
  });
}

absl::Status FakeDevice::MarkEventsBy(const DeviceKernel* mark) {
  QGEMM_RETURN_IF_ERROR(Enter());
  mark_ = mark;
  return absl::OkStatus();
}

absl::Status FakeDevice::RecordEvent(int event) {
  if (mark_ != nullptr) {
    uint64_t* to = &marks_[event];
    void* params[] = {static_cast<void*>(&to)};
    return Launch(*mark_, {1, 1, 1}, 1, 0, params, 1);
  }
  QGEMM_RETURN_IF_ERROR(Enter());
  return Put([=, this] {
    log.push_back(absl::StrCat("record ", event));
    events_[event] = now_us_;
    return absl::OkStatus();
  });
}

absl::Status FakeDevice::LaunchGraph(const DeviceGraph& graph) {
  QGEMM_RETURN_IF_ERROR(Enter());
  log.push_back("graph");
  for (const auto& work : static_cast<const FakeGraph&>(graph).work) QGEMM_RETURN_IF_ERROR(work());
  return absl::OkStatus();
}

absl::Status FakeDevice::BeginCapture() {
  QGEMM_RETURN_IF_ERROR(Enter());
  QGEMM_RETURN_IF_ERROR(capture_status_);
  captured_.clear();
  capturing_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> FakeDevice::EndCapture() {
  capturing_ = false;
  QGEMM_RETURN_IF_ERROR(Enter());
  return std::make_unique<FakeGraph>(std::move(captured_));
}

void FakeDevice::AbandonCapture() { capturing_ = false; }

absl::Status FakeDevice::Synchronize() { return Enter(); }

absl::Status FakeDevice::ReadBack(uint64_t address, absl::Span<std::byte> target) {
  QGEMM_RETURN_IF_ERROR(Enter());
  std::memcpy(target.data(), reinterpret_cast<const void*>(address), target.size());
  return absl::OkStatus();
}

absl::StatusOr<double> FakeDevice::ElapsedMicroseconds(int begin, int end) {
  QGEMM_RETURN_IF_ERROR(Enter());
  if (mark_ != nullptr) {
    return (static_cast<double>(marks_.at(end)) - static_cast<double>(marks_.at(begin))) * 1e-3;
  }
  return events_.at(end) - events_.at(begin);
}

}  // namespace qgemm
