#ifndef QGEMM_SERVER_STRATEGY_MODEL_ONLY_H_
#define QGEMM_SERVER_STRATEGY_MODEL_ONLY_H_

#include <vector>

#include "server/strategy/strategy.h"

namespace qgemm {

// The smallest prediction; only that kernel is compiled, and the next one when it cannot be used.
class ModelOnlyStrategy : public Strategy {
 protected:
  Plan PlanOf(const std::vector<PlannedCandidate>& legal, const Problem& problem, int m_bucket,
              const DeviceProfile& device, bool timed) const override;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_STRATEGY_MODEL_ONLY_H_
