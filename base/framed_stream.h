#ifndef QGEMM_BASE_FRAMED_STREAM_H_
#define QGEMM_BASE_FRAMED_STREAM_H_

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/unique_fd.h"

namespace qgemm {

// Protobuf messages over a connected stream socket: each a frame of its length (4 bytes, little-endian) and
// its bytes. One thread may read while another writes; neither side may be used by two threads at once.
class FramedStream {
 public:
  static constexpr uint32_t kDefaultMaxFrameBytes = 64u << 20;

  // Owns `fd`. Frames above `max_frame_bytes` are refused in both directions.
  explicit FramedStream(UniqueFd fd, uint32_t max_frame_bytes = kDefaultMaxFrameBytes)
      : fd_(std::move(fd)), max_frame_bytes_(max_frame_bytes) {}

  // Sends one message. InvalidArgument: the message is larger than a frame may be (nothing was sent).
  // Unavailable: the peer is gone. DeadlineExceeded: the peer did not take all of it in time; as it may have
  // half a frame, every later Write fails with FailedPrecondition.
  absl::Status Write(const google::protobuf::MessageLite& message, TimePoint deadline = kNoDeadline);

  // Receives one message. DeadlineExceeded: no whole frame came in time; a later Read goes on where this one
  // stopped. Unavailable: the peer closed between two frames. DataLoss: it closed within a frame, announced a
  // frame that is too large, or sent bytes that are no such message; the stream is useless from there on.
  absl::Status Read(google::protobuf::MessageLite* message, TimePoint deadline = kNoDeadline);

  // The descriptor, for polling; the stream keeps it.
  int fd() const { return fd_.get(); }

 private:
  // Receives until `input_` holds `size` bytes. Unavailable when the peer has closed.
  absl::Status Fill(size_t size, TimePoint deadline);

  const UniqueFd fd_;
  const uint32_t max_frame_bytes_;

  // The reader's: the frame in the making, its length included.
  std::string input_;
  absl::Status read_error_;

  // The writer's.
  bool torn_write_ = false;
};

}  // namespace qgemm

#endif  // QGEMM_BASE_FRAMED_STREAM_H_
