#ifndef QGEMM_SERVER_MEASURED_TUNING_H_
#define QGEMM_SERVER_MEASURED_TUNING_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cache/cache_store.h"
#include "server/gpu.h"
#include "server/job_board.h"

namespace qgemm {

struct TimingBudgets {
  absl::Duration screen = absl::Milliseconds(2);    // GPU time per candidate
  absl::Duration finals = absl::Milliseconds(120);  // GPU time for all finalists of a job
};

// Verifies and times the candidates of jobs on the GPU. Runs on one thread, the GPU's only user in the
// daemon.
class MeasuredTuning {
 public:
  // Asks for a candidate's kernel, or (null) the support kernels, to be compiled again, because what was
  // stored is unusable.
  using RebuildKernel = std::function<std::shared_ptr<Kernel>(PickJob&, const CandidateState*)>;

  // Borrowed: all of them, but for `rebuild`.
  MeasuredTuning(Gpu& gpu, CacheStore& store, JobBoard& board, Clock& clock, TimingBudgets budgets,
                 RebuildKernel rebuild)
      : gpu_(gpu),
        store_(store),
        board_(board),
        clock_(clock),
        budgets_(budgets),
        rebuild_(std::move(rebuild)) {}

  // Runs jobs until the board is stopped.
  void Loop();

  // Asks a lost GPU whether it is back. On any thread, if the GPU's calls may come from several.
  void Probe();

  // The last GPU call failed with Unavailable. Thread-safe.
  bool gpu_lost() const { return gpu_lost_.load(); }

 private:
  // Screens, re-times finalists, picks, stores and finishes the job. While the job's kernels are still being
  // compiled, other jobs whose kernels are ready run in between (`may_yield`).
  void Run(const std::shared_ptr<PickJob>& job, bool may_yield);
  absl::StatusOr<v1::TuneResult> Tune(PickJob& job, bool may_yield);
  // Of a job whose time ended before anything was timed: what MODEL_ONLY would pick of what is left. Waits
  // for the kernel it needs.
  absl::StatusOr<v1::TuneResult> Predict(PickJob& job, bool may_yield);
  // Waits until `condition`, called under the board's lock, may hold; runs another job that is ready
  // meanwhile
  // (`may_yield`).
  void Await(PickJob& job, bool may_yield, const std::function<bool()>& condition);
  // FailedPrecondition: this problem cannot be tuned here (its data does not fit); others can.
  absl::Status Prepare(PickJob& job);
  // Waits for the support kernels and hands them to the GPU.
  absl::Status GiveSupport(PickJob& job);
  // Screens every candidate without a verdict, or as many as the job's time allows: then it is partial.
  // Cancelled: nobody waits for the job any more.
  absl::Status ScreenAll(PickJob& job, bool may_yield);
  absl::Status Screen(PickJob& job, CandidateState& state);
  absl::Status TimeFinalists(PickJob& job, const std::vector<size_t>& finalists);
  // The request's own limit of time; starts the clock at the first call.
  bool BudgetSpent(PickJob& job);
  // Remembers for all problems that the candidate's kernel cannot be run.
  absl::Status Quarantine(const CandidateState& state, internal::TimingRecord verdict);
  // How many candidates a race has time for.
  int FinalistLimit(const PickJob& job) const;
  absl::Duration RaceBudget(const PickJob& job) const;
  GpuCandidate ForGpu(const PickJob& job, const CandidateState& state) const;
  // Turns a GPU error into the job's, and remembers that the GPU is lost.
  absl::Status Noted(absl::Status status);

  Gpu& gpu_;
  CacheStore& store_;
  JobBoard& board_;
  Clock& clock_;
  const TimingBudgets budgets_;
  const RebuildKernel rebuild_;
  const PickJob* prepared_ = nullptr;  // whose data is on the GPU
  std::string support_sha256_;         // of the support kernels the GPU was given
  std::atomic<bool> gpu_lost_{false};
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_MEASURED_TUNING_H_
