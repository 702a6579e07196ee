// The program that subprocess_test starts: its first argument says what it does. "daemon" stands for qgemmd
// itself: it starts a spawner and a child of its own.

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/subprocess.h"

namespace {

constexpr int kChannel = 3;

void Say(int fd, const std::string& text) {
  if (write(fd, text.data(), text.size()) < 0) _exit(120);
}

[[noreturn]] void Hang() {
  while (true) pause();
}

// Lists the open descriptors, that of the listing left out.
std::string OpenDescriptors() {
  std::string list;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(folder)) list += std::to_string(fd) + " ";
  }
  closedir(folder);
  return list;
}

// Opens the named pipe, says so, and holds it for ever, as its own child does.
[[noreturn]] void HoldPipe(const char* path) {
  const int fd = open(path, O_WRONLY);
  if (fd < 0) _exit(121);
  if (fork() == 0) {
    Say(fd, "g");
    Hang();
  }
  Say(fd, "c");
  Hang();
}

int RunDaemon(const char* self, const char* pipe_path) {
  auto spawner = qgemm::Spawner::Start();
  if (!spawner.ok()) return 122;
  auto child = (*spawner)->Spawn({.path = self, .args = {"hold-pipe", pipe_path}});
  if (!child.ok()) return 123;
  Hang();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "exit") return std::atoi(argv[2]);
  if (mode == "signal") {
    raise(std::atoi(argv[2]));
    return 124;
  }
  if (mode == "hang") {
    Say(kChannel, "r");
    Hang();
  }
  if (mode == "hang-with-child" || mode == "exit-with-child") {
    if (fork() == 0) {
      Say(kChannel, "g");
      Hang();
    }
    if (mode == "exit-with-child") return 0;
    Say(kChannel, "c");
    Hang();
  }
  if (mode == "descriptors") Say(kChannel, OpenDescriptors());
  if (mode == "environment") {
    const char* value = std::getenv(argv[2]);
    Say(kChannel, value == nullptr ? "(unset)" : value);
  }
  if (mode == "limits") {
    rlimit address_space;
    rlimit core;
    getrlimit(RLIMIT_AS, &address_space);
    getrlimit(RLIMIT_CORE, &core);
    Say(kChannel, std::to_string(address_space.rlim_cur) + " " + std::to_string(core.rlim_cur) + " " +
                      std::to_string(getpriority(PRIO_PROCESS, 0)) + " " + std::to_string(sched_getcpu()));
  }
  if (mode == "group") Say(kChannel, getpgrp() == getpid() ? "leader" : "follower");
  if (mode == "signals") {
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, nullptr, &blocked);
    struct sigaction action;
    sigaction(SIGPIPE, nullptr, &action);
    Say(kChannel, std::string(sigisemptyset(&blocked) ? "none blocked" : "some blocked") +
                      (action.sa_handler == SIG_DFL ? ", default" : ", not default"));
  }
  if (mode == "hold-pipe") HoldPipe(argv[2]);
  if (mode == "daemon") return RunDaemon(argv[0], argv[2]);
  return 0;
}
