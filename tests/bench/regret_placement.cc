#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "tests/bench/regret_modes.h"

namespace qgemm {
namespace {

constexpr size_t kMostPairs = 8;
constexpr int kProcesses = 5;

// Times of one candidate relative to its pair's mean of the same run.
struct Spread {
  std::vector<double> ratios;
  double deviation() const {
    double mean = 0;
    for (const double ratio : ratios) mean += ratio / static_cast<double>(ratios.size());
    double squares = 0;
    for (const double ratio : ratios) squares += (ratio / mean - 1) * (ratio / mean - 1);
    return std::sqrt(squares / std::max<double>(1, static_cast<double>(ratios.size()) - 1));
  }
};

}  // namespace

absl::StatusOr<Json> SpreadOfPlacements(TuningBench& bench, const std::vector<BenchPair>& pairs,
                                        double seconds) {
  const Stopwatch watch(seconds);
  // Five fast candidates of the short pairs, which are those of little N.
  std::vector<BenchPair> few;
  for (const BenchPair& pair : pairs) {
    if (pair.problem.n() <= 1024 && few.size() < kMostPairs) few.push_back(pair);
  }
  std::map<size_t, std::set<Candidate>> unions;
  TuneOptions tuning;
  tuning.clients = 4;
  tuning.tuned = [&](size_t i, Tuner& tuner) {
    for (const Candidate& one :
         TuningBench::Fastest(tuner, few[i], 5, [](const Candidate&) { return true; })) {
      unions[i].insert(one);
    }
  };
  QGEMM_RETURN_IF_ERROR(bench.Tune("balanced", few, tuning).status());
  size_t candidates = 0;
  for (const auto& [i, set] : unions) candidates += set.size();
  const double window_s = std::min(
      0.06, std::max(0.005, (watch.left() - 15) / (4.0 * kProcesses * std::max<double>(1, candidates))));
  Json json;
  for (const int placements : {1, 0}) {
    std::map<std::string, Spread> between;  // processes
    std::map<std::string, Spread> within;   // the same process, timed twice
    int flips = 0;
    int runs = 0;
    std::map<size_t, Candidate> before;
    for (int process = 0; process < kProcesses && watch.left() > 3; ++process) {
      QGEMM_ASSIGN_OR_RETURN(const auto clockwork, bench.StartClockwork(placements));
      for (const auto& [i, set] : unions) {
        for (int again = 0; again < 2; ++again) {
          QGEMM_ASSIGN_OR_RETURN(const Times times, clockwork->Time(few[i], set, window_s));
          double mean = 0;
          for (const auto& [candidate, us] : times) mean += us / static_cast<double>(times.size());
          Candidate fastest = times.begin()->first;
          for (const auto& [candidate, us] : times) {
            const std::string name = few[i].name + " " + CandidateName(candidate);
            if (again == 0) between[name].ratios.push_back(us / mean);
            within[name + "#" + std::to_string(process)].ratios.push_back(us / mean);
            if (us < times.at(fastest)) fastest = candidate;
          }
          if (again == 1) continue;
          if (process > 0) {
            ++runs;
            flips += before.at(i) == fastest ? 0 : 1;
          }
          before.insert_or_assign(i, fastest);
        }
      }
    }
    const auto summary = [](const std::map<std::string, Spread>& spreads) {
      double sum = 0;
      double worst = 0;
      for (const auto& [name, spread] : spreads) {
        sum += spread.deviation();
        worst = std::max(worst, spread.deviation());
      }
      return Json{{"mean", spreads.empty() ? 0 : sum / static_cast<double>(spreads.size())},
                  {"worst", worst}};
    };
    Json& entry = json[placements == 1 ? "one_placement" : "many_placements"];
    entry["deviation_between_processes"] = summary(between);
    entry["deviation_within_a_process"] = summary(within);
    entry["fastest_changes"] = flips;
    entry["of"] = runs;
    for (const auto& [name, spread] : between) entry["relative_us"][name] = spread.ratios;
    std::printf("%-16s between processes %s, within one %s, the fastest changes in %d of %d\n",
                placements == 1 ? "one placement" : "many placements",
                entry["deviation_between_processes"].dump().c_str(),
                entry["deviation_within_a_process"].dump().c_str(), flips, runs);
    std::fflush(stdout);
  }
  json["window_ms"] = 1e3 * window_s;
  json["wall_s"] = watch.elapsed();
  return json;
}

}  // namespace qgemm
