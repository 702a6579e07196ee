#include "tests/replay/replay_device.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace qgemm {
namespace {

// Measured with graphs on an H200, roughly.
constexpr double kFlushUs = 32;
constexpr double kProbeUs = 8.5;
constexpr double kGraphLaunchUs = 6;    // of a graph on an idle stream
constexpr double kGraphGapUs = 1.5;     // between graphs that follow each other
constexpr double kInstantiateUs = 2.5;  // per node: capture and instantiation
constexpr double kSynchronizeUs = 12;
constexpr double kReadEventUs = 1;

uint64_t Fnv1a(const std::string& text) {
  uint64_t hash = 14695981039346656037U;
  for (const char one : text) hash = (hash ^ static_cast<unsigned char>(one)) * 1099511628211U;
  return hash;
}

absl::Status NotReplayed() { return absl::UnimplementedError("not part of a replay"); }

}  // namespace

struct ReplayDevice::Graph : public DeviceGraph {
  std::vector<std::function<void()>> work;
};

ReplayDevice::ReplayDevice(const NoiseModel& noise, uint64_t seed, SimulatedClock* clock)
    : noise_(noise), clock_(clock), start_(clock->Now()), random_(seed) {
  std::uniform_real_distribution<double> phase(0, 2 * std::numbers::pi);
  slow_phase_ = phase(random_);
  fast_phase_ = phase(random_);
}

std::vector<double> ReplayDevice::DrawBiases(double true_us) {
  const double common = 1 + noise_.candidate_bias * Normal();
  std::vector<double> biases;
  for (int placement = 0; placement < noise_.placements; ++placement) {
    biases.push_back(common + noise_.placement_us * Normal() / true_us);
  }
  return biases;
}

double ReplayDevice::now_us() const {
  return std::chrono::duration<double, std::micro>(clock_->Now() - start_).count();
}

void ReplayDevice::Idle(double us) {
  stream_us_ += us;
  clock_->Advance(std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::micro>(us)));
}

void ReplayDevice::Run(double us) {
  busy_us_ += us;
  Idle(us);
}

absl::Status ReplayDevice::Put(std::function<void()> work) {
  if (capturing_) {
    captured_.push_back(std::move(work));
  } else {
    work();
  }
  return absl::OkStatus();
}

double ReplayDevice::FetchUs(const std::string& code) {
  if (code.empty()) return 0;
  const auto held = std::find(codes_.begin(), codes_.end(), code);
  const bool fetched = held == codes_.end();
  if (!fetched) codes_.erase(held);
  codes_.push_front(code);
  if (codes_.size() > static_cast<size_t>(noise_.codes_held)) codes_.pop_back();
  if (!fetched) return 0;
  // The config's own: the same in every process.
  std::mt19937_64 of_code(Fnv1a(code));
  return noise_.company_us * std::uniform_real_distribution<double>(0.5, 1.5)(of_code);
}

Enqueue ReplayDevice::Kernel(double true_us, double bias, const std::string& code) {
  return [this, true_us, bias, code] {
    return Put([this, true_us, bias, code] {
      const double seconds = now_us() * 1e-6;
      const double drift = noise_.slow_drift * std::sin(2 * std::numbers::pi * seconds / 3 + slow_phase_) +
                           noise_.fast_drift * std::sin(2 * std::numbers::pi * seconds / 0.2 + fast_phase_);
      double us = true_us * bias * (1 + drift) * (1 + noise_.jitter * Normal()) + noise_.jitter_us * Normal();
      std::uniform_real_distribution<double> unit(0, 1);
      if (unit(random_) < noise_.outliers) us += -std::log(1 - unit(random_));
      Run(std::max(us, 0.5 * true_us) + FetchUs(code));
    });
  };
}

Enqueue ReplayDevice::Flush() {
  return [this] { return Put([this] { Run(kFlushUs); }); };
}

Enqueue ReplayDevice::Probe() { return Kernel(kProbeUs, 1); }

absl::Status ReplayDevice::RecordEvent(int event) {
  return Put([this, event] { events_[event] = stream_us_; });
}

absl::Status ReplayDevice::LaunchGraph(const DeviceGraph& graph) {
  Idle(kGraphGapUs);
  for (const auto& work : static_cast<const Graph&>(graph).work) work();
  return absl::OkStatus();
}

absl::Status ReplayDevice::BeginCapture() {
  captured_.clear();
  capturing_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> ReplayDevice::EndCapture() {
  capturing_ = false;
  auto graph = std::make_unique<Graph>();
  graph->work = std::move(captured_);
  Idle(kInstantiateUs * static_cast<double>(graph->work.size()));
  return graph;
}

absl::Status ReplayDevice::Synchronize() {
  Idle(kSynchronizeUs + kGraphLaunchUs);
  return absl::OkStatus();
}

absl::StatusOr<double> ReplayDevice::ElapsedMicroseconds(int begin, int end) {
  Idle(kReadEventUs);
  const double us = events_.at(end) - events_.at(begin);
  return std::round(us / noise_.event_step_us) * noise_.event_step_us;
}

absl::StatusOr<Device::Memory> ReplayDevice::MemoryInfo() {
  return Memory{int64_t{139} << 30, int64_t{140} << 30};
}
absl::StatusOr<std::unique_ptr<DeviceMemory>> ReplayDevice::Allocate(int64_t) { return NotReplayed(); }
absl::StatusOr<std::unique_ptr<DeviceModule>> ReplayDevice::Load(absl::string_view) { return NotReplayed(); }
absl::Status ReplayDevice::EncodeTensorMap(const TensorMapShape&, absl::Span<std::byte>) {
  return NotReplayed();
}
absl::Status ReplayDevice::Launch(const DeviceKernel&, Dim3, int, int, absl::Span<void* const>, int) {
  return NotReplayed();
}
absl::Status ReplayDevice::SetBytes(uint64_t, uint8_t, int64_t) { return NotReplayed(); }
absl::Status ReplayDevice::CopyOnDevice(uint64_t, uint64_t, int64_t) { return NotReplayed(); }
absl::Status ReplayDevice::ReadBack(uint64_t, absl::Span<std::byte>) { return NotReplayed(); }

}  // namespace qgemm
