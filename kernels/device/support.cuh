// Support kernels of verification and timing: random canonical data, packing, the reference GEMM, comparison, guard
// checks, L2 flush, clock probe. One translation unit with several entries (support_kernels.h lists them with their
// parameters). It shares no device code with the kernel families, so that a mistake there cannot hide here.
//
// Canonical data as packing.h has it: codes [n][k] bytes; per row and group, [n][groups], numbers of 16 bits or bytes;
// the steps of two-level scales [n][ceil(k / 256)]; x [m][ldx], bias [n] and residual [m][ldr]. Scalar types: 0 = bf16,
// 1 = fp16, 2 = fp32. K is a multiple of 8 and of the group, which channel-wise is K.

namespace support {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr int kFp16 = 1;
constexpr int kFp32 = 2;
constexpr int kStepWeights = 256;

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

__device__ __forceinline__ float load(const void* numbers, i64 index, int type) {
  if (type == kFp32) return static_cast<const float*>(numbers)[index];
  return to_float(static_cast<const u16*>(numbers)[index], type);
}

__device__ __forceinline__ void store(void* numbers, i64 index, float value, int type) {
  if (type == kFp32) {
    static_cast<float*>(numbers)[index] = value;
  } else {
    static_cast<u16*>(numbers)[index] = from_float(value, type);
  }
}

// Counter-based random bits: the finaliser of SplitMix64 over seed and index, so that any element can be made alone.
__device__ __forceinline__ u64 random_bits(u64 seed, i64 index) {
  u64 z = (seed + 1) * 0xd1342543de82ef95ull + u64(index) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Uniform in [low, high).
__device__ __forceinline__ float uniform(u64 seed, i64 index, float low, float high) {
  return low + (high - low) * (float(random_bits(seed, index) >> 40) * (1.0f / 16777216.0f));
}

// Row and group of element i of a packed plane [padded_n / 16][groups][8][2].
__device__ __forceinline__ i64 row_of(i64 i, i64 groups) { return i / (16 * groups) * 16 + i % 16 / 2 + 8 * (i % 2); }
__device__ __forceinline__ i64 group_of(i64 i, i64 groups) { return i / 16 % groups; }

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
  for (i64 i = global_thread(); i < count; i += global_threads()) store(out, i, uniform(seed, i, low, high), type);
}

// Each number of `scales` times something uniform in [low, high): offsets that go with the scales.
extern "C" __global__ void qgemm_fill_products(support::u16* out, const support::u16* scales, support::i64 count,
                                               int type, float low, float high, support::u64 seed) {
  using namespace support;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    store(out, i, to_float(scales[i], type) * uniform(seed, i, low, high), type);
  }
}

// Signed codes opposite to `scale_codes`, up to one more or less.
extern "C" __global__ void qgemm_fill_opposites(signed char* out, const signed char* scale_codes, support::i64 count,
                                                support::u64 seed) {
  using namespace support;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    const int code = int(random_bits(seed, i) >> 40) % 3 - 1 - scale_codes[i];
    out[i] = static_cast<signed char>(min(max(code, -128), 127));
  }
}

// Roughly normal with mean 0 and variance 1: the sum of four uniform numbers; rounded to `type`.
extern "C" __global__ void qgemm_fill_normal(void* out, support::i64 count, int type, support::u64 seed) {
  using namespace support;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    const u64 bits = random_bits(seed, i);
    const int sum = int(bits & 0xffff) + int(bits >> 16 & 0xffff) + int(bits >> 32 & 0xffff) + int(bits >> 48);
    const float centred = float(sum - 131070) * (1.0f / 65536.0f);  // variance 1/3
    store(out, i, centred * 1.7320508f, type);
  }
}

// One thread per lane of each block of the packed plane [padded_n / 16][padded_k / 64][128 * bits bytes] (LAYOUT.md).
// Codes become their low and high parts: byte `byte` of a word holds rows g (h = 0) and g + 8 (h = 1) of one column.
extern "C" __global__ void qgemm_pack_weights(const support::u8* codes, support::u32* packed, support::i64 n,
                                              support::i64 k, support::i64 padded_n, support::i64 padded_k, int bits) {
  using namespace support;
  const i64 blocks_k = padded_k / 64;
  const i64 lanes = padded_n / 16 * blocks_k * 32;
  for (i64 i = global_thread(); i < lanes; i += global_threads()) {
    const int lane = int(i % 32);
    const i64 row0 = i / 32 / blocks_k * 16 + lane / 4;
    const i64 k0 = i / 32 % blocks_k * 64 + 2 * (lane % 4);
    u32 low[4] = {};      // four bits of every code
    u32 high[2] = {};     // the rest, of 5 and 6 bits
    u32 whole[4][2] = {};  // [w][h], all 8 bits
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) {
          const i64 row = row0 + 8 * h;
          const i64 column = k0 + 16 * w + byte / 2 + 8 * (byte % 2);
          const u32 code = row < n && column < k ? codes[row * k + column] : 1u << (bits - 1);
          low[w] |= (code & 15) << (8 * byte + 4 * h);
          whole[w][h] |= (code ^ 128) << (8 * byte);
          if (bits == 5) high[0] |= (code >> 4) << (8 * byte + 2 * w + h);
          if (bits == 6) high[w / 2] |= (code >> 4) << (8 * byte + 4 * (w % 2) + 2 * h);
        }
      }
    }
    u32* block = packed + i / 32 * 32 * bits;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if (bits == 8) {
        u32* plane = block + 128 * (w / 2) + 4 * lane + 2 * (w % 2);
        plane[0] = whole[w][0];
        plane[1] = whole[w][1];
      } else {
        block[4 * lane + w] = low[w];
      }
    }
    if (bits == 5) block[128 + lane] = high[0];
    if (bits == 6) {
      block[128 + 2 * lane] = high[0];
      block[128 + 2 * lane + 1] = high[1];
    }
  }
}

// Planes of 16-bit numbers, [n][count] to [padded_n / 16][groups][8][2] with groups `pitch` numbers apart. `count`:
// groups of a row that exist; the others are 0.
extern "C" __global__ void qgemm_pack_numbers(const support::u16* numbers, support::u16* packed, support::i64 n,
                                              support::i64 count, support::i64 padded_n, support::i64 groups,
                                              int pitch) {
  using namespace support;
  for (i64 i = global_thread(); i < padded_n * groups; i += global_threads()) {
    const i64 row = row_of(i, groups);
    const i64 group = group_of(i, groups);
    packed[i / 16 * pitch + i % 16] = row < n && group < count ? numbers[row * count + group] : u16(0);
  }
}

// The same of bytes, one after the other.
extern "C" __global__ void qgemm_pack_bytes(const support::u8* bytes, support::u8* packed, support::i64 n,
                                            support::i64 count, support::i64 padded_n, support::i64 groups,
                                            int padding) {
  using namespace support;
  for (i64 i = global_thread(); i < padded_n * groups; i += global_threads()) {
    const i64 row = row_of(i, groups);
    const i64 group = group_of(i, groups);
    packed[i] = row < n && group < count ? bytes[row * count + group] : u8(padding);
  }
}

namespace support {

// Where canonical weights are, and their form.
struct Weights {
  const u8* codes;
  const u16* scales;  // with two levels: steps
  const u8* zeros;    // or null
  const u16* offsets;  // or null; with two levels: steps
  const signed char* scale_codes;   // two levels, or null
  const signed char* offset_codes;  // two levels with offsets, or null
  i64 k;
  i64 group;
  int scale_type;
  int center;
};

// Eight weights of `row` from column `k0`, a multiple of 8: all of one group. Products of codes, steps and scales are
// exact in fp32, or rounded once.
__device__ __forceinline__ void dequantize(const Weights& w, i64 row, i64 k0, float (&out)[8]) {
  const i64 groups = w.k / w.group;
  const i64 group = row * groups + k0 / w.group;
  const i64 step = row * ((w.k + kStepWeights - 1) / kStepWeights) + k0 / kStepWeights;
  const bool two_level = w.scale_codes != nullptr;
  float scale = to_float(w.scales[two_level ? step : group], w.scale_type);
  if (two_level) scale *= float(w.scale_codes[group]);
  int zero = w.center;
  float offset = 0;
  if (w.zeros != nullptr) zero = w.zeros[group];
  if (w.offsets != nullptr) {
    zero = 0;
    offset = to_float(w.offsets[two_level ? step : group], w.scale_type);
    if (two_level) offset *= float(w.offset_codes[group]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = fmaf(float(int(w.codes[row * w.k + k0 + i]) - zero), scale, offset);
}

// The codes of kernels/problem.h's Activation.
__device__ __forceinline__ double activate(double v, int activation) {
  if (activation == 1) return v / (1.0 + exp(-v));
  if (activation == 2) return 0.5 * v * (1.0 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
  if (activation == 3) return v < 0.0 ? 0.0 : v;
  return v;
}

}  // namespace support

// out[m][columns of Y] = epilogue(x . W^T) in fp32, from the canonical weights; absent operands are null.
//
// Grid (ceil(n / 64), ceil(m / 64)), 256 threads: a block makes 64 x 64 sums, a thread 4 x 4 of them: rows 16 apart,
// columns in two pairs 32 apart, so that gate and up are one thread's. In a step of 32 k a thread loads 8 successive
// weights and activations of one row. 32 products are summed in fp32 and the steps in fp64, so that the reference's own
// error is of the order of 1e-7.
extern "C" __global__ void __launch_bounds__(256, 2)
    qgemm_reference_gemm(const support::u16* x, const support::u8* codes, const support::u16* scales,
                         const support::u8* zeros, const support::u16* offsets, const signed char* scale_codes,
                         const signed char* offset_codes, const void* bias, const void* residual, float* out,
                         support::i64 m, support::i64 n, support::i64 k, support::i64 ldx, support::i64 ldr,
                         support::i64 group, int act_type, int scale_type, int out_type, int center, int activation,
                         int gated, int byte_activations) {
  using namespace support;
  constexpr int kTile = 64;
  constexpr int kStep = 32;
  // A row of 65 words keeps both the transposed stores and the loads free of bank conflicts.
  __shared__ float x_tile[kStep][kTile + 1];
  __shared__ float w_tile[kStep][kTile + 1];
  const Weights weights = {codes, scales, zeros, offsets, scale_codes, offset_codes, k, group, scale_type, center};
  const int load_row = threadIdx.x / 4;
  const int load_k = threadIdx.x % 4 * 8;
  const int tx = threadIdx.x % 16;
  const int ty = threadIdx.x / 16;
  const i64 n0 = i64{blockIdx.x} * kTile;
  const i64 m0 = i64{blockIdx.y} * kTile;
  double sum[4][4] = {};

  for (i64 k0 = 0; k0 < k; k0 += kStep) {
    const i64 row_m = m0 + load_row;
    const i64 row_n = n0 + load_row;
    const i64 column = k0 + load_k;
    float run[8] = {};
    if (row_n < n && column < k) dequantize(weights, row_n, column, run);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      w_tile[load_k + i][load_row] = run[i];
      x_tile[load_k + i][load_row] =
          row_m < m && column < k ? to_float(x[row_m * ldx + column + i], act_type) : 0.0f;
    }
    __syncthreads();
    if (byte_activations) {
      // A step is a block. What a byte times its scale is worth, as ActivationsOf of reference_gemm.h has it.
      float most = 0.0f;
      for (int kk = 0; kk < kStep; ++kk) {
        const float magnitude = fabsf(x_tile[kk][load_row]);
        most = magnitude != magnitude || magnitude > most ? magnitude : most;
      }
      const float scale = most / 127.0f, inverse = most > 1e-30f ? 127.0f / most : 0.0f;
      __syncthreads();
      for (int i = 0; i < 8; ++i) x_tile[load_k + i][load_row] = scale * rintf(x_tile[load_k + i][load_row] * inverse);
      __syncthreads();
    }
    float part[4][4] = {};
#pragma unroll 4
    for (int kk = 0; kk < kStep; ++kk) {
      float xs[4], ws[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        xs[i] = x_tile[kk][ty + 16 * i];
        ws[i] = w_tile[kk][2 * tx + i % 2 + 32 * (i / 2)];
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
  const i64 columns = gated ? n / 2 : n;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const i64 row = m0 + ty + 16 * i;
      const i64 column = n0 + 2 * tx + 32 * pair;
      double v[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        v[j] = sum[i][2 * pair + j];
        if (bias != nullptr && column + j < n) v[j] += double(load(bias, column + j, out_type));
      }
      if (gated) v[0] = activate(v[0], activation) * v[1];
#pragma unroll 1
      for (int j = 0; j < (gated ? 1 : 2); ++j) {
        const i64 at = gated ? column / 2 : column + j;
        if (row >= m || at >= columns) continue;
        double y = j == 0 ? v[0] : v[1];
        if (!gated) y = activate(y, activation);
        if (residual != nullptr) y += double(load(residual, row * ldr + at, out_type));
        out[row * columns + at] = float(y);
      }
    }
  }
}

// Per block: { sum of squared differences, sum of squared references, non-finite outputs, outputs that still are
// `poison` (16-bit ones: its lower half) } as four fp64 numbers, summed in an order that depends on the grid alone.
// Blocks of 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    qgemm_compare(const void* y, const float* reference, double* partials, support::i64 m, support::i64 n,
                  support::i64 ldy, int type, support::u32 poison) {
  using namespace support;
  double local[4] = {};
  for (i64 i = global_thread(); i < m * n; i += global_threads()) {
    const i64 at = i / n * ldy + i % n;
    const double expected = reference[i];
    const float actual = load(y, at, type);
    local[1] += expected * expected;
    const bool unwritten = type == kFp32 ? static_cast<const u32*>(y)[at] == poison
                                         : static_cast<const u16*>(y)[at] == u16(poison);
    if (unwritten) local[3] += 1;
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

__device__ __forceinline__ support::u64 global_time_ns() {
  support::u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// One thread: the GPU's clock in nanoseconds (PTX ISA, %globaltimer), the same on all SMs. Between two of these in a
// stream lies what the kernel between them takes, with its launch.
extern "C" __global__ void qgemm_mark(support::u64* ns) { *ns = global_time_ns(); }

// One thread: the smallest step of that clock in `changes` changes; 0 when it stands still for `reads` reads.
extern "C" __global__ void qgemm_clock_step(support::u64* ns, support::u32 changes, support::u32 reads) {
  using namespace support;
  u64 least = 0;
  u64 before = global_time_ns();
  for (u32 change = 0; change < changes; ++change) {
    u64 now = before;
    for (u32 read = 0; read < reads && now == before; ++read) now = global_time_ns();
    if (now == before) {
      least = 0;
      break;
    }
    // The first change may have begun before the first read.
    if (change > 0 && (least == 0 || now - before < least)) least = now - before;
    before = now;
  }
  *ns = least;
}
