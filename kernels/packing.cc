#include "kernels/packing.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

constexpr int kBlockRows = 16;
constexpr int kBlockK = 64;
// A block's first plane: half a byte of every code (8 bits: all of every second step of 16 k).
constexpr int kPlaneBytes = 512;
constexpr int kPadTo = 64;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// GCC's and clang's portable vectors: one register of SSE2 or NEON each.
using Bytes16 = uint8_t __attribute__((vector_size(16)));
using Halves8 = uint16_t __attribute__((vector_size(16)));
using Words4 = uint32_t __attribute__((vector_size(16)));

Bytes16 Load(const uint8_t* from) {
  Bytes16 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

Bytes16 InterleaveLow(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
Bytes16 InterleaveHigh(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
Halves8 InterleaveLow(Halves8 a, Halves8 b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
Halves8 InterleaveHigh(Halves8 a, Halves8 b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

// The 16 bytes of a step of 16 k in the order of the lanes' words: byte b of lane t's word is that of
// k = 2t + {0, 8, 1, 9}[b], so the low and the high half are interleaved. Two shuffles that SSE2 has; as one
// shuffle, which it has not, packing took twice as long.
Words4 LaneWords(Bytes16 step) {
  const Bytes16 upper =
      __builtin_shufflevector(step, step, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
  return reinterpret_cast<Words4>(InterleaveLow(step, upper));
}

// Writes word i of lanes t = 0 .. 3, words[i][t], as each lane's four words.
void StoreLanes(const Words4 (&words)[4], uint8_t* out) {
  const Words4 a = __builtin_shufflevector(words[0], words[1], 0, 4, 1, 5);
  const Words4 b = __builtin_shufflevector(words[2], words[3], 0, 4, 1, 5);
  const Words4 c = __builtin_shufflevector(words[0], words[1], 2, 6, 3, 7);
  const Words4 d = __builtin_shufflevector(words[2], words[3], 2, 6, 3, 7);
  const Words4 lanes[4] = {
      __builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
      __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  std::memcpy(out, lanes, sizeof(lanes));
}

// Packs rows g and g + 8 of one block, 64 codes each: what lanes 4g .. 4g + 3 own. Returns the bitwise or of
// all codes.
template <int kBits>
Bytes16 PackRowPair(const uint8_t* row_low, const uint8_t* row_high, int64_t g, uint8_t* block) {
  Bytes16 any = {};
  if constexpr (kBits == 8) {
    for (int64_t plane = 0; plane < 2; ++plane) {
      Words4 words[4];
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t k = 32 * plane + 16 * i;
        words[2 * i] = LaneWords(Load(row_low + k) ^ uint8_t{0x80});
        words[2 * i + 1] = LaneWords(Load(row_high + k) ^ uint8_t{0x80});
      }
      StoreLanes(words, block + kPlaneBytes * plane + 64 * g);
    }
    return any;
  }
  Words4 words[4];
  Bytes16 high_bits[2] = {};  // 5 bits: one word per lane, 6 bits: two
  for (int64_t w = 0; w < 4; ++w) {
    const Bytes16 low = Load(row_low + 16 * w);
    const Bytes16 high = Load(row_high + 16 * w);
    any |= low | high;
    if constexpr (kBits == 4) {
      words[w] = LaneWords(low | (high << 4));
    } else {
      words[w] = LaneWords((low & uint8_t{15}) | (high << 4));
      const Bytes16 low_rest = low >> 4;
      const Bytes16 high_rest = high >> 4;
      if constexpr (kBits == 5) high_bits[0] |= (low_rest | high_rest << 1) << static_cast<int>(2 * w);
      if constexpr (kBits == 6) {
        high_bits[w / 2] |= (low_rest | high_rest << 2) << static_cast<int>(4 * (w % 2));
      }
    }
  }
  StoreLanes(words, block + 64 * g);
  if constexpr (kBits == 5) {
    const Words4 lanes = LaneWords(high_bits[0]);
    std::memcpy(block + kPlaneBytes + 16 * g, &lanes, sizeof(lanes));
  }
  if constexpr (kBits == 6) {
    const Words4 first = LaneWords(high_bits[0]);
    const Words4 second = LaneWords(high_bits[1]);
    const Words4 lanes[2] = {__builtin_shufflevector(first, second, 0, 4, 1, 5),
                             __builtin_shufflevector(first, second, 2, 6, 3, 7)};
    std::memcpy(block + kPlaneBytes + 32 * g, lanes, sizeof(lanes));
  }
  return any;
}

using RowPairPacker = Bytes16 (*)(const uint8_t*, const uint8_t*, int64_t, uint8_t*);
RowPairPacker PackerFor(int bits) {
  switch (bits) {
    case 5:
      return PackRowPair<5>;
    case 6:
      return PackRowPair<6>;
    case 8:
      return PackRowPair<8>;
    default:
      return PackRowPair<4>;
  }
}

// The inverse for one code of a block.
uint8_t CodeAt(const uint8_t* block, int bits, int64_t row, int64_t column) {
  const int64_t lane = row % 8 * 4 + column % 8 / 2;
  const int64_t w = column % 64 / 16;
  const int64_t upper_row = row / 8 % 2;
  const int64_t byte = column % 2 * 2 + column / 8 % 2;
  if (bits == 8) {
    return block[kPlaneBytes * (w / 2) + 16 * lane + 4 * (w % 2 * 2 + upper_row) + byte] ^ 0x80;
  }
  const int low = block[16 * lane + 4 * w + byte] >> 4 * upper_row & 15;
  const uint8_t* rest = block + kPlaneBytes;
  if (bits == 5) return low | (rest[4 * lane + byte] >> (2 * w + upper_row) & 1) << 4;
  if (bits == 6) return low | (rest[8 * lane + 4 * (w / 2) + byte] >> (w % 2 * 4 + 2 * upper_row) & 3) << 4;
  return low;
}

// Packs the numbers of 16 rows, one per row and group: [n][count] to [groups][8][2], groups `pitch` numbers
// apart.
//
// A vector is a run of one row's groups; vector 2g + h belongs to row g + 8h. A round interleaves the first
// eight vectors with the last eight, which moves the top bit of an element's place (vector, group) to its
// bottom; after four rounds the vector's bits, (g, h), are at the bottom.
template <typename T, typename Vector>
void PackGroups(const T* from, int64_t n, int64_t count, T padding, int64_t first_row, int64_t groups,
                int64_t pitch, uint8_t* out) {
  constexpr int64_t kRun = sizeof(Vector) / sizeof(T);
  for (int64_t j0 = 0; j0 < groups; j0 += kRun) {
    Vector vectors[kBlockRows];
    for (int64_t i = 0; i < kBlockRows; ++i) {
      const int64_t row = first_row + i / 2 + i % 2 * 8;
      const int64_t valid = row < n ? std::clamp<int64_t>(count - j0, 0, kRun) : 0;
      if (valid < kRun) vectors[i] = Vector{} + padding;
      std::memcpy(&vectors[i], from + (valid > 0 ? row * count + j0 : 0), valid * sizeof(T));
    }
    for (int round = 0; round < 4; ++round) {
      Vector next[kBlockRows];
      for (int64_t i = 0; i < kBlockRows / 2; ++i) {
        next[2 * i] = InterleaveLow(vectors[i], vectors[i + 8]);
        next[2 * i + 1] = InterleaveHigh(vectors[i], vectors[i + 8]);
      }
      std::memcpy(vectors, next, sizeof(vectors));
    }
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(vectors);
    constexpr int64_t kGroupBytes = kBlockRows * sizeof(T);
    for (int64_t j = 0; j < std::min(kRun, groups - j0); ++j) {
      std::memcpy(out + (j0 + j) * pitch * sizeof(T), bytes + j * kGroupBytes, kGroupBytes);
    }
  }
}

// Runs `body` for every index below `count` on as many threads as the hardware has, eight at most: the work
// is bound by memory bandwidth. Small work stays on the calling thread.
void ParallelFor(int64_t count, int64_t bytes_each, const std::function<void(int64_t)>& body) {
  constexpr int64_t kBytesPerThread = 1 << 20;
  const int64_t hardware = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 8);
  const int64_t threads =
      std::clamp<int64_t>(count * bytes_each / kBytesPerThread, 1, std::min(hardware, count));
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i);
  };
  std::vector<std::thread> pool;
  for (int64_t i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
}

absl::Status CheckEntries(absl::string_view plane, int64_t actual, int64_t expected) {
  if (actual == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(plane, " has ", actual, " entries: this shape needs ", expected));
}

absl::Status OutOfRange(absl::string_view plane, const std::vector<uint8_t>& values, int64_t row_length,
                        int bits) {
  const int largest = (1 << bits) - 1;
  const auto bad =
      std::find_if(values.begin(), values.end(), [largest](uint8_t value) { return value > largest; });
  const int64_t at = bad - values.begin();
  return absl::InvalidArgumentError(absl::StrCat(plane, "[", at / row_length, "][", at % row_length, "] ",
                                                 *bad, " is out of range: 0 to ", largest));
}

// The numbers of every row and group, [n][count], out of a packed plane.
template <typename T>
std::vector<T> UnpackGroups(const std::vector<uint8_t>& packed, int64_t n, int64_t count, int64_t groups,
                            int64_t pitch, int64_t first) {
  std::vector<T> values;
  values.reserve(n * count);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t group = 0; group < count; ++group) {
      const int64_t at =
          (row / kBlockRows * groups + group) * pitch + first + row % 8 * 2 + row % kBlockRows / 8;
      T value;
      std::memcpy(&value, packed.data() + at * sizeof(T), sizeof(T));
      values.push_back(value);
    }
  }
  return values;
}

}  // namespace

PackedSizes PackedSizesFor(int64_t n, int64_t k, const WeightFormat& format) {
  PackedSizes sizes;
  sizes.padded_n = RoundUp(n, kPadTo);
  sizes.padded_k = RoundUp(k, kPadTo);
  sizes.groups = format.channel_wise() ? 1 : RoundUp(sizes.padded_k, format.group_size) / format.group_size;
  sizes.steps = format.two_level() ? RoundUp(sizes.padded_k, kStepWeights) / kStepWeights : 0;
  sizes.weight_bytes = sizes.padded_n * sizes.padded_k / 8 * format.bits;
  sizes.scale_bytes = sizes.padded_n * sizes.groups * (format.two_level() ? 1 : 2);
  if (format.zero_point == ZeroPoint::kInteger) sizes.zero_bytes = sizes.padded_n * sizes.groups;
  if (format.zero_point == ZeroPoint::kFloat) sizes.zero_bytes = sizes.scale_bytes;
  sizes.step_bytes = sizes.padded_n * sizes.steps * (format.zero_point == ZeroPoint::kFloat ? 4 : 2);
  return sizes;
}

absl::Status CheckShape(int64_t n, int64_t k, const WeightFormat& format) {
  Problem problem{n, k, {}};
  problem.signature.format = format;
  problem.signature.act = problem.signature.out = format.scale_type;
  return ValidateProblem(problem);
}

absl::Status CheckPlanes(const CanonicalWeights& weights) {
  const WeightFormat& format = weights.format;
  const int64_t per_group = weights.n * weights.groups();
  const int64_t numbers = format.two_level() ? weights.n * weights.steps() : per_group;
  const bool floats = format.zero_point == ZeroPoint::kFloat;
  QGEMM_RETURN_IF_ERROR(CheckEntries("codes", weights.codes.size(), weights.n * weights.k));
  QGEMM_RETURN_IF_ERROR(CheckEntries("scales", weights.scales.size(), numbers));
  QGEMM_RETURN_IF_ERROR(
      CheckEntries("zeros", weights.zeros.size(), format.zero_point == ZeroPoint::kInteger ? per_group : 0));
  QGEMM_RETURN_IF_ERROR(CheckEntries("offsets", weights.offsets.size(), floats ? numbers : 0));
  QGEMM_RETURN_IF_ERROR(
      CheckEntries("scale_codes", weights.scale_codes.size(), format.two_level() ? per_group : 0));
  return CheckEntries("offset_codes", weights.offset_codes.size(),
                      format.two_level() && floats ? per_group : 0);
}

absl::StatusOr<PackedWeights> Pack(const CanonicalWeights& weights) {
  const int64_t n = weights.n;
  const int64_t k = weights.k;
  const WeightFormat& format = weights.format;
  QGEMM_RETURN_IF_ERROR(CheckShape(n, k, format));
  QGEMM_RETURN_IF_ERROR(CheckPlanes(weights));

  PackedWeights packed;
  packed.sizes = PackedSizesFor(n, k, format);
  packed.weights.resize(packed.sizes.weight_bytes);
  packed.scales.resize(packed.sizes.scale_bytes);
  packed.zeros.resize(packed.sizes.zero_bytes);
  packed.steps.resize(packed.sizes.step_bytes);
  const int64_t padded_k = packed.sizes.padded_k;
  const auto center = static_cast<uint8_t>(format.center());
  const RowPairPacker pack_row_pair = PackerFor(format.bits);

  std::atomic<uint8_t> any_bits = 0;
  const auto pack_codes = [&](int64_t first_row) {
    uint8_t* out = packed.weights.data() + first_row * padded_k / 8 * format.bits;
    Bytes16 any = {};
    uint8_t padding[kBlockRows][kBlockK];
    for (int64_t k0 = 0; k0 < padded_k; k0 += kBlockK) {
      const uint8_t* rows[kBlockRows];
      for (int64_t r = 0; r < kBlockRows; ++r) {
        const int64_t row = first_row + r;
        const int64_t valid = row < n ? std::min<int64_t>(kBlockK, k - k0) : 0;
        if (valid == kBlockK) {
          rows[r] = weights.codes.data() + row * k + k0;
          // Sixteen streams are more than hardware prefetchers follow: a quarter of the time with 4 to 6
          // bits.
          __builtin_prefetch(rows[r] + int64_t{4} * kBlockK);
          continue;
        }
        std::memset(padding[r], center, kBlockK);
        if (valid > 0) std::memcpy(padding[r], weights.codes.data() + row * k + k0, valid);
        rows[r] = padding[r];
      }
      for (int64_t g = 0; g < 8; ++g) any |= pack_row_pair(rows[g], rows[g + 8], g, out);
      out += int64_t{kBlockRows} * kBlockK / 8 * format.bits;
    }
    uint8_t bits = 0;
    for (int i = 0; i < 16; ++i) bits |= any[i];
    any_bits.fetch_or(bits, std::memory_order_relaxed);
  };
  const int64_t groups = packed.sizes.groups;
  const int64_t steps = packed.sizes.steps;
  const auto pack_bytes = [&](const void* from, uint8_t padding, int64_t first_row,
                              std::vector<uint8_t>& plane) {
    PackGroups<uint8_t, Bytes16>(static_cast<const uint8_t*>(from), n, weights.groups(), padding, first_row,
                                 groups, kBlockRows, plane.data() + first_row * groups);
  };
  const auto pack_numbers = [&](const std::vector<uint16_t>& from, int64_t first_row,
                                std::vector<uint8_t>& plane) {
    PackGroups<uint16_t, Halves8>(from.data(), n, weights.groups(), 0, first_row, groups, kBlockRows,
                                  plane.data() + first_row * groups * 2);
  };
  const bool floats = format.zero_point == ZeroPoint::kFloat;
  const auto pack_steps = [&](const std::vector<uint16_t>& from, int64_t first_row, int64_t half) {
    const int64_t pitch = floats ? 2 * kBlockRows : kBlockRows;
    uint8_t* out = packed.steps.data() + (first_row / kBlockRows * steps * pitch + half * kBlockRows) * 2;
    PackGroups<uint16_t, Halves8>(from.data(), n, weights.steps(), 0, first_row, steps, pitch, out);
  };
  ParallelFor(packed.sizes.padded_n / kBlockRows, kBlockRows * padded_k, [&](int64_t block_row) {
    const int64_t first_row = block_row * kBlockRows;
    pack_codes(first_row);
    if (format.zero_point == ZeroPoint::kInteger) {
      pack_bytes(weights.zeros.data(), center, first_row, packed.zeros);
    }
    if (!format.two_level()) {
      pack_numbers(weights.scales, first_row, packed.scales);
      if (floats) pack_numbers(weights.offsets, first_row, packed.zeros);
      return;
    }
    pack_bytes(weights.scale_codes.data(), 0, first_row, packed.scales);
    pack_steps(weights.scales, first_row, 0);
    if (!floats) return;
    pack_bytes(weights.offset_codes.data(), 0, first_row, packed.zeros);
    pack_steps(weights.offsets, first_row, 1);
  });

  const int limit = 1 << format.bits;
  if (any_bits >= limit) return OutOfRange("codes", weights.codes, k, format.bits);
  if (std::any_of(weights.zeros.begin(), weights.zeros.end(), [=](uint8_t zero) { return zero >= limit; })) {
    return OutOfRange("zeros", weights.zeros, weights.groups(), format.bits);
  }
  return packed;
}

absl::StatusOr<CanonicalWeights> Unpack(const PackedWeights& packed, int64_t n, int64_t k,
                                        const WeightFormat& format) {
  QGEMM_RETURN_IF_ERROR(CheckShape(n, k, format));
  const PackedSizes sizes = PackedSizesFor(n, k, format);
  QGEMM_RETURN_IF_ERROR(CheckEntries("packed weights", packed.weights.size(), sizes.weight_bytes));
  QGEMM_RETURN_IF_ERROR(CheckEntries("packed scales", packed.scales.size(), sizes.scale_bytes));
  QGEMM_RETURN_IF_ERROR(CheckEntries("packed zeros", packed.zeros.size(), sizes.zero_bytes));
  QGEMM_RETURN_IF_ERROR(CheckEntries("packed steps", packed.steps.size(), sizes.step_bytes));

  CanonicalWeights weights;
  weights.n = n;
  weights.k = k;
  weights.format = format;
  weights.codes.reserve(n * k);
  const int64_t block_bytes = int64_t{kBlockRows} * kBlockK / 8 * format.bits;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const int64_t block = row / kBlockRows * (sizes.padded_k / kBlockK) + column / kBlockK;
      weights.codes.push_back(CodeAt(packed.weights.data() + block * block_bytes, format.bits, row, column));
    }
  }
  const auto per_group = [&]<typename T>(const std::vector<uint8_t>& plane, std::vector<T>& to) {
    to = UnpackGroups<T>(plane, n, weights.groups(), sizes.groups, kBlockRows, 0);
  };
  const bool floats = format.zero_point == ZeroPoint::kFloat;
  if (format.zero_point == ZeroPoint::kInteger) per_group(packed.zeros, weights.zeros);
  if (!format.two_level()) {
    per_group(packed.scales, weights.scales);
    if (floats) per_group(packed.zeros, weights.offsets);
    return weights;
  }
  const auto per_step = [&](int64_t half) {
    const int64_t pitch = floats ? 2 * kBlockRows : kBlockRows;
    return UnpackGroups<uint16_t>(packed.steps, n, weights.steps(), sizes.steps, pitch, half * kBlockRows);
  };
  per_group(packed.scales, weights.scale_codes);
  weights.scales = per_step(0);
  if (floats) {
    per_group(packed.zeros, weights.offset_codes);
    weights.offsets = per_step(1);
  }
  return weights;
}

}  // namespace qgemm
