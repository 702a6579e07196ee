#ifndef QGEMM_BASE_CHECK_H_
#define QGEMM_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"

namespace qgemm::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* what, const char* detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, what, *detail ? ": " : "", detail);
  std::abort();
}

inline void CheckOk(const char* file, int line, const char* what, const absl::Status& status) {
  if (!status.ok()) CheckFailed(file, line, what, status.ToString().c_str());
}

}  // namespace qgemm::internal

// Aborts with file and line unless `condition` holds. For our own bugs only: bad input, a full disk or a lost
// GPU is an absl::Status, never a failed check.
#define QGEMM_CHECK(condition)                                            \
  do {                                                                    \
    if (!(condition)) {                                                   \
      ::qgemm::internal::CheckFailed(__FILE__, __LINE__, #condition, ""); \
    }                                                                     \
  } while (false)

// The same for an absl::Status that cannot fail unless this program is wrong.
#define QGEMM_CHECK_OK(expr) ::qgemm::internal::CheckOk(__FILE__, __LINE__, #expr, (expr))

#endif  // QGEMM_BASE_CHECK_H_
