#ifndef QGEMM_SERVER_GPU_LOCK_H_
#define QGEMM_SERVER_GPU_LOCK_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/file_lock.h"

namespace qgemm {

// "pid 4711, user alice, data dir /home/alice/.local/state/qgemm": what this process writes into its locks.
std::string DescribeHolder(const std::string& data_dir);

// Takes the GPU for this process: qgemm-<uuid>.lock in `lock_dir`, or, when nothing can be written there, in
// `fallback_dir`. FailedPrecondition says who has the GPU.
[[nodiscard]] absl::StatusOr<FileLock> TakeGpuLock(const std::string& uuid, const std::string& lock_dir,
                                                   const std::string& fallback_dir,
                                                   const std::string& holder);

}  // namespace qgemm

#endif  // QGEMM_SERVER_GPU_LOCK_H_
