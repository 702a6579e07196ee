#ifndef QGEMM_SERVER_COMPILE_WORKER_PROCESS_H_
#define QGEMM_SERVER_COMPILE_WORKER_PROCESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/framed_stream.h"
#include "base/subprocess.h"
#include "qgemm/internal/worker.pb.h"

namespace qgemm {

// One running qgemm-compile, seen from the daemon. Not thread-safe. Its process group is killed when this
// object goes away.
class CompileWorkerProcess {
 public:
  // Asked a few times a second while this waits for the worker; true ends the wait with Cancelled.
  using GiveUp = std::function<bool()>;

  // Starts a worker and waits for its hello. Unavailable: it cannot be started, died, or says that it cannot
  // work; one sentence with the reason.
  static absl::StatusOr<std::unique_ptr<CompileWorkerProcess>> Start(Spawner* spawner,
                                                                     const SpawnOptions& program,
                                                                     TimePoint deadline,
                                                                     const GiveUp& give_up);

  const internal::WorkerHello& hello() const { return hello_; }

  // Compiles one kernel. The reply may hold a compiler's error. InvalidArgument: the source is too long for a
  // frame. DeadlineExceeded: not done at `deadline`; Internal: the worker died or sent nonsense; Aborted: it
  // was ended by a SIGKILL or SIGTERM that nobody here sent, which says nothing about the kernel (but may be
  // the kernel of the system that is short of memory); Cancelled: `give_up` said so. After any of these four
  // the worker is dead.
  absl::StatusOr<internal::CompileReply> Compile(const internal::CompileRequest& request, TimePoint deadline,
                                                 const GiveUp& give_up);

  // False once the process has ended.
  bool IsAlive() const;
  // Kernels compiled so far.
  int num_compiles() const { return num_compiles_; }
  // Resident memory in bytes; 0 when it has ended.
  int64_t ResidentBytes() const;

 private:
  CompileWorkerProcess(std::unique_ptr<ChildProcess> child, UniqueFd channel)
      : child_(std::move(child)), channel_(std::move(channel)) {}
  // Reads a frame; DeadlineExceeded, Cancelled, or the stream's own error.
  absl::Status Read(google::protobuf::MessageLite* message, TimePoint deadline, const GiveUp& give_up);
  // Makes sure that the process has ended and tells, as one clause, how it ended: "was killed by signal 11
  // (...)". `from_outside`, if not null: whether somebody else ended it.
  std::string EndAndDescribe(const absl::Status& stream_error, bool* from_outside = nullptr);

  const std::unique_ptr<ChildProcess> child_;
  FramedStream channel_;
  internal::WorkerHello hello_;
  int num_compiles_ = 0;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_COMPILE_WORKER_PROCESS_H_
