#ifndef QGEMM_BASE_HOST_NAME_H_
#define QGEMM_BASE_HOST_NAME_H_

#include <string>

namespace qgemm {

// This machine's name as it was at the first call; "unknown-host" where it has none. Thread-safe.
const std::string& HostName();

}  // namespace qgemm

#endif  // QGEMM_BASE_HOST_NAME_H_
