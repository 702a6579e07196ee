#ifndef QGEMM_SERVER_LISTEN_ADDRESS_H_
#define QGEMM_SERVER_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

// Where the daemon listens: a unix socket, or a TCP port.
struct ListenAddress {
  bool is_unix = false;
  std::string path;  // unix
  std::string host;  // TCP: an address or a name of this machine; 0.0.0.0 or :: for all of its addresses
  int port = 0;      // TCP; 0 = any free one

  // As gRPC wants it: "unix:/run/qgemm/qgemm.sock", "127.0.0.1:7461", "[::1]:7461".
  std::string ForGrpc() const;
  // Whether only this machine reaches it; false also for names other than localhost.
  bool IsLocal() const;
};

// "unix:PATH" or "HOST:PORT". InvalidArgument: neither; a path that is relative or too long for a socket; no
// host, or a port outside 0 .. 65535.
[[nodiscard]] absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

}  // namespace qgemm

#endif  // QGEMM_SERVER_LISTEN_ADDRESS_H_
