#ifndef QGEMM_SERVER_STRATEGY_BALANCED_H_
#define QGEMM_SERVER_STRATEGY_BALANCED_H_

#include "server/strategy/strategy.h"

namespace qgemm {

// Timed: the best third by prediction, at least 24 candidates, of at most 24 configs; and, because the
// roofline formula cannot rank mechanisms, a fixed core: the best predicted candidate of every (activation
// path, scale mode, warp arrangement). Not timed: the predicted best, with its next three configs compiled
// beside it.
class BalancedStrategy : public Strategy {
 public:
  static constexpr int kMinCandidates = 24;
  static constexpr int kMaxConfigs = 24;
  static constexpr int kPredictedConfigs = 4;

  Plan MakePlan(const Problem& problem, int m_bucket, const DeviceProfile& device, bool timed) const override;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_STRATEGY_BALANCED_H_
