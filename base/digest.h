#ifndef QGEMM_BASE_DIGEST_H_
#define QGEMM_BASE_DIGEST_H_

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

struct evp_md_ctx_st;

namespace qgemm {

inline constexpr int kSha256Bytes = 32;

// The SHA-256 of `bytes`: 32 raw bytes.
std::string Sha256(absl::string_view bytes);

// The same as 64 lower-case hexadecimal digits.
std::string Sha256Hex(absl::string_view bytes);

// Two lower-case hexadecimal digits per byte.
std::string ToHex(absl::string_view bytes);

// SHA-256 of bytes that come in pieces. Not thread-safe.
class Sha256Hasher {
 public:
  Sha256Hasher();
  ~Sha256Hasher();
  Sha256Hasher(const Sha256Hasher&) = delete;
  Sha256Hasher& operator=(const Sha256Hasher&) = delete;

  void Update(absl::string_view bytes);
  // Returns 32 raw bytes and starts again from nothing.
  std::string Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace qgemm

#endif  // QGEMM_BASE_DIGEST_H_
