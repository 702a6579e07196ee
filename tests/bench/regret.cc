// How far from the best are the picks? Tunes the 44 (shape, bucket) pairs of pairs44.json on this machine's
// GPU with the daemon's own parts (compile workers, GPU process, tuner; no socket, a store in memory), then
// times the union of all picks and of the five fastest candidates per pair with a long window, and says how
// much slower each pick is than the best of that union.
//
//   bin/regret --out regret.json            at most 6 minutes
//   bin/regret --mode splits|shapes|placement|company|verify --seconds 60 --out FILE.json (regret_modes.h)
//
// In this order: EXHAUSTIVE (what is picked), BALANCED twice in fresh processes with an empty store of picks
// (do they agree?), BALANCED three times while one process per core spins (a busy host), the same once with
// times taken by events around single launches from the host, without graphs, places and races (the control:
// it must miss, or the busy host proves nothing), last the reference with the host idle; the model's first
// choices are in it, too. Reference: per candidate 100 ms to warm up and 300 ms of interleaved rounds with
// all others, spread over three fresh processes, less when the time runs out (the JSON says how much). A
// kernel under 5 us may be off by 0.15 us instead of by a percentage.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/subprocess.h"
#include "server/pick_choice.h"
#include "server/proto_convert.h"
#include "server/strategy/strategy.h"
#include "spdlog/spdlog.h"
#include "tests/bench/regret_modes.h"
#include "tests/bench/spinners.h"
#include "tests/bench/tuning_bench.h"

namespace qgemm {
namespace {

constexpr int kTopFew = 5;
constexpr double kLongestWindowS = 0.4;
constexpr int kReferenceProcesses = 3;
constexpr char kControl[] = "busy host, event-timed";

struct Options {
  double seconds = 360;
  std::string mode = "pairs";
  std::string out;
  std::string pairs;
  std::string device = "auto";
  int busy_runs = 3;
  int shapes = 32;
  bool quick = false;  // BALANCED in EXHAUSTIVE's place
};

// Leaves out pairs whose format no kernel serves yet.
std::vector<std::string> DropUnsupported(const DeviceProfile& device, std::vector<BenchPair>& pairs) {
  std::vector<std::string> dropped;
  std::erase_if(pairs, [&](const BenchPair& pair) {
    const absl::StatusOr<Problem> problem = ProblemFromProto(pair.problem);
    const bool legal = problem.ok() && !LegalByPrediction(*problem, pair.m, device).empty();
    if (!legal) dropped.push_back(pair.name);
    return !legal;
  });
  return dropped;
}

struct Run {
  std::string name;
  Picked picked;
};

using Reference = std::map<size_t, Times>;

Regrets RegretsOf(const Run& run, const Reference& reference, const std::vector<BenchPair>& pairs) {
  Regrets regrets;
  for (const auto& [i, candidate] : run.picked.by_pair) {
    const auto timed = reference.find(i);
    if (timed == reference.end()) continue;
    regrets.Add(RegretOf(timed->second.at(candidate), FastestOf(timed->second)), pairs[i].name);
  }
  return regrets;
}

// Why a run's pick is more than 1 % slower than the best of the reference; null when it is not.
//   not_planned: nothing within 1 % of the best was timed at all
//   screening: what was is too slow for a finalist by the run's own times
//   race: the run's own times of it and of the pick are within the finalists' band
Json CauseOf(const Picked& picked, size_t pair, const Times& times) {
  const double best = FastestOf(times);
  const auto pick = picked.by_pair.find(pair);
  if (picked.seen.empty()) return nullptr;  // the model's first choices
  if (pick == picked.by_pair.end() || RegretOf(times.at(pick->second), best) <= 1.01) return nullptr;
  const auto seen = picked.seen.find(pair);
  if (seen == picked.seen.end() || seen->second.count(pick->second) == 0) return "unknown";
  const double pick_us = seen->second.at(pick->second).us;
  const char* cause = "not_planned";
  for (const auto& [candidate, us] : times) {
    if (RegretOf(us, best) > 1.01) continue;
    const auto timed = seen->second.find(candidate);
    if (timed == seen->second.end()) continue;
    if (timed->second.us <= pick_us * (1 + kFinalistBand)) return "race";
    cause = "screening";
  }
  return cause;
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
    const double one_us = timed->second.at(candidate);
    const double other_us = timed->second.at(other->second);
    ++count;
    same += candidate == other->second ? 1 : 0;
    agree += RegretOf(std::max(one_us, other_us), std::min(one_us, other_us)) <= 1.01 ? 1 : 0;
  }
  return {{"pairs", count},
          {"same", same},
          {"agree", agree},
          {"agree_share", count > 0 ? static_cast<double>(agree) / count : 0}};
}

// The model's first choices, as a run that takes no time.
Picked ModelsFirst(const std::vector<BenchPair>& pairs, const DeviceProfile& device) {
  Picked picked;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const absl::StatusOr<Problem> problem = ProblemFromProto(pairs[i].problem);
    if (problem.ok()) picked.by_pair[i] = LegalByPrediction(*problem, pairs[i].m, device).front().candidate;
  }
  return picked;
}

absl::StatusOr<Json> RegretOfPairs(TuningBench& bench, const std::vector<BenchPair>& pairs,
                                   const Options& options, Spinners& spinners) {
  const Stopwatch watch(options.seconds);
  std::vector<Run> runs;
  std::map<size_t, std::set<Candidate>> unions;
  const auto tune = [&](const std::string& name, const TuneOptions& tuning) -> absl::Status {
    QGEMM_ASSIGN_OR_RETURN(Picked picked, bench.Tune(name, pairs, tuning));
    runs.push_back({name, std::move(picked)});
    return absl::OkStatus();
  };
  TuneOptions exhaustive;
  exhaustive.effort = options.quick ? v1::EFFORT_BALANCED : v1::EFFORT_EXHAUSTIVE;
  exhaustive.limit_s = 0.45 * watch.left();
  exhaustive.clients = 4;
  exhaustive.tuned = [&](size_t i, Tuner& tuner) {
    for (const Candidate& one :
         TuningBench::Fastest(tuner, pairs[i], kTopFew, [](const Candidate&) { return true; })) {
      unions[i].insert(one);
    }
  };
  QGEMM_RETURN_IF_ERROR(tune("exhaustive", exhaustive));
  const auto balanced = [&](double share) {
    TuneOptions tuning;
    tuning.limit_s = share * watch.left();
    return tuning;
  };
  for (const char* name : {"balanced", "balanced again"}) QGEMM_RETURN_IF_ERROR(tune(name, balanced(0.2)));
  spinners.Run();
  absl::Status busy;
  for (int i = 0; i < options.busy_runs && busy.ok(); ++i) {
    busy = tune(absl::StrCat("busy host ", i + 1), balanced(0.2));
  }
  if (busy.ok() && options.busy_runs > 0) {
    TuneOptions control = balanced(0.25);
    control.host_timed = true;
    busy = tune(kControl, control);
  }
  spinners.Pause();
  QGEMM_RETURN_IF_ERROR(busy);
  runs.push_back({"model only", ModelsFirst(pairs, bench.profile())});

  // The reference, with the host idle again.
  for (const Run& run : runs) {
    for (const auto& [i, candidate] : run.picked.by_pair) unions[i].insert(candidate);
  }
  size_t candidates = 0;
  for (const auto& [i, set] : unions) candidates += set.size();
  const double window_s =
      std::min(kLongestWindowS, std::max(0.02, (watch.left() - 4) / std::max<double>(1, candidates)));
  std::printf("reference: %zu candidates, %.0f ms each in %d processes\n", candidates, 1e3 * window_s,
              kReferenceProcesses);
  std::fflush(stdout);
  std::vector<double> disagreement;
  QGEMM_ASSIGN_OR_RETURN(const Reference reference,
                         bench.Reference(pairs, unions, window_s, kReferenceProcesses, &disagreement));

  Json json;
  std::map<std::string, Regrets> regrets;
  Regrets busy_all;
  for (const Run& run : runs) {
    regrets[run.name] = RegretsOf(run, reference, pairs);
    if (absl::StartsWith(run.name, "busy host ")) {
      for (const auto& [i, candidate] : run.picked.by_pair) {
        const auto timed = reference.find(i);
        if (timed == reference.end()) continue;
        busy_all.Add(RegretOf(timed->second.at(candidate), FastestOf(timed->second)), pairs[i].name);
      }
    }
  }
  const Regrets& best = regrets["exhaustive"];
  const Regrets& shipped = regrets["balanced"];
  json["regret_mean"] = best.mean();
  json["regret_worst"] = best.worst();
  json["regret_over_1pct"] = best.over_1pct();
  json["regret_over_2pct"] = best.over_2pct();
  json["regret_within_1pct_share"] = best.within_1pct_share();
  json["balanced_regret_mean"] = shipped.mean();
  json["balanced_regret_worst"] = shipped.worst();
  json["balanced_over_1pct"] = shipped.over_1pct();
  json["balanced_over_2pct"] = shipped.over_2pct();
  json["balanced_within_1pct_share"] = shipped.within_1pct_share();
  if (busy_all.count() > 0) {
    json["busy_host_worst"] = busy_all.worst();
    json["busy_host_mean"] = busy_all.mean();
    json["control_worst"] = regrets[kControl].worst();
    json["control_mean"] = regrets[kControl].mean();
    json["control_misses"] = regrets[kControl].worst() > 1.02;
  }
  json["model_only_geomean"] = regrets["model only"].geomean();
  json["model_only_worst"] = regrets["model only"].worst();
  json["balanced_vs_exhaustive"] = Agreement(runs[1], runs[0], reference);
  json["fresh_tunings"] = Agreement(runs[1], runs[2], reference);
  // What the reference itself is good for: a candidate's largest over its smallest time of the processes.
  Regrets own;
  for (const double one : disagreement) own.Add(one, "");
  json["reference_disagreement"] = own.ToJson();
  json["pairs"] = pairs.size();
  json["window_ms"] = 1e3 * window_s;
  json["reference_processes"] = kReferenceProcesses;
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
    Json& entry = json["reference"].emplace_back(Json{{"pair", pairs[i].name}});
    for (const auto& [candidate, us] : timed) entry["us"][CandidateName(candidate)] = us;
    for (const Run& run : runs) {
      const auto pick = run.picked.by_pair.find(i);
      if (pick == run.picked.by_pair.end()) continue;
      entry["picks"][run.name] = CandidateName(pick->second);
      if (Json cause = CauseOf(run.picked, i, timed); !cause.is_null()) {
        json["causes"][run.name][cause.get<std::string>()].push_back(pairs[i].name);
      }
      // What the run itself saw: [us, samples].
      const auto seen = run.picked.seen.find(i);
      for (const auto& [candidate, us] : timed) {
        if (seen == run.picked.seen.end() || seen->second.count(candidate) == 0) continue;
        const SeenTime& one = seen->second.at(candidate);
        entry["seen"][run.name][CandidateName(candidate)] = {one.us, one.samples};
      }
    }
  }
  std::printf("\n%-26s %6s %7s %7s %6s %6s  worst pair\n", "run", "pairs", "mean", "worst", "> 1 %", "> 2 %");
  for (const Run& run : runs) {
    const Regrets& one = regrets[run.name];
    std::printf("%-26s %6d %7.4f %7.4f %6d %6d  %s\n", run.name.c_str(), one.count(), one.mean(), one.worst(),
                one.over_1pct(), one.over_2pct(), one.worst_of().c_str());
  }
  std::printf("reference processes differ by %.4f on average, %.4f at most\n", own.mean(), own.worst());
  std::printf("fresh tunings: %s\nbalanced against exhaustive: %s\n%.0f s in all\n",
              json["fresh_tunings"].dump().c_str(), json["balanced_vs_exhaustive"].dump().c_str(),
              watch.elapsed());
  return json;
}

absl::Status RunMode(const Options& options, Spawner& spawner, Spinners& spinners) {
  QGEMM_ASSIGN_OR_RETURN(std::vector<BenchPair> pairs, ReadPairs(options.pairs));
  const size_t asked = pairs.size();
  QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<TuningBench> bench,
                         TuningBench::Create(spawner, options.device));
  const std::vector<std::string> dropped = DropUnsupported(bench->profile(), pairs);
  std::printf("%s: %zu of %zu pairs, %d compile workers, %.0f s, %s\n", options.mode.c_str(), pairs.size(),
              asked, bench->workers(), options.seconds, bench->device().product_name().c_str());
  absl::StatusOr<Json> json = absl::InvalidArgumentError(absl::StrCat("no mode '", options.mode, "'"));
  if (options.mode == "pairs") json = RegretOfPairs(*bench, pairs, options, spinners);
  if (options.mode == "splits") json = RegretOfSplits(*bench, pairs, options.seconds);
  if (options.mode == "shapes") json = NovelShapes(*bench, options.shapes, options.seconds);
  if (options.mode == "verify") json = VerifyNovelShapes(*bench, options.shapes, options.seconds);
  if (options.mode == "company") json = CostOfCompany(*bench, pairs, options.seconds);
  if (options.mode == "placement") json = SpreadOfPlacements(*bench, pairs, options.seconds);
  QGEMM_RETURN_IF_ERROR(json.status());
  (*json)["pairs_asked"] = asked;
  (*json)["pairs_without_kernels"] = dropped;
  (*json)["gpu"] = bench->device().product_name();
  if (!options.out.empty()) std::ofstream(options.out) << json->dump(1) << "\n";
  return absl::OkStatus();
}

int Usage() {
  std::fprintf(
      stderr,
      "usage: regret [--mode pairs|splits|shapes|verify|placement|company] [--out FILE.json] [--seconds 360] "
      "[--busy-runs 3] [--shapes 32] [--pairs FILE.json] [--device auto|UUID] [--quick]\n");
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
    } else if (flag == "--mode") {
      options.mode = value;
    } else if (flag == "--shapes") {
      if (!absl::SimpleAtoi(value, &options.shapes)) return Usage();
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
  const absl::Status status = spawner.ok() ? RunMode(options, **spawner, spinners) : spawner.status();
  if (status.ok()) return 0;
  std::fprintf(stderr, "regret: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) { return qgemm::Main(argc, argv); }
