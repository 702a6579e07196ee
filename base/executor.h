#ifndef QGEMM_BASE_EXECUTOR_H_
#define QGEMM_BASE_EXECUTOR_H_

#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/mutex.h"

namespace qgemm {

// Runs functions later, somewhere else. Injected wherever work leaves the caller's thread. Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void Schedule(absl::AnyInvocable<void()> fn) = 0;
};

// Runs functions on its own threads, started in the order they were scheduled. Functions may schedule more.
class ThreadPoolExecutor : public Executor {
 public:
  // `name` is what top and gdb show of the threads: 15 characters at most, longer ones are cut.
  ThreadPoolExecutor(const std::string& name, int num_threads);
  // Runs everything that is scheduled, then joins. Not to be called from one of its own threads.
  ~ThreadPoolExecutor() override;

  void Schedule(absl::AnyInvocable<void()> fn) override;

 private:
  void Work();

  Mutex mu_;
  CondVar changed_;
  std::deque<absl::AnyInvocable<void()>> queue_ QGEMM_GUARDED_BY(mu_);
  bool stopping_ QGEMM_GUARDED_BY(mu_) = false;

  std::vector<std::thread> threads_;  // constant after construction
};

// For tests: functions run only when the test asks, on the test's thread.
class ManualExecutor : public Executor {
 public:
  void Schedule(absl::AnyInvocable<void()> fn) override;

  // Runs the oldest function; false when there is none.
  bool RunOne();
  // Runs until nothing is scheduled, functions scheduled meanwhile included; returns how many ran.
  int RunAll();
  int pending() const;

 private:
  mutable Mutex mu_;
  std::deque<absl::AnyInvocable<void()>> queue_ QGEMM_GUARDED_BY(mu_);
};

}  // namespace qgemm

#endif  // QGEMM_BASE_EXECUTOR_H_
