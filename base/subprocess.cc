#include "base/subprocess.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/fd_io.h"
#include "base/spawner_process.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

// Far above what starting a program takes, a cold network file system included.
constexpr auto kSpawnLimit = std::chrono::seconds(30);

absl::Status SpawnerGone() {
  return absl::UnavailableError(
      "the spawner process is gone: no child can be started until the daemon restarts");
}

ExitStatus FromWaitStatus(int status) {
  ExitStatus exit_status;
  if (WIFSIGNALED(status)) {
    exit_status.signaled = true;
    exit_status.signal = WTERMSIG(status);
  } else {
    exit_status.code = WEXITSTATUS(status);
  }
  return exit_status;
}

// One packet with its descriptors; `fds` is empty when none came.
bool ReceiveReply(int socket, internal::SpawnReply* reply, std::vector<UniqueFd>* fds) {
  iovec data = {reply, sizeof(*reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(internal::kNumReplyFds * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n;
  do {
    n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      fds->emplace_back(fd);
    }
  }
  return n == sizeof(*reply);
}

}  // namespace

std::string ExitStatus::Describe() const {
  if (signaled) return absl::StrCat("killed by signal ", signal, " (", strsignal(signal), ")");
  return absl::StrCat("exit code ", code);
}

ChildProcess::~ChildProcess() { KillGroup(); }

absl::StatusOr<ExitStatus> ChildProcess::Wait(TimePoint deadline) {
  {
    MutexLock lock(mu_);
    if (ended_.has_value()) return *ended_;
  }
  // After another waiter has read the status the pipe stays hung up, so all waiters wake.
  absl::Status ready = PollFd(exit_pipe_.get(), POLLIN, deadline);
  if (absl::IsDeadlineExceeded(ready)) {
    return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " still runs at the deadline"));
  }
  QGEMM_RETURN_IF_ERROR(ready);
  MutexLock lock(mu_);
  if (!ended_.has_value()) {
    int status = 0;
    ssize_t n;
    do {
      n = read(exit_pipe_.get(), &status, sizeof(status));
    } while (n < 0 && errno == EINTR);
    if (n == sizeof(status)) {
      ended_ = FromWaitStatus(status);
    } else {
      ended_ = absl::UnavailableError(
          absl::StrCat("process ", pid_, " was killed when the spawner process went away"));
    }
  }
  return *ended_;
}

void ChildProcess::KillGroup() { syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0); }

absl::StatusOr<std::unique_ptr<Spawner>> Spawner::Start() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  UniqueFd daemon_end(fds[0]);
  UniqueFd spawner_end(fds[1]);
  const pid_t daemon_pid = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "starting the spawner process");
  if (pid == 0) internal::RunSpawnerProcess(std::move(spawner_end), daemon_pid);
  return std::unique_ptr<Spawner>(new Spawner(pid, std::move(daemon_end)));
}

Spawner::~Spawner() {
  {
    MutexLock lock(mu_);
    socket_.reset();
  }
  // Its shutdown is bounded.
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<std::unique_ptr<ChildProcess>> Spawner::Spawn(const SpawnOptions& options) {
  const std::string request = internal::EncodeSpawnRequest(options);
  internal::SpawnReply reply;
  std::vector<UniqueFd> fds;
  {
    MutexLock lock(mu_);
    if (!socket_.valid()) return SpawnerGone();
    ssize_t n;
    do {
      n = send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EMSGSIZE) {
      return absl::InvalidArgumentError(absl::StrCat("cannot start '", options.path,
                                                     "': arguments and environment of ", request.size(),
                                                     " bytes are too long"));
    }
    if (n < 0 || !PollFd(socket_.get(), POLLIN, RealClock().Now() + kSpawnLimit).ok() ||
        !ReceiveReply(socket_.get(), &reply, &fds)) {
      // A late reply would be taken for the next one's.
      socket_.reset();
      return SpawnerGone();
    }
  }
  if (reply.error != 0) {
    const absl::string_view step(reply.step, strnlen(reply.step, sizeof(reply.step)));
    return ErrnoStatus(reply.error, step == "exec"
                                        ? absl::StrCat("cannot start '", options.path, "'")
                                        : absl::StrCat("cannot start '", options.path, "' (", step, ")"));
  }
  if (fds.size() != internal::kNumReplyFds) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start '", options.path, "': no file descriptors are left for its channel"));
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(reply.pid, std::move(fds[1]), std::move(fds[2]), std::move(fds[0])));
}

absl::StatusOr<std::string> ProgramFolder() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  if (n < 0) return ErrnoStatus(errno, "reading /proc/self/exe");
  const std::string file(path, n);
  return file.substr(0, file.rfind('/'));
}

}  // namespace qgemm
