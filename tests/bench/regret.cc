// How far from the best are the picks? Tunes the 44 (shape, bucket) pairs of pairs44.json on this machine's
// GPU with the daemon's own parts (compile workers, GPU process, tuner; no socket, a store in memory), then
// times the union of all picks and of the five fastest candidates per pair with a long window, and says how
// much slower each pick is than the best of that union.
//
//   bin/regret --out regret.json            at most 6 minutes
//
// In this order: EXHAUSTIVE (what is picked), BALANCED twice in fresh processes with an empty store of picks
// (do they agree?), BALANCED three times while one process per core spins (a busy host), the same once with
// times taken by events around single launches from the host (the control: it must miss, or the busy host
// proves nothing), last the reference with the host idle. Reference: per candidate 100 ms to warm up and 300
// ms of interleaved rounds with all others, less when the time runs out (the JSON says how much).
// A kernel under 5 us may be off by 0.15 us instead of by a percentage.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/subprocess.h"
#include "cache/memory_store.h"
#include "kernels/launch_spec.h"
#include "server/compile_pool.h"
#include "server/cpu_budget.h"
#include "server/gpu_process.h"
#include "server/pick_choice.h"
#include "server/proto_convert.h"
#include "server/tuner.h"
#include "spdlog/spdlog.h"
#include "tests/bench/spinners.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTopFew = 5;
constexpr double kShortKernelUs = 5;
constexpr double kShortKernelSlackUs = 0.15;
constexpr double kWarmUpMs = 100;
constexpr double kWindowMs = 300;

struct Options {
  double seconds = 360;
  std::string out;
  std::string pairs;
  std::string device = "auto";
  int busy_runs = 3;
  bool quick = false;  // BALANCED in EXHAUSTIVE's place
};

struct Pair {
  std::string format;
  v1::Problem problem;
  int m = 0;
  std::string name;
};

// What one run of the tuner picked.
struct Picked {
  std::map<size_t, Candidate> by_pair;
  std::set<size_t> low_confidence;
  double wall_s = 0;
  double gpu_s = 0;
  int64_t compiles = 0;
  int64_t timings = 0;
};

class CollectingStream : public TuneStream {
 public:
  void Send(const v1::TuneEvent& event) override {
    if (event.has_result()) results.push_back(event.result());
    if (event.has_summary()) summary = event.summary();
  }
  bool Cancelled() override { return false; }
  std::vector<v1::TuneResult> results;
  v1::TuneSummary summary;
};

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

Candidate CandidateOf(const v1::Pick& pick) {
  Candidate candidate{*ParseConfig(pick.config()), pick.split_k(), Reduction::kNone};
  for (const Reduction reduction : {Reduction::kWorkspace, Reduction::kCluster}) {
    if (ReductionToProto(reduction) == pick.reduction()) candidate.reduction = reduction;
  }
  return candidate;
}

absl::StatusOr<std::vector<Pair>> ReadPairs(const std::string& path) {
  std::ifstream file(path);
  const Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::vector<Pair> pairs;
  for (const Json& format : json["formats"]) {
    for (const std::string shape : format["shapes"]) {
      const std::vector<std::string> size = absl::StrSplit(shape, 'x');
      for (const int m : format["m"]) {
        Pair pair;
        pair.format = format["format"];
        pair.m = m;
        int64_t n = 0;
        int64_t k = 0;
        int bits = 0;
        if (size.size() != 2 || !absl::SimpleAtoi(size[0], &n) || !absl::SimpleAtoi(size[1], &k) ||
            !absl::SimpleAtoi(pair.format.substr(3), &bits)) {
          return absl::InvalidArgumentError(absl::StrCat(path, ": shape ", shape));
        }
        pair.problem.set_n(n);
        pair.problem.set_k(k);
        pair.problem.mutable_format()->set_bits(bits);
        pair.problem.mutable_format()->set_group_size(format["group_size"]);
        pair.problem.mutable_format()->set_zero_point(format["zero"] == "int" ? v1::ZERO_POINT_INTEGER
                                                                              : v1::ZERO_POINT_NONE);
        pair.problem.set_act(v1::SCALAR_TYPE_BF16);
        pair.name = absl::StrCat(pair.format, " ", shape, " M ", m);
        pairs.push_back(std::move(pair));
      }
    }
  }
  return pairs;
}

absl::Status CopyKernels(CacheStore& from, CacheStore& to) {
  std::vector<std::string> digests;
  QGEMM_RETURN_IF_ERROR(from.VisitKernels([&](const v1::KernelInfo& info) {
    digests.push_back(info.sha256());
    return true;
  }));
  for (const std::string& sha256 : digests) {
    QGEMM_ASSIGN_OR_RETURN(const internal::KernelRecord record, from.GetKernelBySha256(sha256));
    QGEMM_RETURN_IF_ERROR(to.PutKernel(record));
  }
  return absl::OkStatus();
}

// The daemon's parts, made anew for every run.
class Bench {
 public:
  Bench(Spawner& spawner, CompilePool& pool, const Options& options, std::vector<Pair> pairs)
      : spawner_(spawner), pool_(pool), options_(options), pairs_(std::move(pairs)) {}

  const std::vector<Pair>& pairs() const { return pairs_; }
  MemoryStore& first_store() { return first_store_; }

  // Leaves out pairs whose format no kernel serves yet.
  std::vector<std::string> DropUnsupported() {
    std::vector<std::string> dropped;
    std::erase_if(pairs_, [&](const Pair& pair) {
      const absl::StatusOr<Problem> problem = ProblemFromProto(pair.problem);
      const absl::StatusOr<DeviceProfile> device = FindDeviceProfile("h200");
      const bool legal = problem.ok() && device.ok() && !LegalByPrediction(*problem, pair.m, *device).empty();
      if (!legal) dropped.push_back(pair.name);
      return !legal;
    });
    return dropped;
  }

  absl::StatusOr<Picked> Tune(const std::string& what, v1::Effort effort, MemoryStore& store, bool host_timed,
                              double limit_s) {
    GpuProcess gpu(&spawner_, GpuOptions(host_timed), &RealClock());
    QGEMM_ASSIGN_OR_RETURN(const GpuInfo info, gpu.Describe());
    QGEMM_ASSIGN_OR_RETURN(TargetResolver targets, TargetResolver::Create("h200", "", info));
    Tuner tuner(store, pool_, &gpu, RealClock(), std::move(targets), TunerOptions());
    QGEMM_RETURN_IF_ERROR(tuner.Toolchain().status());
    Picked picked;
    const Stopwatch watch(limit_s);
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (watch.left() <= 0) {
        std::printf("  out of time after %zu pairs\n", i);
        break;
      }
      v1::TuneRequest request;
      *request.add_problems() = pairs_[i].problem;
      request.add_m(pairs_[i].m);
      request.set_effort(effort);
      CollectingStream stream;
      QGEMM_RETURN_IF_ERROR(tuner.Tune(request, "regret", stream));
      picked.gpu_s += stream.summary.gpu_busy_s();
      picked.compiles += stream.summary.compiles();
      picked.timings += stream.summary.timings();
      for (const v1::TuneResult& result : stream.results) {
        if (!result.has_pick()) {
          std::printf("  %s: no pick: %s\n", pairs_[i].name.c_str(), result.error().c_str());
          continue;
        }
        picked.by_pair[i] = CandidateOf(result.pick());
        if (result.pick().confidence() == v1::CONFIDENCE_LOW) picked.low_confidence.insert(i);
        if (effort == v1::EFFORT_EXHAUSTIVE || options_.quick) RememberFastest(i, tuner);
      }
    }
    picked.wall_s = watch.elapsed();
    std::printf("%-28s %zu picks, %lld compiles, %lld timings, %.1f s, GPU %.1f s, %zu low confidence\n",
                what.c_str(), picked.by_pair.size(), static_cast<long long>(picked.compiles),
                static_cast<long long>(picked.timings), picked.wall_s, picked.gpu_s,
                picked.low_confidence.size());
    std::fflush(stdout);
    return picked;
  }

  // The reference: microseconds per candidate of the union, or empty where it could not be timed.
  absl::StatusOr<std::map<Candidate, double>> Reference(Gpu& gpu, size_t pair_index,
                                                        const std::set<Candidate>& candidates,
                                                        double window_s) {
    const Pair& pair = pairs_[pair_index];
    QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(pair.problem));
    QGEMM_RETURN_IF_ERROR(gpu.Prepare(problem, pair.m));
    std::vector<GpuCandidate> timed;
    std::vector<internal::KernelRecord> records;
    std::vector<Candidate> order(candidates.begin(), candidates.end());
    records.reserve(order.size());
    for (const Candidate& candidate : order) {
      QGEMM_ASSIGN_OR_RETURN(internal::KernelRecord record,
                             first_store_.GetKernel(KernelKeyOf(candidate, problem)));
      records.push_back(std::move(record));
      timed.push_back({CandidateName(candidate), records.back().info().sha256(), &records.back().cubin(),
                       MakeLaunchSpec(candidate, problem, pair.m)});
    }
    const auto count = static_cast<double>(timed.size());
    const double warm_s = window_s * kWarmUpMs / (kWarmUpMs + kWindowMs);
    // A tie band of 0: nobody leaves, and the window is used up.
    QGEMM_RETURN_IF_ERROR(gpu.Finals(timed, absl::Seconds(warm_s * count), 0).status());
    QGEMM_ASSIGN_OR_RETURN(const std::vector<internal::Timing> timings,
                           gpu.Finals(timed, absl::Seconds((window_s - warm_s) * count), 0));
    std::map<Candidate, double> us;
    for (size_t i = 0; i < timings.size(); ++i) us[order[i]] = ComparedUs(timings[i]);
    return us;
  }

  GpuProcessOptions GpuOptions(bool host_timed) const {
    GpuProcessOptions gpu;
    gpu.device = options_.device;
    gpu.host_timed = host_timed;
    return gpu;
  }
  void UseSupplyOf(CacheStore& store) {
    supply_ = std::make_unique<KernelSupply>(store, pool_, RealClock(), [] {});
  }
  absl::Status LoadSupport(Gpu& gpu) {
    QGEMM_ASSIGN_OR_RETURN(toolchain_, pool_.Toolchain());
    KernelSupply::Requested support = supply_->RequestSupport(kArch, toolchain_, Flow{.client = "regret"});
    while (!support.kernel->ready()) std::this_thread::yield();
    QGEMM_RETURN_IF_ERROR(support.kernel->status());
    gpu.SetSupportKernels(support.kernel->record().cubin());
    return absl::OkStatus();
  }
  const std::map<size_t, std::set<Candidate>>& fastest() const { return fastest_; }

 private:
  static constexpr const char* kArch = "sm_90a";

  std::string KernelKeyOf(const Candidate& candidate, const Problem& problem) {
    return supply_->CurrentKey(candidate.config, problem.signature, kArch, toolchain_);
  }
  void RememberFastest(size_t i, Tuner& tuner) {
    v1::ExplainRequest request;
    *request.mutable_problem() = pairs_[i].problem;
    request.set_m(pairs_[i].m);
    const absl::StatusOr<v1::ExplainResponse> explained = tuner.Explain(request);
    if (!explained.ok()) return;
    int taken = 0;
    for (const v1::ExplainedCandidate& candidate : explained->candidates()) {
      if (taken == kTopFew || !candidate.has_center_us()) break;
      const std::vector<std::string> parts = absl::StrSplit(candidate.candidate(), '/');
      Candidate parsed{*ParseConfig(parts[0]), 1, Reduction::kNone};
      if (!absl::SimpleAtoi(parts[1].substr(1), &parsed.split_k)) continue;
      for (const Reduction reduction : {Reduction::kWorkspace, Reduction::kCluster}) {
        if (parts[2] == ReductionName(reduction)) parsed.reduction = reduction;
      }
      fastest_[i].insert(parsed);
      ++taken;
    }
  }

  Spawner& spawner_;
  CompilePool& pool_;
  const Options options_;
  std::vector<Pair> pairs_;
  MemoryStore first_store_;
  std::map<size_t, std::set<Candidate>> fastest_;
  std::string toolchain_;
  std::unique_ptr<KernelSupply> supply_;
};

// How much slower one run's picks are than the best of the reference.
struct Regrets {
  int count = 0;
  double sum = 0;
  double worst = 1;
  int over_1pct = 0;
  int over_2pct = 0;
  std::string worst_pair;

  void Add(double pick_us, double best_us, const std::string& pair) {
    double regret = pick_us / best_us;
    if (best_us < kShortKernelUs && pick_us - best_us <= kShortKernelSlackUs) regret = std::min(regret, 1.01);
    ++count;
    sum += regret;
    if (regret > 1.01) ++over_1pct;
    if (regret > 1.02) ++over_2pct;
    if (regret > worst) {
      worst = regret;
      worst_pair = pair;
    }
  }
  double mean() const { return count > 0 ? sum / count : 0; }
  Json ToJson() const {
    return {{"pairs", count},           {"mean", mean()},         {"worst", worst},
            {"worst_pair", worst_pair}, {"over_1pct", over_1pct}, {"over_2pct", over_2pct}};
  }
};

struct Run {
  std::string name;
  Picked picked;
};

using Reference = std::map<size_t, std::map<Candidate, double>>;

Regrets RegretsOf(const Run& run, const Reference& reference, const std::vector<Pair>& pairs) {
  Regrets regrets;
  for (const auto& [i, candidate] : run.picked.by_pair) {
    const auto timed = reference.find(i);
    if (timed == reference.end()) continue;
    double best = HUGE_VAL;
    for (const auto& [other, us] : timed->second) best = std::min(best, us);
    regrets.Add(timed->second.at(candidate), best, pairs[i].name);
  }
  return regrets;
}

// Of two runs: pairs with the same pick, or with picks within 1 % by the reference.
Json Agreement(const Run& a, const Run& b, const Reference& reference) {
  int count = 0;
  int same = 0;
  int agree = 0;
  for (const auto& [i, candidate] : a.picked.by_pair) {
    const auto other = b.picked.by_pair.find(i);
    const auto timed = reference.find(i);
    if (other == b.picked.by_pair.end() || timed == reference.end()) continue;
    const double ratio = timed->second.at(candidate) / timed->second.at(other->second);
    ++count;
    same += candidate == other->second ? 1 : 0;
    agree += ratio <= 1.01 && ratio >= 1 / 1.01 ? 1 : 0;
  }
  return {{"pairs", count},
          {"same", same},
          {"agree", agree},
          {"agree_share", count > 0 ? static_cast<double>(agree) / count : 0}};
}

absl::Status RunAll(const Options& options, Spawner& spawner, Spinners& spinners) {
  const Stopwatch watch(options.seconds);
  QGEMM_ASSIGN_OR_RETURN(std::vector<Pair> pairs, ReadPairs(options.pairs));
  const size_t asked = pairs.size();
  CompilePoolOptions pool_options;
  QGEMM_ASSIGN_OR_RETURN(const std::string folder, ProgramFolder());
  pool_options.worker = CompileWorkerProgram(folder + "/qgemm-compile");
  pool_options.num_workers = DefaultCompileWorkers(ReadCpuBudget(), /*gpu_pinned=*/true);
  CompilePool pool(&spawner, &RealClock(), pool_options);
  Bench bench(spawner, pool, options, std::move(pairs));
  const std::vector<std::string> dropped = bench.DropUnsupported();
  std::printf("%zu of %zu pairs, %d compile workers, %.0f s\n", bench.pairs().size(), asked,
              pool_options.num_workers, options.seconds);

  std::vector<Run> runs;
  const auto tune = [&](const std::string& name, v1::Effort effort, MemoryStore& store, bool host_timed,
                        double limit_s) -> absl::Status {
    QGEMM_ASSIGN_OR_RETURN(Picked picked, bench.Tune(name, effort, store, host_timed, limit_s));
    runs.push_back({name, std::move(picked)});
    return absl::OkStatus();
  };
  QGEMM_RETURN_IF_ERROR(tune("exhaustive", options.quick ? v1::EFFORT_BALANCED : v1::EFFORT_EXHAUSTIVE,
                             bench.first_store(), false, 0.45 * watch.left()));
  for (const char* name : {"balanced", "balanced again"}) {
    MemoryStore fresh;
    QGEMM_RETURN_IF_ERROR(CopyKernels(bench.first_store(), fresh));
    QGEMM_RETURN_IF_ERROR(tune(name, v1::EFFORT_BALANCED, fresh, false, 0.2 * watch.left()));
    QGEMM_RETURN_IF_ERROR(CopyKernels(fresh, bench.first_store()));
  }
  spinners.Run();
  absl::Status busy;
  for (int i = 0; i < options.busy_runs && busy.ok(); ++i) {
    MemoryStore fresh;
    busy = CopyKernels(bench.first_store(), fresh);
    if (busy.ok()) {
      busy = tune(absl::StrCat("busy host ", i + 1), v1::EFFORT_BALANCED, fresh, false, 0.2 * watch.left());
    }
  }
  if (busy.ok() && options.busy_runs > 0) {
    MemoryStore fresh;
    busy = CopyKernels(bench.first_store(), fresh);
    if (busy.ok()) {
      busy = tune("busy host, event-timed", v1::EFFORT_BALANCED, fresh, true, 0.25 * watch.left());
    }
  }
  spinners.Pause();
  QGEMM_RETURN_IF_ERROR(busy);

  // The reference, with the host idle again.
  std::map<size_t, std::set<Candidate>> unions = bench.fastest();
  for (const Run& run : runs) {
    for (const auto& [i, candidate] : run.picked.by_pair) unions[i].insert(candidate);
  }
  size_t candidates = 0;
  for (const auto& [i, set] : unions) candidates += set.size();
  const double window_s =
      std::min((kWarmUpMs + kWindowMs) / 1e3,
               std::max(0.02, (watch.left() - 2) / static_cast<double>(std::max<size_t>(1, candidates))));
  std::printf("reference: %zu candidates, %.0f ms each\n", candidates, 1e3 * window_s);
  bench.UseSupplyOf(bench.first_store());
  GpuProcess gpu(&spawner, bench.GpuOptions(false), &RealClock());
  QGEMM_RETURN_IF_ERROR(gpu.Describe().status());
  QGEMM_RETURN_IF_ERROR(bench.LoadSupport(gpu));
  Reference reference;
  for (const auto& [i, set] : unions) {
    absl::StatusOr<std::map<Candidate, double>> us = bench.Reference(gpu, i, set, window_s);
    if (!us.ok()) {
      std::printf("  %s: %s\n", bench.pairs()[i].name.c_str(), us.status().ToString().c_str());
      continue;
    }
    reference[i] = *std::move(us);
  }

  Json json;
  std::map<std::string, Regrets> regrets;
  for (const Run& run : runs) regrets[run.name] = RegretsOf(run, reference, bench.pairs());
  Regrets busy_all;
  int busy_count = 0;
  for (const Run& run : runs) {
    if (!absl::StartsWith(run.name, "busy host ")) continue;
    const Regrets& one = regrets[run.name];
    busy_all.sum += one.sum;
    busy_all.count += one.count;
    busy_all.worst = std::max(busy_all.worst, one.worst);
    ++busy_count;
  }
  const Regrets& exhaustive = regrets["exhaustive"];
  const Regrets& control = regrets["busy host, event-timed"];
  json["regret_mean"] = exhaustive.mean();
  json["regret_worst"] = exhaustive.worst;
  json["regret_over_1pct"] = exhaustive.over_1pct;
  json["regret_over_2pct"] = exhaustive.over_2pct;
  json["balanced_regret_mean"] = regrets["balanced"].mean();
  json["balanced_regret_worst"] = regrets["balanced"].worst;
  json["balanced_over_1pct"] = regrets["balanced"].over_1pct;
  json["balanced_over_2pct"] = regrets["balanced"].over_2pct;
  if (busy_count > 0) {
    json["busy_host_worst"] = busy_all.worst;
    json["busy_host_mean"] = busy_all.mean();
    json["control_worst"] = control.worst;
    json["control_mean"] = control.mean();
    json["control_misses"] = control.worst > 1.02;
  }
  json["balanced_vs_exhaustive"] = Agreement(runs[1], runs[0], reference);
  json["fresh_tunings"] = Agreement(runs[1], runs[2], reference);
  json["pairs"] = bench.pairs().size();
  json["pairs_asked"] = asked;
  json["pairs_without_kernels"] = dropped;
  json["window_ms"] = 1e3 * window_s;
  json["spinners"] = spinners.count();
  json["wall_s"] = watch.elapsed();
  for (const Run& run : runs) {
    Json entry = regrets[run.name].ToJson();
    entry["wall_s"] = run.picked.wall_s;
    entry["gpu_s"] = run.picked.gpu_s;
    entry["compiles"] = run.picked.compiles;
    entry["timings"] = run.picked.timings;
    entry["low_confidence"] = run.picked.low_confidence.size();
    json["runs"][run.name] = std::move(entry);
  }
  for (const auto& [i, timed] : reference) {
    Json& entry = json["reference"].emplace_back(Json{{"pair", bench.pairs()[i].name}});
    for (const auto& [candidate, us] : timed) entry["us"][CandidateName(candidate)] = us;
    for (const Run& run : runs) {
      const auto pick = run.picked.by_pair.find(i);
      if (pick != run.picked.by_pair.end()) entry["picks"][run.name] = CandidateName(pick->second);
    }
  }
  std::printf("\n%-26s %6s %7s %7s %6s %6s  worst pair\n", "run", "pairs", "mean", "worst", "> 1 %", "> 2 %");
  for (const Run& run : runs) {
    const Regrets& one = regrets[run.name];
    std::printf("%-26s %6d %7.4f %7.4f %6d %6d  %s\n", run.name.c_str(), one.count, one.mean(), one.worst,
                one.over_1pct, one.over_2pct, one.worst_pair.c_str());
  }
  std::printf("fresh tunings: %s\nbalanced against exhaustive: %s\n%.0f s in all\n",
              json["fresh_tunings"].dump().c_str(), json["balanced_vs_exhaustive"].dump().c_str(),
              watch.elapsed());
  if (!options.out.empty()) std::ofstream(options.out) << json.dump(1) << "\n";
  return absl::OkStatus();
}

int Usage() {
  std::fprintf(stderr,
               "usage: regret [--out FILE.json] [--seconds 360] [--busy-runs 3] [--pairs FILE.json] "
               "[--device auto|UUID] [--quick]\n");
  return 2;
}

// pairs44.json beside the bundle's or the repository's benches.
std::string DefaultPairs() {
  const absl::StatusOr<std::string> folder = ProgramFolder();
  const std::string bundled = folder.ok() ? *folder + "/../tests/bench/pairs44.json" : "";
  return std::filesystem::exists(bundled) ? bundled : QGEMM_SOURCE_DIR "/tests/bench/pairs44.json";
}

int Main(int argc, char** argv) {
  Options options;
  options.pairs = DefaultPairs();
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      options.quick = true;
      continue;
    }
    if (i + 1 == argc) return Usage();
    const std::string value = argv[++i];
    if (flag == "--out") {
      options.out = value;
    } else if (flag == "--pairs") {
      options.pairs = value;
    } else if (flag == "--device") {
      options.device = value;
    } else if (flag == "--seconds") {
      if (!absl::SimpleAtod(value, &options.seconds)) return Usage();
    } else if (flag == "--busy-runs") {
      if (!absl::SimpleAtoi(value, &options.busy_runs)) return Usage();
    } else {
      return Usage();
    }
  }
  // NVRTC's own disk cache would make a second run's compiles look free.
  setenv("CUDA_CACHE_DISABLE", "1", 1);
  Spinners spinners(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  absl::StatusOr<std::unique_ptr<Spawner>> spawner = Spawner::Start();
  spdlog::set_level(spdlog::level::err);
  const absl::Status status = spawner.ok() ? RunAll(options, **spawner, spinners) : spawner.status();
  if (status.ok()) return 0;
  std::fprintf(stderr, "regret: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) { return qgemm::Main(argc, argv); }
