// Fingerprints of tensors on the GPU, equal to kernels/fingerprint.h bit for bit: integer arithmetic only, and sums
// whose order does not matter.
//
// Partition: a chunk is 1024 words; a CTA of 256 threads takes a run of chunks that follow each other, thread t words
// 4t to 4t + 3 of each. Its 2 x 4 coefficients stay in 16 registers, and its two sums over the run go by Horner's rule,
//   acc = acc * r + sum of 4 products (mod 2^61 - 1),
// one modular product per 16 bytes and hash. The CTA adds its threads' sums, shifts them by r^(chunks after the run),
// and adds them to global memory.
//
// A coefficient has two halves of 30 bits (lo, hi), so that four products with 32-bit words fit into 64 bits.
// Shared memory: 8 warps x 2 x 2 x 8 bytes. Bound by integer multiplications: 4 wide ones per word, about 5
// instructions per byte in all.

namespace fingerprint {

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr u64 kPrime = (1ull << 61) - 1;
constexpr int kThreads = 256;
constexpr int kWords = 4;  // of a chunk, per thread
constexpr int kWarps = kThreads / 32;

struct Coefficients {
  u32 low[2][kWords];
  u32 high[2][kWords];
};

// Any number -> the same in the field, below the prime.
__device__ __forceinline__ u64 settle(u64 value) {
  value = (value & kPrime) + (value >> 61);
  return value >= kPrime ? value - kPrime : value;
}

// Of numbers below the prime; the result is below 2^62.
__device__ __forceinline__ u64 multiply(u64 a, u64 b) {
  const u64 low = a * b;
  const u64 high = __umul64hi(a, b);
  return (low & kPrime) + (low >> 61 | high << 3);
}

__device__ __forceinline__ u64 power(u64 base, u64 exponent) {
  u64 result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = settle(multiply(result, base));
    base = settle(multiply(base, base));
  }
  return result;
}

// acc * radix + sum of words[i] * coefficient i.
__device__ __forceinline__ u64 step(u64 acc, u64 radix, const u32* words, const u32* low, const u32* high) {
  u64 sum_low = 0;
  u64 sum_high = 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    sum_low += u64(words[i]) * low[i];
    sum_high += u64(words[i]) * high[i];
  }
  // sum_high * 2^30: its upper 33 bits come round as 2^61 = 1. Each term is below 2^61 + 2^34, the product below 2^62.
  const u64 turned = ((sum_high << 30) & kPrime) + (sum_high >> 31);
  const u64 straight = (sum_low & kPrime) + (sum_low >> 61);
  return settle(multiply(acc, radix) + turned + straight);
}

// The coefficients of thread `thread` from the table [2][1024] of {low, high}.
__device__ __forceinline__ Coefficients load_coefficients(const uint2* table, int thread) {
  Coefficients result;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint2 entry = table[(which * kThreads + thread) * kWords + i];
      result.low[which][i] = entry.x;
      result.high[which][i] = entry.y;
    }
  }
  return result;
}

// The two sums of thread `thread` over chunks [first, end). `units` counts the 16-byte units of the data: past it the
// words are zero.
__device__ __forceinline__ void sum_run(const uint4* data, i64 units, i64 first, i64 end, int thread,
                                        const Coefficients& coefficients, const u64* radix, u64* acc) {
  acc[0] = acc[1] = 0;
#pragma unroll 4
  for (i64 chunk = first; chunk < end; ++chunk) {
    const i64 unit = chunk * kThreads + thread;
    const uint4 loaded = unit < units ? data[unit] : uint4{0, 0, 0, 0};
    const u32 words[kWords] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      acc[which] = step(acc[which], radix[which], words, coefficients.low[which], coefficients.high[which]);
    }
  }
}

}  // namespace fingerprint

// Adds to sums [2][2] = { lower 32 bits, upper bits } per hash: the caller clears them before, and
// hash = (sums[h][0] + sums[h][1] * 2^32) mod 2^61 - 1. `data` is aligned to 16 bytes; `table` is [2][1024] {low, high};
// any grid, CTAs of 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    qgemm_fingerprint(const uint4* data, fingerprint::i64 units, const uint2* table, fingerprint::u64 radix0,
                      fingerprint::u64 radix1, fingerprint::u64* sums) {
  using namespace fingerprint;
  const i64 chunks = (units + kThreads - 1) / kThreads;
  const i64 run = (chunks + gridDim.x - 1) / gridDim.x;
  const i64 first = run * blockIdx.x;
  const i64 end = first + run < chunks ? first + run : chunks;
  if (first >= end) return;

  const int thread = int(threadIdx.x);
  const u64 radix[2] = {radix0, radix1};
  const Coefficients coefficients = load_coefficients(table, thread);
  u64 acc[2];
  sum_run(data, units, first, end, thread, coefficients, radix, acc);

  // Sums of 32-bit halves: 256 of them fit into 64 bits many times over.
  __shared__ u64 partial[kWarps][2][2];
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    u64 low = acc[which] & 0xffffffffull;
    u64 high = acc[which] >> 32;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      low += __shfl_down_sync(0xffffffffu, low, offset);
      high += __shfl_down_sync(0xffffffffu, high, offset);
    }
    if (thread % 32 == 0) {
      partial[thread / 32][which][0] = low;
      partial[thread / 32][which][1] = high;
    }
  }
  __syncthreads();
  if (thread >= 2) return;
  u64 low = 0;
  u64 high = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    low += partial[warp][thread][0];
    high += partial[warp][thread][1];
  }
  // high < 2^37: high * 2^32 comes round at bit 61.
  const u64 total = settle(settle(low) + ((high << 32) & kPrime) + (high >> 29));
  const u64 shifted = settle(multiply(total, power(thread == 0 ? radix0 : radix1, u64(chunks - end))));
  atomicAdd(sums + 2 * thread, shifted & 0xffffffffull);
  atomicAdd(sums + 2 * thread + 1, shifted >> 32);
}
