#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "tests/bench/regret_modes.h"

namespace qgemm {
namespace {

constexpr size_t kMostPairs = 4;
constexpr size_t kMostCandidates = 400;
constexpr int kProcesses = 2;  // of either kind, by turns

// What one process did.
struct Screened {
  Times us;
  double ms_per_candidate = 0;
};

// Of one pair, times of one process over those of another.
Json Compare(const Times& one, const Times& other) {
  std::vector<double> ratios;
  for (const auto& [candidate, us] : one) {
    const auto found = other.find(candidate);
    if (found != other.end()) ratios.push_back(us / found->second);
  }
  if (ratios.empty()) return nullptr;
  std::sort(ratios.begin(), ratios.end());
  const auto at = [&](double share) {
    return ratios[static_cast<size_t>(share * static_cast<double>(ratios.size() - 1))];
  };
  return {{"median", at(0.5)}, {"p05", at(0.05)}, {"p95", at(0.95)}, {"least", at(0)}, {"most", at(1)}};
}

// The graphs that a process's sample log speaks of.
absl::StatusOr<Json> CountGraphs(const std::string& sample_log) {
  int64_t built = 0;
  int64_t updated = 0;
  std::ifstream lines(sample_log);
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return absl::InternalError("the sample log is not JSON");
    built += json.value("graphs_built", int64_t{0});
    updated += json.value("graphs_updated", int64_t{0});
  }
  return Json{{"built", built}, {"updated", updated}};
}

}  // namespace

absl::StatusOr<Json> CostOfGraphs(TuningBench& bench, const std::vector<BenchPair>& pairs, double seconds) {
  const Stopwatch watch(seconds);
  std::vector<BenchPair> int4;
  for (const BenchPair& pair : pairs) {
    if (pair.format == "int4") int4.push_back(pair);
  }
  // From little N to much, by turns of M.
  std::vector<BenchPair> few;
  for (size_t i = 0; i < kMostPairs && i < int4.size(); ++i) {
    few.push_back(int4[i * int4.size() / kMostPairs]);
  }
  std::vector<std::vector<Candidate>> candidates(few.size());
  TuneOptions tuning;
  tuning.effort = v1::EFFORT_EXHAUSTIVE;
  tuning.limit_s = seconds / 2;
  tuning.tuned = [&](size_t i, Tuner& tuner) {
    for (const auto& [candidate, seen] : TuningBench::TimedBy(tuner, few[i])) {
      if (candidates[i].size() < kMostCandidates) candidates[i].push_back(candidate);
    }
  };
  QGEMM_RETURN_IF_ERROR(bench.Tune("exhaustive", few, tuning).status());

  Json json;
  const std::string sample_log =
      std::filesystem::temp_directory_path() / ("regret-graphs-" + std::to_string(getpid()) + ".jsonl");
  std::vector<std::vector<Screened>> updated(few.size());
  std::vector<std::vector<Screened>> rebuilt(few.size());
  for (int process = 0; process < 2 * kProcesses; ++process) {
    const bool rebuild = process % 2 == 1;
    std::filesystem::remove(sample_log);
    QGEMM_ASSIGN_OR_RETURN(const auto clockwork, bench.StartClockwork(0, true, !rebuild, sample_log));
    for (size_t i = 0; i < few.size() && watch.left() > 0; ++i) {
      if (candidates[i].empty()) continue;
      // Once to load the kernels.
      QGEMM_RETURN_IF_ERROR(clockwork->Screen(few[i], candidates[i]).status());
      Screened screened;
      QGEMM_ASSIGN_OR_RETURN(screened.us,
                             clockwork->Screen(few[i], candidates[i], &screened.ms_per_candidate));
      (rebuild ? rebuilt : updated)[i].push_back(std::move(screened));
    }
    QGEMM_ASSIGN_OR_RETURN(json[rebuild ? "rebuilt" : "updated"]["graphs"], CountGraphs(sample_log));
  }
  std::filesystem::remove(sample_log);
  for (size_t i = 0; i < few.size(); ++i) {
    if (updated[i].size() < kProcesses || rebuilt[i].size() < kProcesses) continue;
    Json& entry = json["pairs"][few[i].name];
    entry["candidates"] = candidates[i].size();
    for (int process = 0; process < kProcesses; ++process) {
      entry["updated_ms_per_candidate"].push_back(updated[i][process].ms_per_candidate);
      entry["rebuilt_ms_per_candidate"].push_back(rebuilt[i][process].ms_per_candidate);
    }
    entry["updated_over_rebuilt"] = Compare(updated[i][0].us, rebuilt[i][0].us);
    entry["updated_over_updated"] = Compare(updated[i][0].us, updated[i][1].us);
    entry["rebuilt_over_rebuilt"] = Compare(rebuilt[i][0].us, rebuilt[i][1].us);
    std::printf("%-28s %3zu candidates, ms each: updated %s, rebuilt %s\n", few[i].name.c_str(),
                candidates[i].size(), entry["updated_ms_per_candidate"].dump().c_str(),
                entry["rebuilt_ms_per_candidate"].dump().c_str());
    for (const char* what : {"updated_over_rebuilt", "updated_over_updated", "rebuilt_over_rebuilt"}) {
      std::printf("    %-22s %s\n", what, entry[what].dump().c_str());
    }
    std::fflush(stdout);
  }
  std::printf("graphs, last processes: updated %s, rebuilt %s\n", json["updated"].dump().c_str(),
              json["rebuilt"].dump().c_str());
  json["wall_s"] = watch.elapsed();
  return json;
}

}  // namespace qgemm
