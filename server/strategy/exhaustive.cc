#include "server/strategy/exhaustive.h"

#include <set>

#include "kernels/search_space.h"

namespace qgemm {

Plan ExhaustiveStrategy::MakePlan(const Problem& problem, int m_bucket, const DeviceProfile& device,
                                  bool timed) const {
  Plan plan;
  plan.candidates = LegalByPrediction(problem, m_bucket, device);
  plan.legal = static_cast<int>(plan.candidates.size());
  if (!timed) {
    std::set<KernelConfig> planned;
    for (const PlannedCandidate& candidate : plan.candidates) planned.insert(candidate.candidate.config);
    for (const KernelConfig& config : ConfigSpace(problem.signature, m_bucket, device)) {
      if (planned.count(config) == 0) plan.also_compile.push_back(config);
    }
  }
  return plan;
}

}  // namespace qgemm
