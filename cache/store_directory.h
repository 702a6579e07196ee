#ifndef QGEMM_CACHE_STORE_DIRECTORY_H_
#define QGEMM_CACHE_STORE_DIRECTORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace qgemm {

// The directory of a store, held for one process: an flock on the directory itself, which goes with the
// process however it ends. Knows nothing of the files inside. Not thread-safe.
class StoreDirectory {
 public:
  // Creates `path` (and its parents, mode 0700) when it is absent. InvalidArgument: the path is empty.
  // ResourceExhausted: the disk is full. FailedPrecondition: not a directory, not reachable, readable and
  // writable by this user (says owner and mode), on a network file system, or held by another process (names
  // it).
  [[nodiscard]] static absl::StatusOr<StoreDirectory> Acquire(absl::string_view path);

  // The same checks for reading only: nothing is created or held. NotFound: the directory is absent.
  [[nodiscard]] static absl::Status CheckReadable(absl::string_view path);

  // Renames the directory to PATH.damaged-UNIXTIME (a counter is added when that exists), creates PATH anew
  // and holds that. Returns the new name of the old one. FailedPrecondition: the parent does not allow it.
  [[nodiscard]] absl::StatusOr<std::string> MoveAside(int64_t unix_seconds);

  // False when the directory was deleted or another one stands at its path.
  [[nodiscard]] bool StillThere() const;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  StoreDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd lock_;
};

// Bytes of the regular files right inside `path`; 0 when it cannot be listed.
[[nodiscard]] int64_t FileBytes(const std::string& path);

// True for the statfs f_type of NFS, SMB/CIFS, AFS, Ceph and 9p, on which locks and syncs are not reliable.
[[nodiscard]] bool IsNetworkFileSystem(int64_t statfs_type);

}  // namespace qgemm

#endif  // QGEMM_CACHE_STORE_DIRECTORY_H_
