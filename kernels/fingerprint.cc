#include "kernels/fingerprint.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qgemm {
namespace {

using Wide = unsigned __int128;

constexpr uint64_t kStandardSeed = 0x7167656d6d0001ull;
constexpr uint64_t kLow30 = (uint64_t{1} << 30) - 1;
constexpr int kHalfBits = 30;

// The finaliser of SplitMix64 over a counter.
uint64_t RandomBits(uint64_t seed, uint64_t index) {
  uint64_t z = (seed + 1) * 0xd1342543de82ef95ull + index * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

uint64_t Reduce(Wide value) {
  // Twice, as 2^61 = 1 in the field: the first fold leaves 67 bits of 128, the second 62.
  value = (value & kFingerprintPrime) + (value >> 61);
  value = (value & kFingerprintPrime) + (value >> 61);
  const uint64_t folded = static_cast<uint64_t>(value);
  return folded >= kFingerprintPrime ? folded - kFingerprintPrime : folded;
}

// The four sums of a chunk, exact: of words times lower halves and times upper halves of the coefficients.
struct ChunkSums {
  Wide low[2] = {0, 0};
  Wide high[2] = {0, 0};
};

// `words` is at most kFingerprintChunkWords and a multiple of 4. A product has 62 bits, so four fit into 64.
ChunkSums SumPortably(const FingerprintKey& key, const uint8_t* bytes, int64_t words) {
  ChunkSums sums;
  for (int which = 0; which < 2; ++which) {
    const uint64_t* coefficients = key.coefficients(which).data();
    for (int64_t first = 0; first < words; first += 4) {
      uint64_t low = 0;
      uint64_t high = 0;
      for (int64_t j = first; j < first + 4; ++j) {
        uint32_t word = 0;
        std::memcpy(&word, bytes + 4 * j, sizeof(word));
        low += uint64_t{word} * (coefficients[j] & kLow30);
        high += uint64_t{word} * (coefficients[j] >> 32);
      }
      sums.low[which] += low;
      sums.high[which] += high;
    }
  }
  return sums;
}

#if defined(__x86_64__)
// Sums of 64-bit lanes that do not overflow: the lower and upper 32 bits of what is added, apart.
struct LaneSums {
  __m256i low = {};
  __m256i high = {};
};

__attribute__((target("avx2"))) inline void AddLanes(__m256i value, LaneSums* sums) {
  sums->low = _mm256_add_epi64(sums->low, _mm256_and_si256(value, _mm256_set1_epi64x(0xffffffff)));
  sums->high = _mm256_add_epi64(sums->high, _mm256_srli_epi64(value, 32));
}

Wide Total(const LaneSums& sums) {
  uint64_t low[4];
  uint64_t high[4];
  std::memcpy(low, &sums.low, sizeof(low));
  std::memcpy(high, &sums.high, sizeof(high));
  Wide total = 0;
  for (int lane = 0; lane < 4; ++lane) total += Wide{low[lane]} + (Wide{high[lane]} << 32);
  return total;
}

// `words` is a multiple of 16. Four words at a time, each in a lane of 64 bits.
__attribute__((target("avx2"))) ChunkSums SumWithAvx2(const FingerprintKey& key, const uint8_t* bytes,
                                                      int64_t words) {
  LaneSums low[2];
  LaneSums high[2];
  const uint64_t* coefficients[2] = {key.coefficients(0).data(), key.coefficients(1).data()};
  for (int64_t first = 0; first < words; first += 16) {
    __m256i four_low[2] = {};
    __m256i four_high[2] = {};
    for (int64_t j = first; j < first + 16; j += 4) {
      const __m256i x =
          _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 4 * j)));
      for (int which = 0; which < 2; ++which) {
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(coefficients[which] + j));
        four_low[which] = _mm256_add_epi64(four_low[which], _mm256_mul_epu32(x, a));
        four_high[which] = _mm256_add_epi64(four_high[which], _mm256_mul_epu32(x, _mm256_srli_epi64(a, 32)));
      }
    }
    for (int which = 0; which < 2; ++which) {
      AddLanes(four_low[which], &low[which]);
      AddLanes(four_high[which], &high[which]);
    }
  }
  ChunkSums sums;
  for (int which = 0; which < 2; ++which) {
    sums.low[which] = Total(low[which]);
    sums.high[which] = Total(high[which]);
  }
  return sums;
}
#endif

ChunkSums SumChunk(const FingerprintKey& key, const uint8_t* bytes, int64_t words) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2 && words % 16 == 0) return SumWithAvx2(key, bytes, words);
#endif
  return SumPortably(key, bytes, words);
}

}  // namespace

std::string FingerprintText(const Fingerprint& fingerprint) {
  const absl::string_view tail(reinterpret_cast<const char*>(fingerprint.tail.data()),
                               fingerprint.tail.size());
  return absl::StrCat(absl::Hex(fingerprint.size, absl::kZeroPad16),
                      absl::Hex(fingerprint.hash[0], absl::kZeroPad16),
                      absl::Hex(fingerprint.hash[1], absl::kZeroPad16), absl::BytesToHexString(tail));
}

uint64_t FieldMultiply(uint64_t a, uint64_t b) { return Reduce(Wide{a} * b); }

uint64_t FieldPower(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = FieldMultiply(result, base);
    base = FieldMultiply(base, base);
  }
  return result;
}

FingerprintKey::FingerprintKey(uint64_t seed) {
  uint64_t index = 0;
  for (int which = 0; which < 2; ++which) {
    coefficients_[which].resize(kFingerprintChunkWords);
    for (uint64_t& coefficient : coefficients_[which]) {
      const uint64_t bits = RandomBits(seed, index++);
      coefficient = (bits & kLow30) | (bits >> (64 - kHalfBits)) << 32;
    }
    do {
      radix_[which] = RandomBits(seed, index++) >> 3;
    } while (radix_[which] >= kFingerprintPrime);
  }
}

const FingerprintKey& FingerprintKey::Standard() {
  static const auto* const key = new FingerprintKey(kStandardSeed);
  return *key;
}

std::vector<uint64_t> FingerprintTable(const FingerprintKey& key) {
  std::vector<uint64_t> table = key.coefficients(0);
  table.insert(table.end(), key.coefficients(1).begin(), key.coefficients(1).end());
  return table;
}

std::array<uint64_t, 2> HashFromSums(const std::array<uint64_t, 4>& sums) {
  return {Reduce(Wide{sums[0]} + (Wide{sums[1]} << 32)), Reduce(Wide{sums[2]} + (Wide{sums[3]} << 32))};
}

RunHash HashRun(const FingerprintKey& key, absl::Span<const uint8_t> bytes) {
  RunHash run;
  const int64_t size = static_cast<int64_t>(bytes.size());
  for (int64_t at = 0; at < size; at += kFingerprintChunkBytes) {
    const int64_t words = std::min(size - at, kFingerprintChunkBytes) / 4;
    const ChunkSums sums = SumChunk(key, bytes.data() + at, words);
    for (int which = 0; which < 2; ++which) {
      const Wide chunk = sums.low[which] + (sums.high[which] << kHalfBits);
      run.hash[which] = Reduce(Wide{run.hash[which]} * key.radix(which) + chunk);
    }
    ++run.chunks;
  }
  return run;
}

RunHash JoinRuns(const FingerprintKey& key, const RunHash& left, const RunHash& right) {
  RunHash joined;
  joined.chunks = left.chunks + right.chunks;
  for (int which = 0; which < 2; ++which) {
    const uint64_t shift = FieldPower(key.radix(which), static_cast<uint64_t>(right.chunks));
    joined.hash[which] = Reduce(Wide{left.hash[which]} * shift + right.hash[which]);
  }
  return joined;
}

void FingerprintStream::Update(absl::Span<const uint8_t> bytes) {
  size_ += bytes.size();
  while (!bytes.empty()) {
    if (pending_bytes_ == 0 && bytes.size() >= kFingerprintChunkBytes) {
      const size_t whole = bytes.size() / kFingerprintChunkBytes * kFingerprintChunkBytes;
      run_ = JoinRuns(key_, run_, HashRun(key_, bytes.first(whole)));
      bytes.remove_prefix(whole);
      continue;
    }
    const size_t room = static_cast<size_t>(kFingerprintChunkBytes - pending_bytes_);
    const size_t count = std::min(room, bytes.size());
    std::memcpy(pending_.data() + pending_bytes_, bytes.data(), count);
    pending_bytes_ += static_cast<int64_t>(count);
    bytes.remove_prefix(count);
    if (pending_bytes_ == kFingerprintChunkBytes) {
      run_ = JoinRuns(key_, run_, HashRun(key_, pending_));
      pending_bytes_ = 0;
    }
  }
}

Fingerprint FingerprintStream::Finish() const {
  Fingerprint result;
  result.size = size_;
  const int64_t tail = pending_bytes_ % 16;
  const auto rest = absl::MakeConstSpan(pending_).first(pending_bytes_);
  result.hash = JoinRuns(key_, run_, HashRun(key_, rest.first(pending_bytes_ - tail))).hash;
  std::copy(rest.end() - tail, rest.end(), result.tail.begin());
  return result;
}

Fingerprint FingerprintOf(absl::Span<const uint8_t> bytes, int threads, const FingerprintKey& key) {
  constexpr int64_t kBytesPerThread = 1 << 20;  // less is not worth a thread
  const int64_t size = static_cast<int64_t>(bytes.size());
  const int64_t parts = std::clamp<int64_t>(size / kBytesPerThread, 1, std::max(threads, 1));
  const int64_t chunks = (size + kFingerprintChunkBytes - 1) / kFingerprintChunkBytes;
  const int64_t part_bytes = (chunks + parts - 1) / parts * kFingerprintChunkBytes;
  const int64_t body = size - size % 16;

  std::vector<RunHash> runs(parts);
  const auto hash_part = [&](int64_t part) {
    const int64_t begin = std::min(part * part_bytes, body);
    const int64_t end = std::min(begin + part_bytes, body);
    runs[part] = HashRun(key, bytes.subspan(begin, end - begin));
  };
  std::vector<std::thread> pool;
  pool.reserve(parts - 1);
  for (int64_t part = 1; part < parts; ++part) pool.emplace_back(hash_part, part);
  hash_part(0);
  for (std::thread& thread : pool) thread.join();

  RunHash run;
  for (const RunHash& next : runs) run = JoinRuns(key, run, next);
  Fingerprint result;
  result.size = bytes.size();
  result.hash = run.hash;
  std::copy(bytes.begin() + body, bytes.end(), result.tail.begin());
  return result;
}

}  // namespace qgemm
