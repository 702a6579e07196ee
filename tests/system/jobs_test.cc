// Jobs of a real qgemmd: journalled, detached, watched again, cancelled, finished after kill -9.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "qgemm/v1/cache.grpc.pb.h"
#include "qgemm/v1/device.grpc.pb.h"
#include "tests/system/daemon_fixture.h"

namespace qgemm {
namespace {

using std::chrono::steady_clock;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Whoever else uses the machine may hold up one try: what is asserted about times is asserted of the median.
constexpr int kTimedTries = 5;

steady_clock::duration MedianOf(std::vector<steady_clock::duration> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

class JobsDaemonTest : public DaemonTest {
 protected:
  void StartWith(const std::vector<std::pair<std::string, std::string>>& environment) {
    daemon_.reset();
    daemon_ = std::make_unique<DaemonProcess>(QGEMMD, Flags(/*gpu=*/true), environment);
    ASSERT_TRUE(daemon_->AwaitLine("ready: listening on").has_value()) << daemon_->Output();
    Connect();
  }

  // The id of the accepted job; empty: it was not acknowledged.
  std::string Detach(v1::TuneRequest request) {
    request.set_detach(true);
    grpc::ClientContext context;
    context.AddMetadata("client_id", "test");
    const auto reader = tuner_->Tune(&context, request);
    v1::TuneEvent event;
    std::string job_id;
    while (reader->Read(&event)) {
      if (event.has_accepted()) job_id = event.accepted().job_id();
    }
    const grpc::Status status = reader->Finish();
    return status.ok() ? job_id : "";
  }

  TuneAnswer Watch(const std::string& job_id) {
    TuneAnswer answer;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(4));
    v1::WatchJobRequest request;
    request.set_job_id(job_id);
    const auto reader = tuner_->WatchJob(&context, request);
    v1::TuneEvent event;
    while (reader->Read(&event)) {
      if (event.has_result()) answer.results.push_back(event.result());
      if (event.has_summary()) answer.summary = event.summary();
    }
    answer.status = reader->Finish();
    return answer;
  }

  std::vector<v1::Job> List() {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    const grpc::Status status = tuner_->ListJobs(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {response.jobs().begin(), response.jobs().end()};
  }

  v1::JobState StateOf(const std::string& job_id) {
    for (const v1::Job& job : List()) {
      if (job.job_id() == job_id) return job.state();
    }
    return v1::JOB_STATE_UNSPECIFIED;
  }

  std::string KernelBytes(const std::string& sha256) {
    grpc::ClientContext context;
    v1::GetKernelsRequest request;
    request.add_sha256(sha256);
    const auto reader = tuner_->GetKernels(&context, request);
    std::string bytes;
    v1::KernelChunk chunk;
    while (reader->Read(&chunk)) bytes += chunk.data();
    EXPECT_TRUE(reader->Finish().ok());
    return bytes;
  }

  // What a store and its daemon leave nowhere but in the middle of their work.
  std::vector<std::string> TemporaryFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (absl::StrContains(name, "tmp") || absl::StrContains(name, ".damaged") ||
          absl::EndsWith(name, ".part")) {
        files.push_back(entry.path());
      }
    }
    return files;
  }

  v1::TuneRequest Request(int64_t n = 512, v1::Effort effort = v1::EFFORT_BALANCED) {
    return RequestFor(Int4Problem(n, 1024), {1, 16}, effort);
  }
};

TEST_F(JobsDaemonTest, DetachedJobGoesOnAfterKillMinusNine) {
  Start(/*gpu=*/true);
  SKIP_WITHOUT_NVRTC();
  const std::string job_id = Detach(Request());
  ASSERT_FALSE(job_id.empty());
  daemon_->Signal(SIGKILL);
  ASSERT_TRUE(daemon_->AwaitExit().has_value());
  Start(/*gpu=*/true);
  ASSERT_EQ(List().size(), 1u);
  EXPECT_EQ(List()[0].job_id(), job_id);
  EXPECT_EQ(List()[0].client(), "test");
  const TuneAnswer answer = Watch(job_id);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.results.size(), 2u);
  for (const v1::TuneResult& result : answer.results) EXPECT_TRUE(result.has_pick()) << result.error();
  // And once more, when it is history in the third daemon.
  daemon_->Signal(SIGKILL);
  ASSERT_TRUE(daemon_->AwaitExit().has_value());
  Start(/*gpu=*/true);
  const TuneAnswer replayed = Watch(job_id);
  ASSERT_TRUE(replayed.status.ok()) << replayed.status.error_message();
  EXPECT_EQ(replayed.results.size(), 2u);
  EXPECT_EQ(List()[0].state(), v1::JOB_STATE_DONE);
}

TEST_F(JobsDaemonTest, EveryCrashWindowKeepsWhatWasAcknowledged) {
  Start(/*gpu=*/true);
  SKIP_WITHOUT_NVRTC();
  int64_t n = 512;
  for (const std::string point :
       {"job-before-accept", "job-after-accept", "job-before-finish", "job-after-finish"}) {
    n += 64;
    StartWith({{"QGEMM_CRASH_POINT", point}});
    const std::string acknowledged = Detach(Request(n));
    ASSERT_EQ(daemon_->AwaitExit(), 128 + SIGKILL) << point;
    EXPECT_EQ(acknowledged.empty(), point == "job-before-accept" || point == "job-after-accept") << point;
    Start(/*gpu=*/true);
    std::string in_journal;
    for (const v1::Job& job : List()) {
      if (absl::StrContains(job.description(), absl::StrCat(n, "x1024"))) in_journal = job.job_id();
    }
    EXPECT_EQ(in_journal.empty(), point == "job-before-accept") << point;
    if (!acknowledged.empty()) {
      EXPECT_EQ(in_journal, acknowledged) << point;
    }
    if (in_journal.empty()) continue;
    const TuneAnswer answer = Watch(in_journal);
    EXPECT_TRUE(answer.status.ok()) << point << ": " << answer.status.error_message();
    EXPECT_EQ(answer.results.size(), 2u) << point;
  }
}

TEST_F(JobsDaemonTest, ClientThatGoesAwayWithdrawsItsJobInTime) {
  Start(/*gpu=*/true);
  SKIP_WITHOUT_NVRTC();
  std::vector<steady_clock::duration> until_withdrawn;
  for (int i = 0; i < kTimedTries; ++i) {
    grpc::ClientContext context;
    const auto reader = tuner_->Tune(&context, Request(512 + 64 * i, v1::EFFORT_EXHAUSTIVE));
    v1::TuneEvent event;
    ASSERT_TRUE(reader->Read(&event));
    ASSERT_TRUE(event.has_accepted());
    const std::string job_id = event.accepted().job_id();
    context.TryCancel();
    const auto gone = steady_clock::now();
    while (reader->Read(&event)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
    while (StateOf(job_id) != v1::JOB_STATE_CANCELLED) {
      ASSERT_LT(steady_clock::now() - gone, std::chrono::seconds(20));
    }
    until_withdrawn.push_back(steady_clock::now() - gone);
    EXPECT_EQ(Watch(job_id).status.error_code(), grpc::CANCELLED);
  }
  EXPECT_LT(MedianOf(until_withdrawn), std::chrono::seconds(1));
}

TEST_F(JobsDaemonTest, CancelledJobWhoseKernelHangsFreesTheGpuWithinASecond) {
  StartWith({{"QGEMM_SIMULATED_HANG", "."}});
  SKIP_WITHOUT_NVRTC();
  std::vector<steady_clock::duration> until_answered;
  std::vector<steady_clock::duration> until_free;
  for (int i = 0; i < kTimedTries; ++i) {
    const std::string job_id = Detach(Request(512 + 64 * i));
    ASSERT_TRUE(daemon_->AwaitLine("simulated hang of", i + 1).has_value()) << daemon_->Output();
    const auto start = steady_clock::now();
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    request.set_job_id(job_id);
    v1::CancelJobResponse response;
    ASSERT_TRUE(tuner_->CancelJob(&context, request, &response).ok());
    until_answered.push_back(steady_clock::now() - start);
    ASSERT_TRUE(daemon_->AwaitLine("the GPU process was killed: nobody waits", i + 1).has_value())
        << daemon_->Output();
    until_free.push_back(steady_clock::now() - start);
  }
  EXPECT_LT(MedianOf(until_answered), std::chrono::milliseconds(500));
  EXPECT_LT(MedianOf(until_free), std::chrono::seconds(1));
}

// Queued work within 100 ms, running work within 1 s, by the median: a disk that is busy with others' work
// holds up a journal's write now and then. The slowest of each is printed.
TEST_F(JobsDaemonTest, CancelTakesEffectInTime) {
  // A tuning of one candidate after the other that takes a minute.
  StartWith({{"QGEMM_SIMULATED_SCREEN_MS", "100"}});
  SKIP_WITHOUT_NVRTC();
  const auto cancel = [&](const std::string& job_id) {
    const auto begin = steady_clock::now();
    grpc::ClientContext context;
    context.AddMetadata("client_id", "test");
    v1::CancelJobRequest request;
    request.set_job_id(job_id);
    v1::CancelJobResponse response;
    const grpc::Status status = tuner_->CancelJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.job().state(), v1::JOB_STATE_CANCELLED);
    return steady_clock::now() - begin;
  };
  std::string running = Detach(Request(512, v1::EFFORT_EXHAUSTIVE));
  while (StateOf(running) == v1::JOB_STATE_QUEUED) {
  }
  std::vector<std::string> queued;
  for (int i = 1; i <= 20; ++i) queued.push_back(Detach(Request(512 + 64 * i, v1::EFFORT_EXHAUSTIVE)));
  std::vector<steady_clock::duration> after_queued;
  for (const std::string& job_id : queued) {
    EXPECT_EQ(StateOf(job_id), v1::JOB_STATE_QUEUED);
    after_queued.push_back(cancel(job_id));
  }

  // The next job's work begins when the running one's is withdrawn.
  std::vector<steady_clock::duration> until_next;
  for (int i = 1; i <= 5; ++i) {
    const std::string next = Detach(Request(4096 + 64 * i, v1::EFFORT_EXHAUSTIVE));
    EXPECT_EQ(StateOf(running), v1::JOB_STATE_RUNNING);
    const auto begin = steady_clock::now();
    cancel(running);
    while (StateOf(next) == v1::JOB_STATE_QUEUED) {
      ASSERT_LT(steady_clock::now() - begin, std::chrono::seconds(20));
    }
    until_next.push_back(steady_clock::now() - begin);
    running = next;
  }
  EXPECT_LE(MedianOf(after_queued), std::chrono::milliseconds(100));
  EXPECT_LE(MedianOf(until_next), std::chrono::seconds(1));
  using Milliseconds = std::chrono::duration<double, std::milli>;
  std::printf(
      "cancelled: queued jobs after %.1f ms (at most %.1f), the next one's work began %.1f ms (at most %.1f) "
      "after the running one\n",
      Milliseconds(MedianOf(after_queued)).count(),
      Milliseconds(*std::max_element(after_queued.begin(), after_queued.end())).count(),
      Milliseconds(MedianOf(until_next)).count(),
      Milliseconds(*std::max_element(until_next.begin(), until_next.end())).count());
}

TEST_F(JobsDaemonTest, UnknownJobsAreNotFound) {
  Start(/*gpu=*/false);
  EXPECT_EQ(Watch("0123456789abcdef").status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(Watch("").status.error_code(), grpc::NOT_FOUND);
  grpc::ClientContext context;
  v1::CancelJobRequest request;
  request.set_job_id(std::string(1000, 'x'));
  v1::CancelJobResponse response;
  EXPECT_EQ(tuner_->CancelJob(&context, request, &response).error_code(), grpc::NOT_FOUND);
}

TEST_F(JobsDaemonTest, SigtermFinishesWhatWasAcceptedAndRefusesTheRest) {
  // As long as a busy machine may need.
  Start(/*gpu=*/true, {"--drain-seconds", "240"});
  SKIP_WITHOUT_NVRTC();
  grpc::ClientContext context;
  const auto reader = tuner_->Tune(&context, Request());
  v1::TuneEvent event;
  ASSERT_TRUE(reader->Read(&event));
  daemon_->Signal(SIGTERM);
  ASSERT_TRUE(daemon_->AwaitLine("draining for up to").has_value());
  const TuneAnswer refused = Tune(Request(1024));
  EXPECT_EQ(refused.status.error_code(), grpc::UNAVAILABLE) << refused.status.error_message();
  int results = 0;
  while (reader->Read(&event)) results += event.has_result() ? 1 : 0;
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(results, 2);
  EXPECT_EQ(daemon_->AwaitExit(std::chrono::seconds(30)), 0);
}

TEST_F(JobsDaemonTest, SecondSigtermStopsAtOnceAndLosesNothing) {
  Start(/*gpu=*/true);
  SKIP_WITHOUT_NVRTC();
  const std::string job_id = Detach(Request());
  daemon_->Signal(SIGTERM);
  ASSERT_TRUE(daemon_->AwaitLine("draining for up to").has_value());
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->AwaitExit(std::chrono::seconds(10)), 0);
  Start(/*gpu=*/true);
  const TuneAnswer answer = Watch(job_id);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.results.size(), 2u);
}

TEST_F(JobsDaemonTest, SighupReadsLimitsAgain) {
  const std::string file = folder_ + "/qgemmd.toml";
  std::ofstream(file) << "queue_per_client = 100\n";
  Start(/*gpu=*/true, {"--config", file});
  SKIP_WITHOUT_NVRTC();
  std::ofstream(file) << "queue_per_client = 1\nworkers = 7\n";
  daemon_->Signal(SIGHUP);
  const auto line = daemon_->AwaitLine("limits were read again");
  ASSERT_TRUE(line.has_value()) << daemon_->Output();
  EXPECT_THAT(*line, HasSubstr("workers"));
  grpc::ClientContext context;
  const auto reader = tuner_->Tune(&context, Request());
  v1::TuneEvent event;
  while (reader->Read(&event)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  // A file that is wrong changes nothing.
  std::ofstream(file) << "queue_per_client = \"many\"\n";
  daemon_->Signal(SIGHUP);
  EXPECT_TRUE(daemon_->AwaitLine("nothing was changed").has_value());
}

TEST_F(JobsDaemonTest, PausedGpuIsFreeForOthersAndJobsWaitForIt) {
  Start(/*gpu=*/true);
  SKIP_WITHOUT_NVRTC();
  ASSERT_TRUE(Tune(Request()).status.ok());
  const auto device = v1::Device::NewStub(channel_);
  const auto state = [&] {
    grpc::ClientContext context;
    v1::DescribeResponse response;
    EXPECT_TRUE(device->Describe(&context, {}, &response).ok());
    return response.state();
  };
  {
    grpc::ClientContext context;
    v1::PauseResponse response;
    const grpc::Status paused = device->Pause(&context, {}, &response);
    ASSERT_TRUE(paused.ok()) << paused.error_message();
  }
  EXPECT_EQ(state(), "paused");
  // Lookups are served, jobs are accepted and say what they wait for.
  EXPECT_EQ(Tune(Request()).summary.cache_hits(), 2);
  const std::string job_id = Detach(Request(1024));
  grpc::ClientContext watching;
  v1::WatchJobRequest request;
  request.set_job_id(job_id);
  const auto watch = tuner_->WatchJob(&watching, request);
  v1::TuneEvent event;
  while (watch->Read(&event) && !absl::StrContains(event.progress().note(), "device resume")) {
  }
  EXPECT_THAT(event.progress().note(), HasSubstr("the GPU is paused"));
  // Another daemon has the GPU meanwhile.
  std::vector<std::string> flags = Flags(/*gpu=*/true);
  flags[1] = "unix:" + folder_ + "/other.sock";
  flags[3] = folder_ + "/other-data";
  auto other = std::make_unique<DaemonProcess>(QGEMMD, flags);
  ASSERT_TRUE(other->AwaitLine("ready: listening on").has_value()) << other->Output();
  {
    grpc::ClientContext context;
    v1::ResumeResponse response;
    const grpc::Status resumed = device->Resume(&context, {}, &response);
    EXPECT_EQ(resumed.error_code(), grpc::UNAVAILABLE);
    EXPECT_THAT(resumed.error_message(), HasSubstr("pid " + std::to_string(other->pid())));
  }
  other.reset();
  {
    grpc::ClientContext context;
    v1::ResumeResponse response;
    const grpc::Status resumed = device->Resume(&context, {}, &response);
    EXPECT_TRUE(resumed.ok()) << resumed.error_message();
  }
  int results = 0;
  while (watch->Read(&event)) results += event.has_result() ? 1 : 0;
  EXPECT_TRUE(watch->Finish().ok());
  EXPECT_EQ(results, 2);
  EXPECT_EQ(state(), "ready");
}

TEST_F(JobsDaemonTest, ADriverUpgradedUnderAPausedGpuMakesPicksStaleUntilTheyAreTimedAgain) {
  const std::string file = folder_ + "/driver";
  std::ofstream(file) << "580.95\n";
  StartWith({{"QGEMM_SIMULATED_DRIVER_FILE", file}});
  SKIP_WITHOUT_NVRTC();
  ASSERT_TRUE(Tune(Request()).status.ok());
  const auto device = v1::Device::NewStub(channel_);
  {
    grpc::ClientContext context;
    v1::PauseResponse response;
    ASSERT_TRUE(device->Pause(&context, {}, &response).ok());
  }
  std::ofstream(file) << "590.10\n";
  {
    grpc::ClientContext context;
    v1::ResumeResponse response;
    ASSERT_TRUE(device->Resume(&context, {}, &response).ok());
  }
  // The next use of the GPU shows its driver.
  ASSERT_TRUE(Tune(Request(1024)).status.ok());
  ASSERT_TRUE(daemon_->AwaitLine("the driver is 590.10 now, no longer 580.95").has_value());
  ASSERT_TRUE(daemon_->AwaitLine("were timed under another driver").has_value());
  ASSERT_TRUE(daemon_->AwaitLine("the last pick of another driver was timed again").has_value());
  // What was planned before the change was known is found afterwards.
  const auto deadline = steady_clock::now() + std::chrono::minutes(2);
  const auto fresh = [&](int64_t n) {
    const TuneAnswer answer = Tune(Request(n));
    return std::all_of(answer.results.begin(), answer.results.end(), [](const v1::TuneResult& result) {
      return !result.stale() && result.pick().driver_version() == "590.10";
    });
  };
  while (!fresh(512) || !fresh(1024)) ASSERT_LT(steady_clock::now(), deadline);
}

TEST_F(JobsDaemonTest, IdleGpuIsGivenBackAndTakenAgainForTheNextJob) {
  Start(/*gpu=*/true, {"--release-gpu-seconds", "1"});
  SKIP_WITHOUT_NVRTC();
  ASSERT_TRUE(daemon_->AwaitLine("is given back until it is needed").has_value());
  EXPECT_TRUE(Tune(Request()).status.ok());
}

TEST_F(JobsDaemonTest, WithoutWorkersItCompilesInTheDaemonOnlyWhenAskedTo) {
  std::vector<std::string> flags = Flags(/*gpu=*/false);
  for (size_t i = 0; i + 1 < flags.size(); ++i) {
    if (flags[i] == "--compile-binary") flags[i + 1] = folder_ + "/missing";
  }
  flags.emplace_back("--compile-in-process");
  daemon_ = std::make_unique<DaemonProcess>(QGEMMD, flags);
  ASSERT_TRUE(daemon_->AwaitLine("ready: listening on").has_value()) << daemon_->Output();
  SKIP_WITHOUT_NVRTC();
  Connect();
  const TuneAnswer answer = Tune(RequestFor(Int4Problem(512, 1024), {1}, v1::EFFORT_MODEL_ONLY));
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_TRUE(daemon_->AwaitLine("are compiled inside the daemon").has_value());
}

TEST_F(JobsDaemonTest, WorkersThatReturnAreUsedWithoutARestart) {
  Start(/*gpu=*/false);
  SKIP_WITHOUT_NVRTC();
  const std::string program = folder_ + "/qgemm-compile";
  std::vector<std::string> flags = Flags(/*gpu=*/false);
  for (size_t i = 0; i + 1 < flags.size(); ++i) {
    if (flags[i] == "--compile-binary") flags[i + 1] = program;
  }
  daemon_.reset();
  daemon_ = std::make_unique<DaemonProcess>(QGEMMD, flags);
  ASSERT_TRUE(daemon_->AwaitLine("nothing can be compiled").has_value()) << daemon_->Output();
  Connect();
  const v1::TuneRequest request = RequestFor(Int4Problem(512, 1024), {1}, v1::EFFORT_MODEL_ONLY);
  EXPECT_EQ(Tune(request).status.error_code(), grpc::UNAVAILABLE);
  std::filesystem::create_symlink(QGEMM_COMPILE, program);
  ASSERT_TRUE(daemon_->AwaitLine("compile workers can be started again").has_value());
  EXPECT_TRUE(Tune(request).status.ok());
}

// QGEMM_SOAK_ROUNDS and QGEMM_SOAK_JOBS make it longer: QGEMM_SOAK_ROUNDS=20 QGEMM_SOAK_JOBS=100 for the
// whole.
TEST_F(JobsDaemonTest, RandomKillsLoseNoAcknowledgedJobAndNoResult) {
  const std::vector<std::string> flags = {"--job-history", "10000"};
  Start(/*gpu=*/true, flags);
  SKIP_WITHOUT_NVRTC();
  const auto number = [](const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::atoi(text);
  };
  const int rounds = number("QGEMM_SOAK_ROUNDS", 2);
  const int jobs = number("QGEMM_SOAK_JOBS", 8);
  constexpr int kKillsPerRound = 3;
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  std::vector<std::string> acknowledged;
  int kills = 0;
  std::map<std::string, std::string> answered;  // what was streamed, by job and bucket
  int64_t n = 512;
  for (int round = 0; round < rounds; ++round) {
    std::set<int> kill_after;
    while (kill_after.size() < kKillsPerRound) {
      kill_after.insert(std::uniform_int_distribution<int>(0, jobs - 1)(random));
    }
    for (int i = 0; i < jobs; ++i) {
      n += 64;
      const std::string job_id = Detach(Request(n));
      if (!job_id.empty()) acknowledged.push_back(job_id);
      // Some are seen to their end, so that their results are acknowledged, too.
      if (!job_id.empty() && i % 4 == 3) {
        for (const v1::TuneResult& result : Watch(job_id).results) {
          answered[absl::StrCat(job_id, " ", result.m_bucket())] = result.pick().SerializeAsString();
        }
      }
      if (kill_after.count(i) > 0) {
        // Anywhere in the work that goes on.
        const auto until = steady_clock::now() +
                           std::chrono::microseconds(std::uniform_int_distribution<int>(0, 50'000)(random));
        while (steady_clock::now() < until) {
        }
        daemon_->Signal(SIGKILL);
        ASSERT_EQ(daemon_->AwaitExit(), 128 + SIGKILL);
        ++kills;
        Start(/*gpu=*/true, flags);
      }
    }
  }
  EXPECT_EQ(acknowledged.size(), static_cast<size_t>(rounds) * jobs);
  EXPECT_EQ(kills, rounds * kKillsPerRound);
  std::set<std::string> kernels;
  std::map<std::string, std::string> final;
  for (const std::string& job_id : acknowledged) {
    const TuneAnswer answer = Watch(job_id);
    ASSERT_TRUE(answer.status.ok()) << job_id << ": " << answer.status.error_message();
    EXPECT_EQ(answer.results.size(), 2u);
    for (const v1::TuneResult& result : answer.results) {
      EXPECT_TRUE(result.has_pick()) << result.error();
      kernels.insert(result.pick().kernel().sha256());
      final[absl::StrCat(job_id, " ", result.m_bucket())] = result.pick().SerializeAsString();
    }
  }
  for (const auto& [key, pick] : answered) EXPECT_EQ(final[key], pick) << key;
  for (const v1::Job& job : List()) EXPECT_EQ(job.state(), v1::JOB_STATE_DONE) << job.job_id();
  // Every kernel that a pick names has the bytes that it names.
  for (const std::string& sha256 : kernels) EXPECT_EQ(Sha256Hex(KernelBytes(sha256)), sha256);
  grpc::ClientContext context;
  v1::CacheVerifyResponse verified;
  ASSERT_TRUE(v1::Cache::NewStub(channel_)->Verify(&context, {}, &verified).ok());
  EXPECT_EQ(verified.corrupt(), 0);
  EXPECT_EQ(verified.picks_without_kernel(), 0);
  EXPECT_THAT(TemporaryFiles(), ElementsAre());
  std::printf("%d kills, %zu jobs, %zu results, %zu kernels\n", kills, acknowledged.size(), final.size(),
              kernels.size());
}

}  // namespace
}  // namespace qgemm
