#include "tests/system/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>

#include "base/check.h"

namespace qgemm {

DaemonProcess::DaemonProcess(const std::string& program, const std::vector<std::string>& args,
                             const std::vector<std::pair<std::string, std::string>>& env) {
  int ends[2];
  QGEMM_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  output_.reset(ends[0]);
  UniqueFd write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 2);

  std::vector<std::string> words = {program};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (const char* equals = std::strchr(*entry, '=')) {
      variables[std::string(*entry, equals - *entry)] = equals + 1;
    }
  }
  for (const auto& [name, value] : env) variables[name] = value;
  std::vector<std::string> assignments;
  for (const auto& [name, value] : variables) assignments.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& assignment : assignments) envp.push_back(assignment.data());
  envp.push_back(nullptr);

  QGEMM_CHECK(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), envp.data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  pidfd_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  QGEMM_CHECK(pidfd_.valid());
  write_end.reset();
  reader_ = std::thread([this] { ReadOutput(); });
}

DaemonProcess::~DaemonProcess() {
  if (!exit_code_.has_value()) {
    Signal(SIGKILL);
    AwaitExit();
  }
  reader_.join();
}

void DaemonProcess::ReadOutput() {
  std::string line;
  char buffer[4096];
  while (true) {
    const ssize_t size = read(output_.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    for (ssize_t i = 0; i < size; ++i) {
      if (buffer[i] != '\n') {
        line.push_back(buffer[i]);
        continue;
      }
      MutexLock lock(mu_);
      lines_.push_back(std::move(line));
      line.clear();
      changed_.NotifyAll();
    }
  }
  MutexLock lock(mu_);
  if (!line.empty()) lines_.push_back(std::move(line));
  closed_ = true;
  changed_.NotifyAll();
}

std::optional<std::string> DaemonProcess::AwaitLine(const std::string& text, int number) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  MutexLock lock(mu_);
  size_t next = 0;
  int seen = 0;
  while (true) {
    for (; next < lines_.size(); ++next) {
      if (lines_[next].find(text) != std::string::npos && ++seen == number) return lines_[next];
    }
    if (closed_ || !changed_.WaitUntil(mu_, deadline)) return std::nullopt;
  }
}

std::string DaemonProcess::Output() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  MutexLock lock(mu_);
  while (exit_code_.has_value() && !closed_ && changed_.WaitUntil(mu_, deadline)) {
  }
  std::string all;
  for (const std::string& line : lines_) all += line + "\n";
  return all;
}

void DaemonProcess::Signal(int signal_number) {
  syscall(SYS_pidfd_send_signal, pidfd_.get(), signal_number, nullptr, 0);
}

std::optional<int> DaemonProcess::AwaitExit(std::chrono::milliseconds limit) {
  if (exit_code_.has_value()) return exit_code_;
  pollfd wait{pidfd_.get(), POLLIN, 0};
  int ready = 0;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  do {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    ready = poll(&wait, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return std::nullopt;
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) return std::nullopt;
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return exit_code_;
}

}  // namespace qgemm
