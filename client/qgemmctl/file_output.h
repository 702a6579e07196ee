#ifndef QGEMM_CLIENT_QGEMMCTL_FILE_OUTPUT_H_
#define QGEMM_CLIENT_QGEMMCTL_FILE_OUTPUT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace qgemm {

// Writes all of it to standard output. ResourceExhausted: the disk is full; FailedPrecondition: it cannot be
// written to, the message says why.
[[nodiscard]] absl::Status WriteStdout(absl::string_view text);

// Makes `path` a file of these bytes, or leaves what was there: the bytes go to a temporary file beside it,
// which is synced and renamed. A path that is no regular file (a pipe, /dev/null) is written directly.
// ResourceExhausted: the disk is full; FailedPrecondition: the file cannot be made, the message says why.
[[nodiscard]] absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes);

// The same for a file that comes in pieces. Without Commit() the temporary file is removed again. A path that
// is no regular file is written directly. Not thread-safe.
class AtomicFile {
 public:
  [[nodiscard]] static absl::StatusOr<AtomicFile> Create(const std::string& path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  [[nodiscard]] absl::Status Append(absl::string_view bytes);
  // Syncs the file and makes it `path`.
  [[nodiscard]] absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string target, std::string temporary, UniqueFd fd)
      : path_(std::move(path)),
        target_(std::move(target)),
        temporary_(std::move(temporary)),
        fd_(std::move(fd)) {}

  std::string path_;
  std::string target_;
  std::string temporary_;  // empty: committed, or written directly
  UniqueFd fd_;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_FILE_OUTPUT_H_
