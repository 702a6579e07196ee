#include "client/server_address.h"

#include <sys/un.h>

#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/qgemm/client.h"

namespace qgemm {
namespace {

absl::Status NotAnAddress(absl::string_view address, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("server is \"", address, "\", ", why, ": allowed are unix:PATH and HOST:PORT"));
}

}  // namespace

std::string DefaultServerAddress() {
  const char* server = std::getenv("QGEMM_SERVER");
  if (server != nullptr && *server != '\0') return server;
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_dir != nullptr && *runtime_dir != '\0') {
    return absl::StrCat("unix:", runtime_dir, "/qgemm.sock");
  }
  return "unix:/run/qgemm/qgemm.sock";
}

absl::Status ValidateServerAddress(absl::string_view address) {
  absl::string_view path = address;
  if (absl::ConsumePrefix(&path, "unix:")) {
    if (path.empty()) return NotAnAddress(address, "which has no path");
    constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
    if (path.size() > kMaxPath) {
      return NotAnAddress(
          address, absl::StrCat("whose path is longer than the ", kMaxPath, " bytes a socket address holds"));
    }
    return absl::OkStatus();
  }
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) {
    return NotAnAddress(address, "which names no host and port");
  }
  const absl::string_view host = address.substr(0, colon);
  const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if ((absl::StrContains(host, ":") && !bracketed) || absl::StrContains(host, "/")) {
    return NotAnAddress(address, "whose host is no name and no IP address");
  }
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return NotAnAddress(address, "whose port is not from 1 to 65535");
  }
  return absl::OkStatus();
}

}  // namespace qgemm
