#include "client/runtime/similar_picks.h"

#include <algorithm>
#include <map>
#include <string>

#include "kernels/bucket.h"
#include "kernels/similarity.h"

namespace qgemm {
namespace {

constexpr size_t kOfTheOpenBucket = 4;

// False where this program does not know the config or the reduction.
bool ReadCandidate(const BundlePick& pick, Candidate& out) {
  const absl::StatusOr<KernelConfig> config = ParseConfig(pick.config);
  if (!config.ok()) return false;
  out.config = *config;
  out.split_k = pick.launch.split_k;
  for (const Reduction reduction : {Reduction::kNone, Reduction::kWorkspace, Reduction::kCluster}) {
    out.reduction = reduction;
    if (pick.reduction == ReductionName(reduction)) return true;
  }
  return false;
}

bool Has(const BundleLayer& layer, int bucket) {
  return std::any_of(layer.picks.begin(), layer.picks.end(),
                     [bucket](const BundlePick& pick) { return pick.m_bucket == bucket; });
}

}  // namespace

std::vector<std::vector<SimilarPick>> SimilarPicks(const BundleMethod& method, const DeviceProfile& device) {
  std::vector<std::vector<SimilarPick>> out(method.layers.size());
  if (method.static_m > 0) return out;
  const auto is_whole = [](const BundleLayer& layer) { return layer.picks.size() == BucketLadder().size(); };
  if (std::all_of(method.layers.begin(), method.layers.end(), is_whole)) return out;

  // Layers of one problem have the same picks, as a rule: each candidate once.
  std::vector<ShapeHint> hints;
  std::vector<const BundlePick*> picks;
  std::map<std::string, bool> seen;
  for (const BundleLayer& layer : method.layers) {
    const std::string problem = ProblemName(layer.problem);
    for (const BundlePick& pick : layer.picks) {
      ShapeHint hint{layer.problem, pick.m_bucket, {}};
      if (!ReadCandidate(pick, hint.candidate)) continue;
      const std::string name = problem + " " + std::to_string(pick.m_bucket) + CandidateName(hint.candidate);
      if (!seen.emplace(name, true).second) continue;
      hints.push_back(hint);
      picks.push_back(&pick);
    }
  }

  struct Choice {
    int m_bucket;
    size_t hint;
  };
  std::map<std::string, std::vector<Choice>> of_problem;  // and the buckets it lacks
  for (size_t i = 0; i < method.layers.size(); ++i) {
    const BundleLayer& layer = method.layers[i];
    std::string key = ProblemName(layer.problem);
    for (const int bucket : BucketLadder()) key += Has(layer, bucket) ? '1' : '0';
    const auto [at, is_new] = of_problem.emplace(std::move(key), std::vector<Choice>());
    for (const int bucket : BucketLadder()) {
      if (!is_new || Has(layer, bucket)) continue;
      const size_t limit = bucket == BucketLadder().back() ? kOfTheOpenBucket : 1;
      for (const SimilarHint& near :
           RankSimilar(layer.problem, bucket, device, hints, ShapeDistance::kLog2L1, limit)) {
        at->second.push_back({bucket, near.index});
      }
    }
    for (const Choice& choice : at->second) {
      LaunchSpec launch = MakeLaunchSpec(hints[choice.hint].candidate, layer.problem, choice.m_bucket);
      out[i].push_back({choice.m_bucket, picks[choice.hint], std::move(launch)});
    }
  }
  return out;
}

}  // namespace qgemm
