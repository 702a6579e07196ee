#ifndef QGEMM_TESTS_UNIT_CACHE_CHILD_PROCESS_H_
#define QGEMM_TESTS_UNIT_CACHE_CHILD_PROCESS_H_

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <string>

#include "base/unique_fd.h"

namespace qgemm {

// A forked child that runs `body` and tells the parent lines through a pipe. Fork only while the parent has
// no store open: its threads and its lock would be copied. The child is killed and reaped at the latest here.
class ChildProcess {
 public:
  using Say = std::function<void(const std::string& line)>;

  // `body`'s result is the exit status.
  explicit ChildProcess(const std::function<int(const Say&)>& body) {
    int ends[2];
    if (pipe(ends) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      const int out = ends[1];
      _exit(body([out](const std::string& line) {
        const std::string text = line + "\n";
        if (write(out, text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(99);
      }));
    }
    close(ends[1]);
    in_.reset(ends[0]);
  }
  ~ChildProcess() {
    if (pid_ > 0) Kill();
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  // The next line; empty when the child has ended and all it said was read.
  std::string ReadLine() {
    std::string line;
    char c = 0;
    while (true) {
      const ssize_t got = read(in_.get(), &c, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return "";
      if (c == '\n') return line;
      line.push_back(c);
    }
  }

  void Kill() {
    kill(pid_, SIGKILL);
    Wait();
  }

  // The status of waitpid().
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd in_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_UNIT_CACHE_CHILD_PROCESS_H_
