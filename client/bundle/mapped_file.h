#ifndef QGEMM_CLIENT_BUNDLE_MAPPED_FILE_H_
#define QGEMM_CLIENT_BUNDLE_MAPPED_FILE_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

// A file's bytes, read-only, in the page cache: of any size, nothing is copied.
class MappedFile {
 public:
  // NotFound: there is none; FailedPrecondition: it cannot be read.
  [[nodiscard]] static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  absl::string_view bytes() const { return bytes_; }

 private:
  explicit MappedFile(absl::string_view bytes) : bytes_(bytes) {}
  absl::string_view bytes_;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_BUNDLE_MAPPED_FILE_H_
