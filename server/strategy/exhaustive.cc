#include "server/strategy/exhaustive.h"

#include <set>

#include "kernels/search_space.h"

namespace qgemm {

Plan ExhaustiveStrategy::PlanOf(const std::vector<PlannedCandidate>& legal, const Problem& problem,
                                int m_bucket, const DeviceProfile& device, bool timed) const {
  Plan plan;
  plan.candidates = legal;
  plan.race_share = 1.5;  // the other efforts are judged by it
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
