#ifndef QGEMM_SERVER_JOB_BOARD_H_
#define QGEMM_SERVER_JOB_BOARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/fair_queue.h"
#include "server/pick_job.h"

namespace qgemm {

// Where requests, planners and runners meet: which picks are in flight, who waits for them, which one is
// next. Fair between clients in planning and in running (FairQueue). Every change wakes every waiter; there
// are few of them, and changes come at the pace of compiles and timings. Thread-safe. One lock; nothing is
// called with it held but the small functions passed in.
class JobBoard {
 public:
  // Planned picks per client that are not finished. Enough to keep compilers and GPU busy; few, because each
  // holds its candidates and kernels in memory.
  static constexpr int kPlannedPerClient = 32;

  // `clock` is borrowed.
  explicit JobBoard(Clock& clock) : clock_(clock) {}

  struct Joined {
    std::shared_ptr<PickJob> job;
    uint64_t waiter = 0;   // for Leave
    bool created = false;  // this call put it there
  };
  // Joins the job in flight under `flight_key`, or puts the result of `make` there, to be planned. It then
  // stands in the waiter's flow too: whoever asks for what another client has far back in its queue does not
  // wait that long.
  Joined Join(const std::string& flight_key, const std::function<std::shared_ptr<PickJob>()>& make,
              PickWaiter waiter);
  // That waiter waits no longer; nothing happens when the job is done. When it was the last one the job is
  // withdrawn: it leaves the queue and lets go of its kernels, or its planner or runner notices.
  void Leave(const std::shared_ptr<PickJob>& job, uint64_t waiter);

  // That waiter's time is over: the job ends with the best it has once that is so for all who wait for it.
  // Whoever asks for the same from then on gets a job of their own. True: it was not hurried before.
  bool Hurry(const std::shared_ptr<PickJob>& job, uint64_t waiter);

  // The next job to plan, of a client with less than kPlannedPerClient in work. Blocks; null when stopped.
  std::shared_ptr<PickJob> NextToPlan();
  // The same without blocking: null when there is none.
  std::shared_ptr<PickJob> TryNextToPlan();
  // Hands a planned job to the runner of its kind. A job whose last waiter left meanwhile is dropped.
  void Queue(const std::shared_ptr<PickJob>& job);
  // Ends the job, once. `result` counts when `status` is OK. Its key is free from here on; its waiters are
  // told and have left.
  void Finish(const std::shared_ptr<PickJob>& job, absl::Status status, v1::TuneResult result);

  // Runs `change` with the job's shared part under the lock, then wakes waiters.
  void Update(PickJob& job, const std::function<void(PickJob::Shared&)>& change);
  // Runs `read` under the lock.
  void Read(const std::function<void()>& read);
  bool Abandoned(const PickJob& job);
  bool Hurried(const PickJob& job);
  // Of those who wait for it now; empty when it is abandoned.
  std::vector<Flow> Flows(const PickJob& job);
  // Something outside became ready: wakes waiters.
  void Notify();

  // The next job to time: the next whose kernels are all ready, else the next. Blocks; null when stopped.
  std::shared_ptr<PickJob> NextMeasured();
  // The next queued job to time whose kernels are all ready, or null; does not block.
  std::shared_ptr<PickJob> NextMeasuredReady();
  // The next job to predict whose requested kernels are all ready. Blocks; null when stopped.
  std::shared_ptr<PickJob> NextPredicted();

  // Blocks until `condition` (called under the lock) holds, the job is abandoned, another job to time is
  // ready, or the board is stopped.
  void WaitForKernels(const PickJob& job, const std::function<bool()>& condition);
  // Blocks until `condition` (called under the lock) holds or `deadline` has passed.
  void WaitUntil(TimePoint deadline, const std::function<bool()>& condition);

  // Jobs that wait for a planner or a runner, and those that a runner has.
  struct Counts {
    int waiting = 0;
    int running = 0;
  };
  Counts counts();

  // Wakes everybody; planners and runners get null and requests see stopped().
  void Stop();
  bool stopped();

 private:
  using PickQueue = FairQueue<std::shared_ptr<PickJob>>;
  // Functions to be called when the lock is released.
  using Calls = std::vector<std::function<void()>>;

  PickQueue& RunQueue(const PickJob& job) QGEMM_REQUIRES(mu_) {
    return job.target.measured ? to_measure_ : to_predict_;
  }
  std::shared_ptr<PickJob> TakeToPlanLocked() QGEMM_REQUIRES(mu_);
  std::shared_ptr<PickJob> Next(bool measured);
  std::shared_ptr<PickJob> TakeLocked(PickQueue& queue, bool only_ready, Calls& calls) QGEMM_REQUIRES(mu_);
  void FreeKeyLocked(const PickJob& job) QGEMM_REQUIRES(mu_);
  // The job is no longer planned or run.
  void EndWorkLocked(PickJob& job) QGEMM_REQUIRES(mu_);

  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ QGEMM_GUARDED_BY(mu_) = false;
  uint64_t next_waiter_ QGEMM_GUARDED_BY(mu_) = 1;
  std::unordered_map<std::string, std::shared_ptr<PickJob>> in_flight_ QGEMM_GUARDED_BY(mu_);
  PickQueue to_plan_ QGEMM_GUARDED_BY(mu_);
  PickQueue to_measure_ QGEMM_GUARDED_BY(mu_);
  PickQueue to_predict_ QGEMM_GUARDED_BY(mu_);
  std::unordered_map<std::string, int> in_work_ QGEMM_GUARDED_BY(mu_);  // by client
};

// Lets go of every kernel of the job: what nobody else wants is withdrawn. For the job's owner.
void ReleaseKernels(PickJob& job);

}  // namespace qgemm

#endif  // QGEMM_SERVER_JOB_BOARD_H_
