#include "server/gpu_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <memory>

#include "base/digest.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

// The real thing with a simulated child: what the tuner sees when processes crash, hang and come back.
class GpuProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    auto spawner = Spawner::Start();
    ASSERT_TRUE(spawner.ok()) << spawner.status();
    spawner_ = *std::move(spawner);
    options_.program = SIMULATED_TIME;
    problem_.n = 5376;
    problem_.k = 4096;
    cubin_ = "some kernel's bytes";
  }

  void Start() { gpu_ = std::make_unique<GpuProcess>(spawner_.get(), options_, &clock_); }
  void StartPrepared() {
    Start();
    gpu_->SetSupportKernels("support");
    const absl::Status prepared = gpu_->Prepare(problem_, 4);
    ASSERT_TRUE(prepared.ok()) << prepared;
  }

  GpuCandidate Named(const std::string& name) const {
    GpuCandidate candidate;
    candidate.name = name;
    candidate.kernel_sha256 = Sha256Hex(cubin_);
    candidate.cubin = &cubin_;
    candidate.launch.layout_id = "layout";
    candidate.launch.entry = "kernel";
    candidate.launch.grid_n = 84;
    candidate.launch.block_threads = 256;
    return candidate;
  }
  absl::StatusOr<internal::ScreenReply> Screen(const std::string& name) {
    return gpu_->Screen(Named(name), 3e-3, absl::Milliseconds(2));
  }

  std::unique_ptr<Spawner> spawner_;
  SimulatedClock clock_;
  GpuProcessOptions options_;
  std::unique_ptr<GpuProcess> gpu_;
  Problem problem_;
  std::string cubin_;
};

TEST_F(GpuProcessTest, DescribesTheDevice) {
  Start();
  const auto info = gpu_->Describe();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->device.product_name(), "NVIDIA H200");
  EXPECT_THAT(info->uuid, HasSubstr("GPU-"));
  EXPECT_GT(info->memory_free_bytes, 0);
  EXPECT_GT(info->max_dynamic_smem_bytes, 48 << 10);
}

TEST_F(GpuProcessTest, ScreensAndTimesDeterministically) {
  StartPrepared();
  const auto first = Screen("a");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->failure(), internal::CANDIDATE_FAILURE_NONE);
  EXPECT_GT(first->timing().median_us(), 0);
  const auto again = Screen("a");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->timing().median_us(), first->timing().median_us());
  const auto finals = gpu_->Finals({Named("a"), Named("b")}, absl::Milliseconds(5), 0.003);
  ASSERT_TRUE(finals.ok()) << finals.status();
  ASSERT_EQ(finals->size(), 2);
  EXPECT_EQ((*finals)[0].median_us(), first->timing().median_us());
  EXPECT_EQ(gpu_->starts(), 1);
}

TEST_F(GpuProcessTest, ACrashCostsOnlyItsCandidate) {
  options_.env = {{"QGEMM_SIMULATED_CRASH", "^bad$"}};
  StartPrepared();
  ASSERT_TRUE(Screen("good").ok());
  const auto bad = Screen("bad");
  ASSERT_TRUE(bad.ok()) << bad.status();
  EXPECT_EQ(bad->failure(), internal::CANDIDATE_FAILURE_LAUNCH);
  EXPECT_THAT(bad->reason(), HasSubstr("signal 6"));
  const auto good = Screen("good");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->failure(), internal::CANDIDATE_FAILURE_NONE);
  EXPECT_EQ(gpu_->starts(), 2);
}

TEST_F(GpuProcessTest, AStickyErrorIsTheCandidatesWithItsReason) {
  options_.env = {{"QGEMM_SIMULATED_STICKY", "^bad$"}};
  StartPrepared();
  const auto bad = Screen("bad");
  ASSERT_TRUE(bad.ok()) << bad.status();
  EXPECT_EQ(bad->failure(), internal::CANDIDATE_FAILURE_LAUNCH);
  EXPECT_THAT(bad->reason(), HasSubstr("ILLEGAL_ADDRESS"));
  EXPECT_TRUE(Screen("good").ok());
}

TEST_F(GpuProcessTest, AHangIsKilledAtItsDeadline) {
  options_.env = {{"QGEMM_SIMULATED_HANG", "^bad$"}};
  // Long enough for a busy machine to screen the good one.
  options_.run_deadline = std::chrono::seconds(3);
  StartPrepared();
  const auto bad = Screen("bad");
  ASSERT_TRUE(bad.ok()) << bad.status();
  EXPECT_EQ(bad->failure(), internal::CANDIDATE_FAILURE_HANG);
  const auto good = Screen("good");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->failure(), internal::CANDIDATE_FAILURE_NONE);
}

TEST_F(GpuProcessTest, AHangThatNobodyWaitsForIsKilledLongBeforeItsDeadline) {
  options_.env = {{"QGEMM_SIMULATED_HANG", "^bad$"}};
  // Longer than this test may last; and a deadline's answer would be the candidate's failure.
  options_.run_deadline = std::chrono::hours(1);
  StartPrepared();
  std::atomic<int> asked{0};
  gpu_->SetWithdrawn([&] { return ++asked > 1; });
  const absl::Status ended = Screen("bad").status();
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
  EXPECT_EQ(gpu_->pid(), 0);
  gpu_->SetWithdrawn(nullptr);
  const auto good = Screen("good");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->failure(), internal::CANDIDATE_FAILURE_NONE);
}

TEST_F(GpuProcessTest, WhatEndsSoonAfterItsWithdrawalIsAnsweredByTheSameProcess) {
  options_.env = {{"QGEMM_SIMULATED_SCREEN_MS", "120"}};
  options_.withdrawn_grace = std::chrono::minutes(1);
  StartPrepared();
  gpu_->SetWithdrawn([] { return true; });
  EXPECT_TRUE(Screen("a").ok());
  EXPECT_EQ(gpu_->starts(), 1);
}

TEST_F(GpuProcessTest, WrongResultsAreData) {
  options_.env = {{"QGEMM_SIMULATED_WRONG", "w"}, {"QGEMM_SIMULATED_OUT_OF_BOUNDS", "o"}};
  StartPrepared();
  EXPECT_EQ(Screen("w")->failure(), internal::CANDIDATE_FAILURE_WRONG);
  EXPECT_EQ(Screen("o")->failure(), internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS);
  EXPECT_EQ(gpu_->starts(), 1);
}

TEST_F(GpuProcessTest, ACandidateIsTriedAgainWhenSomebodyElseKilledTheProcess) {
  StartPrepared();
  kill(gpu_->pid(), SIGKILL);
  const auto reply = Screen("innocent");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->failure(), internal::CANDIDATE_FAILURE_NONE);
  EXPECT_EQ(gpu_->starts(), 2);
}

TEST_F(GpuProcessTest, FinalsAreRepeatedAfterALoss) {
  StartPrepared();
  kill(gpu_->pid(), SIGKILL);
  const auto finals = gpu_->Finals({Named("a")}, absl::Milliseconds(5), 0.003);
  ASSERT_TRUE(finals.ok()) << finals.status();
  EXPECT_EQ(finals->size(), 1);
}

TEST_F(GpuProcessTest, TheKernelIsSentAgainToANewProcess) {
  StartPrepared();
  ASSERT_TRUE(Screen("a").ok());
  gpu_->Stop();
  // The new process knows no kernel; it would answer FailedPrecondition without the bytes.
  const auto reply = Screen("a");
  ASSERT_TRUE(reply.ok()) << reply.status();
}

TEST_F(GpuProcessTest, IsUnavailableWithTheReasonWhenThereIsNoGpuAndBacksOff) {
  options_.env = {{"QGEMM_SIMULATED_NO_GPU", "the driver finds no device"}};
  Start();
  const auto info = gpu_->Describe();
  EXPECT_EQ(info.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(info.status().message()), HasSubstr("the driver finds no device"));
  EXPECT_EQ(gpu_->starts(), 1);
  EXPECT_FALSE(gpu_->Describe().ok());
  EXPECT_EQ(gpu_->starts(), 1);  // still backing off
  clock_.Advance(std::chrono::milliseconds(1001));
  EXPECT_FALSE(gpu_->Describe().ok());
  EXPECT_EQ(gpu_->starts(), 2);
  clock_.Advance(std::chrono::milliseconds(1001));
  EXPECT_FALSE(gpu_->Describe().ok());
  EXPECT_EQ(gpu_->starts(), 2);  // the second wait is longer
}

TEST_F(GpuProcessTest, IsUnavailableWhenTheProgramIsMissing) {
  options_.program = "/nonexistent/qgemm-time";
  Start();
  const auto info = gpu_->Describe();
  EXPECT_EQ(info.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(info.status().message()), HasSubstr("/nonexistent/qgemm-time"));
}

TEST_F(GpuProcessTest, ScreenBeforePrepareIsACallersError) {
  Start();
  EXPECT_EQ(Screen("a").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GpuProcessTest, PrepareTellsTheProcesssReason) {
  Start();  // no support kernels
  const absl::Status prepared = gpu_->Prepare(problem_, 4);
  EXPECT_EQ(prepared.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(prepared.message()), HasSubstr("support kernels"));
}

TEST_F(GpuProcessTest, CountsBusyTime) {
  options_.env = {{"QGEMM_SIMULATED_SCREEN_MS", "2"}};
  StartPrepared();
  ASSERT_TRUE(Screen("a").ok());
  EXPECT_GE(gpu_->busy_seconds(), 0.002);
}

}  // namespace
}  // namespace qgemm
