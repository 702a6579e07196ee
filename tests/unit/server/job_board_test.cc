#include "server/job_board.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

namespace qgemm {
namespace {

std::shared_ptr<PickJob> MeasuredJob() {
  auto job = std::make_shared<PickJob>();
  job->target.measured = true;
  return job;
}

TEST(JobBoard, SecondWaiterJoinsTheJobInFlight) {
  JobBoard board(RealClock());
  const JobBoard::Joined first = board.Join("key", MeasuredJob);
  const JobBoard::Joined second = board.Join("key", MeasuredJob);
  EXPECT_TRUE(first.created);
  EXPECT_FALSE(second.created);
  EXPECT_EQ(first.job, second.job);
  EXPECT_TRUE(board.Join("other", MeasuredJob).created);
}

TEST(JobBoard, FinishedJobFreesItsKey) {
  JobBoard board(RealClock());
  const JobBoard::Joined first = board.Join("key", MeasuredJob);
  board.Finish(first.job, absl::OkStatus(), {});
  EXPECT_TRUE(board.Join("key", MeasuredJob).created);
  board.Leave(first.job);
}

TEST(JobBoard, JobLeavesTheQueueWithItsLastWaiter) {
  JobBoard board(RealClock());
  const JobBoard::Joined abandoned = board.Join("a", MeasuredJob);
  board.Join("a", MeasuredJob);
  board.Queue(abandoned.job);
  const JobBoard::Joined wanted = board.Join("b", MeasuredJob);
  board.Queue(wanted.job);
  board.Leave(abandoned.job);
  EXPECT_FALSE(board.Abandoned(*abandoned.job));
  board.Leave(abandoned.job);
  EXPECT_TRUE(board.Abandoned(*abandoned.job));
  EXPECT_EQ(board.NextMeasured(), wanted.job);
  EXPECT_EQ(board.NextMeasuredReady(), nullptr);
}

TEST(JobBoard, AbandonedRunningJobDoesNotBlockANewOneOfItsKey) {
  JobBoard board(RealClock());
  const JobBoard::Joined old = board.Join("key", MeasuredJob);
  board.Queue(old.job);
  ASSERT_EQ(board.NextMeasured(), old.job);
  board.Leave(old.job);
  const JobBoard::Joined renewed = board.Join("key", MeasuredJob);
  EXPECT_TRUE(renewed.created);
  board.Finish(old.job, absl::CancelledError("nobody waits"), {});
  EXPECT_EQ(board.Join("key", MeasuredJob).job, renewed.job);
}

TEST(JobBoard, PredictedAndMeasuredJobsHaveTheirOwnQueues) {
  JobBoard board(RealClock());
  const JobBoard::Joined predicted = board.Join("p", [] { return std::make_shared<PickJob>(); });
  board.Queue(predicted.job);
  EXPECT_EQ(board.NextMeasuredReady(), nullptr);
  EXPECT_EQ(board.NextPredicted(), predicted.job);
}

TEST(JobBoard, StopWakesRunners) {
  JobBoard board(RealClock());
  std::future<std::shared_ptr<PickJob>> runner =
      std::async(std::launch::async, [&] { return board.NextMeasured(); });
  board.Stop();
  EXPECT_EQ(runner.get(), nullptr);
  EXPECT_TRUE(board.stopped());
}

TEST(JobBoard, WaitEndsAtItsDeadline) {
  SimulatedClock clock;
  JobBoard board(clock);
  const TimePoint deadline = clock.Now() + std::chrono::seconds(1);
  std::future<void> waiter =
      std::async(std::launch::async, [&] { board.WaitUntil(deadline, [] { return false; }); });
  clock.Advance(std::chrono::seconds(2));
  waiter.get();
}

}  // namespace
}  // namespace qgemm
