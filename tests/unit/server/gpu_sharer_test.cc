#include "server/gpu_sharer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/fake_gpu.h"

namespace qgemm {
namespace {

Problem ProblemOf(int64_t n) { return {.n = n, .k = 512}; }

GpuCandidate CandidateNamed(const std::string& name) {
  GpuCandidate candidate;
  candidate.name = name;
  return candidate;
}

absl::Status Screened(Gpu& gpu, const std::string& name) {
  return gpu.Screen(CandidateNamed(name), 1e-3, absl::Milliseconds(1)).status();
}

class GpuSharerTest : public ::testing::Test {
 protected:
  GpuSharerTest() : a_(sharer_.NewUser()), b_(sharer_.NewUser()) {
    a_->SetSupportKernels("a's");
    b_->SetSupportKernels("b's");
  }

  FakeGpu gpu_;
  GpuSharer sharer_{gpu_};
  std::unique_ptr<Gpu> a_;
  std::unique_ptr<Gpu> b_;
};

TEST_F(GpuSharerTest, AloneAUserPreparesOnce) {
  ASSERT_TRUE(a_->Prepare(ProblemOf(64), 1).ok());
  EXPECT_EQ(gpu_.support_cubin(), "a's");
  EXPECT_TRUE(Screened(*a_, "one").ok());
  EXPECT_TRUE(Screened(*a_, "two").ok());
  EXPECT_TRUE(a_->Finals({CandidateNamed("one")}, absl::Milliseconds(1), 0).ok());
  EXPECT_EQ(gpu_.prepares(), 1);
}

TEST_F(GpuSharerTest, WhatAUserPreparedIsThereAgainAfterSomebodyElse) {
  ASSERT_TRUE(a_->Prepare(ProblemOf(64), 1).ok());
  ASSERT_TRUE(b_->Prepare(ProblemOf(128), 16).ok());
  EXPECT_EQ(gpu_.support_cubin(), "b's");
  EXPECT_TRUE(Screened(*a_, "one").ok());
  EXPECT_EQ(gpu_.prepares(), 3);
  EXPECT_EQ(gpu_.support_cubin(), "a's");
  EXPECT_TRUE(Screened(*a_, "two").ok());
  EXPECT_EQ(gpu_.prepares(), 3);
  EXPECT_TRUE(b_->Finals({CandidateNamed("three")}, absl::Milliseconds(1), 0).ok());
  EXPECT_EQ(gpu_.prepares(), 4);
}

TEST_F(GpuSharerTest, AUserThatIsGoneLeavesNothingPrepared) {
  ASSERT_TRUE(b_->Prepare(ProblemOf(128), 16).ok());
  b_ = sharer_.NewUser();  // may stand where the last one stood
  b_->SetSupportKernels("new");
  ASSERT_TRUE(b_->Prepare(ProblemOf(64), 1).ok());
  EXPECT_EQ(gpu_.support_cubin(), "new");
}

TEST_F(GpuSharerTest, AFailedPreparationIsTriedAgain) {
  gpu_.SetLost(absl::UnavailableError("gone"));
  EXPECT_TRUE(absl::IsUnavailable(a_->Prepare(ProblemOf(64), 1)));
  EXPECT_TRUE(absl::IsUnavailable(Screened(*a_, "one")));
  gpu_.SetLost(absl::OkStatus());
  EXPECT_TRUE(Screened(*a_, "one").ok());
  EXPECT_EQ(gpu_.prepares(), 3);
}

// A tuning asks again at once after each candidate; who waits comes in between.
TEST_F(GpuSharerTest, TurnsAreInTheOrderOfAsking) {
  ASSERT_TRUE(a_->Prepare(ProblemOf(64), 1).ok());
  Mutex mu;
  std::vector<std::string> order;
  gpu_.SetBehaviour([&](const GpuCandidate& candidate) -> absl::StatusOr<internal::ScreenReply> {
    MutexLock lock(mu);
    order.push_back(candidate.name);
    return FakeGpu::Right(5);
  });
  gpu_.Hold();
  std::future<void> busy = std::async(std::launch::async, [&] {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(Screened(*a_, "busy").ok());
  });
  gpu_.AwaitHeld();
  std::future<void> other = std::async(std::launch::async, [&] { ASSERT_TRUE(Screened(*b_, "other").ok()); });
  while (sharer_.waiting() == 0) std::this_thread::yield();
  gpu_.Release();
  busy.get();
  other.get();
  MutexLock lock(mu);
  ASSERT_EQ(order.size(), 4u);
  EXPECT_EQ(order[1], "other");
}

}  // namespace
}  // namespace qgemm
