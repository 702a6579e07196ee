#include "base/subprocess.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fd_io.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

// Never reached by a passing test.
TimePoint Patience() { return RealClock().Now() + std::chrono::seconds(20); }

// Reads `size` bytes, fewer at the end of the stream; fails the test when they do not come.
std::string ReadBytes(int fd, size_t size) {
  std::string bytes;
  while (bytes.size() < size) {
    const absl::Status ready = PollFd(fd, POLLIN, Patience());
    EXPECT_TRUE(ready.ok()) << ready;
    if (!ready.ok()) break;
    char byte;
    const ssize_t n = read(fd, &byte, 1);
    if (n <= 0) break;
    bytes.push_back(byte);
  }
  return bytes;
}
std::string ReadToEnd(int fd) { return ReadBytes(fd, 1 << 20); }

// AddressSanitizer needs terabytes of address space; ThreadSanitizer accepts no limit at all.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kAddressSpace = RLIM_INFINITY;
#else
constexpr uint64_t kAddressSpace = uint64_t{1} << 46;
#endif

class SubprocessTest : public testing::Test {
 protected:
  void SetUp() override {
    auto spawner = Spawner::Start();
    ASSERT_TRUE(spawner.ok()) << spawner.status();
    spawner_ = *std::move(spawner);
  }

  std::unique_ptr<ChildProcess> Spawn(std::vector<std::string> args) {
    SpawnOptions options;
    options.path = TEST_CHILD;
    options.args = std::move(args);
    return SpawnWith(options);
  }
  std::unique_ptr<ChildProcess> SpawnWith(const SpawnOptions& options) {
    auto child = spawner_->Spawn(options);
    EXPECT_TRUE(child.ok()) << child.status();
    return child.ok() ? *std::move(child) : nullptr;
  }
  // What a child that ends by itself wrote to its channel.
  std::string Output(std::vector<std::string> args) {
    std::unique_ptr<ChildProcess> child = Spawn(std::move(args));
    return ReadToEnd(child->TakeChannel().get());
  }

  std::unique_ptr<Spawner> spawner_;
};

TEST_F(SubprocessTest, ReportsExitCode) {
  auto status = Spawn({"exit", "3"})->Wait(Patience());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->code, 3);
  EXPECT_FALSE(status->ok());
  EXPECT_EQ(status->Describe(), "exit code 3");
}

TEST_F(SubprocessTest, ReportsSignal) {
  auto status = Spawn({"signal", std::to_string(SIGTERM)})->Wait(Patience());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_TRUE(status->signaled);
  EXPECT_EQ(status->Describe(), "killed by signal 15 (Terminated)");
}

TEST_F(SubprocessTest, NoExitIsMissedWhenManyEndAtOnce) {
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (int i = 0; i < 40; ++i) children.push_back(Spawn({"exit", std::to_string(i)}));
  for (int i = 0; i < 40; ++i) {
    auto status = children[i]->Wait(Patience());
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->code, i);
  }
}

TEST_F(SubprocessTest, ExitIsToldToEveryWaiterAndAgainLater) {
  std::unique_ptr<ChildProcess> child = Spawn({"hang"});
  const auto wait = [&child] {
    auto status = child->Wait(Patience());
    EXPECT_TRUE(status.ok() && status->signal == SIGKILL);
  };
  std::thread first(wait);
  std::thread second(wait);
  child->KillGroup();
  first.join();
  second.join();
  wait();
}

TEST_F(SubprocessTest, PidfdIsReadableOnceTheProcessEnded) {
  std::unique_ptr<ChildProcess> child = Spawn({"hang"});
  EXPECT_TRUE(absl::IsDeadlineExceeded(PollFd(child->pidfd(), POLLIN, RealClock().Now())));
  child->KillGroup();
  EXPECT_TRUE(PollFd(child->pidfd(), POLLIN, Patience()).ok());
}

TEST_F(SubprocessTest, WaitEndsAtItsDeadlineWhileTheProcessRuns) {
  std::unique_ptr<ChildProcess> child = Spawn({"hang"});
  EXPECT_TRUE(absl::IsDeadlineExceeded(child->Wait(RealClock().Now()).status()));
}

TEST_F(SubprocessTest, KillGroupTakesGrandchildren) {
  std::unique_ptr<ChildProcess> child = Spawn({"hang-with-child"});
  const UniqueFd channel = child->TakeChannel();
  EXPECT_EQ(ReadBytes(channel.get(), 2).size(), 2);
  child->KillGroup();
  // The end of the stream: both have closed it.
  EXPECT_EQ(ReadToEnd(channel.get()), "");
}

TEST_F(SubprocessTest, GrandchildrenDieWhenTheLeaderExits) {
  std::unique_ptr<ChildProcess> child = Spawn({"exit-with-child"});
  const UniqueFd channel = child->TakeChannel();
  ReadToEnd(channel.get());
  auto status = child->Wait(Patience());
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(status->ok());
}

TEST_F(SubprocessTest, KillGroupAfterTheEndIsHarmless) {
  std::unique_ptr<ChildProcess> child = Spawn({"exit", "0"});
  ASSERT_TRUE(child->Wait(Patience()).ok());
  child->KillGroup();
  EXPECT_TRUE(child->Wait(Patience())->ok());
}

TEST_F(SubprocessTest, DroppedChildIsKilled) {
  std::unique_ptr<ChildProcess> child = Spawn({"hang"});
  const UniqueFd channel = child->TakeChannel();
  EXPECT_EQ(ReadBytes(channel.get(), 1), "r");
  child.reset();
  EXPECT_EQ(ReadToEnd(channel.get()), "");
}

TEST_F(SubprocessTest, ChildHasItsChannelAndNoOtherDescriptor) {
  // Neither a descriptor that is not CLOEXEC nor another child's channel gets through.
  const UniqueFd leak(open("/dev/null", O_RDONLY));
  std::unique_ptr<ChildProcess> other = Spawn({"hang"});
  EXPECT_EQ(Output({"descriptors"}), "0 1 2 3 ");
}

TEST_F(SubprocessTest, DescriptorOpenAtTheStartIsNotPassedOnEither) {
  const UniqueFd leak(open("/dev/null", O_RDONLY));
  spawner_ = *Spawner::Start();
  EXPECT_EQ(Output({"descriptors"}), "0 1 2 3 ");
}

TEST_F(SubprocessTest, ChannelIsToldByTheEnvironment) {
  EXPECT_EQ(Output({"environment", "QGEMM_CHANNEL_FD"}), "3");
}

TEST_F(SubprocessTest, EnvironmentOverridesReachTheChild) {
  SpawnOptions options;
  options.path = TEST_CHILD;
  options.args = {"environment", "CUDA_VISIBLE_DEVICES"};
  options.env = {{"CUDA_VISIBLE_DEVICES", ""}};
  EXPECT_EQ(ReadToEnd(SpawnWith(options)->TakeChannel().get()), "");
}

TEST_F(SubprocessTest, ChildLeadsItsOwnGroup) { EXPECT_EQ(Output({"group"}), "leader"); }

TEST_F(SubprocessTest, ChildHasNoBlockedAndNoIgnoredSignals) {
  EXPECT_EQ(Output({"signals"}), "none blocked, default");
}

TEST_F(SubprocessTest, LimitsPriorityAndCpusReachTheChild) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  SpawnOptions options;
  options.path = TEST_CHILD;
  options.args = {"limits"};
  options.address_space_bytes = kAddressSpace;
  options.core_bytes = 0;
  options.nice = 7;
  options.oom_score_adj = 500;
  options.cpus = {cpu};
  const int own_priority = nice(0);
  EXPECT_EQ(ReadToEnd(SpawnWith(options)->TakeChannel().get()),
            std::to_string(kAddressSpace) + " 0 " + std::to_string(std::min(19, own_priority + 7)) + " " +
                std::to_string(cpu));
}

TEST_F(SubprocessTest, MissingProgramIsAnErrorThatNamesIt) {
  auto child = spawner_->Spawn({.path = "/nonexistent/qgemm-compile"});
  EXPECT_TRUE(absl::IsNotFound(child.status())) << child.status();
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("'/nonexistent/qgemm-compile'"));
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("No such file or directory"));
  // The spawner goes on.
  EXPECT_TRUE(Spawn({"exit", "0"})->Wait(Patience())->ok());
}

TEST_F(SubprocessTest, ProgramThatMayNotRunIsAnErrorThatNamesIt) {
  auto child = spawner_->Spawn({.path = "/dev/null"});
  EXPECT_TRUE(absl::IsPermissionDenied(child.status())) << child.status();
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("'/dev/null'"));
}

TEST_F(SubprocessTest, ArgumentsTooLongForThePacketAreRefused) {
  auto child = spawner_->Spawn({.path = TEST_CHILD, .args = {std::string(16 << 20, 'x')}});
  EXPECT_TRUE(absl::IsInvalidArgument(child.status())) << child.status();
}

TEST_F(SubprocessTest, DeathOfTheSpawnerEndsWaitsAndSpawns) {
  std::unique_ptr<ChildProcess> child = Spawn({"hang"});
  const UniqueFd channel = child->TakeChannel();
  EXPECT_EQ(ReadBytes(channel.get(), 1), "r");
  kill(spawner_->pid(), SIGKILL);
  EXPECT_EQ(ReadToEnd(channel.get()), "");
  EXPECT_TRUE(absl::IsUnavailable(child->Wait(Patience()).status()));
  EXPECT_TRUE(absl::IsUnavailable(spawner_->Spawn({.path = TEST_CHILD}).status()));
}

TEST_F(SubprocessTest, EndOfTheSpawnerKillsChildrenAndTellsHow) {
  std::unique_ptr<ChildProcess> child = Spawn({"hang"});
  spawner_.reset();
  auto status = child->Wait(Patience());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->signal, SIGKILL);
}

TEST(Spawner, DaemonKilledHardTakesChildrenAndGrandchildrenAlong) {
  char folder[] = "/tmp/qgemm_subprocess_testXXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const UniqueFd pipe(open(path.c_str(), O_RDONLY | O_NONBLOCK));

  const pid_t daemon = fork();
  if (daemon == 0) {
    execl(TEST_CHILD, TEST_CHILD, "daemon", path.c_str(), nullptr);
    _exit(127);
  }
  // Until somebody opens the other end, the pipe reads as ended.
  std::string seen;
  const TimePoint limit = Patience();
  while (seen.size() < 2 && RealClock().Now() < limit) {
    pollfd poll_fd = {pipe.get(), POLLIN, 0};
    poll(&poll_fd, 1, 10);
    char byte;
    if (read(pipe.get(), &byte, 1) == 1) seen.push_back(byte);
  }
  ASSERT_EQ(seen.size(), 2);

  kill(daemon, SIGKILL);
  ASSERT_EQ(waitpid(daemon, nullptr, 0), daemon);
  // Child and grandchild have closed their end.
  EXPECT_EQ(ReadToEnd(pipe.get()), "");
  unlink(path.c_str());
  rmdir(folder);
}

TEST(ProgramFolder, IsWhereThisTestLies) {
  auto folder = ProgramFolder();
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(access((*folder + "/subprocess_test").c_str(), X_OK), 0);
}

}  // namespace
}  // namespace qgemm
