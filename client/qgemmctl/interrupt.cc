#include "client/qgemmctl/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "client/qgemmctl/exit_code.h"

namespace qgemm {
namespace {

// What a cancelled call needs to unwind, and a writer of the result to finish.
constexpr int kGraceMs = 2000;

sigset_t WatchedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

[[noreturn]] void EndProcess() {
  static constexpr char kMessage[] = "qgemmctl: interrupted\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(static_cast<int>(ExitCode::kInterrupted));
}

}  // namespace

void InterruptWatch::BlockSignals() {
  const sigset_t signals = WatchedSignals();
  QGEMM_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
}

InterruptWatch::InterruptWatch(std::function<void()> on_interrupt) : on_interrupt_(std::move(on_interrupt)) {
  const sigset_t signals = WatchedSignals();
  signal_fd_.reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  stop_fd_.reset(eventfd(0, EFD_CLOEXEC));
  QGEMM_CHECK(signal_fd_.valid() && stop_fd_.valid());
  thread_ = std::thread([this] { Run(); });
}

InterruptWatch::~InterruptWatch() {
  const uint64_t one = 1;
  QGEMM_CHECK(write(stop_fd_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

void InterruptWatch::Run() {
  while (true) {
    pollfd fds[] = {{signal_fd_.get(), POLLIN, 0}, {stop_fd_.get(), POLLIN, 0}};
    const int ready = poll(fds, 2, interrupted_ ? kGraceMs : -1);
    if (ready < 0) {
      QGEMM_CHECK(errno == EINTR);
      continue;
    }
    if (ready == 0) EndProcess();
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    if (interrupted_.exchange(true)) EndProcess();
    on_interrupt_();
  }
}

}  // namespace qgemm
