#include "server/strategy/model_only.h"

namespace qgemm {

Plan ModelOnlyStrategy::MakePlan(const Problem& problem, int m_bucket, const DeviceProfile& device,
                                 bool /*timed*/) const {
  Plan plan;
  plan.candidates = LegalByPrediction(problem, m_bucket, device);
  plan.legal = static_cast<int>(plan.candidates.size());
  plan.configs_at_once = 1;
  return plan;
}

}  // namespace qgemm
