// How well the cost model orders measured kernels. Reads lines [N, K, M, us, candidate name] (bf16, group
// 128) on an H200, or lines [N, K, M, us, name, split, reduction, ...] of a sweep of the prototype, from
// files, "-" for standard input:
//   cost_model_eval first_sweep.jsonl second_sweep.jsonl
// A file is one run. A candidate measured twice in a run counts with its smaller time; one measured
// in several runs with the last file's, and the runs' median ratio over such candidates is printed:
// far from 1, the cells that mix them say little.
// Names of the prototype are A_<path>_<token tiles>_<row tiles>_<warps N>_<warps
// K>_<blocks>_<stages>_<scale>_<activations>_...; taken are the points like family mma: cp.async (path 1),
// post scale (0, 2), activations resident (1, 2: the faster counts), no reduction or workspace. Per (N, K,
// M): the measured time of the model's first choice, of the best of its first 24, of its first third, and of
// the plan that effort BALANCED would make of the measured candidates, over the best measured; that plan's
// size and configs; and the same for the plan that it makes of the whole space, with how many of its
// candidates the sweep knows: an upper bound.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/bucket.h"
#include "kernels/cost_model.h"
#include "server/strategy/balanced.h"
#include "server/strategy/strategy.h"

namespace qgemm {
namespace {

struct Point {
  double measured_us = 0;
  double predicted_us = 0;
  Candidate candidate;
};

using Cell = std::tuple<int64_t, int64_t, int64_t>;  // N, K, M

// [N, K, M, us, "<config>/k<split>/<reduction>"].
bool ParseOwnPoint(const nlohmann::json& row, Cell* cell, Point* point) {
  const std::vector<std::string> name = absl::StrSplit(row[4].get<std::string>(), '/');
  if (name.size() != 3) return false;
  const absl::StatusOr<KernelConfig> config = ParseConfig(name[0]);
  if (!config.ok() || !absl::SimpleAtoi(name[1].substr(1), &point->candidate.split_k)) return false;
  point->candidate.config = *config;
  point->candidate.reduction = name[2] == "cluster"     ? Reduction::kCluster
                               : name[2] == "workspace" ? Reduction::kWorkspace
                                                        : Reduction::kNone;
  *cell = {row[0].get<int64_t>(), row[1].get<int64_t>(), row[2].get<int64_t>()};
  point->measured_us = row[3].get<double>();
  return true;
}

bool ParsePoint(const std::string& line, Cell* cell, Point* point) {
  const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
  if (!row.is_array() || row.size() < 5) return false;
  if (row.size() == 5) return ParseOwnPoint(row, cell, point);
  const std::vector<std::string> name = absl::StrSplit(row[4].get<std::string>(), '_');
  if (name.size() < 10 || name[0] != "A" || row[6].get<int>() == 2) return false;
  int field[10] = {};
  for (int i = 1; i < 10; ++i) {
    if (!absl::SimpleAtoi(name[i], &field[i])) return false;
  }
  const bool post = field[8] == 0 || field[8] == 2;
  const bool resident = field[9] == 1 || field[9] == 2;
  if (field[1] != 1 || !post || !resident) return false;
  *cell = {row[0].get<int64_t>(), row[1].get<int64_t>(), row[2].get<int64_t>()};
  point->measured_us = row[3].get<double>();
  point->candidate.config = {Family::kMma,    field[2], field[3], field[4],
                             field[5],        field[7], field[6], ActivationPath::kSlice,
                             ScaleMode::kPost};
  point->candidate.split_k = row[5].get<int>();
  point->candidate.reduction = point->candidate.split_k > 1 ? Reduction::kWorkspace : Reduction::kNone;
  return true;
}

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

using Cells = std::map<Cell, std::map<Candidate, Point>>;

Cells ReadSession(std::istream& in) {
  Cells cells;
  for (std::string line; std::getline(in, line);) {
    Cell cell;
    Point point;
    if (!ParsePoint(line, &cell, &point)) continue;
    auto [entry, inserted] = cells[cell].try_emplace(point.candidate, point);
    entry->second.measured_us = std::min(entry->second.measured_us, point.measured_us);
  }
  return cells;
}

// Adds a later run, and says how it compares where both measured the same.
void Merge(const Cells& run, const std::string& name, Cells* cells) {
  std::vector<double> ratios;
  for (const auto& [cell, candidates] : run) {
    for (const auto& [candidate, point] : candidates) {
      auto [entry, inserted] = (*cells)[cell].try_emplace(candidate, point);
      if (inserted) continue;
      ratios.push_back(point.measured_us / entry->second.measured_us);
      entry->second = point;
    }
  }
  if (ratios.empty()) return;
  std::nth_element(ratios.begin(), ratios.begin() + ratios.size() / 2, ratios.end());
  std::printf("%s: %zu candidates measured before, median ratio %.3f\n", name.c_str(), ratios.size(),
              ratios[ratios.size() / 2]);
}

int Report(Cells cells) {
  if (cells.empty()) {
    std::fprintf(stderr, "no usable points in the input\n");
    return 1;
  }
  const DeviceProfile device = *FindDeviceProfile("h200");
  Slowdown first, first24, third, planned;
  std::printf("%6s %6s %4s %5s %8s %7s %7s %7s %7s %5s %8s %7s %6s %9s  first choice\n", "N", "K", "M", "n",
              "best us", "first", "of 24", "third", "plan", "size", "configs", "whole", "known", "predicted");
  for (auto& [cell, measured_points] : cells) {
    auto& candidates = measured_points;  // a lambda of C++20 captures no structured binding in clang
    const auto [n, k, m] = cell;
    std::vector<Point> points;
    for (auto& [candidate, point] : candidates) {
      point.predicted_us = PredictCost(candidate, Problem{n, k, {}}, m, device).total_us;
      points.push_back(point);
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
        if (entry != candidates.end()) us = std::min(us, entry->second.measured_us);
      }
      return us / best;
    };
    const std::vector<PlannedCandidate> plan = BalancedStrategy::Choose(measured);
    const std::vector<PlannedCandidate> whole =
        BalancedStrategy::Choose(LegalByPrediction(Problem{n, k, {}}, BucketFor(m), device));
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

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: cost_model_eval FILE|- [FILE...]\n");
    return 2;
  }
  qgemm::Cells cells;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "-") {
      qgemm::Merge(qgemm::ReadSession(std::cin), name, &cells);
      continue;
    }
    std::ifstream file(name);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 1;
    }
    qgemm::Merge(qgemm::ReadSession(file), name, &cells);
  }
  return qgemm::Report(std::move(cells));
}
