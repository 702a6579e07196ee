#ifndef QGEMM_TESTS_REPLAY_REPLAY_DEVICE_H_
#define QGEMM_TESTS_REPLAY_REPLAY_DEVICE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "server/runner/device.h"
#include "server/runner/timing_sequence.h"
#include "tests/replay/noise_model.h"

namespace qgemm {

// A stream with virtual time: work put on it takes its time on `clock`, and so does the host where the stream
// has nothing to do. Only what timing_sequence uses works: capture, graphs, events, synchronisation.
class ReplayDevice : public Device {
 public:
  // The clock is borrowed.
  ReplayDevice(const NoiseModel& noise, uint64_t seed, SimulatedClock* clock);

  // Work that takes `true_us` under the noise model; `bias` is the candidate's, a factor. Kernels with the
  // same text of `code` share their code in the SMs; an empty one is always there.
  Enqueue Kernel(double true_us, double bias, const std::string& code = "");
  Enqueue Flush();
  Enqueue Probe();
  // A candidate's biases in this process, by placement of its operands.
  std::vector<double> DrawBiases(double true_us);
  // Lets virtual time pass with the stream idle.
  void Idle(double us);
  // Virtual time the stream was working, microseconds.
  double busy_us() const { return busy_us_; }

  int sm_count() const override { return 132; }
  int64_t l2_bytes() const override { return 62914560; }
  absl::StatusOr<Memory> MemoryInfo() override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<DeviceModule>> Load(absl::string_view cubin) override;
  absl::Status EncodeTensorMap(const TensorMapShape& shape, absl::Span<std::byte> out) override;
  absl::Status Launch(const DeviceKernel& kernel, Dim3 grid, int block_threads, int dynamic_smem_bytes,
                      absl::Span<void* const> params, int cluster_z) override;
  absl::Status SetBytes(uint64_t address, uint8_t value, int64_t bytes) override;
  absl::Status CopyOnDevice(uint64_t dst, uint64_t src, int64_t bytes) override;
  absl::Status RecordEvent(int event) override;
  absl::Status MarkEventsBy(const DeviceKernel* /*mark*/) override { return absl::OkStatus(); }
  absl::Status LaunchGraph(const DeviceGraph& graph) override;
  absl::Status BeginCapture() override;
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override;
  void AbandonCapture() override { capturing_ = false; }
  absl::Status Synchronize() override;
  absl::Status ReadBack(uint64_t address, absl::Span<std::byte> target) override;
  absl::StatusOr<double> ElapsedMicroseconds(int begin, int end) override;

 private:
  struct Graph;
  absl::Status Put(std::function<void()> work);
  void Run(double us);
  // What it costs that the code is not in the SMs; now it is.
  double FetchUs(const std::string& code);
  double Normal() { return normal_(random_); }
  double now_us() const;

  const NoiseModel noise_;
  SimulatedClock* const clock_;
  const TimePoint start_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  double slow_phase_ = 0;
  double fast_phase_ = 0;
  bool capturing_ = false;
  std::vector<std::function<void()>> captured_;
  std::map<int, double> events_;
  std::deque<std::string> codes_;  // in the SMs, last used first
  double stream_us_ = 0;           // the stream's own time, finer than the clock's
  double busy_us_ = 0;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_REPLAY_REPLAY_DEVICE_H_
