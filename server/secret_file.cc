#include "server/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/unique_fd.h"

namespace qgemm {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr mode_t kTooOpen = S_IWGRP | S_IROTH | S_IWOTH;

absl::Status Unreadable(absl::string_view key, const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", path, " cannot be read: ", why));
}

}  // namespace

absl::StatusOr<std::string> ReadConfiguredFile(absl::string_view key, const std::string& path,
                                               FileAccess access) {
  // O_NONBLOCK: a pipe by that name must not hold the daemon up.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return Unreadable(key, path, std::generic_category().message(errno));
  }
  if (!S_ISREG(info.st_mode)) return Unreadable(key, path, "it is no regular file");
  if (access == FileAccess::kSecret && (info.st_mode & kTooOpen) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %s has mode %04o, so that others may read or change it; allowed: 0640 and less "
                        "(chmod o=,g-w %s)",
                        key, path, info.st_mode & 07777, path));
  }
  std::string bytes;
  char buffer[4096];
  while (bytes.size() <= kMaxFileBytes) {
    const ssize_t size = read(fd.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return Unreadable(key, path, std::generic_category().message(errno));
    if (size == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(size));
  }
  return Unreadable(key, path, absl::StrCat("it has more than ", kMaxFileBytes, " bytes"));
}

}  // namespace qgemm
