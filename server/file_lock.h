#ifndef QGEMM_SERVER_FILE_LOCK_H_
#define QGEMM_SERVER_FILE_LOCK_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace qgemm {

// An exclusive advisory lock (flock) on a file, held until destruction or the process's end, however it ends.
// The file stays behind; what it says counts only while it is locked.
class FileLock {
 public:
  // Creates the file when absent (mode 0644) and writes `contents` into it, for others to read who holds it.
  // FailedPrecondition: held by somebody else; the message is what they wrote. PermissionDenied, NotFound and
  // so on: the file cannot be created there.
  [[nodiscard]] static absl::StatusOr<FileLock> Take(const std::string& path, absl::string_view contents);

  FileLock(FileLock&&) = default;
  FileLock& operator=(FileLock&&) = default;

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_FILE_LOCK_H_
