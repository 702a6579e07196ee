#include "server/jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache/memory_store.h"
#include "server/retry_delay.h"
#include "server/tuner.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/fakes/fake_gpu.h"
#include "tests/fakes/int4_problem.h"

namespace qgemm {
namespace {

using ::testing::_;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pair;

v1::TuneRequest RequestFor(int64_t n, std::vector<int64_t> m = {16}) {
  v1::TuneRequest request;
  *request.add_problems() = Int4Problem(n, 4096);
  for (const int64_t rows : m) request.add_m(rows);
  request.set_effort(v1::EFFORT_BALANCED);
  return request;
}

v1::TuneRequest RequestDueIn(double seconds) {
  v1::TuneRequest request = RequestFor(5376);
  request.set_execution_deadline_s(seconds);
  return request;
}

absl::Status Anybody(const v1::Job& /*job*/) { return absl::OkStatus(); }

v1::TuneRequest Detached(v1::TuneRequest request) {
  request.set_detach(true);
  return request;
}

// Keeps what it is sent; `accepted` can be waited for.
class RecordingStream : public TuneStream {
 public:
  void Send(const v1::TuneEvent& event) override {
    if (event.has_accepted()) {
      if (on_accepted) on_accepted(event.accepted().job_id());
      job_id = event.accepted().job_id();
      request = event.accepted().request();
      accepted_.set_value(job_id);
    }
    if (event.has_result()) results.push_back(event.result());
    if (event.has_summary()) summary = event.summary();
  }
  bool Cancelled() override { return cancelled.load(); }
  std::string AwaitAccepted() { return accepted_.get_future().get(); }

  std::function<void(const std::string&)> on_accepted;
  std::string job_id;
  v1::TuneRequest request;
  std::vector<v1::TuneResult> results;
  std::optional<v1::TuneSummary> summary;
  std::atomic<bool> cancelled{false};

 private:
  std::promise<std::string> accepted_;
};

// A tuner over fakes; the store survives Restart().
class JobsTest : public ::testing::Test {
 protected:
  JobsTest() { Restart(); }

  void Restart(Clock* clock = nullptr) {
    tuner_.reset();
    if (clock != nullptr) clock_ = clock;
    absl::StatusOr<TargetResolver> targets = TargetResolver::Create("h200", "", FakeGpu::H200());
    ASSERT_TRUE(targets.ok()) << targets.status();
    TunerOptions options;
    options.jobs = limits_;
    tuner_ = std::make_unique<Tuner>(store_, compiler_, &gpu_, *clock_, *std::move(targets), options);
    ASSERT_TRUE(tuner_->OpenJournal().ok());
    tuner_->jobs().Tick();
  }

  std::string Detach(const v1::TuneRequest& request, const std::string& client = "test") {
    RecordingStream stream;
    const absl::Status status = tuner_->Tune(Detached(request), client, stream);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_FALSE(stream.job_id.empty());
    return stream.job_id;
  }

  absl::Status Watch(const std::string& job_id, RecordingStream& stream) {
    return tuner_->jobs().Watch(job_id, "test", stream);
  }

  std::vector<v1::Job> List() { return tuner_->jobs().List({}); }

  v1::Job Find(const std::string& job_id) {
    for (v1::Job& job : List()) {
      if (job.job_id() == job_id) return job;
    }
    ADD_FAILURE() << "no job " << job_id;
    return {};
  }

  // Lets time pass, and the jobs notice.
  void Pass(SimulatedClock& clock, std::chrono::nanoseconds time) {
    clock.Advance(time);
    tuner_->jobs().Tick();
  }

  JobLimits limits_;
  Clock* clock_ = &RealClock();
  MemoryStore store_;
  FakeCompiler compiler_;
  FakeGpu gpu_;
  std::unique_ptr<Tuner> tuner_;
};

TEST_F(JobsTest, JobIsInTheJournalBeforeItsClientIsTold) {
  RecordingStream stream;
  stream.on_accepted = [&](const std::string& job_id) {
    const auto record = store_.GetJob(job_id);
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(record->job().state(), v1::JOB_STATE_QUEUED);
    EXPECT_EQ(record->job().client(), "alice");
    EXPECT_EQ(record->request().problems_size(), 1);
  };
  ASSERT_TRUE(tuner_->Tune(RequestFor(5376), "alice", stream).ok());
  const v1::Job job = Find(stream.job_id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_DONE);
  EXPECT_EQ(job.results_done(), 1);
  EXPECT_GT(job.finished_unix_ms(), 0);
  EXPECT_GT(job.started_unix_ms(), 0);
}

TEST_F(JobsTest, WhatTheCacheAnswersIsNoJob) {
  RecordingStream cold;
  ASSERT_TRUE(tuner_->Tune(RequestFor(5376), "test", cold).ok());
  RecordingStream warm;
  ASSERT_TRUE(tuner_->Tune(RequestFor(5376), "test", warm).ok());
  EXPECT_TRUE(warm.job_id.empty());
  ASSERT_EQ(warm.results.size(), 1u);
  EXPECT_EQ(warm.summary->cache_hits(), 1);
  EXPECT_EQ(List().size(), 1u);
}

TEST_F(JobsTest, FullDiskMeansNotAccepted) {
  store_.SetWriteError(absl::ResourceExhaustedError("the disk is full"));
  RecordingStream stream;
  const absl::Status status = tuner_->Tune(RequestFor(5376), "test", stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not accepted"));
  EXPECT_TRUE(stream.job_id.empty());
  EXPECT_TRUE(List().empty());
}

TEST_F(JobsTest, DetachedJobIsFinishedWithoutItsClientAndReplayed) {
  const std::string job_id = Detach(RequestFor(5376, {1, 16}));
  RecordingStream live;
  ASSERT_TRUE(Watch(job_id, live).ok());
  RecordingStream replayed;
  ASSERT_TRUE(Watch(job_id, replayed).ok());
  ASSERT_EQ(replayed.results.size(), 2u);
  EXPECT_EQ(replayed.request.m_size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(replayed.results[i].has_pick()) << replayed.results[i].error();
    EXPECT_EQ(replayed.results[i].SerializeAsString(), live.results[i].SerializeAsString());
  }
  EXPECT_EQ(replayed.summary->SerializeAsString(), live.summary->SerializeAsString());
  EXPECT_TRUE(Find(job_id).detached());
}

TEST_F(JobsTest, UnfinishedJobIsFinishedByTheNextDaemon) {
  compiler_.Hold();
  const std::string job_id = Detach(RequestFor(5376, {1, 16}));
  compiler_.AwaitHeld(1);
  Restart();
  EXPECT_EQ(Find(job_id).finished_unix_ms(), 0);
  compiler_.Release();
  RecordingStream stream;
  ASSERT_TRUE(Watch(job_id, stream).ok());
  EXPECT_EQ(stream.results.size(), 2u);
  EXPECT_EQ(Find(job_id).state(), v1::JOB_STATE_DONE);
}

TEST_F(JobsTest, DaemonThatStopsTellsWatchersThatTheJobGoesOn) {
  compiler_.Hold();
  RecordingStream stream;
  std::future<absl::Status> tune =
      std::async(std::launch::async, [&] { return tuner_->Tune(RequestFor(5376), "test", stream); });
  const std::string job_id = stream.AwaitAccepted();
  tuner_->Stop();
  const absl::Status status = tune.get();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(job_id));
  EXPECT_EQ(store_.GetJob(job_id)->job().state(), v1::JOB_STATE_QUEUED);
  Restart();
  compiler_.Release();
  RecordingStream again;
  EXPECT_TRUE(Watch(job_id, again).ok());
  EXPECT_TRUE(again.results[0].has_pick());
}

TEST_F(JobsTest, JobUnderWhichDaemonsDieIsGivenUp) {
  compiler_.Hold();
  const std::string job_id = Detach(RequestFor(5376));
  internal::JobRecord record = *store_.GetJob(job_id);
  tuner_.reset();
  record.set_starts(10);  // that many daemons died
  ASSERT_TRUE(store_.PutJob(record).ok());
  Restart();
  compiler_.Release();
  RecordingStream stream;
  const absl::Status status = Watch(job_id, stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_EQ(Find(job_id).state(), v1::JOB_STATE_FAILED);
}

TEST_F(JobsTest, AttachedClientsWorkIsWithdrawnAndAnothersDetachedJobIsFinished) {
  compiler_.Hold();
  RecordingStream attached;
  std::future<absl::Status> tune =
      std::async(std::launch::async, [&] { return tuner_->Tune(RequestFor(1024), "alice", attached); });
  const std::string gone = attached.AwaitAccepted();
  const std::string kept = Detach(RequestFor(5376), "bob");
  attached.cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(tune.get()));
  EXPECT_EQ(Find(gone).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(store_.GetJob(gone)->job().state(), v1::JOB_STATE_CANCELLED);
  Restart();
  compiler_.Release();
  RecordingStream stream;
  EXPECT_TRUE(Watch(kept, stream).ok());
  RecordingStream replay;
  EXPECT_TRUE(absl::IsCancelled(Watch(gone, replay)));
  // 1024x4096 was nobody's wish any more.
  v1::LookupRequest lookup;
  *lookup.add_keys()->mutable_problem() = Int4Problem(1024, 4096);
  lookup.mutable_keys(0)->set_m(16);
  EXPECT_FALSE(tuner_->Lookup(lookup)->answers(0).has_pick());
}

TEST_F(JobsTest, WatcherKeepsAnAttachedJobAlive) {
  compiler_.Hold();
  RecordingStream first;
  std::future<absl::Status> tune =
      std::async(std::launch::async, [&] { return tuner_->Tune(RequestFor(5376), "alice", first); });
  const std::string job_id = first.AwaitAccepted();
  RecordingStream second;
  std::future<absl::Status> watch = std::async(std::launch::async, [&] { return Watch(job_id, second); });
  second.AwaitAccepted();
  first.cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(tune.get()));
  compiler_.Release();
  EXPECT_TRUE(watch.get().ok());
  EXPECT_EQ(second.results.size(), 1u);
}

TEST_F(JobsTest, CancelledJobLetsGoOfEverythingAndTellsItsWatchers) {
  compiler_.Hold();
  const std::string job_id = Detach(RequestFor(5376));
  compiler_.AwaitHeld(1);
  RecordingStream stream;
  std::future<absl::Status> watch = std::async(std::launch::async, [&] { return Watch(job_id, stream); });
  stream.AwaitAccepted();
  const auto cancelled = tuner_->jobs().Cancel(job_id, Anybody);
  ASSERT_TRUE(cancelled.ok());
  EXPECT_EQ(cancelled->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(absl::IsCancelled(watch.get()));
  compiler_.AwaitNoneHeld();
  EXPECT_EQ(compiler_.compiles(), 0);
  // Again, when it is history: nothing changes.
  EXPECT_EQ(tuner_->jobs().Cancel(job_id, Anybody)->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(absl::IsNotFound(tuner_->jobs().Cancel("0000000000000000", Anybody).status()));
  EXPECT_TRUE(absl::IsNotFound(tuner_->jobs().Cancel("", Anybody).status()));
}

TEST_F(JobsTest, CancellingFreesAGpuThatHangs) {
  gpu_.HangUntilWithdrawn();
  const std::string job_id = Detach(RequestFor(5376));
  gpu_.AwaitHeld();
  ASSERT_TRUE(tuner_->jobs().Cancel(job_id, Anybody).ok());
  // The next job gets the GPU, and its own answer.
  RecordingStream next;
  ASSERT_TRUE(tuner_->Tune(RequestFor(1024), "bob", next).ok());
  EXPECT_EQ(next.results.size(), 1u);
  EXPECT_FALSE(tuner_->gpu_lost());
  // Nothing is known of the candidate that hung: it is tried again.
  RecordingStream again;
  ASSERT_TRUE(tuner_->Tune(RequestFor(5376), "bob", again).ok());
  ASSERT_EQ(again.results.size(), 1u);
  EXPECT_TRUE(again.results[0].rejections().empty());
}

TEST_F(JobsTest, SixtyFourClientsOfOneColdKeyShareOneTuning) {
  constexpr int kClients = 64;
  compiler_.Hold();
  std::vector<RecordingStream> streams(kClients);
  std::vector<std::future<absl::Status>> tunes;
  for (int i = 0; i < kClients; ++i) {
    tunes.push_back(std::async(std::launch::async, [this, i, &streams] {
      return tuner_->Tune(RequestFor(5376), absl::StrCat("client-", i), streams[i]);
    }));
  }
  for (RecordingStream& stream : streams) stream.AwaitAccepted();
  compiler_.Release();
  for (std::future<absl::Status>& tune : tunes) EXPECT_TRUE(tune.get().ok());
  EXPECT_THAT(compiler_.compiles_by_name(), Each(Pair(_, 1)));
  EXPECT_THAT(gpu_.screens_by_name(), Each(Pair(_, 1)));
  int64_t timings = 0;
  for (const RecordingStream& stream : streams) {
    ASSERT_EQ(stream.results.size(), 1u);
    EXPECT_EQ(stream.results[0].pick().SerializeAsString(), streams[0].results[0].pick().SerializeAsString());
    timings += stream.summary->timings();
  }
  EXPECT_EQ(timings, gpu_.screens());
}

TEST_F(JobsTest, QuotasRefuseTheWholeRequestWithARetryDelay) {
  limits_.picks_per_client = 3;
  limits_.picks_total = 4;
  Restart();
  compiler_.Hold();
  const std::string first = Detach(RequestFor(5376, {1, 16}), "alice");
  RecordingStream refused;
  absl::Status status = tuner_->Tune(Detached(RequestFor(1024, {1, 16})), "alice", refused);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("client alice has 2 picks"));
  EXPECT_TRUE(RetryDelayOf(status).has_value());
  EXPECT_TRUE(refused.job_id.empty());
  Detach(RequestFor(1024, {1, 16}), "bob");
  status = tuner_->Tune(Detached(RequestFor(2048, {1})), "carol", refused);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("all clients have 4 picks"));
  // What ends makes room.
  ASSERT_TRUE(tuner_->jobs().Cancel(first, Anybody).ok());
  Detach(RequestFor(2048, {1}), "carol");
}

TEST_F(JobsTest, WaitingCallsOfOneClientAreLimited) {
  limits_.streams_per_client = 1;
  Restart();
  compiler_.Hold();
  const std::string job_id = Detach(RequestFor(5376));
  RecordingStream first;
  std::future<absl::Status> watch = std::async(std::launch::async, [&] { return Watch(job_id, first); });
  first.AwaitAccepted();
  RecordingStream second;
  EXPECT_EQ(Watch(job_id, second).code(), absl::StatusCode::kResourceExhausted);
  compiler_.Release();
  EXPECT_TRUE(watch.get().ok());
  RecordingStream third;
  EXPECT_TRUE(Watch(job_id, third).ok());
}

TEST_F(JobsTest, DetachedJobWaitsUntilTheGpuIsBack) {
  SimulatedClock clock;
  Restart(&clock);
  gpu_.SetLost(absl::UnavailableError("the GPU fell off the bus"));
  const std::string job_id = Detach(RequestFor(5376));
  while (!absl::StrContains(Find(job_id).error(), "fell off")) std::this_thread::yield();
  EXPECT_EQ(Find(job_id).state(), v1::JOB_STATE_QUEUED);
  gpu_.SetLost(absl::OkStatus());
  tuner_->jobs().Tick();  // too early
  Pass(clock, std::chrono::seconds(2));
  RecordingStream stream;
  EXPECT_TRUE(Watch(job_id, stream).ok());
  EXPECT_TRUE(stream.results[0].has_pick());
  Restart(&RealClock());
}

TEST_F(JobsTest, JobThatIsNotBegunInTimeFails) {
  SimulatedClock clock;
  Restart(&clock);
  gpu_.Hold();
  const std::string running = Detach(RequestFor(1024));
  gpu_.AwaitHeld();
  v1::TuneRequest request = RequestFor(5376);
  request.set_queue_deadline_s(10);
  const std::string late = Detach(request);
  Pass(clock, std::chrono::seconds(9));
  EXPECT_EQ(Find(late).state(), v1::JOB_STATE_QUEUED);
  Pass(clock, std::chrono::seconds(1));
  EXPECT_EQ(Find(late).state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Find(late).error(), HasSubstr("queue_deadline_s of 10"));
  EXPECT_EQ(Find(running).state(), v1::JOB_STATE_RUNNING);
  gpu_.Release();
  RecordingStream stream;
  EXPECT_TRUE(Watch(running, stream).ok());
  RecordingStream replay;
  EXPECT_TRUE(absl::IsDeadlineExceeded(Watch(late, replay)));
  Restart(&RealClock());
}

// At its deadline the search ends; who asks for the same meanwhile gets all of it.
TEST_F(JobsTest, JobThatIsNotDoneInTimeEndsWithTheBestSoFar) {
  SimulatedClock clock;
  Restart(&clock);
  gpu_.Hold();
  v1::TuneRequest request = RequestDueIn(60);
  const std::string job_id = Detach(request);
  gpu_.AwaitHeld();
  Pass(clock, std::chrono::seconds(59));
  Pass(clock, std::chrono::seconds(1));
  EXPECT_EQ(Find(job_id).state(), v1::JOB_STATE_RUNNING);
  const std::string other = Detach(RequestFor(5376));
  gpu_.Release();
  RecordingStream stream;
  ASSERT_TRUE(Watch(job_id, stream).ok());
  ASSERT_EQ(stream.results.size(), 1);
  const v1::Pick& pick = stream.results[0].pick();
  EXPECT_EQ(pick.source(), v1::PICK_SOURCE_MEASURED);
  EXPECT_TRUE(pick.partial());
  EXPECT_EQ(pick.timed(), 1);
  EXPECT_EQ(stream.summary->timings(), 1);
  RecordingStream all;
  ASSERT_TRUE(Watch(other, all).ok());
  EXPECT_FALSE(all.results[0].pick().partial());
  EXPECT_GT(all.results[0].pick().timed(), 1);
  Restart(&RealClock());
}

// Nothing was timed: what the model says.
TEST_F(JobsTest, JobWhoseKernelsAreNotThereInTimeEndsWithAPrediction) {
  SimulatedClock clock;
  Restart(&clock);
  compiler_.Hold();
  v1::TuneRequest request = RequestDueIn(60);
  RecordingStream stream;
  std::future<absl::Status> tuned =
      std::async(std::launch::async, [&] { return tuner_->Tune(request, "test", stream); });
  const std::string job_id = stream.AwaitAccepted();
  compiler_.AwaitHeld(1);
  while (Find(job_id).state() != v1::JOB_STATE_RUNNING) std::this_thread::yield();
  Pass(clock, std::chrono::seconds(61));
  compiler_.Release();
  ASSERT_TRUE(tuned.get().ok());
  ASSERT_EQ(stream.results.size(), 1);
  EXPECT_EQ(stream.results[0].pick().source(), v1::PICK_SOURCE_MODEL);
  EXPECT_TRUE(stream.results[0].pick().partial());
  EXPECT_EQ(gpu_.screens(), 0);
  Restart(&RealClock());
}

// The best prediction's kernel is there, the others' are not.
TEST_F(JobsTest, PredictionThatIsKnownAtTheDeadlineWaitsForNoOtherKernel) {
  SimulatedClock clock;
  Restart(&clock);
  v1::TuneRequest request = RequestFor(5376);
  request.set_target("h100");
  request.set_effort(v1::EFFORT_EXHAUSTIVE);
  RecordingStream stored;
  ASSERT_TRUE(tuner_->Tune(request, "test", stored).ok());
  compiler_.Hold();
  request.mutable_problems(0)->CopyFrom(Int4Problem(5376, 8192));  // its kernels for 16 rows are there
  request.add_m(1024);
  request.set_execution_deadline_s(60);
  RecordingStream stream;
  std::future<absl::Status> tuned =
      std::async(std::launch::async, [&] { return tuner_->Tune(request, "test", stream); });
  const std::string job_id = stream.AwaitAccepted();
  compiler_.AwaitHeld(2);
  while (Find(job_id).results_done() == 0) std::this_thread::yield();
  clock.Advance(std::chrono::seconds(61));
  compiler_.ReleaseSome(1);
  int ticks = 0;  // the daemon's come again and again
  do {
    tuner_->jobs().Tick();
  } while (tuned.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready && ++ticks < 3000);
  EXPECT_LT(ticks, 3000);
  compiler_.Release();
  EXPECT_TRUE(tuned.get().ok());
  ASSERT_EQ(stream.results.size(), 2);
  EXPECT_EQ(stream.results[1].pick().source(), v1::PICK_SOURCE_MODEL) << stream.results[1].error();
  EXPECT_GT(compiler_.cancelled(), 0);
  Restart(&RealClock());
}

// Others want all of it: whose time is over goes without.
TEST_F(JobsTest, DeadlineOfOneDoesNotCutAnothersSearchShort) {
  SimulatedClock clock;
  Restart(&clock);
  gpu_.Hold();
  v1::TuneRequest request = RequestDueIn(60);
  const std::string late = Detach(request);
  const std::string other = Detach(RequestFor(5376), "other");
  gpu_.AwaitHeld();
  Pass(clock, std::chrono::seconds(61));
  EXPECT_EQ(Find(late).state(), v1::JOB_STATE_RUNNING);
  Pass(clock, TuneJob::kLateGrace);
  EXPECT_EQ(Find(late).state(), v1::JOB_STATE_FAILED);
  gpu_.Release();
  RecordingStream stream;
  ASSERT_TRUE(Watch(other, stream).ok());
  EXPECT_FALSE(stream.results[0].pick().partial());
  Restart(&RealClock());
}

TEST_F(JobsTest, TwoWhoseTimeIsOverGetTheBestSoFarOfTheSearchThatTheyShare) {
  SimulatedClock clock;
  Restart(&clock);
  gpu_.Hold();
  v1::TuneRequest request = RequestDueIn(60);
  const std::string first = Detach(request);
  request.set_execution_deadline_s(61);
  const std::string second = Detach(request, "other");
  gpu_.AwaitHeld();
  Pass(clock, std::chrono::seconds(62));
  gpu_.Release();
  for (const std::string& job_id : {first, second}) {
    RecordingStream stream;
    ASSERT_TRUE(Watch(job_id, stream).ok());
    ASSERT_EQ(stream.results.size(), 1);
    EXPECT_TRUE(stream.results[0].pick().partial());
    EXPECT_EQ(stream.results[0].pick().timed(), 1);
  }
  Restart(&RealClock());
}

TEST_F(JobsTest, JobThatIsNotDoneSomeSecondsAfterItsTimeFails) {
  SimulatedClock clock;
  Restart(&clock);
  gpu_.Hold();
  v1::TuneRequest request = RequestDueIn(60);
  const std::string job_id = Detach(request);
  gpu_.AwaitHeld();
  Pass(clock, std::chrono::seconds(60) + TuneJob::kLateGrace);
  EXPECT_EQ(Find(job_id).state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Find(job_id).error(), HasSubstr("0 of 1 results"));
  gpu_.Release();
  Restart(&RealClock());
}

TEST_F(JobsTest, HistoryIsKeptByCountAndByAge) {
  SimulatedClock clock;
  limits_.history.count = 2;
  limits_.history.age = std::chrono::hours(1);
  Restart(&clock);
  std::vector<std::string> ids;
  for (const int64_t n : {1024, 2048, 4096}) {
    RecordingStream stream;
    ASSERT_TRUE(tuner_->Tune(RequestFor(n), "test", stream).ok());
    ids.push_back(stream.job_id);
    clock.Advance(std::chrono::minutes(1));
  }
  const auto listed = [&] {
    std::vector<std::string> listed;
    for (const v1::Job& job : List()) listed.push_back(job.job_id());
    return listed;
  };
  EXPECT_THAT(listed(), ::testing::ElementsAre(ids[1], ids[2]));
  EXPECT_TRUE(absl::IsNotFound(store_.GetJob(ids[0]).status()));
  Restart(&clock);
  EXPECT_THAT(listed(), ::testing::ElementsAre(ids[1], ids[2]));
  Pass(clock, std::chrono::hours(1) - std::chrono::seconds(90));
  EXPECT_THAT(listed(), ::testing::ElementsAre(ids[2]));
  RecordingStream stream;
  EXPECT_TRUE(absl::IsNotFound(Watch(ids[1], stream)));
  Restart(&RealClock());
}

TEST_F(JobsTest, RefusesOptionsOutOfRange) {
  const auto code_of = [&](const std::function<void(v1::TuneRequest&)>& change) {
    v1::TuneRequest request = RequestFor(5376);
    change(request);
    RecordingStream stream;
    return tuner_->Tune(request, "test", stream).code();
  };
  EXPECT_EQ(code_of([](v1::TuneRequest& request) { request.set_priority(101); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](v1::TuneRequest& request) { request.set_priority(INT32_MIN); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](v1::TuneRequest& request) { request.set_queue_deadline_s(-1); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](v1::TuneRequest& request) { request.set_execution_deadline_s(1e300); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](v1::TuneRequest& request) { request.set_job_class(static_cast<v1::JobClass>(7)); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(List().empty());
}

TEST_F(JobsTest, DrainingRefusesNewWorkAndFinishesWhatWasAccepted) {
  compiler_.Hold();
  const std::string job_id = Detach(RequestFor(5376));
  tuner_->jobs().Drain();
  EXPECT_EQ(tuner_->jobs().active(), 1);
  RecordingStream refused;
  EXPECT_TRUE(absl::IsUnavailable(tuner_->Tune(RequestFor(1024), "test", refused)));
  compiler_.Release();
  RecordingStream stream;
  EXPECT_TRUE(Watch(job_id, stream).ok());
  EXPECT_EQ(tuner_->jobs().active(), 0);
}

}  // namespace
}  // namespace qgemm
