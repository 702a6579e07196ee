#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/bench/regret_modes.h"

namespace qgemm {

absl::StatusOr<Json> RegretOfSplits(TuningBench& bench, const std::vector<BenchPair>& pairs, double seconds) {
  constexpr int kSplits[] = {1, 2, 4, 8, 16};
  constexpr int kTopFew = 5;
  constexpr int kProcesses = 2;
  constexpr double kLongestWindowS = 0.4;
  const Stopwatch watch(seconds);
  // A case is a pair of its own for the reference.
  std::vector<BenchPair> cases;
  std::map<size_t, std::set<Candidate>> unions;
  std::vector<Candidate> picks;
  Json left_out = Json::array();
  for (const int split : kSplits) {
    const auto of_split = [split](const Candidate& candidate) { return candidate.split_k == split; };
    TuneOptions options;
    options.effort = v1::EFFORT_EXHAUSTIVE;
    options.clients = 4;
    options.only = absl::StrCat("/k", split, "/");
    options.limit_s = std::max(0.0, 0.55 * seconds - watch.elapsed());
    std::map<size_t, std::vector<Candidate>> fastest;
    options.tuned = [&](size_t i, Tuner& tuner) {
      fastest[i] = TuningBench::Fastest(tuner, pairs[i], kTopFew, of_split);
    };
    QGEMM_ASSIGN_OR_RETURN(const Picked picked, bench.Tune(absl::StrCat("split ", split), pairs, options));
    if (picked.by_pair.size() < pairs.size()) {
      left_out.push_back(absl::StrCat(pairs.size() - picked.by_pair.size(), " pairs with split ", split,
                                      ": no legal candidate, or no time"));
    }
    for (const auto& [i, candidate] : picked.by_pair) {
      std::set<Candidate>& of_case = unions[cases.size()];
      of_case.insert(fastest[i].begin(), fastest[i].end());
      of_case.insert(candidate);
      BenchPair one = pairs[i];
      one.name = absl::StrCat(one.name, " split ", split);
      cases.push_back(std::move(one));
      picks.push_back(candidate);
    }
  }
  size_t candidates = 0;
  for (const auto& [i, set] : unions) candidates += set.size();
  const double window_s =
      std::min(kLongestWindowS, std::max(0.01, (watch.left() - 6) / std::max<double>(1, candidates)));
  std::printf("reference: %zu candidates of %zu cases, %.0f ms each\n", candidates, cases.size(),
              1e3 * window_s);
  std::vector<double> disagreement;
  QGEMM_ASSIGN_OR_RETURN(const auto reference,
                         bench.Reference(cases, unions, window_s, kProcesses, &disagreement));
  Regrets regrets;
  Json json;
  for (const auto& [i, times] : reference) {
    const double regret = RegretOf(times.at(picks[i]), FastestOf(times));
    regrets.Add(regret, cases[i].name);
    json["cases"].push_back({{"case", cases[i].name}, {"best_us", FastestOf(times)}, {"regret", regret}});
  }
  json["split_cases"] = regrets.count();
  json["split_regret_mean"] = regrets.mean();
  json["split_regret_worst"] = regrets.worst();
  json["split_worst_case"] = regrets.worst_of();
  json["split_within_1pct_share"] = regrets.within_1pct_share();
  json["split_over_2pct"] = regrets.over_2pct();
  json["split_left_out"] = left_out;
  json["window_ms"] = 1e3 * window_s;
  json["wall_s"] = watch.elapsed();
  std::printf("%d cases: mean %.4f, worst %.4f (%s), over 1 %% %d, over 2 %% %d\n", regrets.count(),
              regrets.mean(), regrets.worst(), regrets.worst_of().c_str(), regrets.over_1pct(),
              regrets.over_2pct());
  return json;
}

}  // namespace qgemm
