#ifndef QGEMM_CLIENT_BUNDLE_TAR_H_
#define QGEMM_CLIENT_BUNDLE_TAR_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

// The one-file form of a bundle: POSIX ustar, regular files only, no owner, no time, so that equal contents
// are equal bytes. Sizes of 8 GiB and more are written in base 256, as GNU tar does.

// The 512 bytes before a file's contents. `name`: at most 100 bytes.
std::string TarHeader(absl::string_view name, int64_t bytes);
// Zeros that fill a file of this size up to a whole block.
std::string TarPadding(int64_t bytes);
// The two zero blocks after the last file.
std::string TarEnd();

// The files of an archive by name; contents point into `archive`. DataLoss names what is wrong and where.
[[nodiscard]] absl::StatusOr<std::map<std::string, absl::string_view>> ReadTar(absl::string_view archive);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_BUNDLE_TAR_H_
