#ifndef QGEMM_KERNELS_FINGERPRINT_H_
#define QGEMM_KERNELS_FINGERPRINT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace qgemm {

// Fingerprints of tensors: they decide whether bytes are those that were written before. A CPU and a GPU
// (device/fingerprint.cuh) give the same one.
//
// The bytes but the last size % 16 are little-endian 32-bit words x, in chunks of 1024; the last chunk ends
// in zeros. Over the field of p = 2^61 - 1, each of the two hashes is
//     S_c = sum over j of a_j * x[1024 c + j]         a_j: 1024 random numbers below 2^60
//     H   = sum over c of S_c * r^(chunks - 1 - c)    r: a random number of the field
// with numbers of its own. Order counts, and a hash of two parts follows from those of the parts. A word is
// smaller than p, so no two words are the same to the field; two texts of one size that differ have the same
// H for at most (chunks + 1) of 2^60 keys: both hashes at once below 2^-84 for a gigabyte. The size and the
// last bytes stand in the fingerprint as they are.
//
// The numbers come from a seed and are published with it: no protection against somebody who builds a
// collision.
struct Fingerprint {
  uint64_t size = 0;
  std::array<uint64_t, 2> hash = {0, 0};
  std::array<uint8_t, 16> tail = {};  // the last size % 16 bytes, then zeros

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// 80 hexadecimal digits: size, hashes, tail.
std::string FingerprintText(const Fingerprint& fingerprint);

inline constexpr uint64_t kFingerprintPrime = (uint64_t{1} << 61) - 1;
inline constexpr int64_t kFingerprintChunkWords = 1024;
inline constexpr int64_t kFingerprintChunkBytes = 4 * kFingerprintChunkWords;

// The random numbers of a seed; constant after construction. `Standard()` is the one of stored fingerprints.
class FingerprintKey {
 public:
  explicit FingerprintKey(uint64_t seed);
  static const FingerprintKey& Standard();

  // a_j of hash `which` as lower 30 bits in the low and upper 30 bits in the high half of entry j; [1024].
  const std::vector<uint64_t>& coefficients(int which) const { return coefficients_[which]; }
  uint64_t radix(int which) const { return radix_[which]; }

 private:
  std::vector<uint64_t> coefficients_[2];
  uint64_t radix_[2];
};

// The hashes of a run of chunks.
struct RunHash {
  int64_t chunks = 0;
  std::array<uint64_t, 2> hash = {0, 0};
};
// Of `bytes`, a multiple of 16; its last chunk may be short.
RunHash HashRun(const FingerprintKey& key, absl::Span<const uint8_t> bytes);
// Of two runs that follow each other; the left one ends with a whole chunk.
RunHash JoinRuns(const FingerprintKey& key, const RunHash& left, const RunHash& right);

// Feed it bytes in pieces of any size. Not thread-safe.
class FingerprintStream {
 public:
  // `key` outlives the stream.
  explicit FingerprintStream(const FingerprintKey& key = FingerprintKey::Standard()) : key_(key) {}
  void Update(absl::Span<const uint8_t> bytes);
  Fingerprint Finish() const;

 private:
  const FingerprintKey& key_;
  uint64_t size_ = 0;
  RunHash run_;
  std::array<uint8_t, kFingerprintChunkBytes> pending_ = {};
  int64_t pending_bytes_ = 0;
};

// Of bytes in memory, on up to `threads` threads.
Fingerprint FingerprintOf(absl::Span<const uint8_t> bytes, int threads = 1,
                          const FingerprintKey& key = FingerprintKey::Standard());

// device/fingerprint.cuh. The kernel takes (data, i64 units of 16 bytes, table, u64 radix(0), u64 radix(1),
// u64 sums[4]): `data` aligned to 16 bytes, `table` = FingerprintTable(), `sums` zeros before; any number of
// CTAs, some per SM is best.
inline constexpr char kFingerprintEntry[] = "qgemm_fingerprint";
inline constexpr int kFingerprintThreads = 256;
// The coefficients as the kernel reads them, [2][1024].
std::vector<uint64_t> FingerprintTable(const FingerprintKey& key);
// The hashes from the kernel's sums.
std::array<uint64_t, 2> HashFromSums(const std::array<uint64_t, 4>& sums);

// Arithmetic of the field, for numbers below the prime.
uint64_t FieldMultiply(uint64_t a, uint64_t b);
uint64_t FieldPower(uint64_t base, uint64_t exponent);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_FINGERPRINT_H_
