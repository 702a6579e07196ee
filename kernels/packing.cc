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
constexpr int kBlockBytes = kBlockRows * kBlockK / 2;
constexpr int kPadTo = 64;
constexpr uint8_t kPaddingCode = 8;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// GCC's and clang's portable vectors: one register of SSE2 or NEON each.
using Bytes16 = uint8_t __attribute__((vector_size(16)));
using Words4 = uint32_t __attribute__((vector_size(16)));

Bytes16 Load(const uint8_t* from) {
  Bytes16 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Packs rows g and g + 8 of one block, 64 codes each, into the 64 bytes of lanes 4g .. 4g + 3. Returns the
// bitwise or of all codes.
//
// Byte b of lane t's word w is (row g, k) | (row g + 8, k) << 4 with k = 16w + 2t + {0, 8, 1, 9}[b]: the 16
// bytes of a k16 step, low and high halves interleaved, are word w of the lanes t = 0 .. 3. A transpose of
// the 4 x 4 words then gathers each lane's four.
Bytes16 PackRowPair(const uint8_t* row_low, const uint8_t* row_high, uint8_t* out) {
  Bytes16 any = {};
  Words4 step[4];
  for (int64_t w = 0; w < 4; ++w) {
    const Bytes16 low = Load(row_low + 16 * w);
    const Bytes16 high = Load(row_high + 16 * w);
    any |= low | high;
    const Bytes16 both = low | (high << 4);
    step[w] = reinterpret_cast<Words4>(
        __builtin_shufflevector(both, both, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  }
  const Words4 a = __builtin_shufflevector(step[0], step[1], 0, 4, 1, 5);
  const Words4 b = __builtin_shufflevector(step[2], step[3], 0, 4, 1, 5);
  const Words4 c = __builtin_shufflevector(step[0], step[1], 2, 6, 3, 7);
  const Words4 d = __builtin_shufflevector(step[2], step[3], 2, 6, 3, 7);
  const Words4 lanes[4] = {
      __builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
      __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  std::memcpy(out, lanes, sizeof(lanes));
  return any;
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

absl::Status CheckShape(int64_t n, int64_t k, const WeightFormat& format) {
  Problem problem{n, k, {}};
  problem.signature.format = format;
  problem.signature.act = problem.signature.out = format.scale_type;
  return ValidateProblem(problem);
}

absl::Status CheckEntries(absl::string_view plane, int64_t actual, int64_t expected) {
  if (actual == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(plane, " has ", actual, " entries: this shape needs ", expected));
}

absl::Status OutOfRange(absl::string_view plane, const std::vector<uint8_t>& values, int64_t row_length) {
  const auto bad = std::find_if(values.begin(), values.end(), [](uint8_t value) { return value > 15; });
  const int64_t at = bad - values.begin();
  return absl::InvalidArgumentError(absl::StrCat(plane, "[", at / row_length, "][", at % row_length, "] ",
                                                 *bad, " is out of range: 0 to 15"));
}

// Where the value of a row and group stands in the scale and zero planes.
int64_t GroupIndex(int64_t row, int64_t group, int64_t groups) {
  const int64_t in_block = row % kBlockRows;
  return ((row / kBlockRows * groups + group) * 8 + in_block % 8) * 2 + in_block / 8;
}

}  // namespace

PackedSizes PackedSizesFor(int64_t n, int64_t k, const WeightFormat& format) {
  PackedSizes sizes;
  sizes.padded_n = RoundUp(n, kPadTo);
  sizes.padded_k = RoundUp(k, kPadTo);
  sizes.groups = sizes.padded_k / format.group_size;
  sizes.weight_bytes = sizes.padded_n * sizes.padded_k / 2;
  sizes.scale_bytes = sizes.padded_n * sizes.groups * ScalarBytes(format.scale_type);
  sizes.zero_bytes = format.zero_point == ZeroPoint::kInteger ? sizes.padded_n * sizes.groups : 0;
  return sizes;
}

absl::StatusOr<PackedWeights> Pack(const CanonicalWeights& weights) {
  const int64_t n = weights.n;
  const int64_t k = weights.k;
  QGEMM_RETURN_IF_ERROR(CheckShape(n, k, weights.format));
  const bool has_zeros = weights.format.zero_point == ZeroPoint::kInteger;
  const int64_t canonical_groups = k / weights.format.group_size;
  QGEMM_RETURN_IF_ERROR(CheckEntries("codes", weights.codes.size(), n * k));
  QGEMM_RETURN_IF_ERROR(CheckEntries("scales", weights.scales.size(), n * canonical_groups));
  QGEMM_RETURN_IF_ERROR(CheckEntries("zeros", weights.zeros.size(), has_zeros ? n * canonical_groups : 0));

  PackedWeights packed;
  packed.sizes = PackedSizesFor(n, k, weights.format);
  const int64_t padded_k = packed.sizes.padded_k;
  const int64_t groups = packed.sizes.groups;
  packed.weights.resize(packed.sizes.weight_bytes);
  packed.scales.resize(packed.sizes.scale_bytes);
  packed.zeros.resize(packed.sizes.zero_bytes, kPaddingCode);

  std::atomic<uint8_t> any_bits = 0;
  const auto pack_block_row = [&](int64_t block_row) {
    uint8_t* out = packed.weights.data() + block_row * padded_k * (kBlockRows / 2);
    Bytes16 any = {};
    uint8_t padding[kBlockRows][kBlockK];
    for (int64_t k0 = 0; k0 < padded_k; k0 += kBlockK) {
      const uint8_t* rows[kBlockRows];
      for (int r = 0; r < kBlockRows; ++r) {
        const int64_t row = block_row * kBlockRows + r;
        const int64_t valid = row < n ? std::min<int64_t>(kBlockK, k - k0) : 0;
        if (valid == kBlockK) {
          rows[r] = weights.codes.data() + row * k + k0;
          continue;
        }
        std::memset(padding[r], kPaddingCode, kBlockK);
        if (valid > 0) std::memcpy(padding[r], weights.codes.data() + row * k + k0, valid);
        rows[r] = padding[r];
      }
      for (int64_t g = 0; g < 8; ++g) any |= PackRowPair(rows[g], rows[g + 8], out + 64 * g);
      out += kBlockBytes;
    }
    uint8_t bits = 0;
    for (int i = 0; i < 16; ++i) bits |= any[i];
    any_bits.fetch_or(bits, std::memory_order_relaxed);

    const int64_t first_row = block_row * kBlockRows;
    for (int64_t row = first_row; row < std::min(n, first_row + kBlockRows); ++row) {
      for (int64_t group = 0; group < canonical_groups; ++group) {
        const int64_t to = GroupIndex(row, group, groups);
        const uint16_t scale = weights.scales[row * canonical_groups + group];
        packed.scales[2 * to] = scale & 0xff;
        packed.scales[2 * to + 1] = scale >> 8;
        if (has_zeros) packed.zeros[to] = weights.zeros[row * canonical_groups + group];
      }
    }
  };
  ParallelFor(packed.sizes.padded_n / kBlockRows, kBlockRows * padded_k, pack_block_row);

  if (any_bits > 15) return OutOfRange("codes", weights.codes, k);
  if (std::any_of(weights.zeros.begin(), weights.zeros.end(), [](uint8_t zero) { return zero > 15; })) {
    return OutOfRange("zeros", weights.zeros, canonical_groups);
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

  CanonicalWeights weights;
  weights.n = n;
  weights.k = k;
  weights.format = format;
  weights.codes.reserve(n * k);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const int64_t block = row / 16 * (sizes.padded_k / 64) + column / 64;
      const int64_t lane = row % 8 * 4 + column % 8 / 2;
      const int64_t pair = row / 8 % 2 + column / 8 % 2 * 2;
      const int64_t shift = column % 2 * 16 + 4 * pair;
      const int64_t word = block * kBlockBytes + lane * 16 + column / 16 % 4 * 4;
      weights.codes.push_back(packed.weights[word + shift / 8] >> shift % 8 & 15);
    }
  }
  const int64_t canonical_groups = k / format.group_size;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t group = 0; group < canonical_groups; ++group) {
      const int64_t from = GroupIndex(row, group, sizes.groups);
      weights.scales.push_back(packed.scales[2 * from] | packed.scales[2 * from + 1] << 8);
      if (sizes.zero_bytes > 0) weights.zeros.push_back(packed.zeros[from]);
    }
  }
  return weights;
}

}  // namespace qgemm
