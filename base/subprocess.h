#ifndef QGEMM_BASE_SUBPROCESS_H_
#define QGEMM_BASE_SUBPROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace qgemm {

// How a process ended.
struct ExitStatus {
  bool signaled = false;
  int code = 0;    // when not signaled
  int signal = 0;  // when signaled

  bool ok() const { return !signaled && code == 0; }
  // "exit code 3", "killed by signal 11 (Segmentation fault)".
  std::string Describe() const;
};

// What to start, and under which limits.
struct SpawnOptions {
  std::string path;                                      // the program's file; PATH is not searched
  std::vector<std::string> args;                         // without argv[0], which is `path`
  std::vector<std::pair<std::string, std::string>> env;  // set on top of the environment at Spawner::Start
  int nice = 0;                                          // added to the spawner's own
  std::optional<uint64_t> address_space_bytes;           // RLIMIT_AS
  std::optional<uint64_t> core_bytes = 0;                // RLIMIT_CORE; none = as inherited
  std::optional<int> oom_score_adj;                      // -1000..1000; higher = killed earlier
  std::vector<int> cpus;                                 // the CPUs it may run on; empty = as inherited
};

// A running or ended child. Thread-safe but for the channel, whose user is the owner's choice. Its process
// group is killed when this object goes away: nobody is left to watch it.
class ChildProcess {
 public:
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Becomes readable when the process ends. Stays owned by this object.
  int pidfd() const { return pidfd_.get(); }
  // This side of the socket pair whose other end is the child's descriptor 3. Closed when every process of
  // the group has closed it.
  UniqueFd TakeChannel() { return std::move(channel_); }

  // Waits until the process has ended and says how; at once when it had ended before. DeadlineExceeded: it
  // runs on. Unavailable: the spawner is gone and took the exit status with it; the process is gone too.
  absl::StatusOr<ExitStatus> Wait(TimePoint deadline = kNoDeadline);

  // Sends SIGKILL to the process; the spawner then kills what is left of its group before it gives the
  // process id free, so no stranger is ever hit. Harmless when it has ended.
  void KillGroup();

 private:
  friend class Spawner;
  ChildProcess(pid_t pid, UniqueFd pidfd, UniqueFd exit_pipe, UniqueFd channel)
      : pid_(pid), pidfd_(std::move(pidfd)), exit_pipe_(std::move(exit_pipe)), channel_(std::move(channel)) {}

  const pid_t pid_;
  const UniqueFd pidfd_;
  const UniqueFd exit_pipe_;  // the spawner writes the exit status here, then closes it
  UniqueFd channel_;

  Mutex mu_;
  std::optional<absl::StatusOr<ExitStatus>> ended_ QGEMM_GUARDED_BY(mu_);
};

// Starts children from a small process of its own, so that the daemon never forks once it has threads and
// gRPC, and so that the children's parent-death signal follows a thread that lives as long as the daemon.
//
// Each child leads its own process group; has stdin from /dev/null, stdout and stderr on the daemon's stderr,
// descriptor 3 as its channel (QGEMM_CHANNEL_FD=3) and no other descriptor; and dies with the spawner, which
// dies with the daemon, even by kill -9. A process that leaves its group is not followed. Thread-safe.
class Spawner {
 public:
  // Forks the spawner. To be called at the very start of main(), from its thread, before any other thread or
  // library state exists.
  static absl::StatusOr<std::unique_ptr<Spawner>> Start();
  // Kills all children and waits for the spawner to end.
  ~Spawner();
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;

  // Returns once the program runs. NotFound, PermissionDenied and so on: it could not be started, with the
  // path and the reason. Unavailable: the spawner is gone; nothing can be started any more.
  absl::StatusOr<std::unique_ptr<ChildProcess>> Spawn(const SpawnOptions& options);

  pid_t pid() const { return pid_; }

 private:
  Spawner(pid_t pid, UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}

  const pid_t pid_;

  // Held for a whole request and its reply: starting a process is rare and takes about a millisecond.
  Mutex mu_;
  UniqueFd socket_ QGEMM_GUARDED_BY(mu_);
};

// The folder of the running program's file, symbolic links resolved: where its sibling programs are.
absl::StatusOr<std::string> ProgramFolder();

}  // namespace qgemm

#endif  // QGEMM_BASE_SUBPROCESS_H_
