#ifndef QGEMM_SERVER_RUNNER_GRAPH_PROFILER_H_
#define QGEMM_SERVER_RUNNER_GRAPH_PROFILER_H_

#include <list>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/runner/device.h"
#include "server/runner/disturbance.h"
#include "server/runner/problem_data.h"
#include "server/runner/profiler.h"
#include "server/runner/support_library.h"
#include "server/runner/timing_sequence.h"

namespace qgemm {

// What is told of samples, and of the centre that stands for them.
internal::Timing MakeTiming(const std::vector<double>& us, const Center& center, bool low_confidence);

// Verifies and times candidates on a device: the profiler of qgemm-time. Everything it does on the GPU goes
// through Device, so it is tested without one.
class GraphProfiler : public Profiler {
 public:
  // `hello`: what Hello() answers. The clock is borrowed.
  GraphProfiler(internal::RunnerHello hello, std::unique_ptr<Device> device,
                std::unique_ptr<DisturbanceMonitor> monitor, Clock* clock);

  // From now on kernels are timed by events around single launches, each begun on an idle stream, so that the
  // host's way to the launch is part of the time: what graph timing is compared with, for benches alone.
  void TimeFromTheHost() { host_timed_ = true; }
  // Times with the operands in at most so many places: 1 shows what the others are for, to benches alone.
  void LimitPlacements(int placements) { data_.LimitPlacements(placements); }
  // Races without the untimed launch before each sample (RoundsOptions.rewarm): shows benches what it is for.
  void RaceWithoutRewarming() { rewarm_ = false; }

  // Appends a line of JSON per timing: {"candidate", "n", "k", "m", "phase": "screen" or "final", "us":
  // [...]}. Borrowed.
  void LogSamplesTo(std::ostream* log) { sample_log_ = log; }

  internal::RunnerHello Hello() override { return hello_; }
  absl::StatusOr<internal::PrepareReply> Prepare(const internal::PrepareRequest& request) override;
  absl::StatusOr<internal::ScreenReply> Screen(const internal::ScreenRequest& request) override;
  absl::StatusOr<internal::FinalsReply> Finals(const internal::FinalsRequest& request) override;
  absl::StatusOr<internal::StatusReply> Status() override;

 private:
  struct LoadedModule {
    std::string sha256;
    std::unique_ptr<DeviceModule> module;
  };
  // A candidate ready to be put on the stream.
  struct Ready {
    LaunchSpec spec;
    std::unique_ptr<DeviceKernel> kernel;
    std::vector<ArgumentBlock> arguments;    // by placement
    std::vector<std::vector<void*>> params;  // into them
  };

  // The module of the candidate's kernel. FailedPrecondition: its bytes were not sent; `load_error` is set
  // when the driver refuses them.
  absl::StatusOr<DeviceModule*> ModuleFor(const internal::Candidate& candidate, absl::Status* load_error);
  // `workspaces`: one address per placement to use, of the launch's own workspace, tickets zeroed; 0 where it
  // needs none.
  absl::StatusOr<std::unique_ptr<Ready>> MakeReady(const internal::Candidate& candidate, LaunchSpec spec,
                                                   absl::Span<const uint64_t> workspaces,
                                                   absl::Status* load_error);
  PlacedKernel Launcher(const Ready& ready);
  Enqueue Flusher();
  absl::StatusOr<internal::Timing> TimeScreened(const Ready& ready, const std::string& name, double budget_ms,
                                                double hopeless_us);
  void LogSamples(const std::string& name, const char* phase, const std::vector<double>& us);

  const internal::RunnerHello hello_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<DisturbanceMonitor> monitor_;
  Clock* const clock_;

  std::unique_ptr<SupportLibrary> support_;
  ProblemData data_;
  bool host_timed_ = false;
  bool rewarm_ = true;
  std::ostream* sample_log_ = nullptr;
  bool disturbed_ = false;           // the last screening was, in spite of a second try
  std::list<LoadedModule> modules_;  // last used first, kRunnerModules at most
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_GRAPH_PROFILER_H_
