#ifndef QGEMM_SERVER_JOB_BOARD_H_
#define QGEMM_SERVER_JOB_BOARD_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/pick_job.h"

namespace qgemm {

// Where requests and runner threads meet: which jobs are in flight, who waits for them, which one is next.
// Every change wakes every waiter; there are few of them, and changes come at the pace of compiles and
// timings. Thread-safe. One lock; nothing is called with it held but the small functions passed in.
class JobBoard {
 public:
  // `clock` is borrowed.
  explicit JobBoard(Clock& clock) : clock_(clock) {}

  struct Joined {
    std::shared_ptr<PickJob> job;
    bool created = false;  // the caller has to plan and queue it
  };
  // Joins the job in flight under `flight_key`, or puts the result of `make` there. The caller waits for the
  // job until it calls Leave.
  Joined Join(const std::string& flight_key, const std::function<std::shared_ptr<PickJob>()>& make);
  // The caller waits no longer. When it was the last and the job is not done, the job is withdrawn: it leaves
  // the queue and lets go of its kernels, or its runner notices at its next candidate.
  void Leave(const std::shared_ptr<PickJob>& job);

  // Hands a planned job to the runner of its kind. A job whose last waiter left meanwhile is dropped.
  void Queue(const std::shared_ptr<PickJob>& job);
  // Ends the job, once. `result` counts when `status` is OK. Its key is free from here on.
  void Finish(const std::shared_ptr<PickJob>& job, absl::Status status, v1::TuneResult result);

  // Runs `change` with the job's shared part under the lock, then wakes waiters.
  void Update(PickJob& job, const std::function<void(PickJob::Shared&)>& change);
  // Runs `read` under the lock.
  void Read(const std::function<void()>& read);
  bool Abandoned(const PickJob& job);
  // Something outside became ready: wakes waiters.
  void Notify();

  // The next job to time: the first whose kernels are all ready, else the first. Blocks; null when stopped.
  std::shared_ptr<PickJob> NextMeasured();
  // The first queued job to time whose kernels are all ready, or null; does not block.
  std::shared_ptr<PickJob> NextMeasuredReady();
  // The next job to predict whose requested kernels are all ready. Blocks; null when stopped.
  std::shared_ptr<PickJob> NextPredicted();

  // Blocks until `condition` (called under the lock) holds, the job is abandoned, another job to time is
  // ready, or the board is stopped.
  void WaitForKernels(const PickJob& job, const std::function<bool()>& condition);
  // Blocks until `condition` (called under the lock) holds or `deadline` has passed.
  void WaitUntil(TimePoint deadline, const std::function<bool()>& condition);

  // Wakes everybody; runners get null and requests see stopped().
  void Stop();
  bool stopped();

 private:
  std::shared_ptr<PickJob> TakeLocked(std::deque<std::shared_ptr<PickJob>>& queue, bool only_ready)
      QGEMM_REQUIRES(mu_);
  void FreeKeyLocked(const PickJob& job) QGEMM_REQUIRES(mu_);

  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ QGEMM_GUARDED_BY(mu_) = false;
  std::unordered_map<std::string, std::shared_ptr<PickJob>> in_flight_ QGEMM_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<PickJob>> to_measure_ QGEMM_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<PickJob>> to_predict_ QGEMM_GUARDED_BY(mu_);
};

// Lets go of every kernel of the job: what nobody else wants is withdrawn. For the job's owner.
void ReleaseKernels(PickJob& job);

}  // namespace qgemm

#endif  // QGEMM_SERVER_JOB_BOARD_H_
