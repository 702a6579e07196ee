#ifndef QGEMM_SERVER_COMPILE_POOL_H_
#define QGEMM_SERVER_COMPILE_POOL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/subprocess.h"
#include "server/compiler.h"

namespace qgemm {

struct CompilePoolOptions {
  SpawnOptions worker;  // the program qgemm-compile and its limits: CompileWorkerProgram()
  int num_workers = 1;
  Duration compile_limit = std::chrono::seconds(120);  // per kernel; then its worker is killed
  Duration start_limit = std::chrono::seconds(30);     // from start to hello
  // A worker is replaced after this many kernels, or when its resident memory is above that.
  int max_compiles_per_worker = 2000;
  int64_t max_worker_bytes = int64_t{1} << 30;
  // Waits between attempts to start a worker: the first, doubled each time up to the last.
  Duration first_backoff = std::chrono::milliseconds(100);
  Duration last_backoff = std::chrono::seconds(30);
  // The longest wait after workers that started well but died of what they compiled.
  Duration last_crash_backoff = std::chrono::seconds(1);
};

// The program at `path` as a compile worker is to run: without GPUs, niced, no core files, limited in memory
// and the first to go when memory is short.
SpawnOptions CompileWorkerProgram(const std::string& path);

// The task as a worker is told it.
internal::CompileRequest MakeCompileRequest(const CompileTask& task, uint64_t id);

// A Compiler over worker processes: one queue, fair between clients (FairQueue), each worker
// takes the next task when it is free. The first worker is started at once, the others when there is work for
// them.
//
// A task whose worker dies is tried once more on a fresh worker, then fails with how it died; no other task
// is touched. A worker that somebody else killed (SIGKILL, SIGTERM) does not count so: the task is tried four
// more times, with growing waits. While no worker can be started every task fails with Unavailable and the
// reason; starting is tried again with growing waits, and the first success ends that state.
//
// Thread-safe. Callbacks run on the pool's threads, without its lock. Cancel() of a task whose callback is
// running waits for it (but not on the callback's own thread): do not hold a lock then that the callback
// takes. A running compile that was cancelled is killed unless it ends within half a second.
class CompilePool : public Compiler {
 public:
  struct Stats {
    int workers_running = 0;  // said hello and not ended
    int workers_started = 0;  // since the start, as the following
    int failed_starts = 0;
    int workers_died = 0;
    int workers_recycled = 0;
    int queued = 0;
  };

  // `spawner` and `clock` outlive the pool. `clock` times the waits between attempts; limits of real
  // processes are on the real clock.
  CompilePool(Spawner* spawner, Clock* clock, CompilePoolOptions options);
  // Kills the workers. Tasks not done fail with Cancelled, their callbacks run before this returns.
  ~CompilePool() override;

  std::unique_ptr<CompileTicket> Compile(CompileTask task, Done done) override;
  absl::StatusOr<std::string> Toolchain() override;
  absl::Status SupportsArch(absl::string_view arch) override;
  int num_workers() const override { return num_workers_; }

  Stats stats() const;

 private:
  struct Job;
  class Shared;
  class Ticket;
  class Slot;

  const int num_workers_;
  const std::shared_ptr<Shared> shared_;  // kept by tickets too, which may outlive the pool
  std::vector<std::thread> threads_;      // one per worker
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_COMPILE_POOL_H_
