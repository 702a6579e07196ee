#include "base/framed_stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/fd_io.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

constexpr size_t kHeaderBytes = 4;
// A frame's memory grows as its bytes come, so that a wrong length costs no memory.
constexpr size_t kMaxGrowthBytes = 1u << 20;

void AppendLittleEndian32(uint32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

uint32_t LittleEndian32(const std::string& bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace

absl::Status FramedStream::Write(const google::protobuf::MessageLite& message, TimePoint deadline) {
  if (torn_write_) return absl::FailedPreconditionError("an earlier frame was sent only in part");
  const size_t size = message.ByteSizeLong();
  if (size > max_frame_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("message ", message.GetTypeName(), " has ", size,
                                                   " bytes: a frame holds at most ", max_frame_bytes_));
  }
  std::string frame;
  frame.reserve(kHeaderBytes + size);
  AppendLittleEndian32(static_cast<uint32_t>(size), &frame);
  if (!message.AppendPartialToString(&frame)) {
    return absl::InternalError(absl::StrCat("cannot serialize ", message.GetTypeName()));
  }
  size_t sent = 0;
  while (sent < frame.size()) {
    const ssize_t n = send(fd_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      torn_write_ = sent > 0;
      return ErrnoStatus(errno, absl::StrCat("sending ", message.GetTypeName()));
    }
    absl::Status ready = PollFd(fd_.get(), POLLOUT, deadline);
    if (!ready.ok()) {
      torn_write_ = sent > 0;
      return ready;
    }
  }
  return absl::OkStatus();
}

absl::Status FramedStream::Fill(size_t size, TimePoint deadline) {
  while (input_.size() < size) {
    const size_t old_size = input_.size();
    input_.resize(old_size + std::min(size - old_size, kMaxGrowthBytes));
    const ssize_t n = recv(fd_.get(), input_.data() + old_size, input_.size() - old_size, MSG_DONTWAIT);
    const int error = errno;
    input_.resize(old_size + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n > 0) continue;
    if (n == 0 || error == ECONNRESET) return absl::UnavailableError("the peer closed the stream");
    if (error == EINTR) continue;
    if (error != EAGAIN && error != EWOULDBLOCK) return ErrnoStatus(error, "receiving a frame");
    QGEMM_RETURN_IF_ERROR(PollFd(fd_.get(), POLLIN, deadline));
  }
  return absl::OkStatus();
}

absl::Status FramedStream::Read(google::protobuf::MessageLite* message, TimePoint deadline) {
  if (!read_error_.ok()) return read_error_;
  absl::Status filled = Fill(kHeaderBytes, deadline);
  if (filled.ok()) {
    const uint32_t size = LittleEndian32(input_);
    if (size > max_frame_bytes_) {
      return read_error_ = absl::DataLossError(
                 absl::StrCat("the peer announced a frame of ", size, " bytes: at most ", max_frame_bytes_));
    }
    filled = Fill(kHeaderBytes + size, deadline);
  }
  if (absl::IsUnavailable(filled) && !input_.empty()) {
    return read_error_ = absl::DataLossError(
               absl::StrCat("the peer closed the stream ", input_.size(), " bytes into a frame"));
  }
  QGEMM_RETURN_IF_ERROR(filled);
  const bool parsed =
      message->ParseFromArray(input_.data() + kHeaderBytes, static_cast<int>(input_.size() - kHeaderBytes));
  input_.clear();
  if (!parsed) {
    return read_error_ =
               absl::DataLossError(absl::StrCat("the peer sent a frame that is no ", message->GetTypeName()));
  }
  return absl::OkStatus();
}

}  // namespace qgemm
