#ifndef QGEMM_SERVER_SECRET_FILE_H_
#define QGEMM_SERVER_SECRET_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

enum class FileAccess {
  kAnybodyMayRead,
  kSecret,  // nobody but the owner and the group may read it, nobody but the owner may write it
};

// All bytes of a file of at most 1 MiB. `key` is the configuration's name for it, for messages.
// InvalidArgument: it cannot be read or is no regular file. FailedPrecondition: more users have access to it
// than `access` allows.
[[nodiscard]] absl::StatusOr<std::string> ReadConfiguredFile(absl::string_view key, const std::string& path,
                                                             FileAccess access);

}  // namespace qgemm

#endif  // QGEMM_SERVER_SECRET_FILE_H_
