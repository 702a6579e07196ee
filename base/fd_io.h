#ifndef QGEMM_BASE_FD_IO_H_
#define QGEMM_BASE_FD_IO_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/unique_fd.h"

namespace qgemm {

// Waits until `fd` is ready for `events` (POLLIN, POLLOUT), or has failed or been hung up, which the next
// call on it will tell. DeadlineExceeded when the real clock passes `deadline` first.
absl::Status PollFd(int fd, short events, TimePoint deadline);

// Both ends of a connected stream socket, CLOEXEC.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> SocketPair();

// The read and the write end of a pipe, CLOEXEC.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> Pipe();

// "`what`: No such file or directory" with the code that fits `error` (an errno).
absl::Status ErrnoStatus(int error, absl::string_view what);

}  // namespace qgemm

#endif  // QGEMM_BASE_FD_IO_H_
