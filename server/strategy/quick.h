#ifndef QGEMM_SERVER_STRATEGY_QUICK_H_
#define QGEMM_SERVER_STRATEGY_QUICK_H_

#include <vector>

#include "server/strategy/strategy.h"

namespace qgemm {

// Timed: what BALANCED would look at first, a dozen candidates of at most six configs, and a short race. Not
// timed: as BALANCED.
class QuickStrategy : public Strategy {
 public:
  static constexpr int kMaxCandidates = 12;
  static constexpr int kMaxConfigs = 6;

 protected:
  Plan PlanOf(const std::vector<PlannedCandidate>& legal, const Problem& problem, int m_bucket,
              const DeviceProfile& device, bool timed) const override;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_STRATEGY_QUICK_H_
