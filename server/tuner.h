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
#include "base/mutex.h"
#include "cache/cache_store.h"
#include "qgemm/v1/cache.pb.h"
#include "qgemm/v1/tuner.pb.h"
#include "server/batch_lookup.h"
#include "server/compiler.h"
#include "server/gpu.h"
#include "server/job_board.h"
#include "server/kernel_supply.h"
#include "server/measured_tuning.h"
#include "server/model_tuning.h"
#include "server/pick_lookup.h"
#include "server/similar_picks.h"
#include "server/tuning_target.h"

namespace qgemm {

// Where a Tune request's events go. Used by the requesting thread only.
class TuneStream {
 public:
  virtual ~TuneStream() = default;
  virtual void Send(const v1::TuneEvent& event) = 0;
  // The client is gone or cancelled; asked every 50 ms at least.
  virtual bool Cancelled() = 0;
};

struct TunerOptions {
  TimingBudgets budgets;
  Duration progress_interval = std::chrono::milliseconds(100);
};

struct TunerCounters {
  int64_t hits = 0;  // lookups answered from the store, Tune's included
  int64_t misses = 0;
};

// One request's life: validate, look up, join or plan, wait for kernels and verdicts, stream. Knows problems,
// candidates and results; no gRPC, no RocksDB, no CUDA. Thread-safe: every request runs on its caller's
// thread; one thread of the tuner uses the GPU and one makes predicted picks.
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

  // Streams results, progress and a summary. InvalidArgument names field, value and what is allowed;
  // Unavailable: no compile worker, no GPU, or the tuner was stopped; Cancelled: the stream was. What this
  // call alone wanted is withdrawn when it fails; what was stored stays.
  [[nodiscard]] absl::Status Tune(const v1::TuneRequest& request, TuneStream& stream);

  // From the store alone: needs neither workers nor a GPU.
  [[nodiscard]] absl::StatusOr<v1::LookupResponse> Lookup(const v1::LookupRequest& request);

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
  struct Unit {
    int problem_index = 0;
    Problem problem;
    int m_bucket = 0;
  };
  // A unit that the store did not answer.
  struct Pending {
    int problem_index = 0;
    std::shared_ptr<PickJob> job;
    bool created = false;
    bool finished = false;
  };
  class Request;

  static absl::StatusOr<std::vector<Unit>> ParseUnits(const v1::TuneRequest& request);
  // The stored result that answers a request of this effort, or nullopt.
  absl::StatusOr<std::optional<v1::TuneResult>> FindStored(const Unit& unit, const TuningTarget& target,
                                                           v1::Effort effort, absl::string_view toolchain);
  void PlanAndQueue(const std::shared_ptr<PickJob>& job, const Unit& unit, const TuningTarget& lookup_target);
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
  std::vector<std::thread> runners_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_TUNER_H_
