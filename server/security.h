#ifndef QGEMM_SERVER_SECURITY_H_
#define QGEMM_SERVER_SECURITY_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/access.h"
#include "server/config.h"
#include "server/tls_credentials.h"

namespace qgemm {

// The certificates and tokens that the configuration names, as they were last read. Used by the main thread;
// what it hands out is thread-safe.
class Security {
 public:
  // InvalidArgument and FailedPrecondition name the file and what is wrong with it. The clock is borrowed.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Security>> Load(const Config& config, Clock& clock);

  // Null: no TLS.
  const TlsCertificates* tls() const { return tls_.has_value() ? &*tls_ : nullptr; }
  Access::Rules rules() const { return rules_; }
  // "TLS with CN=qgemm, valid until 2027-01-31 12:00:00 UTC, clients show certificates; 3 tokens"; empty:
  // none of them.
  std::string Describe() const;
  // What an operator should know, a sentence each.
  std::vector<std::string> Warnings() const;

  // Reads the same files again and takes `admins`. What is wrong with a file is returned, and what was read
  // from it before stays; of certificate, key and client_ca all are taken or none.
  std::vector<absl::Status> Reload(const std::vector<std::string>& admins);

 private:
  Security(const Config& config, Clock& clock);
  absl::Status LoadTls();
  absl::Status LoadTokens();

  const TlsPaths paths_;
  const std::string tokens_file_;
  bool open_to_others_ = false;  // an address that other machines reach
  Clock& clock_;
  std::optional<TlsCertificates> tls_;
  Access::Rules rules_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_SECURITY_H_
