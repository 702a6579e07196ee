#include "base/fd_io.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace qgemm {

absl::Status PollFd(int fd, short events, TimePoint deadline) {
  while (true) {
    int timeout_ms = -1;
    if (deadline != kNoDeadline) {
      // Rounded up, so that a poll which times out has really reached the deadline.
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - RealClock().Now()).count();
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
    }
    pollfd poll_fd = {fd, events, 0};
    const int ready = poll(&poll_fd, 1, timeout_ms);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, absl::StrCat("poll of descriptor ", fd));
    if (ready == 0 && RealClock().Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("descriptor ", fd, " was not ready at the deadline"));
    }
  }
}

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> SocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return ErrnoStatus(errno, "socketpair");
  return std::make_pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> Pipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  return std::make_pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

absl::Status ErrnoStatus(int error, absl::string_view what) {
  const std::string message = absl::StrCat(what, ": ", std::generic_category().message(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EAGAIN:
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace qgemm
