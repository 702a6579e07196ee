#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "kernels/legality.h"
#include "kernels/similarity.h"
#include "server/proto_convert.h"
#include "server/strategy/strategy.h"
#include "tests/bench/regret_modes.h"

namespace qgemm {
namespace {

constexpr int64_t kHintN[] = {768, 3072, 12288};
constexpr int64_t kHintK[] = {1536, 4608, 13824};
constexpr int kHintM[] = {1, 4, 8, 16, 32, 64, 128, 256};
constexpr uint64_t kSeed = 20261130;  // of the generated shapes

BenchPair MakePair(int64_t n, int64_t k, int m) {
  BenchPair pair;
  pair.format = "int4";
  pair.problem.set_n(n);
  pair.problem.set_k(k);
  pair.problem.mutable_format()->set_bits(4);
  pair.problem.mutable_format()->set_group_size(128);
  pair.problem.set_act(v1::SCALAR_TYPE_BF16);
  pair.m = m;
  pair.name = absl::StrCat(n, "x", k, " M ", m);
  return pair;
}

// N and K uniform in their logarithm, of no special divisibility beyond the group's; M between 1 and 256.
std::vector<BenchPair> GenerateShapes(int count) {
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> unit(0, 1);
  const auto between = [&](double low, double high) { return low * std::pow(high / low, unit(random)); };
  std::vector<BenchPair> shapes;
  for (int i = 0; i < count; ++i) {
    const int64_t n = std::lround(between(512, 16384) / 16) * 16;
    const int64_t k = std::lround(between(1024, 16384) / 128) * 128;
    const int m = static_cast<int>(std::lround(between(1, 256)));
    shapes.push_back(MakePair(n, k, m));
  }
  return shapes;
}

std::vector<BenchPair> HintGrid() {
  std::vector<BenchPair> grid;
  for (const int64_t n : kHintN) {
    for (const int64_t k : kHintK) {
      for (const int m : kHintM) grid.push_back(MakePair(n, k, m));
    }
  }
  return grid;
}

absl::StatusOr<std::vector<ShapeHint>> HintsOf(const std::vector<BenchPair>& grid,
                                               const std::map<size_t, Candidate>& picks) {
  std::vector<ShapeHint> hints;
  for (const auto& [i, candidate] : picks) {
    QGEMM_ASSIGN_OR_RETURN(Problem problem, ProblemFromProto(grid[i].problem));
    hints.push_back({std::move(problem), BucketFor(grid[i].m), candidate});
  }
  return hints;
}

Candidate ModelsFirst(const Problem& problem, int m, const DeviceProfile& profile) {
  return LegalByPrediction(problem, BucketFor(m), profile).front().candidate;
}

}  // namespace

absl::StatusOr<Json> NovelShapes(TuningBench& bench, int count, double seconds) {
  const Stopwatch watch(seconds);
  const std::vector<BenchPair> grid = HintGrid();
  TuneOptions tuning;
  tuning.limit_s = 0.4 * seconds;
  tuning.clients = 6;
  QGEMM_ASSIGN_OR_RETURN(const Picked tuned_hints, bench.Tune("hints", grid, tuning));
  QGEMM_ASSIGN_OR_RETURN(const std::vector<ShapeHint> hints, HintsOf(grid, tuned_hints.by_pair));

  // Each shape's own picks: for its M, and for the only hint of 64 and 4096 that would serve it.
  const std::vector<BenchPair> shapes = GenerateShapes(count);
  tuning.limit_s = 0.3 * seconds;
  QGEMM_ASSIGN_OR_RETURN(const Picked own, bench.Tune("novel shapes themselves", shapes, tuning));
  std::vector<BenchPair> two_hints = shapes;
  for (BenchPair& pair : two_hints) pair.m = pair.m <= 64 ? 64 : 4096;
  tuning.limit_s = std::max(5.0, 0.8 * seconds - watch.elapsed());
  QGEMM_ASSIGN_OR_RETURN(const Picked of_two, bench.Tune("the same at 64 and 4096", two_hints, tuning));

  Json json;
  json["novel_shapes"] = 0;
  int illegal = 0;
  std::vector<std::string> failed;
  std::map<std::string, Regrets> slowdowns;
  QGEMM_ASSIGN_OR_RETURN(const auto clockwork, bench.StartClockwork());
  const double window_s =
      std::clamp((watch.left() - 4) / (9.0 * static_cast<double>(shapes.size())), 0.01, 0.1);
  int served = 0;
  for (size_t i = 0; i < shapes.size() && watch.left() > 0; ++i) {
    const auto own_pick = own.by_pair.find(i);
    if (own_pick == own.by_pair.end()) continue;
    QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(shapes[i].problem));
    std::map<std::string, Candidate> answers;
    for (const ShapeDistance distance : AllShapeDistances()) {
      const std::vector<SimilarHint> ranked =
          RankSimilar(problem, shapes[i].m, bench.profile(), hints, distance, 1, SplitChoice::kFitted);
      if (!ranked.empty()) answers[std::string(ShapeDistanceName(distance))] = ranked[0].candidate;
      const std::vector<SimilarHint> as_tuned =
          RankSimilar(problem, shapes[i].m, bench.profile(), hints, distance, 1);
      if (!as_tuned.empty()) {
        answers[absl::StrCat(ShapeDistanceName(distance), ", split as tuned")] = as_tuned[0].candidate;
      }
    }
    answers["model"] = ModelsFirst(problem, shapes[i].m, bench.profile());
    const auto two = of_two.by_pair.find(i);
    if (two != of_two.by_pair.end()) answers["hints_64_4096"] = two->second;
    std::set<Candidate> all = {own_pick->second};
    for (const auto& [name, candidate] : answers) {
      if (IsLegal(candidate, problem, shapes[i].m, bench.profile()).ok()) {
        all.insert(candidate);
      } else if (name != "hints_64_4096") {
        ++illegal;
      }
    }
    QGEMM_ASSIGN_OR_RETURN(const std::vector<std::string> wrong, clockwork->Verify(shapes[i], all));
    failed.insert(failed.end(), wrong.begin(), wrong.end());
    QGEMM_ASSIGN_OR_RETURN(const Times times, clockwork->Time(shapes[i], all, window_s));
    const double own_us = times.at(own_pick->second);
    Json entry = {{"shape", shapes[i].name}, {"own", CandidateName(own_pick->second)}, {"own_us", own_us}};
    for (const auto& [name, candidate] : answers) {
      const auto us = times.find(candidate);
      if (us == times.end()) continue;
      slowdowns[name].Add(us->second / own_us, shapes[i].name);
      entry[name] = {{"candidate", CandidateName(candidate)}, {"slowdown", us->second / own_us}};
    }
    slowdowns["retuned"].Add(own_us / FastestOf(times),
                             shapes[i].name);  // its own pick against the best known
    json["shapes"].push_back(std::move(entry));
    ++served;
  }
  json["novel_shapes"] = served;
  json["hints"] = hints.size();
  json["illegal"] = illegal;
  json["failed_verification"] = failed;
  std::string best;
  std::printf("%d shapes, %zu hints; slowdown against the shape's own tuned pick:\n", served, hints.size());
  for (const auto& [name, slowdown] : slowdowns) {
    json["slowdown"][name] = slowdown.ToJson();
    std::printf("%-16s geomean %.4f, worst %.4f (%s), %d shapes\n", name.c_str(), slowdown.geomean(),
                slowdown.worst(), slowdown.worst_of().c_str(), slowdown.count());
    const bool is_distance = ParseShapeDistance(name).ok();
    if (is_distance && (best.empty() || slowdown.geomean() < slowdowns[best].geomean())) best = name;
  }
  json["similar_best_distance"] = best;
  json["similar_geomean"] = slowdowns[best].geomean();
  json["similar_worst"] = slowdowns[best].worst();
  json["model_only_unfitted_geomean"] = slowdowns["model"].geomean();
  json["model_only_unfitted_worst"] = slowdowns["model"].worst();
  json["window_ms"] = 1e3 * window_s;
  json["wall_s"] = watch.elapsed();
  return json;
}

absl::StatusOr<Json> VerifyNovelShapes(TuningBench& bench, int count, double seconds) {
  const Stopwatch watch(seconds);
  const std::vector<BenchPair> grid = HintGrid();
  std::map<size_t, Candidate> firsts;
  for (size_t i = 0; i < grid.size(); ++i) {
    QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(grid[i].problem));
    firsts[i] = ModelsFirst(problem, grid[i].m, bench.profile());
  }
  QGEMM_ASSIGN_OR_RETURN(const std::vector<ShapeHint> hints, HintsOf(grid, firsts));
  QGEMM_ASSIGN_OR_RETURN(const auto clockwork, bench.StartClockwork(/*placements=*/1));
  int shapes_done = 0;
  size_t candidates = 0;
  std::vector<std::string> failed;
  for (const BenchPair& shape : GenerateShapes(count)) {
    if (watch.left() <= 0) break;
    QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(shape.problem));
    std::set<Candidate> served;
    for (const ShapeDistance distance : AllShapeDistances()) {
      for (const SimilarHint& hint : RankSimilar(problem, shape.m, bench.profile(), hints, distance,
                                                 /*limit=*/2, SplitChoice::kFitted)) {
        served.insert(hint.candidate);
      }
    }
    QGEMM_ASSIGN_OR_RETURN(const std::vector<std::string> wrong, clockwork->Verify(shape, served));
    failed.insert(failed.end(), wrong.begin(), wrong.end());
    candidates += served.size();
    ++shapes_done;
  }
  std::printf("%d shapes, %zu candidates verified, %zu failed, %.0f s\n", shapes_done, candidates,
              failed.size(), watch.elapsed());
  return Json{{"verified_shapes", shapes_done},
              {"verified_candidates", candidates},
              {"failed_verification", failed},
              {"wall_s", watch.elapsed()}};
}

}  // namespace qgemm
