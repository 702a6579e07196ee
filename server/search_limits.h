#ifndef QGEMM_SERVER_SEARCH_LIMITS_H_
#define QGEMM_SERVER_SEARCH_LIMITS_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "kernels/kernel_config.h"
#include "qgemm/v1/tuner.pb.h"

namespace qgemm {

// A request's own limits of its searches. A pick made under one is not what its effort would have picked, so
// it is not stored as such; the timings are.
struct SearchLimits {
  std::string only;        // POSIX extended regular expression; empty: every candidate
  int max_candidates = 0;  // 0: no limit
  Duration budget{};       // of one pick, from its turn on the GPU; zero: no limit

  bool any() const { return !only.empty() || max_candidates > 0 || budget > Duration::zero(); }
  // Distinguishes searches with other limits; empty without any.
  std::string Key() const;
  // Whether a candidate's name matches `only`, which is valid; null without one.
  std::function<bool(const Candidate&)> Filter() const;
};

// InvalidArgument: `only` is no valid expression or too long, or a limit is negative.
[[nodiscard]] absl::StatusOr<SearchLimits> SearchLimitsFromProto(const v1::TuneRequest& request);

}  // namespace qgemm

#endif  // QGEMM_SERVER_SEARCH_LIMITS_H_
