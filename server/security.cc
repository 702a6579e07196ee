#include "server/security.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/listen_address.h"
#include "server/tls_files.h"

namespace qgemm {
namespace {

constexpr int64_t kDayMs = int64_t{24} * 3600 * 1000;
constexpr int64_t kWarnDays = 14;

std::set<std::string> AsSet(const std::vector<std::string>& names) { return {names.begin(), names.end()}; }

}  // namespace

Security::Security(const Config& config, Clock& clock)
    : paths_{config.tls_cert, config.tls_key, config.tls_client_ca},
      tokens_file_(config.tokens_file),
      clock_(clock) {
  rules_.admins = AsSet(config.admin);
  for (const std::string& text : config.listen) {
    const absl::StatusOr<ListenAddress> address = ParseListenAddress(text);
    open_to_others_ |= address.ok() && !address->IsLocal();
  }
}

absl::StatusOr<std::unique_ptr<Security>> Security::Load(const Config& config, Clock& clock) {
  std::unique_ptr<Security> security(new Security(config, clock));
  QGEMM_RETURN_IF_ERROR(security->LoadTls());
  QGEMM_RETURN_IF_ERROR(security->LoadTokens());
  return security;
}

absl::Status Security::LoadTls() {
  if (paths_.cert.empty()) return absl::OkStatus();
  QGEMM_ASSIGN_OR_RETURN(TlsMaterial material, LoadTlsMaterial(paths_, clock_.WallUnixMs()));
  if (tls_.has_value()) {
    tls_->Replace(std::move(material));
  } else {
    tls_.emplace(std::move(material));
  }
  return absl::OkStatus();
}

absl::Status Security::LoadTokens() {
  if (tokens_file_.empty()) return absl::OkStatus();
  QGEMM_ASSIGN_OR_RETURN(TokenFile tokens, TokenFile::Load(tokens_file_));
  rules_.tokens = std::make_shared<const TokenFile>(std::move(tokens));
  return absl::OkStatus();
}

std::vector<absl::Status> Security::Reload(const std::vector<std::string>& admins) {
  rules_.admins = AsSet(admins);
  std::vector<absl::Status> refused;
  for (absl::Status loaded : {LoadTls(), LoadTokens()}) {
    if (!loaded.ok()) refused.push_back(std::move(loaded));
  }
  return refused;
}

std::string Security::Describe() const {
  std::string text;
  if (tls_.has_value()) {
    absl::StrAppend(&text, "TLS with ", DescribeTls(*tls_->current().material),
                    paths_.client_ca.empty() ? "" : ", clients show certificates");
  }
  if (rules_.tokens != nullptr) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", rules_.tokens->size(), " tokens");
  }
  return text;
}

std::vector<std::string> Security::Warnings() const {
  std::vector<std::string> warnings;
  if (open_to_others_ && paths_.client_ca.empty() && rules_.tokens == nullptr) {
    warnings.emplace_back(
        "everybody who reaches the port may tune: --tokens-file or --tls-client-ca say who may");
  }
  if (!rules_.admins.empty() && paths_.client_ca.empty() && rules_.tokens == nullptr) {
    warnings.emplace_back(
        "admin makes nobody an admin: a name is proven by --tokens-file or --tls-client-ca alone");
  }
  if (tls_.has_value()) {
    const int64_t days = (tls_->current().material->expires_unix_ms - clock_.WallUnixMs()) / kDayMs;
    if (days < kWarnDays) {
      warnings.push_back(absl::StrCat("the certificate in ", paths_.cert, " expires in ", days,
                                      " days: replace the file and send SIGHUP"));
    }
  }
  return warnings;
}

}  // namespace qgemm
