#ifndef QGEMM_SERVER_FALLBACK_COMPILER_H_
#define QGEMM_SERVER_FALLBACK_COMPILER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "server/compiler.h"

namespace qgemm {

// The workers' compiler and, while no worker can be started, another one inside this process: one kernel at a
// time, without limits, and a crash of it is a crash of the daemon. For those who asked for that by name.
// Thread-safe; contract of Compiler, but a compile that has begun in this process is not killed, its answer
// is dropped. When workers can be started again they compile what comes next.
class FallbackCompiler : public Compiler {
 public:
  struct InProcess {
    std::string toolchain;
    std::vector<std::string> archs;
    std::function<absl::StatusOr<internal::CompileReply>(const CompileTask&)> compile;
  };

  // `workers` is borrowed. `load` opens the other compiler; called when it is first needed, again if it
  // failed.
  FallbackCompiler(Compiler& workers, std::function<absl::StatusOr<InProcess>()> load);

  std::unique_ptr<CompileTicket> Compile(CompileTask task, Done done) override;
  // The workers'; else this process's. Unavailable with both reasons.
  absl::StatusOr<std::string> Toolchain() override;
  absl::Status SupportsArch(absl::string_view arch) override;
  int num_workers() const override { return workers_.num_workers(); }

 private:
  class Job;
  class Ticket;

  absl::StatusOr<const InProcess*> Loaded();
  void CompileHere(const std::shared_ptr<Job>& job, const absl::Status& why);

  Compiler& workers_;
  const std::function<absl::StatusOr<InProcess>()> load_;
  std::atomic<bool> warned_{false};

  Mutex mu_;
  std::unique_ptr<const InProcess> loaded_ QGEMM_GUARDED_BY(mu_);
  ThreadPoolExecutor executor_{"compile-here", 1};
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_FALLBACK_COMPILER_H_
