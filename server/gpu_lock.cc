#include "server/gpu_lock.h"

#include <pwd.h>
#include <unistd.h>

#include <array>

#include "absl/strings/str_cat.h"

namespace qgemm {
namespace {

std::string UserName() {
  std::array<char, 4096> buffer;
  passwd entry;
  passwd* found = nullptr;
  if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
    return found->pw_name;
  }
  return absl::StrCat(geteuid());
}

}  // namespace

std::string DescribeHolder(const std::string& data_dir) {
  return absl::StrCat("pid ", getpid(), ", user ", UserName(), ", data dir ", data_dir);
}

absl::StatusOr<FileLock> TakeGpuLock(const std::string& uuid, const std::string& lock_dir,
                                     const std::string& fallback_dir, const std::string& holder) {
  const std::string name = absl::StrCat("/qgemm-", uuid, ".lock");
  absl::StatusOr<FileLock> lock = FileLock::Take(lock_dir + name, holder);
  if (!lock.ok() && !absl::IsFailedPrecondition(lock.status())) {
    lock = FileLock::Take(fallback_dir + name, holder);
  }
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", uuid, " is held by another qgemmd (", std::string(lock.status().message()),
                     "); stop that one, or start this one with --device none"));
  }
  return lock;
}

}  // namespace qgemm
