#ifndef QGEMM_SERVER_TLS_FILES_H_
#define QGEMM_SERVER_TLS_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace qgemm {

// What the configuration names; all PEM.
struct TlsPaths {
  std::string cert;       // the server's certificate, then those between it and a root
  std::string key;        // its private key, without a pass phrase
  std::string client_ca;  // roots of the clients' certificates; empty: clients show none
};

// The files' contents, checked.
struct TlsMaterial {
  std::string cert;
  std::string key;
  std::string client_ca;
  // Of the server's certificate.
  std::string subject;  // "CN=qgemm.example.org"
  int64_t expires_unix_ms = 0;
};

// Reads and checks the files: a certificate that is valid at `now_unix_ms`, its own key, and certificates to
// check clients' by. Errors name key and path: InvalidArgument, or FailedPrecondition when others may read
// the private key.
[[nodiscard]] absl::StatusOr<TlsMaterial> LoadTlsMaterial(const TlsPaths& paths, int64_t now_unix_ms);

// "CN=qgemm.example.org, valid until 2027-01-31 12:00:00 UTC": for the log.
std::string DescribeTls(const TlsMaterial& material);

}  // namespace qgemm

#endif  // QGEMM_SERVER_TLS_FILES_H_
