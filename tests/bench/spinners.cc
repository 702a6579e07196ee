#include "tests/bench/spinners.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace qgemm {

Spinners::Spinners(int count) {
  for (int i = 0; i < count; ++i) {
    const pid_t pid = fork();
    if (pid < 0) break;
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      raise(SIGSTOP);
      for (volatile unsigned spin = 0;;) spin = spin + 1;
    }
    pids_.push_back(pid);
    waitpid(pid, nullptr, WUNTRACED);
  }
}

Spinners::~Spinners() {
  Send(SIGKILL);
  for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
}

void Spinners::Run() { Send(SIGCONT); }
void Spinners::Pause() { Send(SIGSTOP); }

void Spinners::Send(int signal) {
  for (const pid_t pid : pids_) kill(pid, signal);
}

}  // namespace qgemm
