#ifndef QGEMM_SERVER_STRATEGY_STRATEGY_H_
#define QGEMM_SERVER_STRATEGY_STRATEGY_H_

#include <functional>
#include <memory>
#include <vector>

#include "kernels/device_profile.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"
#include "qgemm/v1/types.pb.h"

namespace qgemm {

struct PlannedCandidate {
  Candidate candidate;
  double predicted_us = 0;
};

// What to compile and try for one (problem, bucket).
struct Plan {
  int legal = 0;                             // legal candidates of the space
  std::vector<PlannedCandidate> candidates;  // in the order in which they are tried
  std::vector<KernelConfig> also_compile;    // configs that no candidate has, for the store to hold
  // How many distinct configs of `candidates` are compiled at once. More are compiled only when none of them
  // can be used. 0: all.
  int configs_at_once = 0;
  int finalists = 16;       // at most so many race against each other
  double race_share = 1;    // of the time that a race may take
  bool restricted = false;  // the hints' limits kept candidates out
};

// What a plan takes into account beside the problem.
struct PlanHints {
  std::function<bool(const Candidate&)> allowed;  // null: all are
  int max_candidates = 0;                         // 0: no limit
  std::vector<Candidate> seeds;  // winners of near shapes: planned in any case, if they are legal and allowed
};

// How much of a problem's space an effort looks at. Stateless and thread-safe; plans are pure functions of
// their arguments, so that two fresh tunings see the same candidates.
class Strategy {
 public:
  virtual ~Strategy() = default;
  // `timed`: the candidates will run on a GPU; else the smallest prediction is picked.
  Plan MakePlan(const Problem& problem, int m_bucket, const DeviceProfile& device, bool timed,
                const PlanHints& hints = {}) const;

 protected:
  // The plan without hints, but for `legal`: the allowed candidates in prediction order.
  virtual Plan PlanOf(const std::vector<PlannedCandidate>& legal, const Problem& problem, int m_bucket,
                      const DeviceProfile& device, bool timed) const = 0;
};

// The strategy of an effort (not UNSPECIFIED); a static object.
const Strategy& StrategyFor(v1::Effort effort);

// Every legal candidate with its prediction, smallest first; equal ones in candidate order.
std::vector<PlannedCandidate> LegalByPrediction(const Problem& problem, int m_bucket,
                                                const DeviceProfile& device);

}  // namespace qgemm

#endif  // QGEMM_SERVER_STRATEGY_STRATEGY_H_
