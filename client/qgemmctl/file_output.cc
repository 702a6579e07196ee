#include "client/qgemmctl/file_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace qgemm {
namespace {

absl::Status WriteError(int error, absl::string_view what) {
  const std::string message = absl::StrCat("cannot write ", what, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::FailedPreconditionError(message);
}

absl::Status WriteAll(int fd, absl::string_view bytes, absl::string_view what) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteError(errno, what);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status WriteDirectly(const std::string& path, absl::string_view bytes) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return WriteError(errno, path);
  return WriteAll(fd.get(), bytes, path);
}

// The rights an ordinarily created file would get.
mode_t CreationMode() {
  const mode_t mask = umask(0);
  umask(mask);
  return 0666 & ~mask;
}

// Writes and syncs the temporary file behind `fd`.
absl::Status FillFile(int fd, absl::string_view bytes, const std::string& path) {
  QGEMM_RETURN_IF_ERROR(WriteAll(fd, bytes, path));
  if (fchmod(fd, CreationMode()) != 0 || fsync(fd) != 0) return WriteError(errno, path);
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteStdout(absl::string_view text) { return WriteAll(STDOUT_FILENO, text, "standard output"); }

absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes) {
  std::string target = path;
  struct stat existing;
  if (stat(path.c_str(), &existing) == 0) {
    if (S_ISDIR(existing.st_mode)) return WriteError(EISDIR, path);
    if (!S_ISREG(existing.st_mode)) return WriteDirectly(path, bytes);
    // A link stays a link: its target is what is replaced.
    std::error_code error;
    const std::filesystem::path resolved = std::filesystem::canonical(path, error);
    if (!error) target = resolved.string();
  }
  std::string temporary = absl::StrCat(target, ".XXXXXX");
  UniqueFd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) return WriteError(errno, path);
  absl::Status status = FillFile(fd.get(), bytes, path);
  if (status.ok() && rename(temporary.c_str(), target.c_str()) != 0) status = WriteError(errno, path);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace qgemm
