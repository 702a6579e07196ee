#ifndef QGEMM_TESTS_SYSTEM_DAEMON_PROCESS_H_
#define QGEMM_TESTS_SYSTEM_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace qgemm {

// A real qgemmd (or another program) whose log is read line by line. Killed at the latest by the destructor.
class DaemonProcess {
 public:
  // Starts `program` with `args`, the caller's environment and `env` on top.
  DaemonProcess(const std::string& program, const std::vector<std::string>& args,
                const std::vector<std::pair<std::string, std::string>>& env = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Waits for the `number`th output line that contains `text`; nullopt when the program ended or a minute
  // passed without it.
  std::optional<std::string> AwaitLine(const std::string& text, int number = 1);
  // Everything it printed so far, standard output and error together; once it has ended, all of it.
  std::string Output();
  void Signal(int signal_number);
  // Waits for the end: the exit code, or 128 + the signal's number; nullopt when it still runs after `limit`.
  std::optional<int> AwaitExit(std::chrono::milliseconds limit = std::chrono::seconds(60));

 private:
  void ReadOutput();

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd output_;
  std::optional<int> exit_code_;

  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> lines_ QGEMM_GUARDED_BY(mu_);
  bool closed_ QGEMM_GUARDED_BY(mu_) = false;
  std::thread reader_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_SYSTEM_DAEMON_PROCESS_H_
