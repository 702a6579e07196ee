// The pool over real processes: tests/fakes/fake_compile_worker.cc.

#include "server/compile_pool.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace qgemm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Result = absl::StatusOr<internal::CompileReply>;

// Never reached by a passing test.
constexpr auto kPatience = seconds(30);

// A compile and its future answer.
struct Pending {
  std::unique_ptr<CompileTicket> ticket;
  std::future<Result> answer;

  Result Get() {
    if (answer.wait_for(kPatience) != std::future_status::ready) return absl::UnknownError("no answer came");
    return answer.get();
  }
};

class CompilePoolTest : public testing::Test {
 protected:
  CompilePoolTest() {
    char folder[] = "/tmp/qgemm_compile_pool_testXXXXXX";
    folder_ = mkdtemp(folder);
    spawner_ = *Spawner::Start();
    options_.worker.path = FAKE_COMPILE_WORKER;
    options_.first_backoff = milliseconds(1);
  }
  ~CompilePoolTest() override {
    pool_.reset();
    std::filesystem::remove_all(folder_);
  }

  void StartPool(Clock& clock = RealClock()) {
    pool_ = std::make_unique<CompilePool>(spawner_.get(), &clock, options_);
  }
  std::string File(const std::string& name) const { return folder_ + "/" + name; }

  static CompileTask Task(const std::string& name, const std::string& source = "", int priority = 0) {
    CompileTask task;
    task.source.name = name;
    task.source.text = source;
    task.arch = "sm_90a";
    task.flow.priority = priority;
    return task;
  }
  Pending Compile(const std::string& name, const std::string& source = "", int priority = 0) {
    auto promise = std::make_shared<std::promise<Result>>();
    Pending pending;
    pending.answer = promise->get_future();
    pending.ticket = pool_->Compile(Task(name, source, priority),
                                    [promise](Result result) { promise->set_value(std::move(result)); });
    return pending;
  }
  // Compiles `name` and expects it to succeed.
  internal::CompileReply MustCompile(const std::string& name, const std::string& source = "") {
    Result result = Compile(name, source).Get();
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : internal::CompileReply();
  }

  // A named pipe; the request that waits at it goes on when it is opened and closed.
  std::string MakeGate(const std::string& name) {
    EXPECT_EQ(mkfifo(File(name).c_str(), 0600), 0);
    return File(name);
  }
  // Blocks until the worker is at the gate.
  static void OpenGate(const std::string& gate) { const UniqueFd fd(open(gate.c_str(), O_WRONLY)); }

  // Waits, without sleeping, for what another thread or process is about to do.
  static bool Eventually(const std::function<bool()>& holds) {
    const TimePoint limit = RealClock().Now() + kPatience;
    while (!holds()) {
      if (RealClock().Now() > limit) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::string folder_;
  std::unique_ptr<Spawner> spawner_;
  SimulatedClock clock_;
  CompilePoolOptions options_;
  std::unique_ptr<CompilePool> pool_;
};

TEST_F(CompilePoolTest, AnswersWithWhatTheWorkerMade) {
  StartPool();
  const internal::CompileReply reply = MustCompile("ok a");
  EXPECT_EQ(reply.cubin(), "cubin of ok a for sm_90a");
  EXPECT_EQ(reply.ptx(), "ptx");
  EXPECT_EQ(reply.report().registers(), 32);
}

TEST_F(CompilePoolTest, ManyTasksOverSeveralWorkersAreEachAnsweredOnce) {
  options_.num_workers = 3;
  StartPool();
  std::vector<Pending> pending;
  for (int i = 0; i < 60; ++i) pending.push_back(Compile("ok " + std::to_string(i)));
  for (int i = 0; i < 60; ++i) {
    Result result = pending[i].Get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->cubin(), "cubin of ok " + std::to_string(i) + " for sm_90a");
  }
}

TEST_F(CompilePoolTest, ToolchainAndArchsAreTheWorkers) {
  StartPool();
  auto toolchain = pool_->Toolchain();
  ASSERT_TRUE(toolchain.ok()) << toolchain.status();
  EXPECT_EQ(*toolchain, "fake 1.0");
  EXPECT_TRUE(pool_->SupportsArch("sm_80").ok());
  const absl::Status unknown = pool_->SupportsArch("sm_70");
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("'sm_70'"));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("sm_80 sm_90a"));
}

TEST_F(CompilePoolTest, WorkersStartOnlyWhenThereIsWorkForThem) {
  options_.num_workers = 4;
  StartPool();
  ASSERT_TRUE(pool_->Toolchain().ok());
  MustCompile("ok");
  EXPECT_EQ(pool_->num_workers(), 4);
  EXPECT_EQ(pool_->stats().workers_started, 1);
}

TEST_F(CompilePoolTest, CompileErrorIsTheTasksAndCostsNoWorker) {
  StartPool();
  const absl::Status status = Compile("error").Get().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(status.message(), "kernel.cu(1): error: no good");
  MustCompile("ok");
  EXPECT_EQ(pool_->stats().workers_started, 1);
}

TEST_F(CompilePoolTest, CrashFailsOnlyItsOwnTaskAfterTwoTries) {
  options_.num_workers = 2;
  StartPool();
  Pending culprit = Compile("crash now");
  std::vector<Pending> others;
  for (int i = 0; i < 10; ++i) others.push_back(Compile("ok " + std::to_string(i)));
  const absl::Status status = culprit.Get().status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("killed by signal 11"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("crash now"));
  for (Pending& other : others) EXPECT_TRUE(other.Get().ok());
  EXPECT_EQ(pool_->stats().workers_died, 2);
}

TEST_F(CompilePoolTest, TaskWhoseWorkerDiedOnceSucceedsOnAFreshOne) {
  StartPool();
  MustCompile("crash-once", File("crashed"));
  EXPECT_EQ(pool_->stats().workers_started, 2);
  EXPECT_EQ(pool_->stats().workers_died, 1);
}

TEST_F(CompilePoolTest, ExitCodeOfADeadWorkerIsTold) {
  StartPool();
  EXPECT_THAT(std::string(Compile("exit").Get().status().message()), HasSubstr("exit code 3"));
}

TEST_F(CompilePoolTest, NonsenseOnTheChannelFailsTheTaskAndCostsTheWorker) {
  StartPool();
  const absl::Status status = Compile("garbage").Get().status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("broke its channel"));
  EXPECT_TRUE(absl::IsInternal(Compile("wrong-id").Get().status()));
  MustCompile("ok");
}

TEST_F(CompilePoolTest, FailureOfTheCompilerItselfIsNotTheSources) {
  StartPool();
  const absl::Status status = Compile("failed").Get().status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("out of memory"));
}

TEST_F(CompilePoolTest, HangIsKilledAtItsLimitAndNotTriedAgain) {
  // Long enough for a busy machine to answer the second task.
  options_.compile_limit = seconds(3);
  StartPool();
  const absl::Status status = Compile("hang on").Get().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("hang on"));
  EXPECT_EQ(pool_->stats().workers_died, 1);
  MustCompile("ok");
}

TEST_F(CompilePoolTest, MissingProgramMakesEverythingUnavailableWithItsPath) {
  options_.worker.path = "/nonexistent/qgemm-compile";
  StartPool();
  for (const absl::Status& status :
       {pool_->Toolchain().status(), Compile("ok").Get().status(), pool_->SupportsArch("sm_80")}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/qgemm-compile"));
  }
}

TEST_F(CompilePoolTest, WorkerThatNeverReportsWellIsUnavailable) {
  for (const auto& [start, reason] :
       {std::pair("exit", "exit code 7"), std::pair("hang", "in time"),
        std::pair("garbage", "broke its channel"), std::pair("old", "protocol 0")}) {
    options_.worker.env = {{"FAKE_WORKER_START", start}};
    options_.start_limit = std::string(start) == "hang" ? Duration(milliseconds(300)) : kPatience;
    StartPool();
    const absl::Status status = pool_->Toolchain().status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
  }
}

TEST_F(CompilePoolTest, StartIsTriedAgainWithGrowingWaitsAndHeals) {
  std::ofstream(File("broken")) << "x";
  options_.worker.env = {{"FAKE_WORKER_BROKEN", File("broken")}};
  options_.first_backoff = milliseconds(100);
  StartPool(clock_);
  EXPECT_THAT(std::string(pool_->Toolchain().status().message()), HasSubstr("no compiler found"));
  EXPECT_EQ(pool_->stats().failed_starts, 1);

  clock_.Advance(milliseconds(99));
  // Refused by the thread that would have tried to start.
  EXPECT_TRUE(absl::IsUnavailable(Compile("ok").Get().status()));
  EXPECT_EQ(pool_->stats().failed_starts, 1);
  clock_.Advance(milliseconds(1));
  EXPECT_TRUE(Eventually([&] { return pool_->stats().failed_starts == 2; }));

  clock_.Advance(milliseconds(199));
  EXPECT_TRUE(absl::IsUnavailable(Compile("ok").Get().status()));
  EXPECT_EQ(pool_->stats().failed_starts, 2);

  std::filesystem::remove(File("broken"));
  clock_.Advance(milliseconds(1));
  EXPECT_TRUE(Eventually([&] { return pool_->stats().workers_running == 1; }));
  MustCompile("ok");
  EXPECT_EQ(*pool_->Toolchain(), "fake 1.0");
}

TEST_F(CompilePoolTest, AnotherToolchainIsRefused) {
  std::ofstream(File("toolchain")) << "fake 1.0";
  options_.worker.env = {{"FAKE_WORKER_TOOLCHAIN", File("toolchain")}};
  StartPool();
  MustCompile("ok");
  std::ofstream(File("toolchain")) << "fake 2.0";
  const absl::Status status = Compile("crash").Get().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("from fake 1.0 to fake 2.0"));
}

TEST_F(CompilePoolTest, WorkerThatDiedIdleIsReplacedWithoutBlame) {
  StartPool();
  const pid_t pid = std::stoi(MustCompile("ok").log());
  kill(pid, SIGKILL);
  ASSERT_TRUE(Eventually([pid] { return kill(pid, 0) != 0; }));
  // One death of its own would be allowed, so this crash must be the first one that counts.
  MustCompile("crash-once", File("crashed"));
  EXPECT_EQ(pool_->stats().workers_died, 2);
}

TEST_F(CompilePoolTest, WorkersThatDieIdleAndCannotBeReplacedShowInTheToolchain) {
  options_.worker.env = {{"FAKE_WORKER_BROKEN", File("broken")}};
  StartPool(clock_);
  const pid_t pid = std::stoi(MustCompile("ok").log());
  std::ofstream(File("broken")) << "x";
  kill(pid, SIGKILL);
  ASSERT_TRUE(Eventually([pid] { return kill(pid, 0) != 0; }));
  clock_.Advance(seconds(1));
  EXPECT_TRUE(Eventually([&] { return absl::IsUnavailable(pool_->Toolchain().status()); }));
  std::filesystem::remove(File("broken"));
  clock_.Advance(seconds(1));
  EXPECT_TRUE(Eventually([&] { return pool_->Toolchain().ok(); }));
}

TEST_F(CompilePoolTest, HigherPriorityGoesFirstThenTheOrderOfArrival) {
  StartPool();
  const std::string gate = MakeGate("gate");
  Pending blocker = Compile("gate", gate);
  std::vector<std::string> order;
  std::vector<Pending> pending;
  for (const auto& [name, priority] :
       {std::pair("low 1", 0), std::pair("low 2", 0), std::pair("high", 5), std::pair("low 3", 0)}) {
    auto promise = std::make_shared<std::promise<Result>>();
    Pending next;
    next.answer = promise->get_future();
    next.ticket = pool_->Compile(Task(name, "", priority), [&order, name = name, promise](Result result) {
      order.emplace_back(name);
      promise->set_value(std::move(result));
    });
    pending.push_back(std::move(next));
  }
  OpenGate(gate);
  for (Pending& next : pending) EXPECT_TRUE(next.Get().ok());
  EXPECT_THAT(order, ElementsAre("high", "low 1", "low 2", "low 3"));
}

TEST_F(CompilePoolTest, KernelWhoseWorkersAreKilledFromOutsideIsNotToBlame) {
  StartPool();
  Pending pending = Compile("killed-twice", File("kills"));
  // Each new attempt waits for the back-off.
  EXPECT_TRUE(Eventually([&] {
    clock_.Advance(std::chrono::milliseconds(50));
    return pending.answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }));
  const Result result = pending.Get();
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(std::filesystem::file_size(File("kills")), 2u);
}

TEST_F(CompilePoolTest, KernelWhoseWorkersAreKilledEachTimeIsGivenUp) {
  StartPool();
  Pending pending = Compile("killed-often", File("kills"));
  EXPECT_TRUE(Eventually([&] {
    clock_.Advance(std::chrono::milliseconds(50));
    return pending.answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }));
  const absl::Status status = pending.Get().status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("killed by signal 9"));
  EXPECT_EQ(std::filesystem::file_size(File("kills")), 5u);
  MustCompile("ok");
}

TEST_F(CompilePoolTest, ClientsTakeTurnsAndASharedTaskIsCompiledInTheFirst) {
  StartPool();
  const std::string gate = MakeGate("gate");
  Pending blocker = Compile("gate", gate);
  std::vector<std::string> order;
  std::vector<Pending> pending;
  for (const auto& [name, client] : {std::pair("a1", "a"), std::pair("a2", "a"), std::pair("a3", "a"),
                                     std::pair("shared", "a"), std::pair("b1", "b")}) {
    auto promise = std::make_shared<std::promise<Result>>();
    Pending next;
    next.answer = promise->get_future();
    CompileTask task = Task(name);
    task.flow.client = client;
    next.ticket = pool_->Compile(std::move(task), [&order, name = name, promise](Result result) {
      order.emplace_back(name);
      promise->set_value(std::move(result));
    });
    pending.push_back(std::move(next));
  }
  pending[3].ticket->AlsoFor({"c"});
  OpenGate(gate);
  for (Pending& next : pending) EXPECT_TRUE(next.Get().ok());
  EXPECT_THAT(order, ElementsAre("a1", "b1", "shared", "a2", "a3"));
}

TEST_F(CompilePoolTest, CancelledWaitingTaskIsNeverCalled) {
  StartPool();
  const std::string gate = MakeGate("gate");
  Pending blocker = Compile("gate", gate);
  bool called = false;
  std::unique_ptr<CompileTicket> cancelled = pool_->Compile(Task("ok"), [&called](Result) { called = true; });
  std::unique_ptr<CompileTicket> dropped = pool_->Compile(Task("ok"), [&called](Result) { called = true; });
  cancelled->Cancel();
  dropped.reset();
  EXPECT_LE(pool_->stats().queued, 1);  // the blocker at most
  OpenGate(gate);
  MustCompile("ok last");
  EXPECT_FALSE(called);
}

TEST_F(CompilePoolTest, CancelledRunningTaskIsKilledAndNeverCalled) {
  StartPool();
  const std::string gate = MakeGate("gate");
  bool called = false;
  std::unique_ptr<CompileTicket> ticket =
      pool_->Compile(Task("gate", gate), [&called](Result) { called = true; });
  ASSERT_TRUE(Eventually([&] { return pool_->stats().queued == 0; }));
  ticket->Cancel();
  // The only worker is free again although nobody opens the gate.
  MustCompile("ok");
  EXPECT_FALSE(called);
  EXPECT_EQ(pool_->stats().workers_died, 1);
}

TEST_F(CompilePoolTest, CancelWaitsForACallbackThatRuns) {
  StartPool();
  std::promise<void> entered;
  std::promise<void> leave;
  bool left = false;
  std::unique_ptr<CompileTicket> ticket = pool_->Compile(Task("ok"), [&](Result) {
    entered.set_value();
    leave.get_future().wait();
    left = true;
  });
  entered.get_future().wait();
  std::thread opener([&leave] { leave.set_value(); });
  ticket->Cancel();
  EXPECT_TRUE(left);
  opener.join();
}

TEST_F(CompilePoolTest, CallbackMayDropItsOwnTicket) {
  StartPool();
  std::promise<void> done;
  std::promise<void> set;
  std::unique_ptr<CompileTicket> ticket;
  ticket = pool_->Compile(Task("ok"), [&](Result) {
    set.get_future().wait();
    ticket.reset();
    done.set_value();
  });
  set.set_value();
  EXPECT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST_F(CompilePoolTest, WorkerIsReplacedAfterItsShareOfKernels) {
  options_.max_compiles_per_worker = 2;
  StartPool();
  for (int i = 0; i < 5; ++i) MustCompile("ok");
  EXPECT_EQ(pool_->stats().workers_recycled, 2);
  EXPECT_EQ(pool_->stats().workers_died, 0);
}

TEST_F(CompilePoolTest, WorkerThatGrewIsReplaced) {
  options_.max_worker_bytes = int64_t{256} << 20;
  StartPool();
  MustCompile("ok");
  EXPECT_EQ(pool_->stats().workers_recycled, 0);
  MustCompile("grow", std::to_string(300 << 20));
  EXPECT_TRUE(Eventually([&] { return pool_->stats().workers_recycled == 1; }));
  MustCompile("ok");
}

TEST_F(CompilePoolTest, EndOfThePoolCancelsWhatIsNotDone) {
  StartPool();
  Pending running = Compile("hang");
  Pending waiting = Compile("ok");
  ASSERT_TRUE(Eventually([&] { return pool_->stats().queued == 1; }));
  pool_.reset();
  EXPECT_TRUE(absl::IsCancelled(running.Get().status()));
  EXPECT_TRUE(absl::IsCancelled(waiting.Get().status()));
  // Tickets may outlive the pool.
  running.ticket->Cancel();
}

TEST_F(CompilePoolTest, WorkersGetNoGpuAndAreNiced) {
  const SpawnOptions program = CompileWorkerProgram("/usr/bin/qgemm-compile");
  EXPECT_EQ(program.path, "/usr/bin/qgemm-compile");
  EXPECT_THAT(program.env, ElementsAre(std::pair<std::string, std::string>("CUDA_VISIBLE_DEVICES", "")));
  EXPECT_GT(program.nice, 0);
  EXPECT_EQ(program.core_bytes, 0);
}

}  // namespace
}  // namespace qgemm
