#include "base/executor.h"

#include <pthread.h>

#include <utility>

#include "base/check.h"

namespace qgemm {

ThreadPoolExecutor::ThreadPoolExecutor(const std::string& name, int num_threads) {
  QGEMM_CHECK(num_threads > 0);
  // The kernel keeps 15 characters and a terminating zero.
  const std::string thread_name = name.substr(0, 15);
  threads_.reserve(num_threads);
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] { Work(); });
    pthread_setname_np(threads_.back().native_handle(), thread_name.c_str());
  }
}

ThreadPoolExecutor::~ThreadPoolExecutor() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPoolExecutor::Schedule(absl::AnyInvocable<void()> fn) {
  {
    MutexLock lock(mu_);
    queue_.push_back(std::move(fn));
  }
  changed_.NotifyOne();
}

void ThreadPoolExecutor::Work() {
  while (true) {
    absl::AnyInvocable<void()> fn;
    {
      MutexLock lock(mu_);
      while (queue_.empty() && !stopping_) changed_.Wait(mu_);
      if (queue_.empty()) return;
      fn = std::move(queue_.front());
      queue_.pop_front();
    }
    fn();
  }
}

void ManualExecutor::Schedule(absl::AnyInvocable<void()> fn) {
  MutexLock lock(mu_);
  queue_.push_back(std::move(fn));
}

bool ManualExecutor::RunOne() {
  absl::AnyInvocable<void()> fn;
  {
    MutexLock lock(mu_);
    if (queue_.empty()) return false;
    fn = std::move(queue_.front());
    queue_.pop_front();
  }
  fn();
  return true;
}

int ManualExecutor::RunAll() {
  int ran = 0;
  while (RunOne()) ++ran;
  return ran;
}

int ManualExecutor::pending() const {
  MutexLock lock(mu_);
  return static_cast<int>(queue_.size());
}

}  // namespace qgemm
