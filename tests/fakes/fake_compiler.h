#ifndef QGEMM_TESTS_FAKES_FAKE_COMPILER_H_
#define QGEMM_TESTS_FAKES_FAKE_COMPILER_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/executor.h"
#include "base/mutex.h"
#include "server/compiler.h"

namespace qgemm {

// A compiler whose cubins are the kernels' names. Answers on its own thread, at once unless held.
// Thread-safe.
class FakeCompiler : public Compiler {
 public:
  // Decides a kernel's answer from its name; by default every kernel compiles without spills.
  using Behaviour = std::function<absl::StatusOr<internal::CompileReply>(const CompileTask&)>;

  void SetBehaviour(Behaviour behaviour);
  // No worker can be started: Toolchain() and every compile answer this. OK: they can.
  void SetUnavailable(absl::Status status);
  void SetToolchain(std::string toolchain);

  // From now on compiles wait.
  void Hold();
  // Lets held and later compiles go.
  void Release();
  // Lets the first `count` held compiles go; the others wait on.
  void ReleaseSome(int count);
  // Blocks until `count` compiles are held.
  void AwaitHeld(int count);
  // Blocks until no compile is held: all were let go or withdrawn.
  void AwaitNoneHeld();

  int compiles() const;   // answered
  int cancelled() const;  // withdrawn before their answer
  std::map<std::string, int> compiles_by_name() const;

  std::unique_ptr<CompileTicket> Compile(CompileTask task, Done done) override;
  absl::StatusOr<std::string> Toolchain() override;
  absl::Status SupportsArch(absl::string_view arch) override;
  int num_workers() const override { return 1; }

  // A reply for a task with the given spills.
  static internal::CompileReply Reply(const CompileTask& task, int spill_bytes = 0);

 private:
  struct Job {
    CompileTask task;
    Done done;
    bool cancelled = false;
    bool answered = false;  // its callback runs or has run
    bool done_returned = false;
    std::thread::id answering;
  };
  class Ticket;

  void Answer(const std::shared_ptr<Job>& job);

  mutable Mutex mu_;
  CondVar changed_;
  Behaviour behaviour_ QGEMM_GUARDED_BY(mu_);
  absl::Status unavailable_ QGEMM_GUARDED_BY(mu_);
  std::string toolchain_ QGEMM_GUARDED_BY(mu_) = "nvrtc 13.0";
  bool holding_ QGEMM_GUARDED_BY(mu_) = false;
  std::deque<std::shared_ptr<Job>> held_ QGEMM_GUARDED_BY(mu_);
  std::map<std::string, int> compiles_by_name_ QGEMM_GUARDED_BY(mu_);
  int compiles_ QGEMM_GUARDED_BY(mu_) = 0;
  int cancelled_ QGEMM_GUARDED_BY(mu_) = 0;
  ThreadPoolExecutor executor_{"fake-compiler", 1};
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_FAKES_FAKE_COMPILER_H_
