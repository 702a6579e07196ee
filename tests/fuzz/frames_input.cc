#include "tests/fuzz/frames_input.h"

#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/fd_io.h"
#include "base/framed_stream.h"
#include "qgemm/internal/runner.pb.h"
#include "qgemm/internal/worker.pb.h"
#include "server/runner/frame_server.h"
#include "tests/fakes/simulated_profiler.h"
#include "tests/fuzz/byte_source.h"

namespace qgemm {
namespace {

// Small enough that a wrong length is found at once, and that everything fits into a socket's buffer: nothing
// here waits for a reader.
constexpr uint32_t kMaxFrameBytes = 4096;
constexpr int kMaxFrames = 32;
constexpr size_t kMaxStreamBytes = size_t{32} << 10;

// What a peer sends: frames from the input, their lengths mostly right.
std::string StreamBytes(ByteSource& source) {
  std::string stream;
  for (int frame = 0; frame < kMaxFrames && !source.empty(); ++frame) {
    const std::string payload =
        source.Bytes(static_cast<size_t>(source.Byte()) * (source.Rarely(4) ? 16 : 1));
    auto length = static_cast<uint32_t>(source.Nearly(static_cast<int64_t>(payload.size())));
    for (int i = 0; i < 4; ++i, length >>= 8) stream.push_back(static_cast<char>(length));
    stream += payload;
  }
  if (source.Rarely(4) && !stream.empty()) stream.resize(stream.size() - 1);
  stream.resize(std::min(stream.size(), kMaxStreamBytes));
  return stream;
}

void SendAll(int fd, absl::string_view bytes) {
  QGEMM_CHECK(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
              static_cast<ssize_t>(bytes.size()));
}

// A message that was read is what any reader makes of what is sent for it.
void CheckSentAgain(const google::protobuf::MessageLite& message) {
  auto pair = SocketPair();
  QGEMM_CHECK(pair.ok());
  FramedStream writer(std::move(pair->first));
  FramedStream reader(std::move(pair->second));
  QGEMM_CHECK(writer.Write(message, RealClock().Now()).ok());
  const std::unique_ptr<google::protobuf::MessageLite> again(message.New());
  QGEMM_CHECK(reader.Read(again.get(), RealClock().Now()).ok());
  QGEMM_CHECK(again->SerializePartialAsString() == message.SerializePartialAsString());
}

template <typename Message>
int ReadAll(absl::string_view bytes, size_t first_part) {
  auto pair = SocketPair();
  QGEMM_CHECK(pair.ok());
  UniqueFd peer = std::move(pair->first);
  FramedStream stream(std::move(pair->second), kMaxFrameBytes);
  SendAll(peer.get(), bytes.substr(0, first_part));
  const TimePoint now = RealClock().Now();
  bool all_sent = false;
  int taken = 0;
  while (true) {
    Message message;
    const absl::Status status = stream.Read(&message, now);
    if (status.ok()) {
      ++taken;
      CheckSentAgain(message);
    } else if (absl::IsDeadlineExceeded(status)) {
      QGEMM_CHECK(!all_sent);
      SendAll(peer.get(), bytes.substr(first_part));
      peer.reset();
      all_sent = true;
    } else if (absl::IsDataLoss(status)) {
      Message later;
      QGEMM_CHECK(absl::IsDataLoss(stream.Read(&later, now)));
      return taken;
    } else {
      QGEMM_CHECK(absl::IsUnavailable(status));
      QGEMM_CHECK(all_sent);
      return taken;
    }
  }
}

// The GPU process's side, with a simulated GPU.
int Serve(absl::string_view bytes) {
  auto pair = SocketPair();
  QGEMM_CHECK(pair.ok());
  SendAll(pair->first.get(), bytes);
  QGEMM_CHECK(shutdown(pair->first.get(), SHUT_WR) == 0);
  absl::StatusOr<std::unique_ptr<SimulatedProfiler>> profiler = SimulatedProfiler::FromEnvironment();
  QGEMM_CHECK(profiler.ok());
  {
    FramedStream channel(std::move(pair->second), kMaxFrameBytes);
    const absl::Status served = ServeFrames(channel, **profiler);
    QGEMM_CHECK(served.ok() || absl::IsDataLoss(served) || absl::IsInvalidArgument(served));
  }
  FramedStream daemon(std::move(pair->first));
  internal::RunnerHello hello;
  QGEMM_CHECK(daemon.Read(&hello, RealClock().Now()).ok());
  int answers = 0;
  while (true) {
    internal::RunnerReply reply;
    const absl::Status status = daemon.Read(&reply, RealClock().Now());
    if (!status.ok()) {
      QGEMM_CHECK(absl::IsUnavailable(status));
      return answers;
    }
    QGEMM_CHECK(reply.error().empty() == (reply.kind_case() != internal::RunnerReply::KIND_NOT_SET));
    ++answers;
  }
}

}  // namespace

int ReadArbitraryFrames(absl::Span<const uint8_t> input) {
  ByteSource source(input);
  const int64_t reader = source.Below(6);
  const bool raw = source.Rarely(8);
  const uint8_t split = source.Byte();
  std::string bytes = raw ? source.Rest() : StreamBytes(source);
  // As many frames of nothing as their answers fit into the buffer.
  if (raw) bytes.resize(std::min<size_t>(bytes.size(), 4 * kMaxFrames));
  const size_t first_part = bytes.size() * split / 255;
  switch (reader) {
    case 0:
      return ReadAll<internal::WorkerHello>(bytes, first_part);
    case 1:
      return ReadAll<internal::CompileReply>(bytes, first_part);
    case 2:
      return ReadAll<internal::CompileRequest>(bytes, first_part);
    case 3:
      return ReadAll<internal::RunnerHello>(bytes, first_part);
    case 4:
      return ReadAll<internal::RunnerReply>(bytes, first_part);
    default:
      return Serve(bytes);
  }
}

}  // namespace qgemm
