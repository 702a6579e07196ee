#ifndef QGEMM_SERVER_MODEL_TUNING_H_
#define QGEMM_SERVER_MODEL_TUNING_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "cache/cache_store.h"
#include "server/job_board.h"

namespace qgemm {

// Picks without a GPU: the smallest prediction among the candidates whose kernel compiled without spills.
class ModelTuning {
 public:
  // Borrowed: store, board, clock. `request_more` asks for the kernels of the next plan.configs_at_once
  // configs of a job; it is called only when candidates without a kernel are left.
  ModelTuning(CacheStore& store, JobBoard& board, Clock& clock, std::function<void(PickJob&)> request_more)
      : store_(store), board_(board), clock_(clock), request_more_(std::move(request_more)) {}

  // Runs jobs until the board is stopped.
  void Loop();

 private:
  void Run(const std::shared_ptr<PickJob>& job);
  // The winner, or null when no requested candidate can be used. Fails for the system's failures only.
  absl::StatusOr<const CandidateState*> Choose(PickJob& job);
  absl::StatusOr<v1::TuneResult> Store(PickJob& job, const CandidateState& winner);

  CacheStore& store_;
  JobBoard& board_;
  Clock& clock_;
  const std::function<void(PickJob&)> request_more_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_MODEL_TUNING_H_
