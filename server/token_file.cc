#include "server/token_file.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "server/secret_file.h"

namespace qgemm {
namespace {

constexpr size_t kMaxNameBytes = 128;

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxNameBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

bool IsHexSha256(absl::string_view text) {
  return text.size() == size_t{2} * kSha256Bytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Load(const std::string& path) {
  QGEMM_ASSIGN_OR_RETURN(const std::string text,
                         ReadConfiguredFile("tokens_file", path, FileAccess::kSecret));
  return Parse(text, path);
}

absl::StatusOr<TokenFile> TokenFile::Parse(absl::string_view text, const std::string& path) {
  TokenFile tokens;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ':');
    const bool admin = fields.size() == 3 && fields[2] == "admin";
    const bool reader = fields.size() == 3 && fields[2] == "reader";
    if (fields.size() < 2 || (fields.size() > 2 && !admin && !reader) || !IsName(fields[0]) ||
        !IsHexSha256(fields[1])) {
      // The line itself may hold a token that was put in the place of its digest.
      return absl::InvalidArgumentError(
          absl::StrCat("tokens_file: ", path, " line ", number,
                       " is not NAME:SHA256, NAME:SHA256:admin or "
                       "NAME:SHA256:reader, with 64 hexadecimal digits of the token's SHA-256"));
    }
    const std::string sha256 = absl::HexStringToBytes(fields[1]);
    for (const Entry& entry : tokens.entries_) {
      if (entry.sha256 != sha256) continue;
      return absl::InvalidArgumentError(absl::StrCat("tokens_file: ", path, " line ", number, " gives ",
                                                     fields[0], " the token of ", entry.holder.name,
                                                     "; allowed: each token once"));
    }
    tokens.entries_.push_back({{std::string(fields[0]), admin, reader}, sha256});
  }
  if (tokens.entries_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tokens_file: ", path,
                                                   " has no token, so that nobody "
                                                   "could call"));
  }
  return tokens;
}

std::optional<TokenHolder> TokenFile::Find(absl::string_view token) const {
  const std::string sha256 = Sha256(token);
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.sha256.data(), sha256.data(), sha256.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->holder;
}

}  // namespace qgemm
