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

sigset_t WatchedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
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
    if (poll(fds, 2, -1) < 0) {
      QGEMM_CHECK(errno == EINTR);
      continue;
    }
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    if (interrupted_.exchange(true)) _exit(static_cast<int>(ExitCode::kInterrupted));
    on_interrupt_();
  }
}

}  // namespace qgemm
