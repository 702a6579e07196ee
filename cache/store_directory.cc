#include "cache/store_directory.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

std::string ErrnoText(int error) { return std::generic_category().message(error); }

std::string UserName(uid_t uid) {
  std::array<char, 4096> buffer;
  passwd entry;
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
    return absl::StrCat("user ", found->pw_name, " (uid ", uid, ")");
  }
  return absl::StrCat("uid ", uid);
}

// "/a/b belongs to user x (uid 1) and has mode 0700: it is not readable and writable by user y (uid 2)"
absl::Status AccessError(const std::string& path, absl::string_view what) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("store directory ", path, " cannot be reached by ",
                                                      UserName(geteuid()), ": ", ErrnoText(errno)));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, " belongs to ", UserName(info.st_uid), " and has mode ",
                   absl::StrFormat("%04o", info.st_mode & 07777), ": it is not ", what, " by ",
                   UserName(geteuid()), "; change that or use another store directory"));
}

// The deepest ancestor of `path` that exists and can be looked at.
std::string NearestVisible(const std::filesystem::path& path) {
  std::filesystem::path current = path;
  struct stat info;
  while (stat(current.c_str(), &info) != 0) {
    const std::filesystem::path parent = current.parent_path();
    if (parent.empty()) return ".";
    if (parent == current) break;
    current = parent;
  }
  return current.string();
}

absl::Status CreateWithParents(const std::filesystem::path& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0) return absl::OkStatus();
  if (errno == ENOENT) {
    const std::filesystem::path parent = path.parent_path();
    if (!parent.empty() && parent != path) QGEMM_RETURN_IF_ERROR(CreateWithParents(parent));
    if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  }
  const int error = errno;
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(
          absl::StrCat("store directory ", path.string(), " cannot be created: ", ErrnoText(error)));
    case EACCES:
      return AccessError(NearestVisible(path), "searchable and writable");
    case ENOTDIR:
      return absl::FailedPreconditionError(absl::StrCat("store directory ", path.string(),
                                                        " cannot be created: ", NearestVisible(path),
                                                        " is a file, not a directory"));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat("store directory ", path.string(), " cannot be created: ", ErrnoText(error)));
  }
}

absl::Status CheckDirectory(const std::string& path, int access_mode, absl::string_view access_words) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    const int error = errno;
    if (error == ENOENT) {
      return absl::NotFoundError(absl::StrCat("store directory ", path, " does not exist"));
    }
    if (error == EACCES) return AccessError(NearestVisible(path), "searchable");
    return absl::FailedPreconditionError(
        absl::StrCat("store directory ", path, " cannot be used: ", ErrnoText(error)));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("store directory ", path, " is a file, not a directory"));
  }
  if (faccessat(AT_FDCWD, path.c_str(), access_mode, AT_EACCESS) != 0) {
    if (errno == EROFS) {
      return absl::FailedPreconditionError(
          absl::StrCat("store directory ", path, " is on a file system that is mounted read-only"));
    }
    return AccessError(path, access_words);
  }
  struct statfs file_system;
  if (statfs(path.c_str(), &file_system) == 0 && IsNetworkFileSystem(file_system.f_type)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "store directory ", path, " is on a network file system, a store must be on a local one"));
  }
  return absl::OkStatus();
}

// The process that holds the flock on `fd`'s file, as /proc/locks knows it; 0 when it cannot be found.
int64_t LockHolder(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return 0;
  const std::string id = absl::StrFormat("%02x:%02x:%u", major(info.st_dev), minor(info.st_dev),
                                         static_cast<uint64_t>(info.st_ino));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    // "1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF"
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t pid = 0;
    if (words.size() >= 6 && words[1] == "FLOCK" && words[5] == id && absl::SimpleAtoi(words[4], &pid) &&
        pid > 0) {
      return pid;
    }
  }
  return 0;
}

absl::StatusOr<UniqueFd> Lock(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("store directory ", path, " cannot be opened: ", ErrnoText(errno)));
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return absl::FailedPreconditionError(
          absl::StrCat("store directory ", path, " cannot be locked: ", ErrnoText(errno)));
    }
    const int64_t holder = LockHolder(fd.get());
    return absl::FailedPreconditionError(
        absl::StrCat("store directory ", path, " is in use by ",
                     holder > 0 ? absl::StrCat("process ", holder) : std::string("another process"),
                     "; stop it or use another store directory"));
  }
  return fd;
}

}  // namespace

absl::StatusOr<StoreDirectory> StoreDirectory::Acquire(absl::string_view path) {
  if (path.empty()) return absl::InvalidArgumentError("the store directory is empty, it must be a path");
  std::string text(path);
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  QGEMM_RETURN_IF_ERROR(CreateWithParents(text));
  QGEMM_RETURN_IF_ERROR(CheckDirectory(text, R_OK | W_OK | X_OK, "readable and writable"));
  QGEMM_ASSIGN_OR_RETURN(UniqueFd lock, Lock(text));
  return StoreDirectory(std::move(text), std::move(lock));
}

absl::Status StoreDirectory::CheckReadable(absl::string_view path) {
  if (path.empty()) return absl::InvalidArgumentError("the store directory is empty, it must be a path");
  return CheckDirectory(std::string(path), R_OK | X_OK, "readable");
}

absl::StatusOr<std::string> StoreDirectory::MoveAside(int64_t unix_seconds) {
  const std::string base = absl::StrCat(path_, ".damaged-", unix_seconds);
  std::string target = base;
  for (int attempt = 1; std::filesystem::exists(std::filesystem::symlink_status(target)); ++attempt) {
    target = absl::StrCat(base, "-", attempt);
  }
  if (std::rename(path_.c_str(), target.c_str()) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the damaged store directory ", path_, " cannot be renamed to ", target, ": ", ErrnoText(errno)));
  }
  QGEMM_RETURN_IF_ERROR(CreateWithParents(path_));
  // The old lock, which went with the old directory, is given up only when the new one is held.
  QGEMM_ASSIGN_OR_RETURN(lock_, Lock(path_));
  return target;
}

bool StoreDirectory::StillThere() const {
  struct stat held;
  struct stat now;
  return fstat(lock_.get(), &held) == 0 && stat(path_.c_str(), &now) == 0 && held.st_dev == now.st_dev &&
         held.st_ino == now.st_ino;
}

int64_t FileBytes(const std::string& path) {
  int64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;  // files come and go while RocksDB compacts
    const auto size = it->is_regular_file(gone) ? it->file_size(gone) : 0;
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

bool IsNetworkFileSystem(int64_t statfs_type) {
  switch (static_cast<uint32_t>(statfs_type)) {
    case 0x6969:      // NFS
    case 0x517B:      // SMB
    case 0xFF534D42:  // CIFS
    case 0xFE534D42:  // SMB2
    case 0x5346414F:  // AFS
    case 0x00C36400:  // Ceph
    case 0x01021997:  // 9p
      return true;
    default:
      return false;
  }
}

}  // namespace qgemm
