#include "base/clock.h"

#include <gtest/gtest.h>

#include <thread>

namespace qgemm {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RealClock, MovesForwardAndKnowsTheYear) {
  const TimePoint before = RealClock().Now();
  EXPECT_GE(RealClock().Now(), before);
  EXPECT_GT(RealClock().WallUnixMs(), 1'600'000'000'000);
}

TEST(RealClock, WaitUntilReturnsFalseWhenTheDeadlineHasPassed) {
  Mutex mu;
  CondVar cv;
  MutexLock lock(mu);
  EXPECT_FALSE(RealClock().WaitUntil(mu, cv, RealClock().Now()));
}

TEST(SimulatedClock, MovesOnlyWhenAdvanced) {
  SimulatedClock clock(5'000);
  const TimePoint start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(seconds(3));
  EXPECT_EQ(clock.Now() - start, seconds(3));
  EXPECT_EQ(clock.WallUnixMs(), 8'000);
}

TEST(SimulatedClock, AdvanceEndsAWaitThatWouldLastHours) {
  SimulatedClock clock;
  Mutex mu;
  CondVar cv;
  const TimePoint deadline = clock.Now() + hours(5);
  std::thread waiter([&] {
    MutexLock lock(mu);
    while (clock.WaitUntil(mu, cv, deadline)) {
    }
  });
  clock.Advance(hours(5));
  waiter.join();
  EXPECT_EQ(clock.Now(), deadline);
}

TEST(SimulatedClock, NotificationWakesAWaiter) {
  SimulatedClock clock;
  Mutex mu;
  CondVar cv;
  bool ready = false;
  std::thread waiter([&] {
    MutexLock lock(mu);
    while (!ready) EXPECT_TRUE(clock.WaitUntil(mu, cv, kNoDeadline));
  });
  {
    MutexLock lock(mu);
    ready = true;
  }
  cv.NotifyAll();
  waiter.join();
}

}  // namespace
}  // namespace qgemm
