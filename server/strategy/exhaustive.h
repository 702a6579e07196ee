#ifndef QGEMM_SERVER_STRATEGY_EXHAUSTIVE_H_
#define QGEMM_SERVER_STRATEGY_EXHAUSTIVE_H_

#include <vector>

#include "server/strategy/strategy.h"

namespace qgemm {

// Every legal candidate. When nothing is timed, every config of the bucket's space is compiled too, so that
// the store holds them all with their register and spill figures.
class ExhaustiveStrategy : public Strategy {
 protected:
  Plan PlanOf(const std::vector<PlannedCandidate>& legal, const Problem& problem, int m_bucket,
              const DeviceProfile& device, bool timed) const override;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_STRATEGY_EXHAUSTIVE_H_
