#include "server/strategy/model_only.h"

namespace qgemm {

Plan ModelOnlyStrategy::PlanOf(const std::vector<PlannedCandidate>& legal, const Problem& /*problem*/,
                               int /*m_bucket*/, const DeviceProfile& /*device*/, bool /*timed*/) const {
  Plan plan;
  plan.candidates = legal;
  plan.configs_at_once = 1;
  return plan;
}

}  // namespace qgemm
