#include "server/fallback_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>

#include "tests/fakes/fake_compiler.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;
using Result = absl::StatusOr<internal::CompileReply>;

class FallbackCompilerTest : public ::testing::Test {
 protected:
  FallbackCompilerTest() {
    here_.toolchain = "nvrtc 13.0";
    here_.archs = {"sm_80"};
    here_.compile = [this](const CompileTask& task) -> Result {
      ++compiled_here_;
      return FakeCompiler::Reply(task);
    };
    compiler_ =
        std::make_unique<FallbackCompiler>(workers_, [this]() -> absl::StatusOr<FallbackCompiler::InProcess> {
          if (!load_status_.ok()) return load_status_;
          return here_;
        });
  }

  Result Compile() {
    CompileTask task;
    task.source.name = "kernel";
    task.arch = "sm_80";
    std::promise<Result> promise;
    const std::unique_ptr<CompileTicket> ticket =
        compiler_->Compile(std::move(task), [&](Result result) { promise.set_value(std::move(result)); });
    return promise.get_future().get();
  }

  FakeCompiler workers_;
  FallbackCompiler::InProcess here_;
  absl::Status load_status_;
  std::atomic<int> compiled_here_{0};
  std::unique_ptr<FallbackCompiler> compiler_;
};

TEST_F(FallbackCompilerTest, LeavesItToTheWorkersWhereThereAreSome) {
  EXPECT_TRUE(Compile().ok());
  EXPECT_EQ(compiled_here_, 0);
  EXPECT_EQ(workers_.compiles(), 1);
  EXPECT_TRUE(compiler_->SupportsArch("sm_90a").ok());
}

TEST_F(FallbackCompilerTest, CompilesHereWithoutWorkersAndStopsWhenTheyReturn) {
  workers_.SetUnavailable(absl::UnavailableError("qgemm-compile is missing"));
  EXPECT_EQ(*compiler_->Toolchain(), "nvrtc 13.0");
  EXPECT_TRUE(Compile().ok());
  EXPECT_EQ(compiled_here_, 1);
  workers_.SetUnavailable(absl::OkStatus());
  EXPECT_TRUE(Compile().ok());
  EXPECT_EQ(compiled_here_, 1);
}

TEST_F(FallbackCompilerTest, SaysBothReasonsWhenNeitherWorks) {
  workers_.SetUnavailable(absl::UnavailableError("qgemm-compile is missing"));
  load_status_ = absl::NotFoundError("libnvrtc.so.13 was not found");
  for (const absl::Status& status : {Compile().status(), compiler_->Toolchain().status()}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("qgemm-compile is missing"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("libnvrtc"));
  }
}

TEST_F(FallbackCompilerTest, KernelsOwnErrorIsNotTriedAgainHere) {
  workers_.SetBehaviour([](const CompileTask&) -> Result { return absl::InvalidArgumentError("error: x"); });
  EXPECT_TRUE(absl::IsInvalidArgument(Compile().status()));
  EXPECT_EQ(compiled_here_, 0);
}

TEST_F(FallbackCompilerTest, CancelledTaskIsNotAnswered) {
  workers_.SetUnavailable(absl::UnavailableError("qgemm-compile is missing"));
  std::promise<void> compiling;
  std::promise<void> go_on;
  here_.compile = [&](const CompileTask& task) -> Result {
    compiling.set_value();
    go_on.get_future().wait();
    return FakeCompiler::Reply(task);
  };
  bool called = false;
  CompileTask task;
  task.arch = "sm_80";
  std::unique_ptr<CompileTicket> ticket = compiler_->Compile(std::move(task), [&](Result) { called = true; });
  compiling.get_future().wait();
  ticket->Cancel();
  go_on.set_value();
  compiler_.reset();  // waits for what it runs
  EXPECT_FALSE(called);
}

}  // namespace
}  // namespace qgemm
