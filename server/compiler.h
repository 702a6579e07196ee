#ifndef QGEMM_SERVER_COMPILER_H_
#define QGEMM_SERVER_COMPILER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kernel_source.h"
#include "qgemm/internal/worker.pb.h"
#include "server/fair_queue.h"

namespace qgemm {

struct CompileTask {
  KernelSource source;
  std::string arch;
  bool want_ptx = true;
  Flow flow;  // whose it is: compiles take turns between clients
};

// A handle to queued or running work; destroying it withdraws the work unless it has started. Its callback is
// not called after Cancel() or the destructor returned.
class CompileTicket {
 public:
  virtual ~CompileTicket() = default;
  virtual void Cancel() = 0;
  // Somebody else wants it, too: it then stands in that flow as well, as long as it has not started.
  virtual void AlsoFor(const Flow& flow) = 0;
};

// Compiles kernels somewhere else than in the caller's thread. Thread-safe.
class Compiler {
 public:
  // Called once, on a thread of the compiler; must not block. InvalidArgument: the source does not compile
  // (the first error line); DeadlineExceeded: killed at its deadline; Internal: its worker died; Unavailable:
  // no worker can be started; Cancelled: the compiler was stopped.
  using Done = std::function<void(absl::StatusOr<internal::CompileReply>)>;

  virtual ~Compiler() = default;
  [[nodiscard]] virtual std::unique_ptr<CompileTicket> Compile(CompileTask task, Done done) = 0;
  // "nvrtc 13.0" once a worker has said hello; Unavailable with the reason when none can be started. Blocks
  // until the first worker has answered or failed.
  [[nodiscard]] virtual absl::StatusOr<std::string> Toolchain() = 0;
  // OK, or InvalidArgument listing the archs the toolchain knows.
  [[nodiscard]] virtual absl::Status SupportsArch(absl::string_view arch) = 0;
  virtual int num_workers() const = 0;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_COMPILER_H_
