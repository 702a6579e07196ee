#include "server/strategy/strategy.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "kernels/cost_model.h"
#include "kernels/search_space.h"
#include "server/strategy/balanced.h"
#include "server/strategy/exhaustive.h"
#include "server/strategy/model_only.h"

namespace qgemm {

const Strategy& StrategyFor(v1::Effort effort) {
  static const ModelOnlyStrategy& model_only = *new ModelOnlyStrategy;
  static const BalancedStrategy& balanced = *new BalancedStrategy;
  static const ExhaustiveStrategy& exhaustive = *new ExhaustiveStrategy;
  switch (effort) {
    case v1::EFFORT_MODEL_ONLY:
      return model_only;
    case v1::EFFORT_BALANCED:
      return balanced;
    default:
      QGEMM_CHECK(effort == v1::EFFORT_EXHAUSTIVE);
      return exhaustive;
  }
}

std::vector<PlannedCandidate> LegalByPrediction(const Problem& problem, int m_bucket,
                                                const DeviceProfile& device) {
  std::vector<PlannedCandidate> planned;
  for (const Candidate& candidate : LegalCandidates(problem, m_bucket, device)) {
    planned.push_back({candidate, PredictCost(candidate, problem, m_bucket, device).total_us});
  }
  std::sort(planned.begin(), planned.end(), [](const PlannedCandidate& a, const PlannedCandidate& b) {
    if (a.predicted_us != b.predicted_us) return a.predicted_us < b.predicted_us;
    return a.candidate < b.candidate;
  });
  return planned;
}

}  // namespace qgemm
