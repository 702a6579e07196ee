#include "server/strategy/balanced.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace qgemm {
namespace {

// What the roofline formula does not see.
auto MechanismOf(const KernelConfig& config) {
  return std::make_tuple(config.activations, config.scale, config.warps_n, config.warps_k);
}

}  // namespace

Plan BalancedStrategy::MakePlan(const Problem& problem, int m_bucket, const DeviceProfile& device,
                                bool timed) const {
  Plan plan;
  std::vector<PlannedCandidate> all = LegalByPrediction(problem, m_bucket, device);
  plan.legal = static_cast<int>(all.size());
  if (!timed) {
    plan.candidates = std::move(all);
    plan.configs_at_once = kPredictedConfigs;
    return plan;
  }
  std::vector<bool> keep(all.size(), false);
  std::set<KernelConfig> configs;
  std::set<decltype(MechanismOf(KernelConfig()))> mechanisms;
  size_t kept = 0;
  // The core first, so that the cap on configs never drops it below one candidate per mechanism in prediction
  // order.
  for (size_t i = 0; i < all.size() && configs.size() < kMaxConfigs / 2; ++i) {
    if (mechanisms.insert(MechanismOf(all[i].candidate.config)).second) {
      keep[i] = true;
      ++kept;
      configs.insert(all[i].candidate.config);
    }
  }
  const size_t wanted = std::max<size_t>(kMinCandidates, (all.size() + 2) / 3);
  for (size_t i = 0; i < all.size() && kept < wanted; ++i) {
    if (keep[i]) continue;
    const KernelConfig& config = all[i].candidate.config;
    if (configs.count(config) == 0 && configs.size() >= kMaxConfigs) continue;
    configs.insert(config);
    keep[i] = true;
    ++kept;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (keep[i]) plan.candidates.push_back(all[i]);
  }
  return plan;
}

}  // namespace qgemm
