#include "server/strategy/balanced.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace qgemm {
namespace {

// What the roofline formula may get wrong for a whole problem at once, rather than for one candidate.
auto MechanismOf(const KernelConfig& config) {
  return std::make_tuple(config.activations, config.scale, config.warps_n, config.warps_k);
}

// Of candidates in prediction order, those kept within the limits.
class Selection {
 public:
  Selection(const std::vector<PlannedCandidate>& all, const ChoiceLimits& limits)
      : all_(all), limits_(limits), kept_(all.size(), false) {}

  bool kept(size_t i) const { return kept_[i]; }
  bool full() const { return count_ >= limits_.candidates; }
  // Keeps it unless the plan is full or its config would be one too many. False if it is not kept.
  bool Keep(size_t i) {
    if (kept_[i]) return true;
    const KernelConfig& config = all_[i].candidate.config;
    const bool fits = configs_.count(config) > 0 || static_cast<int>(configs_.size()) < limits_.configs;
    if (full() || !fits) return false;
    configs_.insert(config);
    kept_[i] = true;
    ++count_;
    return true;
  }

 private:
  const std::vector<PlannedCandidate>& all_;
  const ChoiceLimits limits_;
  std::vector<bool> kept_;
  std::set<KernelConfig> configs_;
  int count_ = 0;
};

// Families in the order of their best predictions, without those that are far behind.
std::vector<Family> PromisingFamilies(const std::vector<PlannedCandidate>& all) {
  std::vector<Family> families;
  for (const PlannedCandidate& planned : all) {
    if (planned.predicted_us > BalancedStrategy::kFarBehind * all.front().predicted_us) break;
    const Family family = planned.candidate.config.family;
    if (std::find(families.begin(), families.end(), family) == families.end()) families.push_back(family);
  }
  return families;
}

}  // namespace

std::vector<PlannedCandidate> BalancedStrategy::Choose(const std::vector<PlannedCandidate>& all,
                                                       const ChoiceLimits& limits) {
  Selection selection(all, limits);
  const std::vector<Family> families = PromisingFamilies(all);
  for (const Family family : families) {
    std::set<decltype(MechanismOf(KernelConfig()))> mechanisms;
    for (size_t i = 0; i < all.size() && mechanisms.size() < limits.mechanisms / families.size(); ++i) {
      const KernelConfig& config = all[i].candidate.config;
      if (config.family == family && mechanisms.insert(MechanismOf(config)).second) selection.Keep(i);
    }
  }
  for (const Family family : families) {
    int share = 0;
    for (size_t i = 0; i < all.size() && share < limits.of_family; ++i) {
      if (all[i].candidate.config.family == family && selection.Keep(i)) ++share;
    }
  }
  for (size_t i = 0; i < all.size() && !selection.full(); ++i) selection.Keep(i);
  std::vector<PlannedCandidate> chosen;
  for (size_t i = 0; i < all.size(); ++i) {
    if (selection.kept(i)) chosen.push_back(all[i]);
  }
  return chosen;
}

Plan BalancedStrategy::PlanOf(const std::vector<PlannedCandidate>& legal, const Problem& /*problem*/,
                              int /*m_bucket*/, const DeviceProfile& /*device*/, bool timed) const {
  Plan plan;
  if (timed) {
    plan.candidates = Choose(legal);
  } else {
    plan.candidates = legal;
    plan.configs_at_once = kPredictedConfigs;
  }
  return plan;
}

}  // namespace qgemm
