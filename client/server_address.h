#ifndef QGEMM_CLIENT_SERVER_ADDRESS_H_
#define QGEMM_CLIENT_SERVER_ADDRESS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace qgemm {

// OK for unix:PATH (a path that fits a socket address) and HOST:PORT (port 1 .. 65535; IPv6 hosts in
// brackets), else InvalidArgument saying what is allowed.
[[nodiscard]] absl::Status ValidateServerAddress(absl::string_view address);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_SERVER_ADDRESS_H_
