#include "server/runner/timing_sequence.h"

#include <algorithm>
#include <memory>
#include <utility>

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

absl::StatusOr<ColdSamples> SampleCold(Device& device, const Enqueue& flush, const PlacedKernel& kernel,
                                       double budget_us, double hopeless_us) {
  // The first estimate; its flush is timed as well, as sample 1.
  QGEMM_RETURN_IF_ERROR(Timed(device, 1, flush));
  QGEMM_RETURN_IF_ERROR(Timed(device, 0, [&] { return kernel.Put(0); }));
  QGEMM_RETURN_IF_ERROR(device.Synchronize());
  QGEMM_ASSIGN_OR_RETURN(const double kernel_us, TimeOf(device, 0));
  QGEMM_ASSIGN_OR_RETURN(const double flush_us, TimeOf(device, 1));
  const int wanted = static_cast<int>(std::clamp(budget_us / (kernel_us + flush_us + kGapsUs),
                                                 double{kMinScreenSamples}, double{kMaxScreenSamples}));
  const int batches = (wanted + kScreenBatch - 1) / kScreenBatch;
  const int batch = (wanted + batches - 1) / batches;

  const Enqueue sequence = [&]() -> absl::Status {
    for (int i = 0; i < batch; ++i) {
      QGEMM_RETURN_IF_ERROR(flush());
      QGEMM_RETURN_IF_ERROR(Timed(device, i, [&] { return kernel.Put(i); }));
    }
    return absl::OkStatus();
  };
  QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceGraph> graph, TryCapture(device, sequence));
  ColdSamples result;
  result.in_graph = graph != nullptr;
  for (int done = 0; done < batches; ++done) {
    QGEMM_RETURN_IF_ERROR(RunOnce(device, graph.get(), sequence));
    for (int i = 0; i < batch; ++i) {
      QGEMM_ASSIGN_OR_RETURN(const double us, TimeOf(device, i));
      result.us.push_back(us);
    }
    const auto above =
        std::count_if(result.us.begin(), result.us.end(), [&](double us) { return us > hopeless_us; });
    if (4 * above >= 3 * static_cast<int64_t>(result.us.size())) break;
  }
  return result;
}

std::vector<Center> Rounds::Centers() const {
  const auto rival = [this](size_t i) { return lost_to.empty() ? i : lost_to[i]; };
  std::vector<Center> centers(us.size());
  std::vector<size_t>
      order;  // who stayed, then who left, the last one first: rivals come before their losers
  for (size_t i = 0; i < us.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return us[a].size() != us[b].size() ? us[a].size() > us[b].size() : rival(a) == a && rival(b) != b;
  });
  std::vector<std::vector<double>> stayed;
  std::vector<size_t> who;
  for (const size_t i : order) {
    if (rival(i) != i) continue;
    stayed.push_back(us[i]);
    who.push_back(i);
  }
  if (stayed.empty()) return centers;
  const size_t fastest = who[FastestOf(stayed)];
  centers[fastest] = CenterOf(us[fastest]);
  for (const size_t i : order) {
    if (i == fastest) continue;
    const size_t against = rival(i) == i ? fastest : rival(i);
    const Center difference = CenterOfDifferences(us[i], us[against]);
    centers[i] = {centers[against].us + difference.us, difference.error};
  }
  return centers;
}

namespace {

// The kernels of a race and the graphs that launch them. A round's slot says where its kernels' operands are;
// its kernels record into events of their own, so that several rounds are put on the stream before the first
// is read.
class Race {
 public:
  Race(Device& device, const Enqueue& flush, absl::Span<const PlacedKernel> kernels, const Enqueue& probe,
       bool rewarm)
      : device_(device),
        flush_(flush),
        kernels_(kernels),
        probe_(probe),
        rewarm_(rewarm),
        racing_(kernels.size(), true) {
    rounds_.us.resize(kernels.size());
    for (size_t i = 0; i < kernels.size(); ++i) rounds_.lost_to.push_back(i);
    int placements = 1;
    for (const PlacedKernel& kernel : kernels) placements = std::max(placements, kernel.placements());
    graphs_.resize((placements + kRoundsPerBatch - 1) / kRoundsPerBatch);
  }

  // The warm-up round, launched one by one: everything is loaded before it is captured.
  absl::Status Start() {
    const bool rewarm = std::exchange(rewarm_, false);
    for (int i = 0; i <= probe_index(); ++i) QGEMM_RETURN_IF_ERROR(Sequence(i, 0)());
    QGEMM_RETURN_IF_ERROR(device_.Synchronize());
    for (int i = 0; i < probe_index() && rewarm && !rewarm_; ++i) {
      QGEMM_ASSIGN_OR_RETURN(const double us, TimeOf(device_, GraphIndex(i, 0)));
      rewarm_ = us <= kLongestRewarmedUs;
    }
    return MakeGraphs(0);
  }

  absl::Status RunBatch() {
    for (int slot = 0; slot < kRoundsPerBatch; ++slot) {
      for (int i = 0; i <= probe_index(); ++i) {
        if (!Runs(i)) continue;
        QGEMM_RETURN_IF_ERROR(rounds_.in_graph ? device_.LaunchGraph(*graphs_[batch_][GraphIndex(i, slot)])
                                               : Sequence(i, batch_ * kRoundsPerBatch + slot)());
      }
    }
    batch_ = (batch_ + 1) % graphs_.size();
    QGEMM_RETURN_IF_ERROR(MakeGraphs(batch_));
    QGEMM_RETURN_IF_ERROR(device_.Synchronize());
    for (int slot = 0; slot < kRoundsPerBatch; ++slot) {
      for (int i = 0; i <= probe_index(); ++i) {
        if (!Runs(i)) continue;
        QGEMM_ASSIGN_OR_RETURN(const double us, TimeOf(device_, GraphIndex(i, slot)));
        (i < probe_index() ? rounds_.us[i] : rounds_.probe_us).push_back(us);
      }
    }
    return absl::OkStatus();
  }

  // Lets those go that are surely slower. True when nothing is open any more.
  bool Decide(double tie_band) {
    std::vector<std::vector<double>> racing_us;
    std::vector<size_t> racing;
    for (size_t i = 0; i < racing_.size(); ++i) {
      if (!racing_[i]) continue;
      racing.push_back(i);
      racing_us.push_back(rounds_.us[i]);
    }
    if (racing.size() < 2) return true;
    const Ranking ranking = CompareToFastest(racing_us, tie_band);
    bool decided = true;
    for (size_t i = 0; i < racing.size(); ++i) {
      if (ranking.standings[i] == Standing::kSlower) {
        racing_[racing[i]] = false;
        rounds_.lost_to[racing[i]] = racing[ranking.fastest];
      }
      if (ranking.standings[i] == Standing::kOpen) decided = false;
    }
    return decided;
  }

  bool AnyShort() const {
    return std::any_of(rounds_.us.begin(), rounds_.us.end(),
                       [](const std::vector<double>& us) { return us.front() < kShortKernelUs; });
  }
  int rounds() const { return static_cast<int>(rounds_.probe_us.size()); }
  Rounds Take() { return std::move(rounds_); }

 private:
  int probe_index() const { return static_cast<int>(kernels_.size()); }
  int GraphIndex(int i, int slot) const { return slot * (probe_index() + 1) + i; }
  bool Runs(int i) const { return i == probe_index() || racing_[i]; }
  // One kernel's part of round number `round`, modulo the placements.
  Enqueue Sequence(int i, int round) {
    return [this, i, round]() -> absl::Status {
      const int event = GraphIndex(i, round % kRoundsPerBatch);
      if (i == probe_index()) return Timed(device_, event, probe_);
      if (rewarm_) QGEMM_RETURN_IF_ERROR(kernels_[i].Put(round + 1));
      QGEMM_RETURN_IF_ERROR(flush_());
      return Timed(device_, event, [&] { return kernels_[i].Put(round); });
    };
  }
  // The graphs of a batch, unless they are there. Once one cannot be made, the race goes on without any.
  absl::Status MakeGraphs(size_t batch) {
    if (!rounds_.in_graph || !graphs_[batch].empty()) return absl::OkStatus();
    graphs_[batch].resize(GraphIndex(0, kRoundsPerBatch));
    for (int slot = 0; slot < kRoundsPerBatch; ++slot) {
      for (int i = 0; i <= probe_index(); ++i) {
        if (!Runs(i)) continue;
        const int round = static_cast<int>(batch) * kRoundsPerBatch + slot;
        QGEMM_ASSIGN_OR_RETURN(graphs_[batch][GraphIndex(i, slot)], TryCapture(device_, Sequence(i, round)));
        if (graphs_[batch][GraphIndex(i, slot)] == nullptr) {
          rounds_.in_graph = false;
          return absl::OkStatus();
        }
      }
    }
    return absl::OkStatus();
  }

  Device& device_;
  const Enqueue& flush_;
  const absl::Span<const PlacedKernel> kernels_;
  const Enqueue& probe_;
  bool rewarm_;
  // [batch][slot, then kernel, then the probe]; the first batch's placements are used again after the last's.
  std::vector<std::vector<std::unique_ptr<DeviceGraph>>> graphs_;
  size_t batch_ = 0;  // the next one
  std::vector<bool> racing_;
  Rounds rounds_;
};

}  // namespace

absl::StatusOr<Rounds> RunRounds(Device& device, const Enqueue& flush, absl::Span<const PlacedKernel> kernels,
                                 const Enqueue& probe, const RoundsOptions& options, Clock& clock) {
  const TimePoint deadline = clock.Now() + options.budget;
  Race race(device, flush, kernels, probe, options.rewarm);
  QGEMM_RETURN_IF_ERROR(race.Start());
  const bool to_the_end = options.tie_band <= 0;
  int next_decision = 0;  // comparing takes the host longer and longer, while the GPU waits
  while (to_the_end || race.rounds() < kMaxRounds) {
    QGEMM_RETURN_IF_ERROR(race.RunBatch());
    if (race.rounds() < (race.AnyShort() ? kMinRoundsShort : kMinRounds)) continue;
    if (clock.Now() >= deadline) break;
    if (to_the_end || race.rounds() < next_decision) continue;
    if (race.Decide(options.tie_band)) break;
    next_decision = race.rounds() * 5 / 4;
  }
  return race.Take();
}

}  // namespace qgemm
