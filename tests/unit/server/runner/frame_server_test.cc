#include "server/runner/frame_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/fd_io.h"

namespace qgemm {
namespace {

using ::testing::Return;

class MockProfiler : public Profiler {
 public:
  MOCK_METHOD(internal::RunnerHello, Hello, (), (override));
  MOCK_METHOD(absl::StatusOr<internal::PrepareReply>, Prepare, (const internal::PrepareRequest&), (override));
  MOCK_METHOD(absl::StatusOr<internal::ScreenReply>, Screen, (const internal::ScreenRequest&), (override));
  MOCK_METHOD(absl::StatusOr<internal::FinalsReply>, Finals, (const internal::FinalsRequest&), (override));
  MOCK_METHOD(absl::StatusOr<internal::StatusReply>, Status, (), (override));
};

class FrameServerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto pair = SocketPair();
    ASSERT_TRUE(pair.ok());
    daemon_ = std::make_unique<FramedStream>(std::move(pair->first));
    server_ = std::thread([this, fd = std::move(pair->second)]() mutable {
      FramedStream channel(std::move(fd));
      served_ = ServeFrames(channel, profiler_);
    });
    internal::RunnerHello hello;
    ASSERT_TRUE(daemon_->Read(&hello, Patience()).ok());
  }
  void TearDown() override {
    daemon_.reset();
    if (server_.joinable()) server_.join();
  }
  static TimePoint Patience() { return RealClock().Now() + std::chrono::seconds(20); }
  internal::RunnerReply Ask(const internal::RunnerRequest& request) {
    internal::RunnerReply reply;
    EXPECT_TRUE(daemon_->Write(request, Patience()).ok());
    EXPECT_TRUE(daemon_->Read(&reply, Patience()).ok());
    return reply;
  }

  testing::NiceMock<MockProfiler> profiler_;
  std::unique_ptr<FramedStream> daemon_;
  std::thread server_;
  absl::Status served_ = absl::UnknownError("not served");
};

TEST_F(FrameServerTest, AnswersWithTheRequestsIdAndKind) {
  internal::StatusReply status;
  status.set_memory_free_bytes(5);
  EXPECT_CALL(profiler_, Status()).WillOnce(Return(status));
  internal::RunnerRequest request;
  request.set_id(7);
  request.mutable_status();
  const internal::RunnerReply reply = Ask(request);
  EXPECT_EQ(reply.id(), 7);
  EXPECT_EQ(reply.status().memory_free_bytes(), 5);
  EXPECT_TRUE(reply.error().empty());
}

TEST_F(FrameServerTest, AFailedRequestIsAnErrorWithItsCodeAndServingGoesOn) {
  EXPECT_CALL(profiler_, Screen)
      .WillOnce(Return(absl::FailedPreconditionError("no problem was prepared")))
      .WillOnce(Return(internal::ScreenReply()));
  internal::RunnerRequest request;
  request.mutable_screen();
  const internal::RunnerReply failed = Ask(request);
  EXPECT_EQ(failed.error(), "no problem was prepared");
  EXPECT_EQ(failed.code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_FALSE(failed.gpu_lost());
  EXPECT_TRUE(Ask(request).has_screen());
}

TEST_F(FrameServerTest, ALostContextIsToldAndEndsTheServing) {
  EXPECT_CALL(profiler_, Screen).WillOnce(Return(absl::AbortedError("CUDA_ERROR_ILLEGAL_ADDRESS")));
  internal::RunnerRequest request;
  request.mutable_screen();
  const internal::RunnerReply reply = Ask(request);
  EXPECT_TRUE(reply.gpu_lost());
  EXPECT_EQ(reply.error(), "CUDA_ERROR_ILLEGAL_ADDRESS");
  server_.join();
  EXPECT_TRUE(absl::IsAborted(served_));
}

TEST_F(FrameServerTest, ARequestWithoutAKindIsRefused) {
  EXPECT_EQ(Ask({}).code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
}

TEST_F(FrameServerTest, EndsWellWhenTheDaemonCloses) {
  daemon_.reset();
  server_.join();
  EXPECT_TRUE(served_.ok()) << served_;
}

}  // namespace
}  // namespace qgemm
