#ifndef QGEMM_SERVER_RUNNER_TIMING_SEQUENCE_H_
#define QGEMM_SERVER_RUNNER_TIMING_SEQUENCE_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "server/runner/device.h"

namespace qgemm {

// Puts one piece of work on the device's stream.
using Enqueue = std::function<absl::Status()>;

// What a sample is, in both sequences: the device time between an event recorded right before the kernel and
// one recorded right after it, after a kernel that reads twice the L2's size. So it is a launch with cold
// operands, and it contains what a launch within a graph costs on the device (about 2 us), but no host time.
// Both events are nodes of the graph that also holds the flush and the kernel.

struct ColdSamples {
  std::vector<double> us;
  bool in_graph = true;  // false: capture failed, launched one by one from the host
};

// One kernel: times it once without a graph (which also loads everything it needs), then takes as many
// samples as fit `budget_us` of device time, kMinScreenSamples at least and kMaxScreenSamples at most, in one
// graph. Falls back to launches without a graph when the graph cannot be made. Aborted: the context is lost.
inline constexpr int kMinScreenSamples = 5;
inline constexpr int kMaxScreenSamples = 50;
[[nodiscard]] absl::StatusOr<ColdSamples> SampleCold(Device& device, const Enqueue& flush,
                                                     const Enqueue& kernel, double budget_us);

struct RoundsOptions {
  Duration budget{};  // wall time; the least number of rounds is taken in any case
  double tie_band = 0.003;
};
struct Rounds {
  std::vector<std::vector<double>> us;  // [kernel][round]
  std::vector<double> probe_us;         // [round]
  bool in_graph = true;
};

// Interleaved rounds A B C, A B C, ... of several kernels and of a probe at the end of each round; one graph
// holds a round. Stops when the order is clear (stopping_rule.h) or the budget is spent: after kMinRounds at
// the earliest (kMinRoundsShort when a kernel takes less than 10 us) and kMaxRounds at the latest. The first
// round is not counted.
inline constexpr int kMinRounds = 10;
inline constexpr int kMinRoundsShort = 20;
inline constexpr int kMaxRounds = 200;
[[nodiscard]] absl::StatusOr<Rounds> RunRounds(Device& device, const Enqueue& flush,
                                               absl::Span<const Enqueue> kernels, const Enqueue& probe,
                                               const RoundsOptions& options, Clock& clock);

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_TIMING_SEQUENCE_H_
