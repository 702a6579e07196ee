#include "server/strategy/strategy.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "kernels/cost_model.h"
#include "kernels/search_space.h"
#include "server/strategy/balanced.h"
#include "server/strategy/exhaustive.h"
#include "server/strategy/model_only.h"
#include "server/strategy/quick.h"

namespace qgemm {
namespace {

bool ByPrediction(const PlannedCandidate& a, const PlannedCandidate& b) {
  if (a.predicted_us != b.predicted_us) return a.predicted_us < b.predicted_us;
  return a.candidate < b.candidate;
}

}  // namespace

Plan Strategy::MakePlan(const Problem& problem, int m_bucket, const DeviceProfile& device, bool timed,
                        const PlanHints& hints) const {
  std::vector<PlannedCandidate> legal = LegalByPrediction(problem, m_bucket, device);
  const size_t before = legal.size();
  if (hints.allowed) {
    std::erase_if(legal, [&](const PlannedCandidate& planned) { return !hints.allowed(planned.candidate); });
  }
  Plan plan = PlanOf(legal, problem, m_bucket, device, timed);
  plan.legal = static_cast<int>(legal.size());
  plan.restricted = legal.size() < before;
  if (plan.restricted) plan.also_compile.clear();
  const std::set<Candidate> seeds(hints.seeds.begin(), hints.seeds.end());
  std::set<Candidate> planned;
  for (const PlannedCandidate& one : plan.candidates) planned.insert(one.candidate);
  for (const PlannedCandidate& one : legal) {
    if (seeds.count(one.candidate) > 0 && planned.insert(one.candidate).second) {
      plan.candidates.push_back(one);
    }
  }
  std::sort(plan.candidates.begin(), plan.candidates.end(), ByPrediction);
  const auto most = static_cast<size_t>(hints.max_candidates);
  if (most > 0 && plan.candidates.size() > most) {
    plan.candidates.resize(most);
    plan.restricted = true;
  }
  return plan;
}

const Strategy& StrategyFor(v1::Effort effort) {
  static const ModelOnlyStrategy& model_only = *new ModelOnlyStrategy;
  static const QuickStrategy& quick = *new QuickStrategy;
  static const BalancedStrategy& balanced = *new BalancedStrategy;
  static const ExhaustiveStrategy& exhaustive = *new ExhaustiveStrategy;
  switch (effort) {
    case v1::EFFORT_MODEL_ONLY:
      return model_only;
    case v1::EFFORT_QUICK:
      return quick;
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
  std::sort(planned.begin(), planned.end(), ByPrediction);
  return planned;
}

}  // namespace qgemm
