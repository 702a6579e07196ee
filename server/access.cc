#include "server/access.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr Duration kLogInterval = std::chrono::milliseconds(500);

std::string Clean(std::string name) {
  name.resize(std::min(name.size(), kMaxNameBytes));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return name.empty() ? kAnonymous : name;
}

// The token of "Bearer TOKEN"; nullopt: it is something else.
std::optional<absl::string_view> BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return std::nullopt;
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

}  // namespace

void Access::SetRules(Rules rules) {
  auto shared = std::make_shared<const Rules>(std::move(rules));
  MutexLock lock(mu_);
  rules_ = std::move(shared);
}

absl::StatusOr<Caller> Access::Admit(const ShownIdentity& shown) const {
  absl::StatusOr<Caller> caller = Decide(shown);
  if (!caller.ok()) LogRefusal(shown.peer, caller.status());
  return caller;
}

void Access::LogRefusal(const std::string& peer, const absl::Status& why) const {
  const TimePoint now = RealClock().Now();
  int64_t unlogged = 0;
  {
    MutexLock lock(mu_);
    if (now < next_log_) {
      ++unlogged_;
      return;
    }
    next_log_ = now + kLogInterval;
    unlogged = std::exchange(unlogged_, 0);
  }
  spdlog::info("a call from {} was refused: {}{}", peer, std::string(why.message()),
               unlogged == 0 ? "" : absl::StrCat(" (and ", unlogged, " others before it)"));
}

absl::StatusOr<Caller> Access::Decide(const ShownIdentity& shown) const {
  std::shared_ptr<const Rules> rules;
  {
    MutexLock lock(mu_);
    rules = rules_;
  }
  Caller caller;
  caller.same_host = IsLocalPeer(shown.peer);
  caller.admin = shown.own_user;
  if (rules->tokens != nullptr && shown.authorization.has_value()) {
    const std::optional<absl::string_view> token = BearerToken(*shown.authorization);
    if (!token.has_value()) {
      return absl::UnauthenticatedError("the metadata authorization is not of the form \"Bearer TOKEN\"");
    }
    const std::optional<TokenHolder> holder = rules->tokens->Find(*token);
    if (!holder.has_value()) {
      return absl::UnauthenticatedError(
          "the token is none of this daemon's: it was mistyped or has been withdrawn");
    }
    caller.name = Clean(holder->name);
    caller.proven = true;
    caller.admin |= holder->admin;
    caller.reader = holder->reader;
  } else if (shown.certificate.has_value()) {
    // Two names must not become one.
    caller.name = absl::CHexEscape(*shown.certificate);
    if (caller.name.size() > kMaxNameBytes) {
      return absl::UnauthenticatedError(absl::StrCat("the certificate's name has ", caller.name.size(),
                                                     " bytes; allowed: ", kMaxNameBytes));
    }
    caller.proven = true;
  } else if (rules->tokens != nullptr && !shown.own_user) {
    return absl::UnauthenticatedError(
        "this daemon asks for a token: qgemmctl --token-file FILE (or QGEMM_TOKEN_FILE), elsewhere the "
        "metadata "
        "authorization: Bearer TOKEN");
  } else {
    caller.name = Clean(shown.client_id);
  }
  caller.admin |= caller.proven && rules->admins.count(caller.name) > 0;
  caller.reader = caller.reader && !caller.admin;
  return caller;
}

absl::Status MayWrite(const Caller& caller, absl::string_view what) {
  if (!caller.reader) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(what, " is not for ", caller.name,
                   ", whose token is for reading: lookups, kernels, lists; ask "
                   "for one without \":reader\" in the daemon's tokens file"));
}

absl::Status MayCancel(const Caller& caller, absl::string_view job_id, absl::string_view owner) {
  QGEMM_RETURN_IF_ERROR(MayWrite(caller, "cancelling a job"));
  if (caller.admin || caller.name == owner || owner == kAnonymous) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("job ", job_id, " belongs to ", owner, ", and you are ",
                                                  caller.name, ": only its owner or an admin may cancel it"));
}

absl::Status MayAdminister(const Caller& caller, absl::string_view what) {
  if (caller.admin || (!caller.proven && caller.same_host)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(what, " changes the daemon for everybody, and ", caller.name, " is no admin of it"));
}

bool IsLocalPeer(absl::string_view peer) {
  // gRPC escapes the brackets of IPv6 addresses in some versions.
  const std::string name =
      absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}});
  for (const absl::string_view local :
       {"unix:", "unix-abstract:", "ipv4:127.", "ipv6:[::1]:", "ipv6:[::ffff:127."}) {
    if (absl::StartsWith(name, local)) return true;
  }
  return false;
}

}  // namespace qgemm
