#ifndef QGEMM_SERVER_SPOOL_FILE_H_
#define QGEMM_SERVER_SPOOL_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace qgemm {

// A file without a name that takes what arrives in pieces; gone with this object, or with the process. Not
// thread-safe.
class SpoolFile {
 public:
  // On the file system of `directory`. ResourceExhausted: the disk is full.
  [[nodiscard]] static absl::StatusOr<SpoolFile> Create(const std::string& directory);

  [[nodiscard]] absl::Status Append(absl::string_view bytes);

  // Where this process can open it for reading, from its beginning.
  [[nodiscard]] std::string path() const;

 private:
  explicit SpoolFile(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_SPOOL_FILE_H_
