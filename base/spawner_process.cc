#include "base/spawner_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/fd_io.h"

namespace qgemm::internal {
namespace {

constexpr int kChannelFd = 3;
constexpr int kErrorFd = 4;
// Tells the spawner that the daemon died. Not SIGTERM: a service manager may send that to every process, and
// then it is the daemon's to decide when its children stop.
constexpr int kParentDeathSignal = SIGUSR1;
constexpr size_t kMaxRequestBytes = 256u << 10;
constexpr auto kShutdownLimit = std::chrono::seconds(5);

class Encoder {
 public:
  void Int(int64_t value) { out_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void String(const std::string& value) {
    Int(static_cast<int64_t>(value.size()));
    out_.append(value);
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class Decoder {
 public:
  explicit Decoder(absl::string_view in) : in_(in) {}

  int64_t Int() {
    int64_t value = 0;
    if (in_.size() < sizeof(value)) {
      ok_ = false;
      return 0;
    }
    std::memcpy(&value, in_.data(), sizeof(value));
    in_.remove_prefix(sizeof(value));
    return value;
  }
  // A number of things of at least 8 bytes each.
  int64_t Count() {
    const int64_t count = Int();
    if (count < 0 || count > static_cast<int64_t>(in_.size() / sizeof(int64_t))) ok_ = false;
    return ok_ ? count : 0;
  }
  std::string String() {
    const int64_t size = Int();
    if (size < 0 || size > static_cast<int64_t>(in_.size())) ok_ = false;
    if (!ok_) return "";
    std::string value(in_.substr(0, size));
    in_.remove_prefix(size);
    return value;
  }
  bool AllRead() const { return ok_ && in_.empty(); }

 private:
  absl::string_view in_;
  bool ok_ = true;
};

template <typename T>
void EncodeOptional(const std::optional<T>& value, Encoder* out) {
  out->Int(value.has_value());
  out->Int(value.has_value() ? static_cast<int64_t>(*value) : 0);
}

template <typename T>
std::optional<T> DecodeOptional(Decoder* in) {
  const bool present = in->Int() != 0;
  const auto value = static_cast<T>(in->Int());
  if (!present) return std::nullopt;
  return value;
}

// The new process's way from fork to exec. Reports on kErrorFd what failed and ends.
[[noreturn]] void FailChild(const char* step) {
  SpawnReply reply;
  reply.error = errno;
  std::strncpy(reply.step, step, sizeof(reply.step) - 1);
  ssize_t written = write(kErrorFd, &reply, sizeof(reply));
  _exit(written == sizeof(reply) ? 127 : 126);
}

void LimitResource(decltype(RLIMIT_AS) resource, const std::optional<uint64_t>& limit, const char* step) {
  if (!limit.has_value()) return;
  const rlimit value = {static_cast<rlim_t>(*limit), static_cast<rlim_t>(*limit)};
  if (setrlimit(resource, &value) != 0) FailChild(step);
}

[[noreturn]] void RunChild(const SpawnOptions& options, int channel_fd, int error_fd, pid_t spawner_pid) {
  // The spawner's own descriptors are at 3 and 4, so a copy above them cannot be in the way of the next two.
  error_fd = fcntl(error_fd, F_DUPFD_CLOEXEC, kErrorFd + 1);
  if (dup3(error_fd, kErrorFd, O_CLOEXEC) < 0) _exit(126);
  if (dup3(channel_fd, kChannelFd, 0) < 0) FailChild("channel");
  if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0 && errno != EBADF) FailChild("stdout");
  if (close_range(kErrorFd + 1, ~0U, 0) != 0) FailChild("close_range");

  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) FailChild("PR_SET_PDEATHSIG");
  // The spawner may have died before the line above.
  if (getppid() != spawner_pid) _exit(126);
  if (setpgid(0, 0) != 0) FailChild("setpgid");

  for (int signal_number = 1; signal_number < NSIG; ++signal_number) signal(signal_number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  if (options.nice != 0) {
    errno = 0;
    if (nice(options.nice) == -1 && errno != 0) FailChild("nice");
  }
  if (options.oom_score_adj.has_value()) {
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    const std::string text = std::to_string(*options.oom_score_adj);
    if (fd < 0 || write(fd, text.data(), text.size()) < 0) FailChild("oom_score_adj");
    close(fd);
  }
  if (!options.cpus.empty()) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (const int cpu : options.cpus) CPU_SET(cpu, &cpus);
    if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0) FailChild("sched_setaffinity");
  }
  LimitResource(RLIMIT_CORE, options.core_bytes, "RLIMIT_CORE");

  for (const auto& [name, value] : options.env) setenv(name.c_str(), value.c_str(), 1);
  setenv("QGEMM_CHANNEL_FD", "3", 1);
  std::vector<char*> argv;
  argv.push_back(const_cast<char*>(options.path.c_str()));
  for (const std::string& arg : options.args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  // Last, as this process itself must still allocate.
  LimitResource(RLIMIT_AS, options.address_space_bytes, "RLIMIT_AS");
  execv(options.path.c_str(), argv.data());
  FailChild("exec");
}

class SpawnerProcess {
 public:
  SpawnerProcess(UniqueFd socket, UniqueFd signals, pid_t daemon_pid)
      : socket_(std::move(socket)), signals_(std::move(signals)), daemon_pid_(daemon_pid) {}

  void Serve() {
    while (getppid() == daemon_pid_) {
      pollfd poll_fds[2] = {{socket_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
      if (poll(poll_fds, 2, -1) < 0) continue;
      if (poll_fds[1].revents != 0) DrainSignals();
      Reap();
      if (poll_fds[0].revents != 0 && !ServeRequest()) break;
    }
    Shutdown();
  }

 private:
  void DrainSignals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) > 0) {
    }
  }

  // Collects every child that has ended. While its leader is a zombie a group's id cannot be given to anyone
  // else, so what is left of the group is killed first.
  void Reap() {
    while (true) {
      siginfo_t info = {};
      if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
      const pid_t pid = info.si_pid;
      kill(-pid, SIGKILL);
      int status = 0;
      if (waitpid(pid, &status, 0) != pid) return;
      const auto child = exit_pipes_.find(pid);
      if (child == exit_pipes_.end()) continue;
      // A pipe takes four bytes at once; when nobody holds its other end, nobody wants to know.
      if (write(child->second.get(), &status, sizeof(status)) < 0 && errno != EPIPE) abort();
      exit_pipes_.erase(child);
    }
  }

  // False when the daemon has closed the socket.
  bool ServeRequest() {
    std::string packet(kMaxRequestBytes, '\0');
    const ssize_t n = recv(socket_.get(), packet.data(), packet.size(), MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    SpawnOptions options;
    if (!DecodeSpawnRequest(absl::string_view(packet.data(), n), &options)) abort();
    SpawnReply reply;
    std::vector<UniqueFd> fds;
    Spawn(options, &reply, &fds);
    return SendReply(reply, fds);
  }

  void Spawn(const SpawnOptions& options, SpawnReply* reply, std::vector<UniqueFd>* fds) {
    const auto fail = [reply](const char* step) {
      reply->error = errno;
      std::strncpy(reply->step, step, sizeof(reply->step) - 1);
    };
    auto channel = SocketPair();
    if (!channel.ok()) return fail("socketpair");
    auto error_pipe = Pipe();
    if (!error_pipe.ok()) return fail("pipe");
    auto exit_pipe = Pipe();
    if (!exit_pipe.ok()) return fail("pipe");

    const pid_t spawner_pid = getpid();
    const pid_t pid = fork();
    if (pid < 0) return fail("fork");
    if (pid == 0) RunChild(options, channel->second.get(), error_pipe->second.get(), spawner_pid);

    // Not through <sys/pidfd.h>: glibc 2.36 declares its functions without extern "C".
    UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    const int pidfd_error = errno;
    // Ends with nothing read when exec has closed the other end.
    error_pipe->second.reset();
    ssize_t n;
    do {
      n = read(error_pipe->first.get(), reply, sizeof(*reply));
    } while (n < 0 && errno == EINTR);
    if (n != 0 || !pidfd.valid()) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
      if (n == 0) {
        errno = pidfd_error;
        fail("pidfd_open");
      }
      return;
    }
    reply->pid = pid;
    exit_pipes_[pid] = std::move(exit_pipe->second);
    fds->push_back(std::move(channel->first));
    fds->push_back(std::move(pidfd));
    fds->push_back(std::move(exit_pipe->first));
  }

  bool SendReply(const SpawnReply& reply, const std::vector<UniqueFd>& fds) {
    iovec data = {const_cast<SpawnReply*>(&reply), sizeof(reply)};
    alignas(cmsghdr) char control[CMSG_SPACE(kNumReplyFds * sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(kNumReplyFds * sizeof(int));
      for (int i = 0; i < kNumReplyFds; ++i) {
        const int fd = fds[i].get();
        std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(fd));
      }
    }
    ssize_t n;
    do {
      n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n == sizeof(reply);
  }

  void Shutdown() {
    for (const auto& [pid, exit_pipe] : exit_pipes_) kill(-pid, SIGKILL);
    // A killed process can stay for as long as the kernel works for it; the limit is for that.
    const auto limit = std::chrono::steady_clock::now() + kShutdownLimit;
    Reap();
    while (!exit_pipes_.empty() && std::chrono::steady_clock::now() < limit) {
      if (!PollFd(signals_.get(), POLLIN, limit).ok()) break;
      DrainSignals();
      Reap();
    }
  }

  const UniqueFd socket_;
  const UniqueFd signals_;
  const pid_t daemon_pid_;
  std::map<pid_t, UniqueFd> exit_pipes_;  // the write ends, of the children not yet reaped
};

}  // namespace

std::string EncodeSpawnRequest(const SpawnOptions& options) {
  Encoder out;
  out.String(options.path);
  out.Int(static_cast<int64_t>(options.args.size()));
  for (const std::string& arg : options.args) out.String(arg);
  out.Int(static_cast<int64_t>(options.env.size()));
  for (const auto& [name, value] : options.env) {
    out.String(name);
    out.String(value);
  }
  out.Int(options.nice);
  EncodeOptional(options.address_space_bytes, &out);
  EncodeOptional(options.core_bytes, &out);
  EncodeOptional(options.oom_score_adj, &out);
  out.Int(static_cast<int64_t>(options.cpus.size()));
  for (const int cpu : options.cpus) out.Int(cpu);
  return out.Take();
}

bool DecodeSpawnRequest(absl::string_view packet, SpawnOptions* options) {
  Decoder in(packet);
  options->path = in.String();
  for (int64_t left = in.Count(); left > 0; --left) options->args.push_back(in.String());
  for (int64_t left = in.Count(); left > 0; --left) {
    std::string name = in.String();
    std::string value = in.String();
    options->env.emplace_back(std::move(name), std::move(value));
  }
  options->nice = static_cast<int>(in.Int());
  options->address_space_bytes = DecodeOptional<uint64_t>(&in);
  options->core_bytes = DecodeOptional<uint64_t>(&in);
  options->oom_score_adj = DecodeOptional<int>(&in);
  for (int64_t left = in.Count(); left > 0; --left) options->cpus.push_back(static_cast<int>(in.Int()));
  return in.AllRead();
}

void RunSpawnerProcess(UniqueFd socket, pid_t daemon_pid) {
  // Its own group, so that a terminal's Ctrl-C reaches the daemon only. Nothing of the daemon's stays open
  // but stderr: a pipe held here would keep its reader waiting.
  setpgid(0, 0);
  prctl(PR_SET_NAME, "qgemm-spawner");
  if (socket.get() != kChannelFd) {
    if (dup3(socket.get(), kChannelFd, O_CLOEXEC) < 0) _exit(1);
    (void)socket.release();
    socket.reset(kChannelFd);
  }
  close_range(kChannelFd + 1, ~0U, 0);
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (dup2(null.get(), STDIN_FILENO) < 0 || dup2(null.get(), STDOUT_FILENO) < 0) _exit(1);
  null.reset();

  for (int signal_number = 1; signal_number < NSIG; ++signal_number) signal(signal_number, SIG_DFL);
  sigset_t signals;
  sigfillset(&signals);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, kParentDeathSignal);
  UniqueFd signal_fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signal_fd.valid() || prctl(PR_SET_PDEATHSIG, kParentDeathSignal) != 0) _exit(1);

  SpawnerProcess(std::move(socket), std::move(signal_fd), daemon_pid).Serve();
  _exit(0);
}

}  // namespace qgemm::internal
