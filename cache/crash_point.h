#ifndef QGEMM_CACHE_CRASH_POINT_H_
#define QGEMM_CACHE_CRASH_POINT_H_

#include <csignal>
#include <cstdlib>
#include <cstring>

namespace qgemm {

// Ends the process with SIGKILL when the environment variable QGEMM_CRASH_POINT is `name`: makes each window
// of a crash its own test. Names in use: store-before-write, store-after-write, store-before-reopen,
// uses-before-write, remove-before-write, remove-after-write, migration-before-batch,
// migration-before-version, import-after-entry, backup-before-checkpoint, job-before-accept,
// job-after-accept, job-before-finish, job-after-finish.
inline void CrashPoint(const char* name) {
  const char* wanted = std::getenv("QGEMM_CRASH_POINT");
  if (wanted != nullptr && std::strcmp(wanted, name) == 0) std::raise(SIGKILL);
}

}  // namespace qgemm

#endif  // QGEMM_CACHE_CRASH_POINT_H_
