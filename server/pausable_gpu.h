#ifndef QGEMM_SERVER_PAUSABLE_GPU_H_
#define QGEMM_SERVER_PAUSABLE_GPU_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/gpu.h"

namespace qgemm {

// A GPU that can be given back for a while: to whoever asks (pause), or because nothing uses it (idle).
// Giving back ends the GPU process and lets go of the lock that says whose the GPU is. Work goes on where it
// stopped: the GPU below prepares again by itself.
//
// Gpu's calls come from one thread, as ever; while paused they wait. Everything else is thread-safe.
class PausableGpu : public Gpu {
 public:
  struct Hooks {
    std::function<void()> release;          // ends the process, lets go of the lock
    std::function<absl::Status()> acquire;  // takes the lock; Unavailable says who has it
  };
  // `gpu` and `clock` are borrowed. The lock is held at the beginning.
  PausableGpu(Gpu& gpu, Clock& clock, Hooks hooks);

  // Gives the GPU back when the call that uses it has ended. DeadlineExceeded: that has not ended after
  // `patience`; it is given back as soon as it does. OK also when it is paused already.
  absl::Status Pause(Duration patience);
  // Takes the lock again. Unavailable: somebody else has the GPU now; it stays paused. OK also when it is not
  // paused.
  absl::Status Resume();
  // Gives the GPU back when it has not been used for `idle`. The next use takes it again.
  void ReleaseIfIdle(Duration idle);
  // Calls that wait, and later ones, answer Unavailable.
  void Stop();

  bool paused();
  // Whether the lock is held; false: given back.
  bool held();

  absl::StatusOr<GpuInfo> Describe() override;
  void SetSupportKernels(std::string cubin) override;
  absl::Status Prepare(const Problem& problem, int64_t m) override;
  absl::StatusOr<internal::ScreenReply> Screen(const GpuCandidate& candidate, double tolerance,
                                               absl::Duration time_budget) override;
  absl::StatusOr<std::vector<internal::Timing>> Finals(const std::vector<GpuCandidate>& candidates,
                                                       absl::Duration time_budget, double tie_band) override;
  void SetWithdrawn(const std::function<bool()>& withdrawn) override { gpu_.SetWithdrawn(withdrawn); }
  double busy_seconds() const override { return gpu_.busy_seconds(); }

 private:
  // Waits while paused, then keeps others out until Leave. Unavailable: stopped, or the lock is another's.
  absl::Status Enter();
  void Leave();
  // Gives back what is held. With busy_ set by the caller, so that it has the GPU to itself.
  void Release() QGEMM_EXCLUDES(mu_);

  Gpu& gpu_;
  Clock& clock_;
  const Hooks hooks_;
  std::string support_;  // the GPU thread's

  Mutex mu_;
  CondVar changed_;
  bool paused_ QGEMM_GUARDED_BY(mu_) = false;
  bool busy_ QGEMM_GUARDED_BY(mu_) = false;  // somebody is between Enter and Leave, or takes or gives back
  bool held_ QGEMM_GUARDED_BY(mu_) = true;
  bool stopped_ QGEMM_GUARDED_BY(mu_) = false;
  TimePoint last_use_ QGEMM_GUARDED_BY(mu_);
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_PAUSABLE_GPU_H_
