#include "server/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace qgemm {

absl::StatusOr<FileLock> FileLock::Take(const std::string& path, absl::string_view contents) {
  bool writable = true;
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid() && errno == EACCES) {
    // Another user's file: it can be locked without being written.
    writable = false;
    fd.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.valid()) errno = EACCES;
  }
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the lock file ", path));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
    std::array<char, 1024> buffer;
    const ssize_t size = pread(fd.get(), buffer.data(), buffer.size(), 0);
    const absl::string_view holder = absl::StripAsciiWhitespace(
        absl::string_view(buffer.data(), size > 0 ? static_cast<size_t>(size) : 0));
    return absl::FailedPreconditionError(holder.empty() ? absl::string_view("another process") : holder);
  }
  if (!writable) return FileLock(std::move(fd));
  const std::string line = absl::StrCat(contents, "\n");
  if (ftruncate(fd.get(), 0) != 0 || pwrite(fd.get(), line.data(), line.size(), 0) < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write the lock file ", path));
  }
  return FileLock(std::move(fd));
}

}  // namespace qgemm
