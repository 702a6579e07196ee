#ifndef QGEMM_BASE_CLOCK_H_
#define QGEMM_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

#include "base/mutex.h"

namespace qgemm {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// A deadline that never passes.
inline constexpr TimePoint kNoDeadline = TimePoint::max();

// Where time comes from. Everything that waits for, compares or records times takes one, so that tests set
// the time instead of sleeping. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Monotonic; for deadlines and durations.
  virtual TimePoint Now() const = 0;
  // Milliseconds since the Unix epoch; for records and people.
  virtual int64_t WallUnixMs() const = 0;
  // Waits on `cv` until it is notified or this clock reaches `deadline`; returns false when the deadline has
  // passed. May wake spuriously: wait in a loop on the condition itself.
  virtual bool WaitUntil(Mutex& mu, CondVar& cv, TimePoint deadline) QGEMM_REQUIRES(mu) = 0;
};

// The system's clocks. A singleton that is never destroyed.
Clock& RealClock();

// A clock that moves only when told to. Waiters notice a move within a real millisecond.
class SimulatedClock : public Clock {
 public:
  explicit SimulatedClock(int64_t wall_unix_ms = 1'700'000'000'000) : wall_unix_ms_(wall_unix_ms) {}

  TimePoint Now() const override;
  int64_t WallUnixMs() const override;
  bool WaitUntil(Mutex& mu, CondVar& cv, TimePoint deadline) override QGEMM_REQUIRES(mu);

  // Moves both clocks forward by `duration` (not negative).
  void Advance(Duration duration);

 private:
  mutable Mutex mu_;
  TimePoint now_ QGEMM_GUARDED_BY(mu_) = TimePoint(std::chrono::hours(1));
  int64_t wall_unix_ms_ QGEMM_GUARDED_BY(mu_);
};

}  // namespace qgemm

#endif  // QGEMM_BASE_CLOCK_H_
