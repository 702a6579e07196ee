#include "client/client_security.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> ReadFile(absl::string_view option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  if (!(file && bytes << file.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", path, " cannot be read or is empty"));
  }
  return bytes.str();
}

bool IsUnix(const ClientOptions& options) { return absl::StartsWith(options.server, "unix:"); }

bool IsLoopback(absl::string_view server) {
  for (const absl::string_view local : {"localhost:", "127.", "[::1]:"}) {
    if (absl::StartsWith(server, local)) return true;
  }
  return false;
}

bool SaysAnyOf(absl::string_view error, std::initializer_list<absl::string_view> texts) {
  return std::any_of(texts.begin(), texts.end(), [&](absl::string_view text) {
    return absl::StrContains(absl::AsciiStrToLower(error), text);
  });
}

}  // namespace

absl::Status ResolveSecurity(ClientOptions& options) {
  if (options.token.empty() && options.token_file.empty()) {
    options.token = FromEnvironment("QGEMM_TOKEN");
    if (options.token.empty()) options.token_file = FromEnvironment("QGEMM_TOKEN_FILE");
  }
  if (options.tls_ca.empty()) options.tls_ca = FromEnvironment("QGEMM_TLS_CA");
  if (options.tls_cert.empty() && options.tls_key.empty()) {
    options.tls_cert = FromEnvironment("QGEMM_TLS_CERT");
    options.tls_key = FromEnvironment("QGEMM_TLS_KEY");
  }
  if (options.token.empty() && !options.token_file.empty()) {
    QGEMM_ASSIGN_OR_RETURN(options.token, ReadFile("token_file", options.token_file));
  }
  options.token = std::string(absl::StripAsciiWhitespace(options.token));
  const bool printable = std::all_of(options.token.begin(), options.token.end(), absl::ascii_isgraph);
  if (!printable || (options.token.empty() && !options.token_file.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.token_file.empty() ? "the token" : options.token_file,
                     " is not one word of printable ASCII characters"));
  }
  return absl::OkStatus();
}

bool UsesTls(const ClientOptions& options) {
  if (IsUnix(options)) return false;
  return !IsLoopback(options.server) || !options.tls_ca.empty() || !options.tls_cert.empty();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const ClientOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("tls_cert and tls_key are needed together");
  }
  if (!UsesTls(options)) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  if (!options.tls_ca.empty()) {
    QGEMM_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadFile("tls_ca", options.tls_ca));
  }
  if (!options.tls_cert.empty()) {
    QGEMM_ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadFile("tls_cert", options.tls_cert));
    QGEMM_ASSIGN_OR_RETURN(ssl.pem_private_key, ReadFile("tls_key", options.tls_key));
  }
  return grpc::SslCredentials(ssl);
}

std::string TlsHint(const ClientOptions& options, absl::string_view error) {
  if (IsUnix(options) || SaysAnyOf(error, {"connection refused", "dns resolution"})) return "";
  if (!UsesTls(options)) {
    return SaysAnyOf(error, {"socket closed", "connection reset", "handshake", "settings"})
               ? "; it may speak TLS there: --tls-ca FILE (QGEMM_TLS_CA)"
               : "";
  }
  if (SaysAnyOf(error, {"wrong version number", "wrong_version_number"})) {
    return "; it speaks no TLS there: leave the --tls options out";
  }
  if (SaysAnyOf(error, {"peer name", "hostname verification"})) {
    return "; its certificate is for another host name";
  }
  if (SaysAnyOf(error, {"certificate verify failed", "certificate_verify_failed"})) {
    return absl::StrCat(
        "; its certificate has expired or is not signed by ",
        options.tls_ca.empty() ? "the system's roots: --tls-ca FILE (QGEMM_TLS_CA)" : options.tls_ca);
  }
  if (SaysAnyOf(error, {"socket closed", "connection reset", "broken pipe", "alert", "handshake"})) {
    return options.tls_cert.empty()
               ? "; it may ask for a client certificate: --tls-cert and --tls-key (QGEMM_TLS_CERT, "
                 "QGEMM_TLS_KEY)"
               : absl::StrCat("; it may refuse the client certificate in ", options.tls_cert,
                              ": expired, or not signed by the daemon's --tls-client-ca");
  }
  return "";
}

}  // namespace qgemm
