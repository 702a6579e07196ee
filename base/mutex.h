#ifndef QGEMM_BASE_MUTEX_H_
#define QGEMM_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

// Clang's thread-safety annotations; no-ops for other compilers.
#if defined(__clang__)
#define QGEMM_THREAD_ANNOTATION_(x) __attribute__((x))
#else
#define QGEMM_THREAD_ANNOTATION_(x)
#endif
#define QGEMM_CAPABILITY(x) QGEMM_THREAD_ANNOTATION_(capability(x))
#define QGEMM_SCOPED_CAPABILITY QGEMM_THREAD_ANNOTATION_(scoped_lockable)
#define QGEMM_GUARDED_BY(x) QGEMM_THREAD_ANNOTATION_(guarded_by(x))
#define QGEMM_REQUIRES_SHARED(...) QGEMM_THREAD_ANNOTATION_(requires_shared_capability(__VA_ARGS__))
#define QGEMM_ACQUIRE_SHARED(...) QGEMM_THREAD_ANNOTATION_(acquire_shared_capability(__VA_ARGS__))
#define QGEMM_RELEASE_SHARED(...) QGEMM_THREAD_ANNOTATION_(release_shared_capability(__VA_ARGS__))
#define QGEMM_REQUIRES(...) QGEMM_THREAD_ANNOTATION_(requires_capability(__VA_ARGS__))
#define QGEMM_EXCLUDES(...) QGEMM_THREAD_ANNOTATION_(locks_excluded(__VA_ARGS__))
#define QGEMM_ACQUIRE(...) QGEMM_THREAD_ANNOTATION_(acquire_capability(__VA_ARGS__))
#define QGEMM_RELEASE(...) QGEMM_THREAD_ANNOTATION_(release_capability(__VA_ARGS__))
#define QGEMM_NO_THREAD_SAFETY_ANALYSIS QGEMM_THREAD_ANNOTATION_(no_thread_safety_analysis)

namespace qgemm {

// An annotated std::mutex. absl::Mutex is not used because ThreadSanitizer reports races inside the
// distribution's build of it; std::mutex is clean.
class QGEMM_CAPABILITY("mutex") Mutex {
 public:
  void Lock() QGEMM_ACQUIRE() { mu_.lock(); }
  void Unlock() QGEMM_RELEASE() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class QGEMM_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mu) QGEMM_ACQUIRE(mu) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() QGEMM_RELEASE() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// A condition variable for Mutex. Waits may wake spuriously: wait in a loop on the condition itself.
class CondVar {
 public:
  void Wait(Mutex& mu) QGEMM_REQUIRES(mu) QGEMM_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // Returns false when `deadline` passed.
  bool WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point deadline)
      QGEMM_REQUIRES(mu) QGEMM_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

// An annotated std::shared_mutex: many holders of ReaderLock or one of WriterLock.
class QGEMM_CAPABILITY("mutex") SharedMutex {
 public:
  void Lock() QGEMM_ACQUIRE() { mu_.lock(); }
  void Unlock() QGEMM_RELEASE() { mu_.unlock(); }
  void LockShared() QGEMM_ACQUIRE_SHARED() { mu_.lock_shared(); }
  void UnlockShared() QGEMM_RELEASE_SHARED() { mu_.unlock_shared(); }

 private:
  std::shared_mutex mu_;
};

class QGEMM_SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mu) QGEMM_ACQUIRE(mu) : mu_(mu) { mu_.Lock(); }
  ~WriterLock() QGEMM_RELEASE() { mu_.Unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mu_;
};

class QGEMM_SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mu) QGEMM_ACQUIRE_SHARED(mu) : mu_(mu) { mu_.LockShared(); }
  ~ReaderLock() QGEMM_RELEASE() { mu_.UnlockShared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mu_;
};

}  // namespace qgemm

#endif  // QGEMM_BASE_MUTEX_H_
