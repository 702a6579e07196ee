#ifndef QGEMM_SERVER_RUNNER_TIMING_SEQUENCE_H_
#define QGEMM_SERVER_RUNNER_TIMING_SEQUENCE_H_

#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "server/runner/device.h"
#include "server/runner/stopping_rule.h"

namespace qgemm {

// Puts one piece of work on the device's stream.
using Enqueue = std::function<absl::Status()>;

// A kernel whose operands lie in several places of the memory; its samples take turns with them. Where its
// operands are decides some per cent of a short kernel's time, differently for every kernel and every
// process: the mean over many places is what repeats.
class PlacedKernel {
 public:
  PlacedKernel(Enqueue launch)  // NOLINT(google-explicit-constructor): one place is the plain case
      : launch_([launch = std::move(launch)](int) { return launch(); }) {}
  PlacedKernel(int placements, std::function<absl::Status(int placement)> launch)
      : placements_(placements), launch_(std::move(launch)) {}

  int placements() const { return placements_; }
  // Puts sample number `index` on the stream.
  absl::Status Put(int index) const { return launch_(index % placements_); }

 private:
  int placements_ = 1;
  std::function<absl::Status(int)> launch_;
};

// What a sample is, in both sequences: the device time between an event right before the kernel and one right
// after it (Device::RecordEvent), after a kernel that reads twice the L2's size. So it is a launch with cold
// operands, and it contains what a launch within a graph costs on the device (about 1 us), but no host time.
// Both events are nodes of the graph that also holds the flush and the kernel.

struct ColdSamples {
  std::vector<double> us;
  bool in_graph = true;  // false: capture failed, launched one by one from the host
};

// One kernel: times it once without a graph (which also loads everything it needs), then takes as many
// samples as fit `budget_us` of device time, kMinScreenSamples at least and kMaxScreenSamples at most, by one
// graph of at most kScreenBatch samples that is launched as often as needed: instantiating a graph costs the
// GPU's idle time. Stops after a batch when three quarters of the samples are above `hopeless_us`; then the
// kernel is not worth more of them. Falls back to launches without a graph when the graph cannot be made.
// Aborted: the context is lost.
inline constexpr int kMinScreenSamples = 5;
inline constexpr int kScreenBatch = 10;
inline constexpr int kMaxScreenSamples = 50;
[[nodiscard]] absl::StatusOr<ColdSamples> SampleCold(
    Device& device, const Enqueue& flush, const PlacedKernel& kernel, double budget_us,
    double hopeless_us = std::numeric_limits<double>::infinity());

struct RoundsOptions {
  Duration budget{};        // wall time; the least number of rounds is taken in any case
  double tie_band = 0.003;  // 0: nobody leaves, and the whole budget is spent, however many rounds that takes
  // Each sample follows an untimed launch of its own kernel, with the operands of the next place, before the
  // flush; unless the fastest kernel takes more than kLongestRewarmedUs.
  bool rewarm = true;
};
struct Rounds {
  std::vector<std::vector<double>> us;  // [kernel][round]; shorter for kernels that left the race
  std::vector<double> probe_us;         // [round]
  // [kernel]: the one that was the fastest when this one left the race; itself while it is in it. Empty:
  // nobody left.
  std::vector<size_t> lost_to;
  bool in_graph = true;

  // Every kernel's time, comparable although some left early: the fastest one's centre (CenterOf) plus the
  // centre of the paired differences to it over the rounds that both ran. For one that left, to the one that
  // it lost to: what is known of it are those rounds, and in them it was surely slower.
  std::vector<Center> Centers() const;
};

// A race in interleaved rounds A B C, A B C, ..., each of them followed by a probe of the clocks. A kernel
// leaves the race once it is surely slower than the fastest by more than the tie band (stopping_rule.h). Ends
// when every other one surely ties with the fastest, or the budget is spent: after kMinRounds at the earliest
// (kMinRoundsShort when a kernel takes less than 10 us) and kMaxRounds at the latest. Each kernel has small
// graphs of its own, one per placement, so that none is made anew when another leaves; they are made while
// the GPU is busy with the rounds before. The first round is not counted.
//
// A kernel that follows others is slower by some tenths of a microsecond than one that follows itself: the
// flush empties the L2, not what the SMs keep of a kernel's code. How much depends on the others and on the
// order (two candidates of one config share their code), so that a race of sixteen and one of five disagree.
// Hence the untimed launch, which gives every sample the conditions of SampleCold, whatever the company.
inline constexpr int kRoundsPerBatch = 4;  // between two looks at the times
inline constexpr int kMinRounds = 16;
inline constexpr int kMinRoundsShort = 32;  // one per placement
inline constexpr int kMaxRounds = 600;
inline constexpr double kLongestRewarmedUs = 50;
[[nodiscard]] absl::StatusOr<Rounds> RunRounds(Device& device, const Enqueue& flush,
                                               absl::Span<const PlacedKernel> kernels, const Enqueue& probe,
                                               const RoundsOptions& options, Clock& clock);

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_TIMING_SEQUENCE_H_
