#ifndef QGEMM_TESTS_BENCH_TUNING_BENCH_H_
#define QGEMM_TESTS_BENCH_TUNING_BENCH_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/subprocess.h"
#include "cache/memory_store.h"
#include "server/compile_pool.h"
#include "server/gpu_process.h"
#include "server/tuner.h"

namespace qgemm {

using Json = nlohmann::ordered_json;

class Stopwatch {
 public:
  explicit Stopwatch(double limit_s) : limit_s_(limit_s) {}
  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  double left() const { return limit_s_ - elapsed(); }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const double limit_s_;
};

// One (problem, bucket) that is tuned.
struct BenchPair {
  std::string format;
  v1::Problem problem;
  int m = 0;
  std::string name;
};

// pairs44.json.
[[nodiscard]] absl::StatusOr<std::vector<BenchPair>> ReadPairs(const std::string& path);

Candidate CandidateOf(const v1::Pick& pick);

// How much slower than `best_us`, as a factor. A kernel under 5 us may be off by 0.15 us instead of by a
// percentage: then it counts as 1.01 at most.
double RegretOf(double us, double best_us);

// Microseconds per candidate of one pair.
using Times = std::map<Candidate, double>;
double FastestOf(const Times& times);

// Factors, summed up.
class Regrets {
 public:
  void Add(double regret, const std::string& what);
  int count() const { return count_; }
  double mean() const { return count_ > 0 ? sum_ / count_ : 0; }
  double geomean() const;
  double worst() const { return worst_; }
  const std::string& worst_of() const { return worst_of_; }
  int over_1pct() const { return over_1pct_; }
  int over_2pct() const { return over_2pct_; }
  // 1 - over_1pct / count.
  double within_1pct_share() const;
  // pairs, mean, geomean, worst, worst_pair, over_1pct, over_2pct, within_1pct_share
  Json ToJson() const;

 private:
  int count_ = 0;
  double sum_ = 0;
  double log_sum_ = 0;
  double worst_ = 1;
  int over_1pct_ = 0;
  int over_2pct_ = 0;
  std::string worst_of_;
};

// What a run timed of one candidate.
struct SeenTime {
  double us = 0;  // what timings are compared by
  int samples = 0;
};

// What one run of the tuner picked.
struct Picked {
  std::map<size_t, Candidate> by_pair;
  std::map<size_t, std::map<Candidate, SeenTime>> seen;  // per pair, what was timed at all
  std::set<size_t> low_confidence;
  double wall_s = 0;
  double gpu_s = 0;
  int64_t compiles = 0;
  int64_t timings = 0;
};

struct TuneOptions {
  v1::Effort effort = v1::EFFORT_BALANCED;
  std::string only;         // TuneRequest.only
  bool rewarm = true;       // RoundsOptions.rewarm
  bool host_timed = false;  // event-timed from the host, in one place, without a race: the control
  double limit_s = 1e9;     // pairs that are not begun by then are left out
  int clients = 1;          // pairs asked for at once: one's kernels compile while another's are timed
  // After each pair, its tuner. Never two at a time.
  std::function<void(size_t pair, Tuner& tuner)> tuned;
};

// The daemon's own parts (compile workers, GPU process, tuner; no socket, a store in memory), for programs
// that judge what they pick. Kernels that any run compiled are kept in one store.
class TuningBench {
 public:
  // `device`: as qgemmd's --device.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TuningBench>> Create(Spawner& spawner,
                                                                           const std::string& device);

  // Tunes the pairs in turn in a new GPU process, with a store that holds the kernels known so far and no
  // picks. Prints one line.
  [[nodiscard]] absl::StatusOr<Picked> Tune(const std::string& what, absl::Span<const BenchPair> pairs,
                                            const TuneOptions& options);
  // The candidates of a tuned pair that took the least time, best first, at most `count` of those that
  // `allowed` admits.
  static std::vector<Candidate> Fastest(Tuner& tuner, const BenchPair& pair, int count,
                                        const std::function<bool(const Candidate&)>& allowed);
  // Every candidate of a tuned pair that was timed.
  static std::map<Candidate, SeenTime> TimedBy(Tuner& tuner, const BenchPair& pair);

  // One GPU process that times with long windows. Not for use while a tuning runs.
  class Clockwork {
   public:
    // Interleaved rounds of all candidates for `window_s` per candidate, a quarter of it to warm up.
    [[nodiscard]] absl::StatusOr<Times> Time(const BenchPair& pair, const std::set<Candidate>& candidates,
                                             double window_s);
    [[nodiscard]] absl::StatusOr<Times> TimeInOrder(const BenchPair& pair,
                                                    const std::vector<Candidate>& order, double window_s);
    // Candidates of `of` that fail verification (guards, wrong results), with the reason.
    [[nodiscard]] absl::StatusOr<std::vector<std::string>> Verify(const BenchPair& pair,
                                                                  const std::set<Candidate>& of);

   private:
    friend class TuningBench;
    Clockwork(TuningBench& bench, GpuProcessOptions options);
    absl::StatusOr<GpuCandidate> ForGpu(const Candidate& candidate, const Problem& problem, int m,
                                        internal::KernelRecord& record);
    // Prepares the pair's problem; `records` hold what the candidates borrow.
    absl::StatusOr<std::vector<GpuCandidate>> AllForGpu(const BenchPair& pair,
                                                        const std::vector<Candidate>& all,
                                                        std::vector<internal::KernelRecord>& records);

    TuningBench& bench_;
    GpuProcess gpu_;
  };
  // `placements`: 0 = as the tuner. `rewarm`: RoundsOptions.rewarm.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Clockwork>> StartClockwork(int placements = 0,
                                                                          bool rewarm = true);

  // The mean over `processes` fresh GPU processes, each with its share of the window; what one process has
  // its own way, such as where its memory lies, is not taken for the truth. Pairs that cannot be timed are
  // missing. `disagreement` gets, per candidate, the largest over the smallest of the processes' times
  // relative to the pair's.
  [[nodiscard]] absl::StatusOr<std::map<size_t, Times>> Reference(
      absl::Span<const BenchPair> pairs, const std::map<size_t, std::set<Candidate>>& unions, double window_s,
      int processes, std::vector<double>* disagreement);

  const DeviceProfile& profile() const { return profile_; }
  const v1::DeviceClass& device() const { return device_; }
  int workers() const { return pool_->num_workers(); }

 private:
  TuningBench(Spawner& spawner, std::string device) : spawner_(spawner), device_name_(std::move(device)) {}
  GpuProcessOptions GpuOptions() const;
  absl::StatusOr<internal::KernelRecord> KernelFor(const Candidate& candidate,
                                                   const KernelSignature& signature);

  Spawner& spawner_;
  const std::string device_name_;
  std::unique_ptr<CompilePool> pool_;
  MemoryStore kernels_;
  std::unique_ptr<KernelSupply> supply_;  // over kernels_
  std::string toolchain_;
  std::string support_cubin_;
  DeviceProfile profile_;
  v1::DeviceClass device_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_BENCH_TUNING_BENCH_H_
