#include "server/strategy/quick.h"

#include "server/strategy/balanced.h"

namespace qgemm {

Plan QuickStrategy::PlanOf(const std::vector<PlannedCandidate>& legal, const Problem& /*problem*/,
                           int /*m_bucket*/, const DeviceProfile& /*device*/, bool timed) const {
  Plan plan;
  if (timed) {
    plan.candidates = BalancedStrategy::Choose(
        legal, {.candidates = kMaxCandidates, .configs = kMaxConfigs, .mechanisms = 2, .of_family = 2});
    plan.finalists = 6;
    plan.race_share = 0.25;
  } else {
    plan.candidates = legal;
    plan.configs_at_once = BalancedStrategy::kPredictedConfigs;
  }
  return plan;
}

}  // namespace qgemm
