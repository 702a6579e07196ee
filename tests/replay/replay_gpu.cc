#include "tests/replay/replay_gpu.h"

#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "server/runner/graph_profiler.h"
#include "tests/replay/replay_device.h"

namespace qgemm {
namespace {

constexpr double kVerifyUs = 350;    // of a candidate, with its way to the GPU process
constexpr double kPrepareUs = 3000;  // of a problem's data

std::map<Cell, std::map<std::string, double>> ByName(const RecordedTimings& timings) {
  std::map<Cell, std::map<std::string, double>> by_name;
  for (const auto& [cell, candidates] : timings) {
    for (const auto& [candidate, us] : candidates) {
      by_name[{cell.n, cell.k, BucketFor(cell.m)}][CandidateName(candidate)] = us;
    }
  }
  return by_name;
}

class ReplayGpu : public Gpu {
 public:
  ReplayGpu(const RecordedTimings& timings, const NoiseModel& noise, uint64_t seed, bool rewarm);

  absl::StatusOr<GpuInfo> Describe() override;
  void SetSupportKernels(std::string) override {}
  absl::Status Prepare(const Problem& problem, int64_t m) override;
  absl::StatusOr<internal::ScreenReply> Screen(const GpuCandidate& candidate, double tolerance,
                                               absl::Duration time_budget) override;
  absl::StatusOr<std::vector<internal::Timing>> Finals(const std::vector<GpuCandidate>& candidates,
                                                       absl::Duration time_budget, double tie_band) override;
  // Virtual seconds spent.
  double busy_seconds() const override;

 private:
  PlacedKernel KernelOf(const std::string& name, double true_us);

  const bool rewarm_;
  SimulatedClock clock_;
  ReplayDevice device_;
  std::map<Cell, std::map<std::string, double>> us_by_name_;
  const std::map<std::string, double>* cell_ = nullptr;
  std::string cell_name_;
  std::map<std::string, std::vector<Enqueue>> launches_;  // by cell and candidate, then placement
};

ReplayGpu::ReplayGpu(const RecordedTimings& timings, const NoiseModel& noise, uint64_t seed, bool rewarm)
    : rewarm_(rewarm), device_(noise, seed, &clock_), us_by_name_(ByName(timings)) {}

absl::StatusOr<GpuInfo> ReplayGpu::Describe() {
  GpuInfo info;
  info.device.set_product_name("NVIDIA H200");
  info.device.set_compute_major(9);
  info.device.set_sm_count(device_.sm_count());
  info.device.set_l2_bytes(device_.l2_bytes());
  info.device.set_memory_gib(140);
  info.driver_version = "recorded";
  info.max_dynamic_smem_bytes = 232448;
  return info;
}

absl::Status ReplayGpu::Prepare(const Problem& problem, int64_t m) {
  const auto cell = us_by_name_.find({problem.n, problem.k, m});
  if (cell == us_by_name_.end()) {
    return absl::NotFoundError(absl::StrCat(ProblemName(problem), " at M ", m, " was not recorded"));
  }
  cell_ = &cell->second;
  cell_name_ = absl::StrCat(problem.n, "x", problem.k, "x", m, " ");
  device_.Idle(kPrepareUs);
  return absl::OkStatus();
}

PlacedKernel ReplayGpu::KernelOf(const std::string& name, double true_us) {
  const auto [launches, inserted] = launches_.try_emplace(cell_name_ + name);
  if (inserted) {
    const std::string config = name.substr(0, name.find('/'));
    for (const double bias : device_.DrawBiases(true_us)) {
      launches->second.push_back(device_.Kernel(true_us, bias, config));
    }
  }
  return {static_cast<int>(launches->second.size()),
          [&placed = launches->second](int placement) { return placed[placement](); }};
}

absl::StatusOr<internal::ScreenReply> ReplayGpu::Screen(const GpuCandidate& candidate, double /*tolerance*/,
                                                        absl::Duration time_budget) {
  internal::ScreenReply reply;
  const auto recorded = cell_->find(candidate.name);
  if (recorded == cell_->end()) {
    reply.set_failure(internal::CANDIDATE_FAILURE_LOAD);
    reply.set_reason("not recorded");
    return reply;
  }
  device_.Idle(kVerifyUs);
  const double hopeless_us =
      candidate.hopeless_us > 0 ? candidate.hopeless_us : std::numeric_limits<double>::infinity();
  QGEMM_ASSIGN_OR_RETURN(const ColdSamples samples,
                         SampleCold(device_, device_.Flush(), KernelOf(candidate.name, recorded->second),
                                    absl::ToDoubleMicroseconds(time_budget), hopeless_us));
  *reply.mutable_timing() = MakeTiming(samples.us, CenterOf(samples.us), /*low_confidence=*/false);
  return reply;
}

absl::StatusOr<std::vector<internal::Timing>> ReplayGpu::Finals(const std::vector<GpuCandidate>& candidates,
                                                                absl::Duration time_budget, double tie_band) {
  std::vector<PlacedKernel> kernels;
  for (const GpuCandidate& candidate : candidates) {
    kernels.push_back(KernelOf(candidate.name, cell_->at(candidate.name)));
  }
  RoundsOptions options;
  options.budget = absl::ToChronoNanoseconds(time_budget);
  options.tie_band = tie_band;
  options.rewarm = rewarm_;
  QGEMM_ASSIGN_OR_RETURN(const Rounds rounds,
                         RunRounds(device_, device_.Flush(), kernels, device_.Probe(), options, clock_));
  const std::vector<Center> centers = rounds.Centers();
  std::vector<internal::Timing> timings;
  for (size_t i = 0; i < centers.size(); ++i) {
    timings.push_back(MakeTiming(rounds.us[i], centers[i], /*low_confidence=*/false));
  }
  return timings;
}

double ReplayGpu::busy_seconds() const {
  return std::chrono::duration<double>(clock_.Now() - SimulatedClock().Now()).count();
}

}  // namespace

std::unique_ptr<Gpu> MakeReplayGpu(const RecordedTimings& timings, const NoiseModel& noise, uint64_t seed,
                                   bool rewarm) {
  return std::make_unique<ReplayGpu>(timings, noise, seed, rewarm);
}

}  // namespace qgemm
