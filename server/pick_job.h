#ifndef QGEMM_SERVER_PICK_JOB_H_
#define QGEMM_SERVER_PICK_JOB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/problem.h"
#include "qgemm/internal/store.pb.h"
#include "qgemm/v1/tuner.pb.h"
#include "server/fair_queue.h"
#include "server/kernel_supply.h"
#include "server/search_limits.h"
#include "server/strategy/strategy.h"
#include "server/tuning_target.h"

namespace qgemm {

// One candidate of a job, from plan to verdict.
struct CandidateState {
  Candidate candidate;
  double predicted_us = 0;
  std::shared_ptr<Kernel> kernel;  // null: not asked for yet (MODEL)
  std::string timing_key;          // measured only
  std::optional<internal::TimingRecord> verdict;
  bool from_store = false;  // the verdict was stored by an earlier tuning
  std::string refusal;      // why the driver refused the stored kernel, so that it was compiled again
};

// Somebody who waits for a pick. The functions are called at most once each, without a lock, on some thread:
// `started` when its work begins (at once when it has), `done` when it is finished; neither after Leave().
struct PickJob;
struct PickWaiter {
  Flow flow;
  std::function<void()> started;
  std::function<void(const std::shared_ptr<PickJob>&)> done;
  bool hurries = false;  // its time is over
};

// One (problem, bucket) being tuned, wanted by one or more requests. Who may touch it: the members of the
// first group are constant; the second belongs to the thread that plans the job until it is queued, then to
// the thread that runs it; the third is guarded by the JobBoard's mutex and reached through its methods.
struct PickJob {
  // Constant after creation.
  Problem problem;
  int m_bucket = 0;
  v1::Effort effort = v1::EFFORT_BALANCED;
  bool retune = false;
  SearchLimits limits;
  TuningTarget target;
  TuningTarget lookup_target;  // whose stored picks answer it: `target`, but measured also for MODEL_ONLY
  std::string toolchain;
  std::string pick_key;

  // The planner's, then the runner's.
  Plan plan;
  std::vector<CandidateState> candidates;
  std::vector<std::shared_ptr<Kernel>> also_compile;
  std::shared_ptr<Kernel> support;        // measured only
  std::string support_refusal;            // why the driver refused the stored one, so that it was compiled again
  std::optional<TimePoint> timing_start;  // set while the limits have a budget
  bool partial = false;                   // the limits kept planned candidates from being tried
  size_t requested_candidates = 0;        // candidates [0, this) have a kernel (MODEL)

  // The board's.
  struct Shared {
    std::string flight_key;
    std::map<uint64_t, PickWaiter> waiters;  // by their number
    bool to_plan = false;                    // waits for a planner
    bool queued = false;                     // planned, waits for a runner
    bool started = false;                    // a runner took it once
    std::optional<std::string> worked_for;   // the client whose turn it took; set from planning to the end
    bool abandoned = false;                  // nobody waits any more
    bool hurried = false;                    // the deadline of who waits is over: the best so far is wanted
    bool done = false;
    absl::Status status;                                       // when done: why there is no result
    v1::TuneResult result;                                     // when done and status is OK
    std::vector<std::shared_ptr<KernelProgress>> kernels;      // all that the job needs
    std::vector<std::shared_ptr<KernelProgress>> own_kernels;  // of them, those it was the first to ask for
    std::vector<std::weak_ptr<Kernel>> compiling;              // not ready when they were asked for
    int candidates_wanted = 0;                                 // to verify and time
    int candidates_done = 0;
    int timings = 0;  // candidates timed for this job
    double gpu_busy_s = 0;
  };
  Shared shared;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_PICK_JOB_H_
