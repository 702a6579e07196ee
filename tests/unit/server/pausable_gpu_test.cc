#include "server/pausable_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "tests/fakes/fake_gpu.h"

namespace qgemm {
namespace {

class PausableGpuTest : public ::testing::Test {
 protected:
  PausableGpuTest()
      : pausable_(gpu_, clock_,
                  {[this] { ++released_; },
                   [this] {
                     ++acquired_;
                     return acquire_status_;
                   }}) {
    pausable_.SetSupportKernels("support");
  }

  absl::StatusOr<internal::ScreenReply> Screen() {
    GpuCandidate candidate;
    candidate.name = "candidate";
    return pausable_.Screen(candidate, 0.01, absl::Milliseconds(2));
  }

  SimulatedClock clock_;
  FakeGpu gpu_;
  std::atomic<int> released_{0};
  std::atomic<int> acquired_{0};
  absl::Status acquire_status_;
  PausableGpu pausable_;
};

TEST_F(PausableGpuTest, HandsCallsOnWhileItIsHeld) {
  EXPECT_TRUE(pausable_.Prepare(Problem(), 16).ok());
  EXPECT_EQ(gpu_.support_cubin(), "support");
  EXPECT_TRUE(Screen().ok());
  EXPECT_TRUE(pausable_.held());
  EXPECT_EQ(acquired_, 0);
}

TEST_F(PausableGpuTest, PausedGpuIsGivenBackAndCallsWaitUntilItIsResumed) {
  ASSERT_TRUE(pausable_.Pause(std::chrono::seconds(5)).ok());
  EXPECT_EQ(released_, 1);
  EXPECT_FALSE(pausable_.held());
  EXPECT_TRUE(pausable_.paused());
  std::future<absl::Status> screen = std::async(std::launch::async, [&] { return Screen().status(); });
  EXPECT_TRUE(pausable_.Pause(std::chrono::seconds(5)).ok());  // again: nothing more to give back
  EXPECT_EQ(released_, 1);
  EXPECT_EQ(gpu_.screens(), 0);
  ASSERT_TRUE(pausable_.Resume().ok());
  EXPECT_TRUE(screen.get().ok());
  EXPECT_EQ(gpu_.screens(), 1);
  EXPECT_EQ(acquired_, 1);
}

TEST_F(PausableGpuTest, ResumeSaysWhoHasTheGpuAndStaysPaused) {
  ASSERT_TRUE(pausable_.Pause(std::chrono::seconds(5)).ok());
  acquire_status_ = absl::UnavailableError("pid 7 has it");
  EXPECT_TRUE(absl::IsUnavailable(pausable_.Resume()));
  EXPECT_TRUE(pausable_.paused());
  acquire_status_ = absl::OkStatus();
  EXPECT_TRUE(pausable_.Resume().ok());
  EXPECT_FALSE(pausable_.paused());
}

TEST_F(PausableGpuTest, PauseDuringACallGivesBackWhenItHasEnded) {
  gpu_.Hold();
  std::future<absl::Status> screen = std::async(std::launch::async, [&] { return Screen().status(); });
  gpu_.AwaitHeld();
  std::future<absl::Status> pause =
      std::async(std::launch::async, [&] { return pausable_.Pause(std::chrono::seconds(5)); });
  while (!pausable_.paused()) std::this_thread::yield();
  clock_.Advance(std::chrono::seconds(6));
  EXPECT_TRUE(absl::IsDeadlineExceeded(pause.get()));
  EXPECT_EQ(released_, 0);
  gpu_.Release();
  EXPECT_TRUE(screen.get().ok());
  EXPECT_EQ(released_, 1);
  EXPECT_FALSE(pausable_.held());
}

TEST_F(PausableGpuTest, IdleGpuIsGivenBackAndTakenAgainWhenNeeded) {
  ASSERT_TRUE(Screen().ok());
  clock_.Advance(std::chrono::seconds(59));
  pausable_.ReleaseIfIdle(std::chrono::seconds(60));
  EXPECT_TRUE(pausable_.held());
  clock_.Advance(std::chrono::seconds(1));
  pausable_.ReleaseIfIdle(std::chrono::seconds(60));
  EXPECT_FALSE(pausable_.held());
  EXPECT_FALSE(pausable_.paused());
  acquire_status_ = absl::UnavailableError("pid 7 has it");
  EXPECT_TRUE(absl::IsUnavailable(Screen().status()));
  acquire_status_ = absl::OkStatus();
  EXPECT_TRUE(Screen().ok());
  EXPECT_TRUE(pausable_.held());
}

TEST_F(PausableGpuTest, StopEndsCallsThatWait) {
  ASSERT_TRUE(pausable_.Pause(std::chrono::seconds(5)).ok());
  std::future<absl::Status> screen = std::async(std::launch::async, [&] { return Screen().status(); });
  pausable_.Stop();
  EXPECT_TRUE(absl::IsUnavailable(screen.get()));
}

}  // namespace
}  // namespace qgemm
