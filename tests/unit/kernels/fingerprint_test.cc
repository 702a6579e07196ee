#include "kernels/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

// The device code on the CPU: its functions are plain integer arithmetic; the kernel around them is left out
// by hand.
// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier): CUDA's names
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)
namespace {
struct uint2 {
  unsigned int x, y;
};
struct uint4 {
  unsigned int x, y, z, w;
};
struct Index {
  int x;
};
Index gridDim, blockIdx, threadIdx;
unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
[[maybe_unused]] unsigned long long __shfl_down_sync(unsigned, unsigned long long value, int) {
  return value;
}
[[maybe_unused]] void __syncthreads() {}
[[maybe_unused]] void atomicAdd(unsigned long long* to, unsigned long long value) { *to += value; }
}  // namespace
// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)
#include "kernels/device/fingerprint.cuh"

namespace qgemm {
namespace {

constexpr uint64_t kSignBit = uint64_t{1} << 63;

std::vector<uint8_t> RandomBytes(int64_t size, uint64_t seed) {
  std::vector<uint8_t> bytes(size);
  std::mt19937_64 random(seed);
  int64_t at = 0;
  for (; at + 8 <= size; at += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  for (; at < size; ++at) bytes[at] = static_cast<uint8_t>(random());
  return bytes;
}

// The definition of the header, word by word.
Fingerprint BySchoolArithmetic(const std::vector<uint8_t>& bytes, const FingerprintKey& key) {
  Fingerprint result;
  result.size = bytes.size();
  const int64_t body = static_cast<int64_t>(bytes.size() / 16 * 16);
  for (int which = 0; which < 2; ++which) {
    uint64_t hash = 0;
    for (int64_t at = 0; at < body; at += kFingerprintChunkBytes) {
      hash = FieldMultiply(hash, key.radix(which));
      for (int64_t j = 0; j < kFingerprintChunkWords && at + 4 * j < body; ++j) {
        uint32_t word = 0;
        std::memcpy(&word, bytes.data() + at + 4 * j, 4);
        const uint64_t entry = key.coefficients(which)[j];
        const uint64_t coefficient = (entry & 0xffffffff) | entry >> 32 << 30;
        hash = (hash + FieldMultiply(word, coefficient)) % kFingerprintPrime;
      }
    }
    result.hash[which] = hash;
  }
  std::copy(bytes.begin() + body, bytes.end(), result.tail.begin());
  return result;
}

TEST(Fingerprint, FollowsItsDefinitionForEverySize) {
  for (int64_t size : {0, 1, 15, 16, 17, 4080, 4095, 4096, 4097, 4112, 8192, 12345, 70000}) {
    const std::vector<uint8_t> bytes = RandomBytes(size, size);
    EXPECT_EQ(FingerprintOf(bytes), BySchoolArithmetic(bytes, FingerprintKey::Standard())) << size;
  }
  // Nothing overflows where every bit is set.
  const std::vector<uint8_t> ones(3 * kFingerprintChunkBytes + 48, 0xff);
  EXPECT_EQ(FingerprintOf(ones), BySchoolArithmetic(ones, FingerprintKey::Standard()));
}

TEST(Fingerprint, KeepsItsValueAcrossReleases) {
  std::vector<uint8_t> bytes(10007);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * i + 7 * i);
  EXPECT_EQ(FingerprintText(FingerprintOf(bytes)),
            "000000000000271712fb2a2b4808f106066f5ed6abd414547098c2ee1c4c7e000000000000000000");
}

TEST(Fingerprint, IsTheSameOnAnyNumberOfThreads) {
  const std::vector<uint8_t> bytes = RandomBytes((int64_t{9} << 20) + 12345, 1);
  const Fingerprint one = FingerprintOf(bytes);
  for (int threads : {0, 2, 3, 8, 64}) EXPECT_EQ(FingerprintOf(bytes, threads), one) << threads;
}

TEST(Fingerprint, IsTheSameForAnyPiecesOfAStream) {
  const std::vector<uint8_t> bytes = RandomBytes(100003, 2);
  const Fingerprint whole = FingerprintOf(bytes);
  std::mt19937 random(3);
  for (int trial = 0; trial < 50; ++trial) {
    FingerprintStream stream;
    absl::Span<const uint8_t> rest(bytes);
    while (!rest.empty()) {
      const size_t count = std::min<size_t>(rest.size(), random() % (trial % 2 == 0 ? 20000 : 300));
      stream.Update(rest.first(count));
      rest.remove_prefix(count);
    }
    ASSERT_EQ(stream.Finish(), whole);
  }
}

TEST(Fingerprint, SeesOrderSizeAndTail) {
  std::vector<uint8_t> bytes = RandomBytes(5 * kFingerprintChunkBytes + 5, 4);
  const Fingerprint before = FingerprintOf(bytes);
  std::vector<uint8_t> swapped_chunks = bytes;
  std::swap_ranges(swapped_chunks.begin(), swapped_chunks.begin() + kFingerprintChunkBytes,
                   swapped_chunks.begin() + kFingerprintChunkBytes);
  EXPECT_NE(FingerprintOf(swapped_chunks).hash, before.hash);
  std::vector<uint8_t> swapped_words = bytes;
  std::swap_ranges(swapped_words.begin(), swapped_words.begin() + 4, swapped_words.begin() + 4);
  EXPECT_NE(FingerprintOf(swapped_words).hash, before.hash);
  std::vector<uint8_t> changed_tail = bytes;
  changed_tail.back() ^= 1;
  EXPECT_NE(FingerprintOf(changed_tail), before);
  EXPECT_NE(FingerprintOf(std::vector<uint8_t>(32)), FingerprintOf(std::vector<uint8_t>(48)));
  EXPECT_NE(FingerprintOf(std::vector<uint8_t>(3)), FingerprintOf(std::vector<uint8_t>(4)));
}

TEST(Fingerprint, SeesWordsThatAreEqualModuloThePrime) {
  // 2^61 - 1 and 0 as 8-byte words: a hash of 8-byte words over the field takes them for the same.
  const uint64_t words[4] = {kFingerprintPrime, 1, 2, 3};
  std::vector<uint8_t> bytes(sizeof(words));
  std::memcpy(bytes.data(), words, sizeof(words));
  std::vector<uint8_t> zeroed = bytes;
  std::fill_n(zeroed.begin(), 8, 0);
  EXPECT_NE(FingerprintOf(bytes).hash, FingerprintOf(zeroed).hash);
}

// A GiB that is never in memory at once: 1024 segments, each a function of its number. A change of one
// segment re-hashes that segment; the hashes of the others stand.
class Gibibyte {
 public:
  static constexpr int64_t kSegments = 1024;
  static constexpr int64_t kSegmentBytes = 1 << 20;

  Gibibyte() : prefix_(kSegments + 1), suffix_(kSegments + 1) {
    std::vector<RunHash> runs;
    for (int64_t i = 0; i < kSegments; ++i) runs.push_back(HashRun(key_, Segment(i)));
    for (int64_t i = 0; i < kSegments; ++i) prefix_[i + 1] = JoinRuns(key_, prefix_[i], runs[i]);
    for (int64_t i = kSegments; i > 0; --i) suffix_[i - 1] = JoinRuns(key_, runs[i - 1], suffix_[i]);
  }

  static std::vector<uint8_t> Segment(int64_t index) {
    std::vector<uint8_t> bytes(kSegmentBytes);
    uint64_t state = static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15ull;
    for (int64_t at = 0; at < kSegmentBytes; at += 8) {
      state = state * 0xd1342543de82ef95ull + 1;
      std::memcpy(bytes.data() + at, &state, 8);
    }
    return bytes;
  }

  RunHash whole() const { return prefix_[kSegments]; }
  RunHash With(int64_t index, const std::vector<uint8_t>& segment) const {
    return JoinRuns(key_, JoinRuns(key_, prefix_[index], HashRun(key_, segment)), suffix_[index + 1]);
  }

 private:
  const FingerprintKey& key_ = FingerprintKey::Standard();
  std::vector<RunHash> prefix_;  // of the segments before
  std::vector<RunHash> suffix_;  // of the segment and those after
};

TEST(Fingerprint, CatchesOneBitInAGibibyteInEveryOfAThousandTrials) {
  const Gibibyte data;
  std::mt19937_64 random(5);
  int caught_by[2] = {0, 0};
  for (int trial = 0; trial < 1000; ++trial) {
    const int64_t index = static_cast<int64_t>(random() % Gibibyte::kSegments);
    std::vector<uint8_t> segment = Gibibyte::Segment(index);
    ASSERT_EQ(data.With(index, segment).hash, data.whole().hash);
    segment[random() % segment.size()] ^= static_cast<uint8_t>(1u << (random() % 8));
    const RunHash changed = data.With(index, segment);
    for (int which = 0; which < 2; ++which) {
      caught_by[which] += changed.hash[which] != data.whole().hash[which] ? 1 : 0;
    }
  }
  EXPECT_THAT(caught_by, ::testing::Each(1000));
}

// The hash that the fingerprint is not: a random linear hash of 8-byte words modulo 2^64, with odd
// coefficients.
uint64_t WrapAroundHash(const std::vector<uint64_t>& words) {
  std::mt19937_64 random(6);
  uint64_t hash = 0;
  for (uint64_t word : words) hash += word * (random() | 1);
  return hash;
}

TEST(Fingerprint, CatchesPairsOfSignBitsThatAWrapAroundHashMisses) {
  std::mt19937_64 random(7);
  std::vector<uint64_t> words(1 << 15);
  for (uint64_t& word : words) word = random();
  const auto bytes_of = [](const std::vector<uint64_t>& from) {
    return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(from.data()), from.size() * 8);
  };
  const Fingerprint before = FingerprintOf(bytes_of(words));
  const uint64_t wrapped_before = WrapAroundHash(words);
  int missed_by_wrap_around = 0;
  int caught_by[2] = {0, 0};
  for (int trial = 0; trial < 1000; ++trial) {
    const size_t a = random() % words.size();
    const size_t b = (a + 1 + random() % (words.size() - 1)) % words.size();
    words[a] ^= kSignBit;
    words[b] ^= kSignBit;
    const Fingerprint after = FingerprintOf(bytes_of(words));
    for (int which = 0; which < 2; ++which) {
      caught_by[which] += after.hash[which] != before.hash[which] ? 1 : 0;
    }
    missed_by_wrap_around += WrapAroundHash(words) == wrapped_before ? 1 : 0;
    words[a] ^= kSignBit;
    words[b] ^= kSignBit;
  }
  EXPECT_THAT(caught_by, ::testing::Each(1000));
  EXPECT_EQ(missed_by_wrap_around, 1000);
}

// What the kernel computes, its threads and CTAs one after the other.
std::array<uint64_t, 2> HashOnDevice(const std::vector<uint8_t>& bytes, int64_t grid,
                                     const FingerprintKey& key) {
  const int64_t units = static_cast<int64_t>(bytes.size() / 16);
  std::vector<uint4> data(units);
  std::memcpy(data.data(), bytes.data(), units * 16);
  const std::vector<uint64_t> entries = FingerprintTable(key);
  std::vector<uint2> table(entries.size());
  std::memcpy(table.data(), entries.data(), entries.size() * 8);
  const fingerprint::u64 radix[2] = {key.radix(0), key.radix(1)};
  const int64_t chunks = (units + fingerprint::kThreads - 1) / fingerprint::kThreads;
  const int64_t run = (chunks + grid - 1) / grid;
  std::array<uint64_t, 2> hash = {0, 0};
  for (int64_t first = 0; first < chunks; first += run) {
    const int64_t end = std::min(first + run, chunks);
    for (int thread = 0; thread < fingerprint::kThreads; ++thread) {
      fingerprint::u64 acc[2];
      fingerprint::sum_run(data.data(), units, first, end, thread,
                           fingerprint::load_coefficients(table.data(), thread), radix, acc);
      for (int which = 0; which < 2; ++which) {
        const uint64_t shift = fingerprint::power(radix[which], static_cast<uint64_t>(chunks - end));
        hash[which] = fingerprint::settle(hash[which] + fingerprint::multiply(acc[which], shift));
      }
    }
  }
  return hash;
}

TEST(Fingerprint, IsTheSameInDeviceArithmetic) {
  for (int64_t size : {16, 4096, 5008, 200000, 1000000}) {
    const std::vector<uint8_t> bytes = RandomBytes(size, size);
    for (int64_t grid : {1, 3, 132}) {
      EXPECT_EQ(HashOnDevice(bytes, grid, FingerprintKey::Standard()), FingerprintOf(bytes).hash) << size;
    }
  }
  const std::vector<uint8_t> ones(5 * kFingerprintChunkBytes, 0xff);
  EXPECT_EQ(HashOnDevice(ones, 2, FingerprintKey(8)), FingerprintOf(ones, 1, FingerprintKey(8)).hash);
}

}  // namespace
}  // namespace qgemm
