#include "base/framed_stream.h"

#include <gmock/gmock.h>
#include <google/protobuf/wrappers.pb.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/fd_io.h"

namespace qgemm {
namespace {

using google::protobuf::BytesValue;
using google::protobuf::Int64Value;
using ::testing::HasSubstr;

BytesValue Message(std::string text) {
  BytesValue message;
  message.set_value(std::move(text));
  return message;
}

// A stream and the raw other end of its socket.
struct Peer {
  explicit Peer(uint32_t max_frame_bytes = FramedStream::kDefaultMaxFrameBytes) {
    auto pair = SocketPair();
    EXPECT_TRUE(pair.ok());
    stream = std::make_unique<FramedStream>(std::move(pair->first), max_frame_bytes);
    raw = std::move(pair->second);
  }
  void SendRaw(const std::string& bytes) {
    ASSERT_EQ(send(raw.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }

  std::unique_ptr<FramedStream> stream;
  UniqueFd raw;
};

// The frame of BytesValue{"hi"}: field 1, wire type 2.
const char kHiFrame[] = "\x04\x00\x00\x00\x0a\x02hi";
std::string HiFrame() { return std::string(kHiFrame, sizeof(kHiFrame) - 1); }

TEST(FramedStream, FrameIsLittleEndianLengthThenMessage) {
  Peer peer;
  ASSERT_TRUE(peer.stream->Write(Message("hi")).ok());
  char bytes[64];
  ASSERT_EQ(recv(peer.raw.get(), bytes, sizeof(bytes), 0), 8);
  EXPECT_EQ(std::string(bytes, 8), HiFrame());
}

TEST(FramedStream, MessagesArriveInOrderAndEmptyOnesToo) {
  Peer peer;
  FramedStream other(std::move(peer.raw));
  ASSERT_TRUE(other.Write(Message("one")).ok());
  ASSERT_TRUE(other.Write(Message("")).ok());
  ASSERT_TRUE(other.Write(Message("three")).ok());
  BytesValue message;
  for (const char* expected : {"one", "", "three"}) {
    ASSERT_TRUE(peer.stream->Read(&message).ok());
    EXPECT_EQ(message.value(), expected);
  }
}

TEST(FramedStream, MessageLargerThanTheSocketBufferGoesThrough) {
  Peer peer;
  FramedStream other(std::move(peer.raw));
  const std::string big(5 << 20, 'x');
  std::thread writer([&] { EXPECT_TRUE(other.Write(Message(big)).ok()); });
  BytesValue message;
  EXPECT_TRUE(peer.stream->Read(&message).ok());
  writer.join();
  EXPECT_EQ(message.value(), big);
}

TEST(FramedStream, ReadGoesOnAfterADeadlineWithinAFrame) {
  Peer peer;
  BytesValue message;
  for (const char byte : HiFrame()) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(peer.stream->Read(&message, RealClock().Now())));
    peer.SendRaw(std::string(1, byte));
  }
  ASSERT_TRUE(peer.stream->Read(&message, RealClock().Now()).ok());
  EXPECT_EQ(message.value(), "hi");
}

TEST(FramedStream, CloseBetweenFramesIsUnavailable) {
  Peer peer;
  peer.SendRaw(HiFrame());
  peer.raw.reset();
  BytesValue message;
  EXPECT_TRUE(peer.stream->Read(&message).ok());
  EXPECT_TRUE(absl::IsUnavailable(peer.stream->Read(&message)));
}

TEST(FramedStream, CloseWithinAFrameIsDataLoss) {
  for (size_t sent = 1; sent < HiFrame().size(); ++sent) {
    Peer peer;
    peer.SendRaw(HiFrame().substr(0, sent));
    peer.raw.reset();
    BytesValue message;
    EXPECT_TRUE(absl::IsDataLoss(peer.stream->Read(&message))) << sent;
    EXPECT_TRUE(absl::IsDataLoss(peer.stream->Read(&message))) << sent;
  }
}

TEST(FramedStream, OversizedFrameIsRefusedByReaderAndWriter) {
  Peer peer(/*max_frame_bytes=*/100);
  absl::Status written = peer.stream->Write(Message(std::string(200, 'x')));
  EXPECT_TRUE(absl::IsInvalidArgument(written));
  EXPECT_THAT(std::string(written.message()), HasSubstr("at most 100"));
  // Nothing of the refused message is in the way of the next.
  ASSERT_TRUE(peer.stream->Write(Message("hi")).ok());
  char bytes[64];
  EXPECT_EQ(recv(peer.raw.get(), bytes, sizeof(bytes), 0), 8);

  peer.SendRaw(std::string("\xff\xff\xff\xff", 4));
  BytesValue message;
  EXPECT_TRUE(absl::IsDataLoss(peer.stream->Read(&message)));
}

TEST(FramedStream, FrameThatIsNoMessageIsDataLoss) {
  Peer peer;
  peer.SendRaw(std::string("\x02\x00\x00\x00\xff\xff", 6));
  Int64Value message;
  EXPECT_TRUE(absl::IsDataLoss(peer.stream->Read(&message)));
}

TEST(FramedStream, WriteToAClosedPeerIsUnavailableAndRaisesNoSignal) {
  Peer peer;
  peer.raw.reset();
  EXPECT_TRUE(absl::IsUnavailable(peer.stream->Write(Message("hi"))));
}

TEST(FramedStream, PartialWriteAtTheDeadlineEndsTheWritingSide) {
  Peer peer;
  const TimePoint soon = RealClock().Now() + std::chrono::milliseconds(5);
  EXPECT_TRUE(absl::IsDeadlineExceeded(peer.stream->Write(Message(std::string(8 << 20, 'x')), soon)));
  EXPECT_TRUE(absl::IsFailedPrecondition(peer.stream->Write(Message("hi"))));
}

}  // namespace
}  // namespace qgemm
