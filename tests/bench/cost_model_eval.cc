// How well the cost model orders measured kernels. Reads lines [N, K, M, us, candidate name] (bf16, group
// 128) on an H200, or lines [N, K, M, us, name, split, reduction, ...] of a sweep of the prototype, from
// files, "-" for standard input:
//   cost_model_eval first_sweep.jsonl second_sweep.jsonl
// A file is one run. A candidate measured in several runs counts with the last file's, and the runs' median
// ratio over such candidates is printed: far from 1, the cells that mix them say little. Which points of the
// prototype count: tests/replay/recorded_timings.h. Per (N, K,
// M): the measured time of the model's first choice, of the best of its first 24, of its first third, and of
// the plan that effort BALANCED would make of the measured candidates, over the best measured; that plan's
// size and configs; and the same for the plan that it makes of the whole space, with how many of its
// candidates the sweep knows: an upper bound.
//   cost_model_eval [--configs N] [--candidates N] [--mechanisms N] [--of-family N] ...
// lets BALANCED have other limits.
//   cost_model_eval --regret regret.json
// asks of the pairs of a run of tests/bench/regret instead: how much slower than the best of its reference
// (the fastest five of EXHAUSTIVE among others) is the best one that BALANCED plans, with its own or other
// limits, and the model's first choice where the reference knows it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/bucket.h"
#include "kernels/cost_model.h"
#include "kernels/similarity.h"
#include "server/strategy/balanced.h"
#include "server/strategy/strategy.h"
#include "tests/replay/recorded_timings.h"

namespace qgemm {
namespace {

struct Point {
  double measured_us = 0;
  double predicted_us = 0;
  Candidate candidate;
};

// Ratios to the best measured time.
class Slowdown {
 public:
  double Add(double ratio) {
    log_sum_ += std::log(ratio);
    worst_ = std::max(worst_, ratio);
    ++count_;
    return ratio;
  }
  std::string Text() const { return absl::StrFormat("%.3f, %.3f", std::exp(log_sum_ / count_), worst_); }

 private:
  double log_sum_ = 0;
  double worst_ = 1;
  int count_ = 0;
};

// Adds a later run, and says how it compares where both measured the same.
void Merge(std::istream& in, const std::string& name, RecordedTimings* cells) {
  std::vector<double> ratios = MergeRecordedTimings(ReadRecordedTimings(in), cells);
  if (ratios.empty()) return;
  std::nth_element(ratios.begin(), ratios.begin() + ratios.size() / 2, ratios.end());
  std::printf("%s: %zu candidates measured before, median ratio %.3f\n", name.c_str(), ratios.size(),
              ratios[ratios.size() / 2]);
}

int Report(const RecordedTimings& cells, const ChoiceLimits& limits) {
  if (cells.empty()) {
    std::fprintf(stderr, "no usable points in the input\n");
    return 1;
  }
  const DeviceProfile device = *FindDeviceProfile("h200");
  Slowdown first, first24, third, planned;
  std::printf("%6s %6s %4s %5s %8s %7s %7s %7s %7s %5s %8s %7s %6s %9s  first choice\n", "N", "K", "M", "n",
              "best us", "first", "of 24", "third", "plan", "size", "configs", "whole", "known", "predicted");
  for (const auto& [cell, measured_us] : cells) {
    const auto& candidates = measured_us;  // a lambda of C++20 captures no structured binding in clang
    const auto [n, k, m] = cell;
    std::vector<Point> points;
    for (const auto& [candidate, us] : candidates) {
      points.push_back({us, PredictCost(candidate, Problem{n, k, {}}, m, device).total_us, candidate});
    }
    std::stable_sort(points.begin(), points.end(),
                     [](const Point& a, const Point& b) { return a.predicted_us < b.predicted_us; });
    const auto faster = [](const Point& a, const Point& b) { return a.measured_us < b.measured_us; };
    const double best = std::min_element(points.begin(), points.end(), faster)->measured_us;
    const auto best_of = [&](size_t count) {
      return std::min_element(points.begin(), points.begin() + std::clamp<size_t>(count, 1, points.size()),
                              faster)
                 ->measured_us /
             best;
    };
    std::vector<PlannedCandidate> measured;
    for (const Point& point : points) measured.push_back({point.candidate, point.predicted_us});
    const auto best_in = [&](const std::vector<PlannedCandidate>& plan) {
      double us = HUGE_VAL;
      for (const PlannedCandidate& one : plan) {
        const auto entry = candidates.find(one.candidate);
        if (entry != candidates.end()) us = std::min(us, entry->second);
      }
      return us / best;
    };
    const std::vector<PlannedCandidate> plan = BalancedStrategy::Choose(measured, limits);
    const std::vector<PlannedCandidate> whole =
        BalancedStrategy::Choose(LegalByPrediction(Problem{n, k, {}}, BucketFor(m), device), limits);
    const auto known = std::count_if(whole.begin(), whole.end(), [&](const PlannedCandidate& one) {
      return candidates.count(one.candidate) > 0;
    });
    std::set<KernelConfig> configs;
    for (const PlannedCandidate& one : plan) configs.insert(one.candidate.config);
    std::printf("%6lld %6lld %4lld %5zu %8.2f %7.3f %7.3f %7.3f %7.3f %5zu %8zu %7.3f %6lld %9.2f  %s\n",
                static_cast<long long>(n), static_cast<long long>(k), static_cast<long long>(m),
                points.size(), best, first.Add(best_of(1)), first24.Add(best_of(24)),
                third.Add(best_of(points.size() / 3)), planned.Add(best_in(plan)), plan.size(),
                configs.size(), best_in(whole), static_cast<long long>(known), points[0].predicted_us,
                CandidateName(points[0].candidate).c_str());
  }
  std::printf(
      "geometric mean and worst of %zu cells: first choice %s; best of the first 24 %s; of the first third "
      "%s; "
      "of the plan %s\n",
      cells.size(), first.Text().c_str(), first24.Text().c_str(), third.Text().c_str(),
      planned.Text().c_str());
  return 0;
}

// "int4 8448x6656 M 16" with the group and zero points that pairs44.json gives the format, or "int4-g128 ..."
// without zero points.
absl::StatusOr<std::pair<Problem, int>> ParsePair(const std::string& name) {
  long long n = 0;
  long long k = 0;
  int bits = 0;
  int m = 0;
  int group = 0;
  const bool grouped = std::sscanf(name.c_str(), "int%d-g%d %lldx%lld M %d", &bits, &group, &n, &k, &m) == 5;
  if (!grouped && std::sscanf(name.c_str(), "int%d %lldx%lld M %d", &bits, &n, &k, &m) != 4) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' is not the name of a pair", name));
  }
  Problem problem{n, k, {}};
  problem.signature.format.bits = bits;
  problem.signature.format.group_size = grouped ? group : bits == 6 ? 16 : 32;
  problem.signature.format.zero_point = grouped || bits == 6 ? ZeroPoint::kNone : ZeroPoint::kInteger;
  return std::pair(problem, m);
}

absl::StatusOr<Candidate> ParseCandidateName(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  Candidate candidate;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1].substr(1), &candidate.split_k)) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' is not a candidate", name));
  }
  for (const Reduction reduction : {Reduction::kNone, Reduction::kWorkspace, Reduction::kCluster}) {
    if (parts[2] == ReductionName(reduction)) candidate.reduction = reduction;
  }
  absl::StatusOr<KernelConfig> config = ParseConfig(parts[0]);
  if (!config.ok()) return config.status();
  candidate.config = *config;
  return candidate;
}

int ReportPairs(const std::string& file, const ChoiceLimits& limits) {
  std::ifstream in(file);
  const nlohmann::json json = nlohmann::json::parse(in, nullptr, false);
  if (json.is_discarded() || !json.contains("reference")) {
    std::fprintf(stderr, "%s is not a regret.json\n", file.c_str());
    return 1;
  }
  const DeviceProfile device = *FindDeviceProfile("h200");
  Slowdown planned, first;
  int within = 0;
  int pairs = 0;
  for (const auto& entry : json["reference"]) {
    const std::string name = entry["pair"];
    const absl::StatusOr<std::pair<Problem, int>> pair = ParsePair(name);
    if (!pair.ok()) continue;
    const std::vector<PlannedCandidate> all = LegalByPrediction(pair->first, pair->second, device);
    std::set<Candidate> plan;
    for (const PlannedCandidate& one : BalancedStrategy::Choose(all, limits)) plan.insert(one.candidate);
    double best = HUGE_VAL;
    double in_plan = HUGE_VAL;
    double of_first = HUGE_VAL;
    for (const auto& [candidate_name, us] : entry["us"].items()) {
      const absl::StatusOr<Candidate> candidate = ParseCandidateName(candidate_name);
      if (!candidate.ok()) continue;
      best = std::min<double>(best, us);
      if (plan.count(*candidate) > 0) in_plan = std::min<double>(in_plan, us);
      if (*candidate == all[0].candidate) of_first = us;
    }
    ++pairs;
    std::string first_text = "unknown";
    if (std::isfinite(of_first)) first_text = absl::StrFormat("%.3f", first.Add(of_first / best));
    std::string plan_text = "none of them";
    if (std::isfinite(in_plan)) {
      plan_text = absl::StrFormat("%.3f", planned.Add(in_plan / best));
      within += in_plan <= 1.01 * best ? 1 : 0;
    }
    std::printf("%-24s best %8.2f us, of the plan %s, first choice %s\n", name.c_str(), best,
                plan_text.c_str(), first_text.c_str());
  }
  std::printf(
      "%d pairs: the plan holds one within 1 %% in %d; geometric mean and worst %s; first choice %s\n", pairs,
      within, planned.Text().c_str(), first.Text().c_str());
  return 0;
}

// Every cell served from the best candidates of the cells of other N or K.
int ReportSimilar(const RecordedTimings& cells) {
  const DeviceProfile device = *FindDeviceProfile("h200");
  std::map<std::string, Slowdown> slowdowns;
  std::map<std::string, int> unknown;
  for (const auto& [cell, candidates] : cells) {
    const Problem problem{cell.n, cell.k, {}};
    double best = HUGE_VAL;
    for (const auto& [candidate, us] : candidates) best = std::min(best, us);
    std::vector<ShapeHint> hints;
    for (const auto& [other, timed] : cells) {
      if (other.n == cell.n && other.k == cell.k) continue;
      const auto fastest = std::min_element(timed.begin(), timed.end(),
                                            [](const auto& a, const auto& b) { return a.second < b.second; });
      hints.push_back({Problem{other.n, other.k, {}}, BucketFor(other.m), fastest->first});
    }
    std::map<std::string, Candidate> answers;
    for (const ShapeDistance distance : AllShapeDistances()) {
      for (const SplitChoice choice : {SplitChoice::kAsTuned, SplitChoice::kFitted}) {
        const std::vector<SimilarHint> ranked =
            RankSimilar(problem, cell.m, device, hints, distance, 1, choice);
        if (ranked.empty()) continue;
        const std::string name(ShapeDistanceName(distance));
        answers[name + (choice == SplitChoice::kFitted ? ", split fitted" : "")] = ranked[0].candidate;
      }
    }
    for (const auto& [name, candidate] : answers) {
      const auto us = candidates.find(candidate);
      if (us == candidates.end()) {
        ++unknown[name];
      } else {
        slowdowns[name].Add(us->second / best);
      }
    }
  }
  for (const auto& [name, slowdown] : slowdowns) {
    std::printf("%-28s geometric mean and worst %s; %d cells not measured\n", name.c_str(),
                slowdown.Text().c_str(), unknown[name]);
  }
  return 0;
}

int Main(int argc, char** argv) {
  ChoiceLimits limits;
  bool similar = false;
  std::string regret;
  RecordedTimings cells;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const bool last = i + 1 == argc;
    if (name == "--similar") {
      similar = true;
    } else if (name == "--regret" && !last) {
      regret = argv[++i];
    } else if (name == "--configs" && !last) {
      limits.configs = std::atoi(argv[++i]);
    } else if (name == "--mechanisms" && !last) {
      limits.mechanisms = std::atoi(argv[++i]);
    } else if (name == "--of-family" && !last) {
      limits.of_family = std::atoi(argv[++i]);
    } else if (name == "--candidates" && !last) {
      limits.candidates = std::atoi(argv[++i]);
    } else if (name == "-") {
      Merge(std::cin, name, &cells);
    } else {
      std::ifstream file(name);
      if (!file) {
        std::fprintf(stderr, "cannot read %s\n", argv[i]);
        return 1;
      }
      Merge(file, name, &cells);
    }
  }
  if (similar) return ReportSimilar(cells);
  return regret.empty() ? Report(cells, limits) : ReportPairs(regret, limits);
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: cost_model_eval FILE|- [FILE...] | --regret FILE [--configs N] [--candidates N]\n");
    return 2;
  }
  return qgemm::Main(argc, argv);
}
