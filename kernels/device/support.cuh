// Support kernels of verification and timing: random canonical data, packing, the reference GEMM, comparison, guard
// checks, L2 flush, clock probe. One translation unit with several entries (support_kernels.h lists them with their
// parameters). It shares no device code with the kernel families, so that a mistake there cannot hide here.
//
// Canonical data: codes [n][k] bytes, scales [n][k / group] 16-bit, zeros [n][k / group] bytes, x [m][ldx] and bias [n]
// 16-bit. Scalar types: 0 = bf16, 1 = fp16. K is a multiple of 32.

namespace support {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr int kFp16 = 1;

__device__ __forceinline__ i64 global_thread() { return i64{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 global_threads() { return i64{gridDim.x} * blockDim.x; }

__device__ __forceinline__ float to_float(u16 bits, int type) {
  float value;
  if (type == kFp16) {
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  return __uint_as_float(u32{bits} << 16);
}

// Rounds to nearest even; finite values only.
__device__ __forceinline__ u16 from_float(float value, int type) {
  if (type == kFp16) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
  const u32 bits = __float_as_uint(value);
  return u16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Counter-based random bits: the finaliser of SplitMix64 over seed and index, so that any element can be made alone.
__device__ __forceinline__ u64 random_bits(u64 seed, i64 index) {
  u64 z = (seed + 1) * 0xd1342543de82ef95ull + u64(index) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Adds to { number of unequal bytes, bytes from the first of them to the end }.
__device__ __forceinline__ void report_unequal(u64 count, u64 first_from_end, u64* result) {
  if (count == 0) return;
  atomicAdd(result, count);
  atomicMax(result + 1, first_from_end);
}

}  // namespace support

// Codes below `limit`, a power of two.
extern "C" __global__ void qgemm_fill_codes(support::u8* out, support::i64 count, support::u32 limit,
                                            support::u64 seed) {
  using namespace support;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    out[i] = u8(random_bits(seed, i) >> 40 & (limit - 1));
  }
}

// Uniform in [low, high), rounded to `type`.
extern "C" __global__ void qgemm_fill_uniform(support::u16* out, support::i64 count, int type, float low, float high,
                                              support::u64 seed) {
  using namespace support;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    const float unit = float(random_bits(seed, i) >> 40) * (1.0f / 16777216.0f);
    out[i] = from_float(low + (high - low) * unit, type);
  }
}

// Roughly normal with mean 0 and variance 1: the sum of four uniform numbers; rounded to `type`.
extern "C" __global__ void qgemm_fill_normal(support::u16* out, support::i64 count, int type, support::u64 seed) {
  using namespace support;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    const u64 bits = random_bits(seed, i);
    const int sum = int(bits & 0xffff) + int(bits >> 16 & 0xffff) + int(bits >> 32 & 0xffff) + int(bits >> 48);
    const float centred = float(sum - 131070) * (1.0f / 65536.0f);  // variance 1/3
    out[i] = from_float(centred * 1.7320508f, type);
  }
}

// One thread per 16-byte lane run of the packed plane [padded_n / 16][padded_k / 64][32][4 words] (LAYOUT.md).
extern "C" __global__ void qgemm_pack_weights(const support::u8* codes, support::u32* packed, support::i64 n,
                                              support::i64 k, support::i64 padded_n, support::i64 padded_k,
                                              int padding_code) {
  using namespace support;
  const i64 blocks_k = padded_k / 64;
  const i64 runs = padded_n / 16 * blocks_k * 32;
  for (i64 run = global_thread(); run < runs; run += global_threads()) {
    const int lane = int(run % 32);
    const i64 row0 = run / 32 / blocks_k * 16 + lane / 4;
    const i64 k0 = run / 32 % blocks_k * 64 + 2 * (lane % 4);
    for (int w = 0; w < 4; ++w) {
      u32 word = 0;
      for (int i = 0; i < 8; ++i) {
        const int pair = i / 2;
        const int odd = i % 2;
        const i64 row = row0 + 8 * (pair & 1);
        const i64 column = k0 + 16 * w + 8 * (pair >> 1) + odd;
        const u32 code = row < n && column < k ? codes[row * k + column] : u32(padding_code);
        word |= code << (16 * odd + 4 * pair);
      }
      packed[run * 4 + w] = word;
    }
  }
}

// Packed planes [padded_n / 16][groups][8][2] of 16-bit scales and of bytes; `groups` counts those of the padded K.
extern "C" __global__ void qgemm_pack_scales(const support::u16* scales, support::u16* packed, support::i64 n,
                                             support::i64 canonical_groups, support::i64 padded_n,
                                             support::i64 groups) {
  using namespace support;
  for (i64 i = global_thread(); i < padded_n * groups; i += global_threads()) {
    const i64 row = i / (16 * groups) * 16 + i % 16 / 2 + 8 * (i % 2);
    const i64 group = i / 16 % groups;
    packed[i] = row < n && group < canonical_groups ? scales[row * canonical_groups + group] : u16(0);
  }
}

extern "C" __global__ void qgemm_pack_zeros(const support::u8* zeros, support::u8* packed, support::i64 n,
                                            support::i64 canonical_groups, support::i64 padded_n,
                                            support::i64 groups, int padding_code) {
  using namespace support;
  for (i64 i = global_thread(); i < padded_n * groups; i += global_threads()) {
    const i64 row = i / (16 * groups) * 16 + i % 16 / 2 + 8 * (i % 2);
    const i64 group = i / 16 % groups;
    packed[i] = row < n && group < canonical_groups ? zeros[row * canonical_groups + group] : u8(padding_code);
  }
}

// out[m][n] = x . ((codes - zeros) * scales)^T + bias in fp32.
//
// Grid (ceil(n / 64), ceil(m / 64)), 256 threads: a block makes 64 x 64 outputs, a thread 4 x 4 of them, 16 apart. Each
// step of 32 k lies within one group, so a row of W has one scale and zero point per step. Weights are exact in fp32; 32
// products are summed in fp32 and the steps in fp64, so that the reference's own error is of the order of 1e-7.
extern "C" __global__ void __launch_bounds__(256, 2)
    qgemm_reference_gemm(const support::u16* x, const support::u8* codes, const support::u16* scales,
                         const support::u8* zeros, const support::u16* bias, float* out, support::i64 m,
                         support::i64 n, support::i64 k, support::i64 ldx, int group_size, int act_type,
                         int scale_type, int default_zero) {
  using namespace support;
  constexpr int kTile = 64;
  constexpr int kStep = 32;
  // A row of 65 words keeps both the transposed stores and the loads free of bank conflicts.
  __shared__ float x_tile[kStep][kTile + 1];
  __shared__ float w_tile[kStep][kTile + 1];
  const int load_row = threadIdx.x / 4;
  const int load_k = threadIdx.x % 4 * 8;
  const int tx = threadIdx.x % 16;
  const int ty = threadIdx.x / 16;
  const i64 n0 = i64{blockIdx.x} * kTile;
  const i64 m0 = i64{blockIdx.y} * kTile;
  const i64 groups = k / group_size;
  double sum[4][4] = {};

  for (i64 k0 = 0; k0 < k; k0 += kStep) {
    const i64 row_m = m0 + load_row;
    const i64 row_n = n0 + load_row;
    float scale = 0;
    int zero = default_zero;
    if (row_n < n) {
      const i64 group = row_n * groups + k0 / group_size;
      scale = to_float(scales[group], scale_type);
      if (zeros != nullptr) zero = zeros[group];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const i64 column = k0 + load_k + i;
      x_tile[load_k + i][load_row] = row_m < m ? to_float(x[row_m * ldx + column], act_type) : 0.0f;
      w_tile[load_k + i][load_row] = row_n < n ? float(int(codes[row_n * k + column]) - zero) * scale : 0.0f;
    }
    __syncthreads();
    float part[4][4] = {};
#pragma unroll 4
    for (int kk = 0; kk < kStep; ++kk) {
      float xs[4], ws[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        xs[i] = x_tile[kk][ty + 16 * i];
        ws[i] = w_tile[kk][tx + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) part[i][j] = fmaf(xs[i], ws[j], part[i][j]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i][j] += double(part[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const i64 row = m0 + ty + 16 * i;
      const i64 column = n0 + tx + 16 * j;
      if (row >= m || column >= n) continue;
      const double shift = bias != nullptr ? double(to_float(bias[column], act_type)) : 0.0;
      out[row * n + column] = float(sum[i][j] + shift);
    }
  }
}

// Per block: { sum of squared differences, sum of squared references, non-finite outputs, outputs that still are
// `poison` } as four fp64 numbers, summed in an order that depends on the grid alone. Blocks of 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    qgemm_compare(const support::u16* y, const float* reference, double* partials, support::i64 m, support::i64 n,
                  support::i64 ldy, int type, support::u32 poison) {
  using namespace support;
  double local[4] = {};
  for (i64 i = global_thread(); i < m * n; i += global_threads()) {
    const u16 bits = y[i / n * ldy + i % n];
    const double expected = reference[i];
    const float actual = to_float(bits, type);
    local[1] += expected * expected;
    if (bits == u16(poison)) local[3] += 1;
    // NaN and infinity differ from themselves times zero.
    if (!(actual * 0.0f == 0.0f)) {
      local[2] += 1;
    } else {
      local[0] += (actual - expected) * (actual - expected);
    }
  }
  __shared__ double shared[256];
  for (int value = 0; value < 4; ++value) {
    shared[threadIdx.x] = local[value];
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
      if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) partials[blockIdx.x * 4 + value] = shared[0];
    __syncthreads();
  }
}

// Bytes that are not `value`; `result` is two zeroed 64-bit words: their number, and the distance of the first of them
// from the end.
extern "C" __global__ void qgemm_count_unequal(const support::u8* bytes, support::i64 count, support::u32 value,
                                               support::u64* result) {
  using namespace support;
  u64 unequal = 0;
  u64 first_from_end = 0;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    if (bytes[i] == u8(value)) continue;
    if (unequal++ == 0) first_from_end = u64(count - i);
  }
  report_unequal(unequal, first_from_end, result);
}

// The same for bytes of two regions that differ.
extern "C" __global__ void qgemm_count_different(const support::u8* a, const support::u8* b, support::i64 count,
                                                 support::u64* result) {
  using namespace support;
  u64 unequal = 0;
  u64 first_from_end = 0;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    if (a[i] == b[i]) continue;
    if (unequal++ == 0) first_from_end = u64(count - i);
  }
  report_unequal(unequal, first_from_end, result);
}

// Reads `count` 16-byte words and so replaces what the L2 holds by clean lines. The sum is stored only in a case that
// does not occur, but that the compiler cannot exclude.
extern "C" __global__ void __launch_bounds__(512)
    qgemm_read_flush(const uint4* words, support::i64 count, support::u32* sink) {
  using namespace support;
  u32 sum = 0;
#pragma unroll 4
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    const uint4 word = words[i];
    sum += word.x ^ word.y ^ word.z ^ word.w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}

// A chain of `iterations` dependent multiply-adds per thread: its time is inversely proportional to the SM clock, and
// grows when somebody else runs on the GPU.
extern "C" __global__ void __launch_bounds__(32) qgemm_clock_probe(support::u32 iterations, float* sink) {
  float value = float(threadIdx.x);
#pragma unroll 16
  for (support::u32 i = 0; i < iterations; ++i) value = fmaf(value, 0.999f, 0.5f);
  if (value < 0.0f) *sink = value;
}
