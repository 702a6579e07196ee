#ifndef QGEMM_SERVER_STRATEGY_BALANCED_H_
#define QGEMM_SERVER_STRATEGY_BALANCED_H_

#include <vector>

#include "server/strategy/strategy.h"

namespace qgemm {

// How much of a space is chosen.
struct ChoiceLimits {
  int candidates = 80;
  int configs = 24;
  size_t mechanisms = 6;  // of all families together
  int of_family = 6;      // candidates that each family has at least
};

// Timed: the best candidates by prediction, at most 80 of at most 24 configs. The roofline formula compares
// families, and mechanisms (activation path, scale mode, warp arrangement), less well than candidates alike;
// so each family that is not predicted far behind has a share, and the best of its best mechanisms are in.
// Not timed: the predicted best, with its next three configs compiled beside it.
// tests/bench/RESULTS.md says what that leaves out.
class BalancedStrategy : public Strategy {
 public:
  static constexpr int kMaxCandidates = ChoiceLimits().candidates;
  static constexpr int kMaxConfigs = ChoiceLimits().configs;
  static constexpr double kFarBehind = 1.5;  // times the smallest prediction
  static constexpr int kPredictedConfigs = 4;

  // What a timed plan keeps of candidates in prediction order, in the same order.
  static std::vector<PlannedCandidate> Choose(const std::vector<PlannedCandidate>& all,
                                              const ChoiceLimits& limits = {});

 protected:
  Plan PlanOf(const std::vector<PlannedCandidate>& legal, const Problem& problem, int m_bucket,
              const DeviceProfile& device, bool timed) const override;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_STRATEGY_BALANCED_H_
