#ifndef QGEMM_SERVER_GPU_PROCESS_H_
#define QGEMM_SERVER_GPU_PROCESS_H_

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/framed_stream.h"
#include "base/subprocess.h"
#include "server/gpu.h"

namespace qgemm {

struct GpuProcessOptions {
  std::string program;  // qgemm-time's path; empty: beside the running program
  std::string device;   // "auto" or a GPU's UUID
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<int> cpus;           // the cores it may use; empty: all
  bool host_timed = false;         // qgemm-time --host-timed: to show what graphs are for
  bool rewarm = true;              // false: qgemm-time --no-rewarm, to show what rewarming is for
  int placements = 0;              // qgemm-time --placements; 0: as many as it likes
  int64_t memory_limit_bytes = 0;  // what it may allocate on the GPU; 0: no limit
  std::string sample_log;          // file to which it appends every sample; empty: none

  // A request that takes longer is a hang: the process is killed. Timing budgets come on top,
  // twice: a disturbed timing is repeated.
  Duration start_deadline = std::chrono::seconds(60);
  Duration prepare_deadline = std::chrono::seconds(60);
  Duration run_deadline = std::chrono::seconds(10);
  // How long a request goes on that nobody wants any more: most end by themselves, and a new process costs a
  // second.
  Duration withdrawn_grace = std::chrono::milliseconds(300);
  // After a failed start; doubles up to the maximum with each further one.
  Duration first_backoff = std::chrono::seconds(1);
  Duration max_backoff = std::chrono::seconds(60);
};

// The GPU behind a qgemm-time child. The child is started by the first call that needs it, killed when it
// does not answer in time, and started again, prepared as before, by the next call. Used by one thread but
// for busy_seconds().
//
// A loss during Screen is blamed on its candidate (HANG, LAUNCH) if a new process comes up; a process that
// somebody else killed is given the candidate once more. A start that failed is not tried again before its
// back-off is over: until then calls answer Unavailable with the reason at once.
class GpuProcess : public Gpu {
 public:
  // `spawner` and `clock` are borrowed; the clock is used for the back-off only.
  GpuProcess(Spawner* spawner, GpuProcessOptions options, Clock* clock);
  ~GpuProcess() override;

  absl::StatusOr<GpuInfo> Describe() override;
  void SetSupportKernels(std::string cubin) override;
  absl::Status Prepare(const Problem& problem, int64_t m) override;
  absl::StatusOr<internal::ScreenReply> Screen(const GpuCandidate& candidate, double tolerance,
                                               absl::Duration time_budget) override;
  absl::StatusOr<std::vector<internal::Timing>> Finals(const std::vector<GpuCandidate>& candidates,
                                                       absl::Duration time_budget, double tie_band) override;
  // A call that is withdrawn for longer than the grace answers Cancelled, and the process is killed.
  void SetWithdrawn(const std::function<bool()>& withdrawn) override { withdrawn_ = withdrawn; }
  double busy_seconds() const override { return static_cast<double>(busy_microseconds_) * 1e-6; }

  // Called after each start of a child with what it says of the GPU, on the thread of the call that started
  // it. To be set before that.
  void OnStart(std::function<void(const GpuInfo&)> on_start) { on_start_ = std::move(on_start); }

  // The child's process id; 0 when none runs.
  int pid() const;
  // How often a child was started.
  int starts() const { return starts_; }
  // Ends the child and with it the use of the GPU; the next call starts another.
  void Stop();

 private:
  // Why a request got no answer.
  struct Loss {
    internal::CandidateFailure failure;
    std::string reason;
    bool killed_by_others = false;
  };
  struct Prepared {
    Problem problem;
    int64_t m = 0;
  };

  absl::Status EnsureStarted();
  absl::Status Start();
  absl::Status EnsurePrepared();
  // Sends the request and waits for its reply. An error status: the process answered that the request failed,
  // or (Cancelled) it was withdrawn and the process killed.
  // With `loss` set on return the process is gone and the status is Unavailable.
  absl::StatusOr<internal::RunnerReply> Exchange(internal::RunnerRequest request, Duration limit,
                                                 std::optional<Loss>* loss);
  // Waits for the reply. Cancelled: withdrawn.
  absl::Status Receive(internal::RunnerReply* reply, TimePoint deadline);
  Loss EndAfter(const absl::Status& channel_error);
  internal::Candidate ToProto(const GpuCandidate& candidate);

  Spawner* const spawner_;
  const GpuProcessOptions options_;
  Clock* const clock_;
  std::atomic<int64_t> busy_microseconds_{0};

  // The running child; null when there is none.
  std::unique_ptr<ChildProcess> child_;
  std::unique_ptr<FramedStream> channel_;
  GpuInfo info_;
  bool support_sent_ = false;
  bool prepared_sent_ = false;
  std::list<std::string> kernels_sent_;  // SHA-256, last used first

  // What survives the child.
  std::string support_cubin_;
  std::optional<Prepared> prepared_;
  std::function<bool()> withdrawn_;
  std::function<void(const GpuInfo&)> on_start_;
  uint64_t next_id_ = 1;
  int starts_ = 0;
  absl::Status start_error_;  // of the last start
  TimePoint next_start_{};
  Duration backoff_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_GPU_PROCESS_H_
