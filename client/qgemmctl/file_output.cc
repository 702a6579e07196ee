#include "client/qgemmctl/file_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

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

// The rights an ordinarily created file would get.
mode_t CreationMode() {
  const mode_t mask = umask(0);
  umask(mask);
  return 0666 & ~mask;
}

}  // namespace

absl::Status WriteStdout(absl::string_view text) { return WriteAll(STDOUT_FILENO, text, "standard output"); }

absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes) {
  QGEMM_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  QGEMM_RETURN_IF_ERROR(file.Append(bytes));
  return file.Commit();
}

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& path) {
  std::string target = path;
  struct stat existing;
  if (stat(path.c_str(), &existing) == 0) {
    if (S_ISDIR(existing.st_mode)) return WriteError(EISDIR, path);
    if (!S_ISREG(existing.st_mode)) {
      UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
      if (!fd.valid()) return WriteError(errno, path);
      return AtomicFile(path, path, "", std::move(fd));
    }
    // A link stays a link: its target is what is replaced.
    std::error_code error;
    const std::filesystem::path resolved = std::filesystem::canonical(path, error);
    if (!error) target = resolved.string();
  }
  std::string temporary = absl::StrCat(target, ".XXXXXX");
  UniqueFd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) return WriteError(errno, path);
  return AtomicFile(path, std::move(target), std::move(temporary), std::move(fd));
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, "")),
      fd_(std::move(other.fd_)) {}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status AtomicFile::Append(absl::string_view bytes) { return WriteAll(fd_.get(), bytes, path_); }

absl::Status AtomicFile::Commit() {
  if (temporary_.empty()) return absl::OkStatus();
  if (fchmod(fd_.get(), CreationMode()) != 0 || fsync(fd_.get()) != 0 ||
      rename(temporary_.c_str(), target_.c_str()) != 0) {
    return WriteError(errno, path_);
  }
  temporary_.clear();
  // The new name lives in the folder, which is synced by itself.
  const std::string folder = std::filesystem::path(target_).parent_path().string();
  const UniqueFd folder_fd(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder_fd.valid()) fsync(folder_fd.get());
  return absl::OkStatus();
}

}  // namespace qgemm
