#include "client/client_security.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <system_error>

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

// A daemon takes 8 KiB of metadata with a call.
constexpr size_t kMaxTokenBytes = 4096;

absl::StatusOr<std::string> ReadFile(absl::string_view option, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", path, " is a folder; allowed: a file"));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": ", path, " cannot be read: ", std::generic_category().message(errno)));
  }
  std::ostringstream bytes;
  if (!(bytes << file.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", path, " is empty or cannot be read"));
  }
  return bytes.str();
}

// `kind`: how the PEM blocks in it end their first line. gRPC would say only that it cannot connect.
absl::StatusOr<std::string> ReadPem(absl::string_view option, const std::string& path,
                                    absl::string_view kind) {
  QGEMM_ASSIGN_OR_RETURN(std::string pem, ReadFile(option, path));
  if (!absl::StrContains(pem, "-----BEGIN ") || !absl::StrContains(pem, absl::StrCat(kind, "-----"))) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": ", path, " holds no PEM ", absl::AsciiStrToLower(kind)));
  }
  return pem;
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
  if (options.token.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.token_file.empty() ? "the token" : options.token_file, " has ",
                     options.token.size(), " bytes; allowed: a token of at most ", kMaxTokenBytes));
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
    QGEMM_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadPem("tls_ca", options.tls_ca, "CERTIFICATE"));
  }
  if (!options.tls_cert.empty()) {
    QGEMM_ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadPem("tls_cert", options.tls_cert, "CERTIFICATE"));
    QGEMM_ASSIGN_OR_RETURN(ssl.pem_private_key, ReadPem("tls_key", options.tls_key, "PRIVATE KEY"));
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
  // What gRPC says of files that it cannot use: it has tried no address.
  if (SaysAnyOf(error, {"empty address list", "secure subchannel"})) {
    return options.tls_cert.empty()
               ? absl::StrCat("; the certificates in ",
                              options.tls_ca.empty() ? "the system's roots" : options.tls_ca, " are damaged")
               : absl::StrCat("; ", options.tls_key, " is not the key of the certificate in ",
                              options.tls_cert, ", or a TLS file is damaged");
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
