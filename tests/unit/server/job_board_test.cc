#include "server/job_board.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace qgemm {
namespace {

std::shared_ptr<PickJob> MeasuredJob() {
  auto job = std::make_shared<PickJob>();
  job->target.measured = true;
  return job;
}

PickWaiter From(const std::string& client, WorkClass work_class = WorkClass::kInteractive, int priority = 0) {
  PickWaiter waiter;
  waiter.flow = {client, work_class, priority};
  return waiter;
}

// A job that was planned and waits for its runner.
JobBoard::Joined Queued(JobBoard& board, const std::string& key, const std::string& client = "a") {
  JobBoard::Joined joined = board.Join(key, MeasuredJob, From(client));
  board.Queue(board.TryNextToPlan());
  return joined;
}

TEST(JobBoard, SecondWaiterJoinsTheJobInFlight) {
  JobBoard board(RealClock());
  const JobBoard::Joined first = board.Join("key", MeasuredJob, From("a"));
  const JobBoard::Joined second = board.Join("key", MeasuredJob, From("a"));
  EXPECT_TRUE(first.created);
  EXPECT_FALSE(second.created);
  EXPECT_EQ(first.job, second.job);
  EXPECT_TRUE(board.Join("other", MeasuredJob, From("a")).created);
}

TEST(JobBoard, FinishedJobFreesItsKey) {
  JobBoard board(RealClock());
  const JobBoard::Joined first = board.Join("key", MeasuredJob, From("a"));
  board.Finish(first.job, absl::OkStatus(), {});
  EXPECT_TRUE(board.Join("key", MeasuredJob, From("a")).created);
  board.Leave(first.job, first.waiter);
}

TEST(JobBoard, JobLeavesTheQueueWithItsLastWaiter) {
  JobBoard board(RealClock());
  const JobBoard::Joined abandoned = Queued(board, "a");
  const JobBoard::Joined second = board.Join("a", MeasuredJob, From("b"));
  const JobBoard::Joined wanted = Queued(board, "b");
  board.Leave(abandoned.job, abandoned.waiter);
  EXPECT_FALSE(board.Abandoned(*abandoned.job));
  board.Leave(second.job, second.waiter);
  EXPECT_TRUE(board.Abandoned(*abandoned.job));
  EXPECT_EQ(board.NextMeasured(), wanted.job);
  EXPECT_EQ(board.NextMeasuredReady(), nullptr);
}

TEST(JobBoard, JobThatNobodyWaitsForIsNotPlanned) {
  JobBoard board(RealClock());
  const JobBoard::Joined joined = board.Join("a", MeasuredJob, From("a"));
  board.Leave(joined.job, joined.waiter);
  EXPECT_EQ(board.TryNextToPlan(), nullptr);
}

TEST(JobBoard, AbandonedRunningJobDoesNotBlockANewOneOfItsKey) {
  JobBoard board(RealClock());
  const JobBoard::Joined old = Queued(board, "key");
  ASSERT_EQ(board.NextMeasured(), old.job);
  board.Leave(old.job, old.waiter);
  const JobBoard::Joined renewed = board.Join("key", MeasuredJob, From("a"));
  EXPECT_TRUE(renewed.created);
  board.Finish(old.job, absl::CancelledError("nobody waits"), {});
  EXPECT_EQ(board.Join("key", MeasuredJob, From("a")).job, renewed.job);
}

TEST(JobBoard, PredictedAndMeasuredJobsHaveTheirOwnQueues) {
  JobBoard board(RealClock());
  const JobBoard::Joined predicted = board.Join(
      "p", [] { return std::make_shared<PickJob>(); }, From("a"));
  board.Queue(board.NextToPlan());
  EXPECT_EQ(board.NextMeasuredReady(), nullptr);
  EXPECT_EQ(board.NextPredicted(), predicted.job);
}

TEST(JobBoard, TellsEachWaiterOfTheBeginningAndOfTheEnd) {
  JobBoard board(RealClock());
  int started = 0;
  int done = 0;
  const auto counting = [&] {
    PickWaiter waiter = From("a");
    waiter.started = [&] { ++started; };
    waiter.done = [&](const std::shared_ptr<PickJob>& job) { done += job->shared.done ? 1 : 0; };
    return waiter;
  };
  const JobBoard::Joined leaver = board.Join("key", MeasuredJob, counting());
  board.Join("key", MeasuredJob, counting());
  board.Leave(leaver.job, leaver.waiter);
  board.Queue(board.NextToPlan());
  EXPECT_EQ(started, 0);
  const std::shared_ptr<PickJob> job = board.NextMeasured();
  EXPECT_EQ(started, 1);
  board.Join("key", MeasuredJob, counting());  // it runs already
  EXPECT_EQ(started, 2);
  board.Finish(job, absl::OkStatus(), {});
  EXPECT_EQ(done, 2);
}

TEST(JobBoard, PlansOnlySoManyPicksAheadForOneClient) {
  JobBoard board(RealClock());
  for (int i = 0; i < 100; ++i) board.Join(absl::StrCat("a", i), MeasuredJob, From("a"));
  std::vector<std::shared_ptr<PickJob>> planned;
  while (std::shared_ptr<PickJob> job = board.TryNextToPlan()) planned.push_back(job);
  EXPECT_EQ(planned.size(), static_cast<size_t>(JobBoard::kPlannedPerClient));
  // Another client's is planned all the same, and one that ends makes room.
  const JobBoard::Joined other = board.Join("b", MeasuredJob, From("b"));
  EXPECT_EQ(board.TryNextToPlan(), other.job);
  EXPECT_EQ(board.TryNextToPlan(), nullptr);
  board.Queue(planned[0]);
  board.Finish(board.NextMeasured(), absl::OkStatus(), {});
  EXPECT_NE(board.TryNextToPlan(), nullptr);
}

// Takes and finishes jobs as the GPU thread would, until `wanted` was run; returns how many were before it.
int SlotsBefore(JobBoard& board, const std::shared_ptr<PickJob>& wanted) {
  for (int slots = 0;; ++slots) {
    while (const std::shared_ptr<PickJob> job = board.TryNextToPlan()) board.Queue(job);
    const std::shared_ptr<PickJob> job = board.NextMeasured();
    board.Finish(job, absl::OkStatus(), {});
    if (job == wanted) return slots;
  }
}

TEST(JobBoard, ClientWithTenThousandJobsDelaysAnothersSingleJobByAtMostTwo) {
  for (const WorkClass many : {WorkClass::kInteractive, WorkClass::kBatch}) {
    for (const WorkClass single : {WorkClass::kInteractive, WorkClass::kBatch}) {
      JobBoard board(RealClock());
      for (int i = 0; i < 10'000; ++i) {
        board.Join(absl::StrCat("a", i), MeasuredJob, From("a", many, /*priority=*/100));
      }
      while (const std::shared_ptr<PickJob> job = board.TryNextToPlan()) board.Queue(job);
      // One of them runs when the other client comes.
      const std::shared_ptr<PickJob> running = board.NextMeasured();
      const JobBoard::Joined joined = board.Join("b", MeasuredJob, From("b", single));
      board.Finish(running, absl::OkStatus(), {});
      EXPECT_LE(1 + SlotsBefore(board, joined.job), 2);
    }
  }
}

TEST(JobBoard, ClientThatAsksForWhatAnotherHasFarBackInItsQueueDoesNotWaitThatLong) {
  JobBoard board(RealClock());
  for (int i = 0; i < 1'000; ++i) board.Join(absl::StrCat("k", i), MeasuredJob, From("a"));
  const JobBoard::Joined joined = board.Join("k999", MeasuredJob, From("b"));
  EXPECT_FALSE(joined.created);
  EXPECT_LE(SlotsBefore(board, joined.job), 2);
}

TEST(JobBoard, AJobIsHurriedForItsOnlyWaiterAndItsKeyIsFree) {
  JobBoard board(RealClock());
  const JobBoard::Joined first = board.Join("k", MeasuredJob, From("a"));
  const JobBoard::Joined second = board.Join("k", MeasuredJob, From("b"));
  EXPECT_FALSE(board.Hurry(first.job, first.waiter));
  EXPECT_FALSE(board.Hurried(*first.job));
  board.Leave(second.job, second.waiter);
  EXPECT_FALSE(board.Hurry(first.job, second.waiter));
  EXPECT_TRUE(board.Hurry(first.job, first.waiter));
  EXPECT_FALSE(board.Hurry(first.job, first.waiter));  // it is already
  EXPECT_TRUE(board.Hurried(*first.job));
  const JobBoard::Joined later = board.Join("k", MeasuredJob, From("c"));
  EXPECT_TRUE(later.created);
  // The end of the first frees no key of the later one's.
  while (const std::shared_ptr<PickJob> job = board.TryNextToPlan()) board.Queue(job);
  board.Finish(board.NextMeasured(), absl::OkStatus(), {});
  board.Finish(board.NextMeasured(), absl::OkStatus(), {});
  EXPECT_TRUE(board.Join("k", MeasuredJob, From("d")).created);
}

// Each of them wants the best so far: neither keeps the other from it.
TEST(JobBoard, AJobIsHurriedOnceTheTimeOfAllItsWaitersIsOver) {
  JobBoard board(RealClock());
  const JobBoard::Joined first = board.Join("k", MeasuredJob, From("a"));
  const JobBoard::Joined second = board.Join("k", MeasuredJob, From("b"));
  EXPECT_FALSE(board.Hurry(first.job, first.waiter));
  EXPECT_FALSE(board.Hurry(first.job, first.waiter));
  EXPECT_FALSE(board.Hurried(*first.job));
  const JobBoard::Joined third = board.Join("k", MeasuredJob, From("c"));
  EXPECT_FALSE(third.created);
  EXPECT_FALSE(board.Hurry(first.job, second.waiter));
  board.Leave(third.job, third.waiter);
  EXPECT_TRUE(board.Hurry(first.job, first.waiter));
  EXPECT_FALSE(board.Hurry(first.job, second.waiter));
  EXPECT_TRUE(board.Hurried(*first.job));
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
