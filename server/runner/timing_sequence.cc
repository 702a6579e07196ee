#include "server/runner/timing_sequence.h"

#include <algorithm>
#include <memory>

#include "base/status_macros.h"
#include "server/runner/stopping_rule.h"

namespace qgemm {
namespace {

constexpr double kShortKernelUs = 10;
// Device time between the nodes of one sample, for planning.
constexpr double kGapsUs = 5;

// `work` between the events 2 * index and 2 * index + 1.
absl::Status Timed(Device& device, int index, const Enqueue& work) {
  QGEMM_RETURN_IF_ERROR(device.RecordEvent(2 * index));
  QGEMM_RETURN_IF_ERROR(work());
  return device.RecordEvent(2 * index + 1);
}

absl::StatusOr<double> TimeOf(Device& device, int index) {
  return device.ElapsedMicroseconds(2 * index, 2 * index + 1);
}

// Captures `sequence` into a graph. An error other than Aborted leaves the stream usable.
absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(Device& device, const Enqueue& sequence) {
  QGEMM_RETURN_IF_ERROR(device.BeginCapture());
  if (absl::Status status = sequence(); !status.ok()) {
    device.AbandonCapture();
    return status;
  }
  return device.EndCapture();
}

// Runs `sequence` by its graph if there is one, and waits.
absl::Status RunOnce(Device& device, const DeviceGraph* graph, const Enqueue& sequence) {
  QGEMM_RETURN_IF_ERROR(graph != nullptr ? device.LaunchGraph(*graph) : sequence());
  return device.Synchronize();
}

// The sequence's graph, or null when it cannot be made but the device is usable.
absl::StatusOr<std::unique_ptr<DeviceGraph>> TryCapture(Device& device, const Enqueue& sequence) {
  absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = Capture(device, sequence);
  if (graph.ok() || absl::IsAborted(graph.status())) return graph;
  return nullptr;
}

}  // namespace

absl::StatusOr<ColdSamples> SampleCold(Device& device, const Enqueue& flush, const Enqueue& kernel,
                                       double budget_us) {
  // The first estimate; its flush is timed as well, as sample 1.
  QGEMM_RETURN_IF_ERROR(Timed(device, 1, flush));
  QGEMM_RETURN_IF_ERROR(Timed(device, 0, kernel));
  QGEMM_RETURN_IF_ERROR(device.Synchronize());
  QGEMM_ASSIGN_OR_RETURN(const double kernel_us, TimeOf(device, 0));
  QGEMM_ASSIGN_OR_RETURN(const double flush_us, TimeOf(device, 1));
  const int samples = static_cast<int>(std::clamp(budget_us / (kernel_us + flush_us + kGapsUs),
                                                  double{kMinScreenSamples}, double{kMaxScreenSamples}));

  const Enqueue sequence = [&]() -> absl::Status {
    for (int i = 0; i < samples; ++i) {
      QGEMM_RETURN_IF_ERROR(flush());
      QGEMM_RETURN_IF_ERROR(Timed(device, i, kernel));
    }
    return absl::OkStatus();
  };
  QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceGraph> graph, TryCapture(device, sequence));
  QGEMM_RETURN_IF_ERROR(RunOnce(device, graph.get(), sequence));
  ColdSamples result;
  result.in_graph = graph != nullptr;
  for (int i = 0; i < samples; ++i) {
    QGEMM_ASSIGN_OR_RETURN(const double us, TimeOf(device, i));
    result.us.push_back(us);
  }
  return result;
}

absl::StatusOr<Rounds> RunRounds(Device& device, const Enqueue& flush, absl::Span<const Enqueue> kernels,
                                 const Enqueue& probe, const RoundsOptions& options, Clock& clock) {
  const int count = static_cast<int>(kernels.size());
  const Enqueue sequence = [&]() -> absl::Status {
    for (int i = 0; i < count; ++i) {
      QGEMM_RETURN_IF_ERROR(flush());
      QGEMM_RETURN_IF_ERROR(Timed(device, i, kernels[i]));
    }
    return Timed(device, count, probe);
  };
  const TimePoint deadline = clock.Now() + options.budget;
  // The warm-up round, launched one by one: everything is loaded before it is captured.
  QGEMM_RETURN_IF_ERROR(RunOnce(device, nullptr, sequence));
  QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceGraph> graph, TryCapture(device, sequence));

  Rounds rounds;
  rounds.in_graph = graph != nullptr;
  rounds.us.resize(count);
  int min_rounds = kMinRounds;
  for (int round = 1; round <= kMaxRounds; ++round) {
    QGEMM_RETURN_IF_ERROR(RunOnce(device, graph.get(), sequence));
    for (int i = 0; i < count; ++i) {
      QGEMM_ASSIGN_OR_RETURN(const double us, TimeOf(device, i));
      rounds.us[i].push_back(us);
      if (us < kShortKernelUs) min_rounds = kMinRoundsShort;
    }
    QGEMM_ASSIGN_OR_RETURN(const double probe_us, TimeOf(device, count));
    rounds.probe_us.push_back(probe_us);
    if (round < min_rounds) continue;
    if (clock.Now() >= deadline || OrderIsClear(rounds.us, options.tie_band)) break;
  }
  return rounds;
}

}  // namespace qgemm
