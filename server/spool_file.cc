#include "server/spool_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace qgemm {

absl::StatusOr<SpoolFile> SpoolFile::Create(const std::string& directory) {
  // Not O_TMPFILE: overlay file systems of older kernels lack it.
  std::string name = absl::StrCat(directory, "/import-XXXXXX");
  UniqueFd fd(mkostemp(name.data(), O_CLOEXEC));
  if (!fd.valid()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("no temporary file can be made in ", directory));
  }
  unlink(name.c_str());
  return SpoolFile(std::move(fd));
}

absl::Status SpoolFile::Append(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::ErrnoToStatus(errno, "what arrives cannot be written to the data directory");
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

std::string SpoolFile::path() const { return absl::StrCat("/proc/self/fd/", fd_.get()); }

}  // namespace qgemm
