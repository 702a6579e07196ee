#include "server/listen_address.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace qgemm {
namespace {

constexpr size_t kMaxSocketPath = sizeof(sockaddr_un{}.sun_path) - 1;

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace

bool ListenAddress::IsLocal() const { return is_unix || IsLoopback(host); }

std::string ListenAddress::ForGrpc() const {
  if (is_unix) return absl::StrCat("unix:", path);
  if (absl::StrContains(host, ':')) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  ListenAddress address;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    address.is_unix = true;
    address.path = std::string(rest);
    if (address.path.empty() || address.path[0] != '/' || address.path.size() > kMaxSocketPath) {
      return absl::InvalidArgumentError(absl::StrCat("listen is \"", text,
                                                     "\"; allowed: unix: and an absolute path of at most ",
                                                     kMaxSocketPath, " characters"));
    }
    return address;
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen is \"", text, "\"; allowed: unix:PATH, or HOST:PORT with a port of 0 .. 65535"));
  }
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  address.host = std::string(host);
  if (address.host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen is \"", text,
                     "\", which names no host; allowed: HOST:PORT, with 0.0.0.0 or [::] for all addresses"));
  }
  return address;
}

}  // namespace qgemm
