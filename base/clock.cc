#include "base/clock.h"

#include "base/check.h"

namespace qgemm {
namespace {

class SystemClock : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  int64_t WallUnixMs() const override {
    const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count();
  }
  bool WaitUntil(Mutex& mu, CondVar& cv, TimePoint deadline) override QGEMM_REQUIRES(mu) {
    if (deadline == kNoDeadline) {
      cv.Wait(mu);
      return true;
    }
    return cv.WaitUntil(mu, deadline);
  }
};

}  // namespace

Clock& RealClock() {
  static SystemClock* clock = new SystemClock;
  return *clock;
}

TimePoint SimulatedClock::Now() const {
  MutexLock lock(mu_);
  return now_;
}

int64_t SimulatedClock::WallUnixMs() const {
  MutexLock lock(mu_);
  return wall_unix_ms_;
}

bool SimulatedClock::WaitUntil(Mutex& mu, CondVar& cv, TimePoint deadline) {
  if (Now() >= deadline) return false;
  // Advance() knows no waiters, so a waiter looks at the simulated time itself every real millisecond.
  cv.WaitUntil(mu, std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
  return Now() < deadline;
}

void SimulatedClock::Advance(Duration duration) {
  QGEMM_CHECK(duration >= Duration::zero());
  MutexLock lock(mu_);
  now_ += duration;
  wall_unix_ms_ += std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace qgemm
