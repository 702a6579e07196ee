#ifndef QGEMM_SERVER_TOKEN_FILE_H_
#define QGEMM_SERVER_TOKEN_FILE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

// Who holds a token.
struct TokenHolder {
  std::string name;
  bool admin = false;
  bool reader = false;
};

// The tokens that a daemon knows, as digests: the file gives none of them away. One a line, blank lines and
// what follows a # left out:
//
//   alice:<SHA-256 of her token, 64 hexadecimal digits>
//   operator:<SHA-256>:admin
//   dashboard:<SHA-256>:reader
//
// Somebody may have several lines, while an old token is replaced by a new one. Immutable.
class TokenFile {
 public:
  // InvalidArgument: it cannot be read, a line is malformed (named by its number) or has the token of
  // another, or it has no line. FailedPrecondition: others may read or change it.
  [[nodiscard]] static absl::StatusOr<TokenFile> Load(const std::string& path);
  // The same from the file's text; `path` is for messages.
  [[nodiscard]] static absl::StatusOr<TokenFile> Parse(absl::string_view text, const std::string& path);

  // The holder of `token`, nullopt when nobody is. Takes the same time whichever token is close.
  std::optional<TokenHolder> Find(absl::string_view token) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    TokenHolder holder;
    std::string sha256;  // 32 bytes
  };
  std::vector<Entry> entries_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_TOKEN_FILE_H_
