#ifndef QGEMM_SERVER_TUNER_H_
#define QGEMM_SERVER_TUNER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "cache/cache_store.h"
#include "qgemm/v1/cache.pb.h"
#include "qgemm/v1/tuner.pb.h"
#include "server/batch_lookup.h"
#include "server/compiler.h"
#include "server/gpu.h"
#include "server/job_board.h"
#include "server/jobs.h"
#include "server/kernel_supply.h"
#include "server/measured_tuning.h"
#include "server/model_tuning.h"
#include "server/pick_lookup.h"
#include "server/similar_picks.h"
#include "server/stale_picks.h"
#include "server/tune_stream.h"
#include "server/tuning_target.h"

namespace qgemm {

struct TunerOptions {
  TimingBudgets budgets;
  Duration progress_interval = std::chrono::milliseconds(100);
  JobLimits jobs;
  // What keeps work waiting, for people; empty: nothing. Called often, from any thread.
  std::function<std::string()> note;
};

struct TunerCounters {
  int64_t hits = 0;  // lookups answered from the store, Tune's included
  int64_t misses = 0;
};

// One request's life: validate, look up, join or plan, wait for kernels and verdicts, stream. Knows problems,
// candidates and results; no gRPC, no RocksDB, no CUDA. Thread-safe. Requests are looked at and watched on
// their caller's thread; threads of the tuner plan picks, use the GPU, make predicted picks and end jobs.
class Tuner {
 public:
  static constexpr int kMaxProblems = 4096;
  static constexpr int kMaxResults = 16384;  // (problem, bucket) pairs of one request

  // Borrowed: all but `targets` and `options`. `gpu` may be null: then every pick is MODEL.
  Tuner(CacheStore& store, Compiler& compiler, Gpu* gpu, Clock& clock, TargetResolver targets,
        TunerOptions options);
  // No call may be running.
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  // Reads the journal: the next Tick() takes up what an earlier daemon left unfinished.
  [[nodiscard]] absl::Status OpenJournal() { return jobs_->Open(); }

  // Streams results, progress and a summary; `client` is who asks. InvalidArgument names field, value and
  // what is allowed; Unavailable: no compile worker, no GPU, or the tuner was stopped; Cancelled: the stream
  // was. What this call alone wanted is withdrawn when it fails; what was stored stays.
  [[nodiscard]] absl::Status Tune(const v1::TuneRequest& request, const std::string& client,
                                  TuneStream& stream) {
    return jobs_->Tune(request, client, stream);
  }
  // Jobs, by the id that their Tune call was told.
  Jobs& jobs() { return *jobs_; }

  // From the store alone: needs neither workers nor a GPU.
  [[nodiscard]] absl::StatusOr<v1::LookupResponse> Lookup(const v1::LookupRequest& request);
  // The same as the response's bytes, which is faster.
  [[nodiscard]] absl::StatusOr<std::string> LookupBytes(const v1::LookupRequest& request);

  // What Tune would do for the same request. Unavailable: no compile worker can be started.
  [[nodiscard]] absl::StatusOr<v1::TuneEstimate> Estimate(const v1::TuneRequest& request);
  // Compiles every kernel of a format into the store. `send` gets progress every 100 ms at least and the end;
  // it returns false when the client is gone.
  [[nodiscard]] absl::Status Warm(const v1::WarmRequest& request,
                                  const std::function<bool(const v1::WarmEvent&)>& send);
  // From the store alone. Without a compile worker's hello since the start, no candidate is listed.
  [[nodiscard]] absl::StatusOr<v1::ExplainResponse> Explain(const v1::ExplainRequest& request);

  // Whether a stored pick is stale on its own target, as far as that can be told now.
  bool IsStale(const internal::PickRecord& record);

  // To be called about once a second: moves jobs along, looks whether a lost GPU is back, has picks of
  // another driver timed again when nothing else is to do.
  void Tick();
  // Picks of another driver that wait to be timed again; 0 until the first Tick.
  size_t stale_picks_left() { return stale_picks_ == nullptr ? 0 : stale_picks_->left(); }

  // Running Tune calls end with Unavailable soon; later ones at once.
  void Stop();

  TunerCounters counters() const { return {hits_.load(), misses_.load()}; }
  bool gpu_lost() const { return measured_ != nullptr && measured_->gpu_lost(); }
  const TargetResolver& targets() const { return targets_; }
  // Waits for a compile worker's hello. Unavailable: no worker can be started.
  absl::StatusOr<std::string> Toolchain();
  // That of the last imported pack until a worker said hello; empty: neither.
  std::string known_toolchain();
  // Kernels of this toolchain are looked for while no worker can be started (cache/pack.h).
  void AdoptToolchain(const std::string& toolchain);

 private:
  static absl::StatusOr<std::vector<TuneUnit>> ParseUnits(const v1::TuneRequest& request);
  absl::StatusOr<PreparedTune> Prepare(const v1::TuneRequest& request);
  JobBoard::Joined Join(const PreparedTune& prepared, const v1::TuneRequest& request, const TuneUnit& unit,
                        PickWaiter waiter);
  // The stored result that answers a request of this effort, or nullopt.
  absl::StatusOr<std::optional<v1::TuneResult>> FindStored(const Problem& problem, int m_bucket,
                                                           const TuningTarget& target, v1::Effort effort,
                                                           absl::string_view toolchain);
  absl::StatusOr<JobBoard::Joined> JoinStale(const StalePicks::Pick& pick, PickWaiter waiter);
  bool IsOfAnotherDriver(const v1::Pick& pick) const;
  // Once per driver, and once more after what was in work when it changed.
  void FindStalePicks();
  // Plans jobs until the board is stopped.
  void PlanLoop();
  void PlanAndQueue(const std::shared_ptr<PickJob>& job);
  // Fills in the plan, the candidates and what the store knows of them.
  absl::Status PlanCandidates(PickJob& job);
  absl::Status PlanMeasured(PickJob& job);
  static std::string TimingKeyFor(const Problem& problem, int m_bucket, const TuningTarget& target,
                                  const Candidate& candidate, const std::string& kernel_key);
  // Answers with a near shape's pick what has none.
  absl::Status AnswerSimilar(const v1::LookupRequest& request, const TuningTarget& target,
                             v1::LookupResponse* response);
  absl::Status ExplainPick(const Problem& problem, int m_bucket, const TuningTarget& target,
                           v1::ExplainResponse* response);
  void RequestKernels(PickJob& job);
  // As MeasuredTuning::RebuildKernel.
  std::shared_ptr<Kernel> RebuildKernel(PickJob& job, const CandidateState* state);

  CacheStore& store_;
  Compiler& compiler_;
  Clock& clock_;
  const TargetResolver targets_;
  const TunerOptions options_;

  std::atomic<int64_t> hits_{0};
  std::atomic<int64_t> misses_{0};
  Mutex toolchain_mu_;
  std::string toolchain_ QGEMM_GUARDED_BY(toolchain_mu_);
  std::string adopted_toolchain_ QGEMM_GUARDED_BY(toolchain_mu_);

  // In this order: the supply's last callbacks wake the board.
  JobBoard board_;
  KernelSupply supply_;
  PickLookup lookup_;
  BatchLookup batch_lookup_;
  SimilarPicks similar_;
  std::unique_ptr<MeasuredTuning> measured_;  // null without a GPU
  ModelTuning model_;
  std::unique_ptr<Jobs> jobs_;
  std::unique_ptr<StalePicks> stale_picks_;  // null without a GPU
  // The background thread's.
  std::string stale_for_driver_;  // whose stale picks were looked for; empty: not yet
  bool find_stale_again_ = false;
  std::vector<std::thread> runners_;
  // Last members: their work uses all of the above.
  std::unique_ptr<ThreadPoolExecutor> job_executor_;
  // What may take long: a GPU that does not answer, a visit of the whole store.
  std::atomic<bool> looking_{false};
  std::unique_ptr<ThreadPoolExecutor> background_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_TUNER_H_
