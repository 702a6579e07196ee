#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "tests/bench/regret_modes.h"

namespace qgemm {
namespace {

constexpr size_t kMostPairs = 6;
constexpr int kFew = 12;

// How much longer a candidate takes in company than alone, microseconds.
struct Surplus {
  std::vector<double> us;
  Json ToJson() const {
    if (us.empty()) return nullptr;
    std::vector<double> sorted = us;
    std::sort(sorted.begin(), sorted.end());
    double sum = 0;
    for (const double one : sorted) sum += one;
    return {{"mean_us", sum / static_cast<double>(sorted.size())},
            {"median_us", sorted[sorted.size() / 2]},
            {"least_us", sorted.front()},
            {"most_us", sorted.back()}};
  }
};

std::string FastestName(const Times& times) {
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  return CandidateName(std::min_element(times.begin(), times.end(), less)->first);
}

}  // namespace

absl::StatusOr<Json> CostOfCompany(TuningBench& bench, const std::vector<BenchPair>& pairs, double seconds) {
  const Stopwatch watch(seconds);
  std::vector<BenchPair> few;
  for (const BenchPair& pair : pairs) {
    // One of little N, one of much, by turns of M.
    const bool wanted = pair.format == "int4" && (pair.problem.n() == 1024 || pair.problem.n() == 8448);
    if (wanted && pair.m != 1 && few.size() < kMostPairs) few.push_back(pair);
  }
  std::map<size_t, std::set<Candidate>> unions;
  TuneOptions tuning;
  tuning.clients = 4;
  tuning.tuned = [&](size_t i, Tuner& tuner) {
    for (const Candidate& one :
         TuningBench::Fastest(tuner, few[i], kFew, [](const Candidate&) { return true; })) {
      unions[i].insert(one);
    }
  };
  QGEMM_RETURN_IF_ERROR(bench.Tune("balanced", few, tuning).status());
  size_t candidates = 0;
  for (const auto& [i, set] : unions) candidates += set.size();
  // Alone, together and backwards, both ways.
  const double window_s =
      std::clamp((watch.left() - 4) / (6.0 * std::max<double>(1, candidates)), 0.005, 0.06);
  Json json;
  for (const bool rewarm : {true, false}) {
    QGEMM_ASSIGN_OR_RETURN(const auto clockwork, bench.StartClockwork(0, rewarm));
    Surplus together;
    Surplus order;
    int other_fastest = 0;
    int timed = 0;
    Json& entry = json[rewarm ? "rewarmed" : "not_rewarmed"];
    for (const auto& [i, set] : unions) {
      if (watch.left() < 1) break;
      Times alone;
      for (const Candidate& one : set) {
        QGEMM_ASSIGN_OR_RETURN(const Times us, clockwork->Time(few[i], {one}, window_s));
        alone.insert(us.begin(), us.end());
      }
      const std::vector<Candidate> forwards(set.begin(), set.end());
      QGEMM_ASSIGN_OR_RETURN(const Times all, clockwork->TimeInOrder(few[i], forwards, window_s));
      QGEMM_ASSIGN_OR_RETURN(const Times backwards,
                             clockwork->TimeInOrder(few[i], {forwards.rbegin(), forwards.rend()}, window_s));
      ++timed;
      other_fastest += FastestName(alone) != FastestName(all) ? 1 : 0;
      for (const auto& [candidate, us] : alone) {
        together.us.push_back(all.at(candidate) - us);
        order.us.push_back(std::abs(backwards.at(candidate) - all.at(candidate)));
        entry["us"][few[i].name][CandidateName(candidate)] = {us, all.at(candidate), backwards.at(candidate)};
      }
    }
    entry["together_over_alone"] = together.ToJson();
    entry["order_backwards"] = order.ToJson();
    entry["other_fastest"] = other_fastest;
    entry["pairs"] = timed;
    std::printf("%-14s together over alone %s; backwards %s; another is the fastest in %d of %d\n",
                rewarm ? "rewarmed" : "not rewarmed", entry["together_over_alone"].dump().c_str(),
                entry["order_backwards"].dump().c_str(), other_fastest, timed);
    std::fflush(stdout);
  }
  json["window_ms"] = 1e3 * window_s;
  json["wall_s"] = watch.elapsed();
  return json;
}

}  // namespace qgemm
