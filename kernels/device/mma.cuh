// Family `mma` (sm_80 and up): Y^T = W X^T with mma.sync.m16n8k16. Weights are the A operand (16 rows of N), tokens
// the B operand (8 rows of X), so M costs in steps of 8.
//
// Partition
//   grid (M tiles, N tiles, S)        CTA: kTileM rows of X  x  kTileN rows of W  x  one slice of K
//   warps kWarpsN x kWarpsK           warp (wn, wk): rows [wn * 16 * kRowTiles, ...) of the tile, every kWarpsK-th
//                                     stage of the slice (interleaved, so that the CTA reads one contiguous front)
//   stage = kBlocks blocks of 64 k    a block is 16 rows x 64 k = 128 * bits B of codes: what a lane needs of it for its four
//                                     A fragments nobody but this lane reads
//
// Shared memory
//   ring   [warp][kStages] { codes [kRowTiles][kBlocks][128 * bits B] }; on the staged path each stage also holds
//                            { scales [kRowTiles][kStageGroups][32 B] | zeros [kRowTiles][kStageGroups][16 or 32 B]
//                            | steps [kRowTiles][32 or 64 B] } (two levels: 16 B of scales)
//   slice path:   scales, zeros and steps [tile's row blocks][slice's groups], then activations [rows][slice k * 2 B]: the
//                 whole slice, loaded once; warps never wait for each other
//   staged path:  activations [wk][kStages][kTileM][kBlocks * 128 B]: one barrier per stage among the warps of a K group
//   channel-wise scales stay in registers
//   (16-byte chunks of activations are swizzled within their 128 bytes, so that ldmatrix is free of bank conflicts. All that
//   is copied keeps its place within 32 bytes: a copy to a shared address that is 16 bytes off asks the L2 for every sector
//   twice, which cost 2 to 3 us after a read flush and up to 8 after a memset, where the L2 writes back as it reads. So the
//   dynamic shared memory is aligned to more than the 16 bytes that its neighbour, a static variable, would leave it at.)
//   epilogue: red [kWarpsK][kTileM][kTileN + 4] fp32 over all of it
//
// Slices are whole units of max(64, group) k, two levels: of 256. The host divides: slice z has units_quotient + (z < units_remainder)
// units. K is padded to 64 in the packed weights; activations beyond K are zero-filled by the copy. Weight blocks beyond
// the padded N are clamped to the last one and their results dropped at the store.
//
// Scale: `post` runs the MMAs of a group, or of what a stage has of it, on raw codes and adds s * (part - zero * sum of the
// activations) in fp32 (cheaper for few tokens, more accurate); the sum is one more MMA a step for all row tiles, with weights of
// one, and stands where the lane needs it; float zero points add offset * sum. An fma per pair of codes is saved: the loop of int4 and
// two row tiles has 215 instructions instead of 324 (6656x19968 M = 1 after reads 22.7 -> 20.3 us). `pre` multiplies the weights
// once, as exact integers, and accumulates in place (cheaper from 4 token tiles or so on). Channel-wise scales without offsets wait
// for the end in both modes.
//
// Activations of bytes (kByteActivations, `post`): the CTA quantizes its slice of X while its first weights are under way (slice path), or
// chunk after chunk of it, of all warps' next stages (staged path, for slices that do not fit), by row and 32 k: scale = largest magnitude / 127, byte = x times 127 / largest, to nearest even. One m16n8k32 is
// one such block, so that its exact sum takes the block's scale, and what a group has summed the group's. An int32 sum is below
// 2^22: begun at the bits of 1.5 * 2^23 it is a float's mantissa, and a subtraction makes a float of it (a conversion takes four times as long).
// Zero points and offsets add theirs times the blocks' sums of activations. In shared memory the activations have a byte each, rows
// of multiples of 128 bytes, and are followed by the blocks' scales [blocks][kTileM] and, where needed, scale * sum likewise.
//
// Tried and slower on an H200: asking for the first stages' weights before the activations and waiting for both (M = 1 after a
// read flush: 5376x4096 6.8 against 6.6 us, 8448x6656 11.6 against 10.8); the blocks of a stage as a loop, which NVRTC compiles in 15 ms
// less (7.0 against 6.6, 11.8 against 10.8).
//
// Codes by cp.async.bulk into each warp's ring, with an evict-first hint or without, and an mbarrier per slot: 1 to 2 us slower after
// reads everywhere, and of 24 cells after a memset faster in three (M = 1 on 6656x19968 24.2 against 26.0). Bulk prefetches into
// the L2, four or eight stages ahead: 2 to 8 us slower. Codes loaded into registers, a stage or two ahead (ld.global.nc, with the hint
// and without): 1 to 3 us slower than cp.async with it, after reads and after a memset (M = 1 on 6656x19968 23.3 against 22.8, on
// 8448x6656 12.1 against 11.3). The first copies by the main loop's code, which makes the kernel 3 to 10 % smaller: 0.1 to 0.6 us slower.
//
// Sources: swapped operands and fragment-order packing as in Marlin (arXiv 2408.11743) and FLUTE; split-K with tickets as
// in stream-K's fix-up (arXiv 2301.03598).

struct Problem {
  const u8* x;
  const u8* weights;
  const u8* scales;
  const u8* zeros;
  const u8* steps;
  int m, n, k;
  i64 ldx;
  int units_quotient, units_remainder;
};

namespace mma_family {

using namespace config;

using dequant::kRowCodeBytes;
using scales::kBlocksPerUnit;
using scales::kGroupsPerBlock;
using scales::kStageGroups;
enum : int { kCodeBytes = kRowTiles * kRowCodeBytes };
enum : bool { kStagedPlanes = !kSliceActivations && !kChannelWise };
enum : int { kRowScaleBytes = kStagedPlanes ? kStageGroups * scales::kScaleBytes : 0 };
enum : int { kRowZeroBytes = kStagedPlanes ? kStageGroups * scales::kZeroBytes : 0 };
enum : int { kRowStepBytes = kStagedPlanes ? scales::kStepBytes : 0 };
enum : int { kZeroOffset = kCodeBytes + kRowTiles * kRowScaleBytes };
enum : int { kStepOffset = kZeroOffset + kRowTiles * kRowZeroBytes };
enum : int { kSlotBytes = (kStepOffset + kRowTiles * kRowStepBytes + 31) / 32 * 32 };
// Whether a lane reads codes that other lanes of its warp copied; with 4 and 8 bits it copied its own.
enum : bool { kLanesShare = kBits == 5 || kBits == 6 };
enum : int { kWarps = kWarpsN * kWarpsK };
enum : int { kRingBytes = (kWarps * kStages * kSlotBytes + 127) / 128 * 128 };
enum : int { kGroupThreads = 32 * kWarpsN };  // threads of a K group
enum : int { kStageRowBytes = kBlocks * 128 };
enum : int { kStageActivationBytes = kTileM * kStageRowBytes };
enum : bool { kBlockSums = kByteActivations && (kIntegerZeros || kFloatZeros) };
static_assert(!kByteActivations || kPostScale, "");
// Staged path of activations of bytes: blocks of 64 k that the CTA quantizes at a time, kChunkStages stages of every warp.
enum : int { kChunkBlocks = kChunkStages * kWarpsK * kBlocks };
enum : bool { kChunks = kByteActivations && !kSliceActivations };
// Stages that no other warp reads; those with scales are read by other lanes than copied them.
enum : bool { kOwnStages = kSliceActivations || kByteActivations };
enum : bool { kSyncLanes = kLanesShare || (kChunks && !kChannelWise) };

// Stages have all their blocks, also the last one of a slice: a slice is a number of units, and K one of groups.
enum : bool { kWholeStages = !kChannelWise && kGroupSize % (kBlocks * 64) == 0 };
// `post`: raw codes are summed before they are scaled, of as many blocks of a stage as share a scale.
enum : bool { kRawParts = kPostScale && !kByteActivations && !scales::kDeferred };
enum : int { kPartBlocks = kRawParts && kUnrollBlocks && kWholeStages ? kBlocks : 1 };

using scales::Scale;

struct Warp {
  int lane, wn, wk;
  int first_block;   // of the slice, in the padded K
  int end_block;     // one past the slice
  int stages;        // stages this warp walks
  int rows;          // rows of X in this tile
  u32 ring;          // this warp's ring
  u32 activations;   // slice path: the slice; staged path: this K group's ring
  int row_bytes;     // of a row of activations in shared memory
  u32 zero;          // but the compiler does not know it
  u64 policy;        // of codes: no other CTA reads them, or all token tiles at about the same time

  // First block of this warp's stage s.
  QG_DEVICE int block_of(int s) const { return first_block + (wk + s * kWarpsK) * kBlocks; }
};

// This lane's 16-byte vectors of a plane with `kGroupBytes` bytes per fragment and group, `kStageGroups` groups a stage.
template <int kGroupBytes, int kStageGroups>
struct Plane {
  enum : int { kVectors = kGroupBytes * kStageGroups / 16 };  // of a fragment
  enum : int { kAll = kRowTiles * kVectors };
  enum : int { kPerLane = max_of(1, (kAll + 31) / 32) };
  const u8* source[kPerLane];
  int end[kPerLane];  // groups from here on do not exist

  QG_DEVICE void set(const u8* plane, int groups, int first_row_block, int last_row_block, int lane) {
#pragma unroll
    for (int c = 0; c < kPerLane; ++c) {
      const int vector = lane + c * 32;
      const int r = kAll > 0 ? vector / max_of(1, kVectors) : 0, part = kAll > 0 ? vector % max_of(1, kVectors) : 0;
      const i64 row_block = min_of(first_row_block + r, last_row_block);
      source[c] = plane + row_block * groups * kGroupBytes + part * 16;
      end[c] = vector < kAll ? groups - part * 16 / max_of(1, kGroupBytes) : 0;
    }
  }
  QG_DEVICE void copy(u32 dst, int group, int lane) const {
    if constexpr (kAll > 0) {
#pragma unroll
      for (int c = 0; c < kPerLane; ++c) {
        if (group < end[c]) copy_async16(dst + (lane + c * 32) * 16, source[c] + static_cast<i64>(group) * kGroupBytes);
      }
    }
  }
};

// Where this lane copies the planes of its warp's rows from.
struct Sources {
  const u8* codes[kRowTiles];  // of the next stage
  int bytes;                   // of a row block's codes, left in the slice from there on; unless all stages are whole
  Plane<scales::kScaleBytes, kStageGroups> scales;
  Plane<scales::kZeroBytes, kStageGroups> zeros;
  Plane<scales::kStepBytes, 1> steps;
};

// The next stage, `s`, into `slot_address`.
QG_DEVICE void copy_weights(const Warp& warp, Sources& sources, int s, u32 slot_address) {
  const u32 to = apart(slot_address + warp.lane * 16, warp.zero);
#pragma unroll
  for (int c = 0; c < kRowCodeBytes; c += 512) {
    if ((kWholeStages && c + 512 <= kRowCodeBytes) ||
        c + warp.lane * 16 < (kWholeStages ? kRowCodeBytes : min_of(sources.bytes, kRowCodeBytes))) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        copy_async16_once(to + r * kRowCodeBytes + c, sources.codes[r] + c, warp.policy);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) sources.codes[r] += kWarpsK * kRowCodeBytes;
  sources.bytes -= kWarpsK * kRowCodeBytes;
  if constexpr (kStagedPlanes) {
    const int block = warp.block_of(s);
    const int group = block * 64 / kGroupSize;
    sources.scales.copy(slot_address + kCodeBytes, group, warp.lane);
    sources.zeros.copy(slot_address + kZeroOffset, group, warp.lane);
    sources.steps.copy(slot_address + kStepOffset, block / 4, warp.lane);
  }
}

// The slice path's scales, zeros and steps: bytes of a row block in each plane, and where the planes begin.
struct SlicePlanes {
  int scale_bytes, zero_bytes, step_bytes;
  u32 scales, zeros, steps;
};

// Activations: 16-byte chunk c of row r stands at c ^ (r % 8) of its 128 bytes.
QG_DEVICE u32 swizzled(u32 row_address, int byte, int row) { return row_address + (byte ^ ((row & 7) << 4)); }

// All threads copy rows of `bytes`, a multiple of 16, to shared memory; activations swizzled, with zeros from `end` on. Rolled:
// before the first copy is under way every instruction is on the kernel's critical path, and cold.
template <bool kActivations>
QG_DEVICE void copy_rows(u32 dst, const u8* src, i64 src_pitch, int rows, int bytes, int end, int tid) {
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
#pragma unroll 1
    for (int c = tid * 16; c < bytes; c += kThreads * 16) {
      if constexpr (kActivations) {
        copy_async16_or_zero(swizzled(dst, c, r), src + min_of(c, end - 16), c < end);
      } else {
        copy_async16(dst + c, src + c);
      }
    }
    dst += bytes;
    src += src_pitch;
  }
}

// Where a slice's activations of bytes have their scales, and their sums times them, as [block of 32 k][kTileM].
struct ByteScales {
  float* scales;
  float* sums;
};

// All threads quantize rows [0, rows) of this tile, k in [first_k, first_k + 64 * blocks); zeros beyond K. Four lanes make a
// block of 32 k: each has 8 neighbouring ones, and half of each of two steps of 16. A template, as block_bytes is, only that NVRTC makes
// no code of it for kernels that have no use for it.
template <int = 0>
QG_DEVICE void quantize_rows(const Problem& p, u8* dst, int row_bytes, const ByteScales& to, int rows, i64 first_row, int first_k,
                             int blocks, int tid) {
  const int part = tid & 3, count = blocks * 2, total = rows * count;
#pragma unroll 1
  for (int base = 0; base < total; base += kThreads / 4) {
    const int i = min_of(base + tid / 4, total - 1);
    const int row = i / count, block = i % count, k = first_k + block * 32 + part * 8;
    Vec4 v = {0, 0, 0, 0};
    if (k < p.k) v = *reinterpret_cast<const Vec4*>(p.x + ((first_row + row) * p.ldx + k) * 2);
    const u32 pairs[4] = {v.x, v.y, v.z, v.w};
    float most = 0.f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float x = j % 2 ? act::high(pairs[j / 2]) : act::low(pairs[j / 2]);
      most = max_or_nan(most, x < 0.f ? -x : x);
    }
    most = max_or_nan(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = max_or_nan(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float inverse = most > 1e-30f ? 127.f / most : 0.f;
    u32 bytes[2] = {0, 0};
    int sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float x = j % 2 ? act::high(pairs[j / 2]) : act::low(pairs[j / 2]);
      const int q = __float2int_rn(x * inverse);
      sum += q;
      bytes[j / 4] |= (static_cast<u32>(q) & 0xffu) << (j % 4 * 8);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    // The lower lane of a step writes its words of k + 0 .. 3, the upper one those of k + 4 .. 7: k, k + 8, k + 1, k + 9 and so on.
    const u32 given = __shfl_xor_sync(0xffffffffu, bytes[part & 1 ? 0 : 1], 1);
    const u32 low = part & 1 ? given : bytes[0], high = part & 1 ? bytes[1] : given;
    if (base + tid / 4 < total) {
      const u32 address = block * 32 + part / 2 * 16;
      Vec2* const to_bytes = reinterpret_cast<Vec2*>(dst + swizzled(row * row_bytes, address, row) + (part & 1) * 8);
      *to_bytes = Vec2{__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362)};
      if (part == 0) {
        const float scale = most / 127.f;
        to.scales[block * kTileM + row] = scale;
        if constexpr (kBlockSums) to.sums[block * kTileM + row] = scale * static_cast<float>(sum);
      }
    }
  }
}

// Staged path: rows [0, rows) of this tile, the k of a stage from first_k on; zeros beyond K.
template <int kThreadCount>
QG_DEVICE void copy_activations(const Problem& p, u32 dst, int row_bytes, int rows, i64 first_row, int first_k,
                                int thread) {
  const u8* x = p.x + first_row * p.ldx * 2;
#pragma unroll 1
  for (int m = thread / 8; m < rows; m += kThreadCount / 8) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const int c = thread % 8 + j * 8;
      const bool inside = first_k + c * 8 < p.k;
      copy_async16_or_zero(swizzled(dst + m * row_bytes, c * 16, m), x + (m * p.ldx + (inside ? first_k + c * 8 : 0)) * 2, inside);
    }
  }
}

// Raw codes times activations over a group, or what a stage has of it, and the activations' sums; both not scaled.
struct Part {
  float products[kRowTiles][kTokenTiles][4];
  float sums[kTokenTiles][4];  // the same for all rows
};

// One block of 64 k: kRowTiles fragments of 16 rows against kTokenTiles of 8 tokens, added to the block's groups.
// `row_address[t]`: this lane's ldmatrix row for token tile t, at the block's first k (see token_addresses).
QG_DEVICE void block_post(float (&acc)[kRowTiles][kTokenTiles][4], Part (&part)[kGroupsPerBlock],
                          const dequant::Codes (&q)[kRowTiles], const Scale (&row_scale)[kRowTiles],
                          const u32 (&row_address)[kTokenTiles], u32 offset) {
  u32 a[kRowTiles][4][4];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (kRawParts) {
        dequant::raw_step(q[r], w, a[r][w]);
      } else {
        dequant::step(q[r], w, row_scale[r].offsets, a[r][w]);
      }
    }
  }
  constexpr int kSteps = 4 / kGroupsPerBlock;  // k16 steps of a group within the block
  const u32 ones[4] = {dequant::kOne, dequant::kOne, dequant::kOne, dequant::kOne};
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    u32 b[2][4];
    load_matrix_x4(b[0], row_address[t] + offset);
    load_matrix_x4(b[1], (row_address[t] + offset) ^ 64);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const u32 low = b[w / 2][w % 2 * 2], high = b[w / 2][w % 2 * 2 + 1];
      if constexpr (kRawParts && !Scale::kRawIsExact) act::mma(part[w / kSteps].sums[t], ones, low, high);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        act::mma(kRawParts ? part[w / kSteps].products[r][t] : acc[r][t], a[r][w], low, high);
      }
    }
  }
}

QG_DEVICE void clear(Part (&part)[kGroupsPerBlock]) {
#pragma unroll
  for (int g = 0; g < kGroupsPerBlock; ++g) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        part[g].sums[t][i] = 0.f;
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) part[g].products[r][t][i] = 0.f;
      }
    }
  }
}

QG_DEVICE void add_parts(float (&acc)[kRowTiles][kTokenTiles][4], const Part (&part)[kGroupsPerBlock],
                         const Scale (&scale)[kRowTiles][kGroupsPerBlock]) {
#pragma unroll
  for (int g = 0; g < kGroupsPerBlock; ++g) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[r][t][i] += scale[r][g].of_raw(i / 2, part[g].products[r][t][i], part[g].sums[t][i]);
      }
    }
  }
}

// As block_post, with activations of bytes; `block` counts from the start of the slice, or of the chunk.
template <int = 0>
QG_DEVICE void block_bytes(float (&acc)[kRowTiles][kTokenTiles][4], const dequant::Codes (&q)[kRowTiles],
                           const Scale (&scale)[kRowTiles][kGroupsPerBlock], const u32 (&row_address)[kTokenTiles],
                           const u32 (&turn)[kTokenTiles], const ByteScales& of, int block, int lane) {
  constexpr u32 kZero = 0x4b400000u;  // 1.5 * 2^23
  u32 a[kRowTiles][2][4];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    dequant::byte_step<0>(q[r], a[r][0]);
    dequant::byte_step<1>(q[r], a[r][0] + 2);
    dequant::byte_step<2>(q[r], a[r][1]);
    dequant::byte_step<3>(q[r], a[r][1] + 2);
  }
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    u32 b[4];
    load_matrix_x4(b, row_address[t] + ((block * 64) ^ turn[t]));
    float scales_of[2][2], sums_of[2][2];  // [block of 32][token]
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = (block * 2 + i) * kTileM + t * 8 + lane % 4 * 2;
      const Vec2 s = *reinterpret_cast<const Vec2*>(of.scales + at);
      scales_of[i][0] = __uint_as_float(s.x), scales_of[i][1] = __uint_as_float(s.y);
      if constexpr (kBlockSums) {
        const Vec2 sum = *reinterpret_cast<const Vec2*>(of.sums + at);
        sums_of[i][0] = __uint_as_float(sum.x), sums_of[i][1] = __uint_as_float(sum.y);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      float part[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        u32 d[4];
        mma_bytes(d, a[r][i], b[2 * i], b[2 * i + 1], kZero);
        const int g = i * kGroupsPerBlock / 2;
        const bool first = kGroupsPerBlock == 2 || i == 0, last = kGroupsPerBlock == 2 || i == 1;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float sum = __uint_as_float(d[e]) - 12582912.f;
          part[e] = first ? scales_of[i][e % 2] * sum : part[e] + scales_of[i][e % 2] * sum;
          if (last) acc[r][t][e] += scale[r][g].byte_scale(e / 2) * part[e];
          if constexpr (kBlockSums) acc[r][t][e] += scale[r][g].byte_offset(e / 2) * sums_of[i][e % 2];
        }
      }
    }
  }
}

// As block_post, k16 step by k16 step so that only 4 registers of weights per fragment are live; two token tiles share
// one ldmatrix. `row_address[t]` as token_addresses makes it for the pre mode.
QG_DEVICE void block_pre(float (&acc)[kRowTiles][kTokenTiles][4], const dequant::Codes (&q)[kRowTiles],
                         const Scale (&scale)[kRowTiles][kGroupsPerBlock], const u32 (&row_address)[kTokenTiles], u32 offset) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    u32 a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const Scale& s = scale[r][w * kGroupsPerBlock / 4];
      dequant::step(q[r], w, s.offsets, a[r]);
      scales::apply(s, a[r]);
    }
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2) {
      u32 b[4];
      if (t + 1 < kTokenTiles) {
        load_matrix_x4(b, (row_address[t] + offset) ^ (w * 32));
      } else {
        load_matrix_x2(b[0], b[1], (row_address[t] + offset) ^ (w * 32));
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        act::mma(acc[r][t], a[r], b[0], b[1]);
        if (t + 1 < kTokenTiles) act::mma(acc[r][t + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// Rows of X beyond `rows` are read from the last row; their results are dropped at the store.
QG_DEVICE void token_addresses(u32 (&row_address)[kTokenTiles], const Warp& warp) {
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    int row, chunk;
    if constexpr (kPostScale) {  // four matrices: k + 0, 8, 16, 24 of the same 8 tokens
      row = t * 8 + (warp.lane & 7);
      chunk = warp.lane >> 3;
    } else {  // k + 0, 8 of tile t, then of tile t + 1
      row = (t + (warp.lane >> 4)) * 8 + (warp.lane & 7);
      chunk = (warp.lane >> 3) & 1;
    }
    row = min_of(row, warp.rows - 1);
    row_address[t] = warp.activations + row * warp.row_bytes + (chunk ^ (row & 7)) * 16;
  }
}

// Among the warps of a K group. The barrier's number is an immediate.
QG_DEVICE void group_barrier(int wk) {
#pragma unroll
  for (int i = 0; i < kWarpsK; ++i) {
    if (wk == i) named_barrier<kGroupThreads>(1 + i);
  }
}

QG_DEVICE void run(const Problem& p, const Output& out) {
  extern __shared__ __align__(128) u8 shared[];
  const int tid = threadIdx.x;
  const int blocks_k = (p.k + 63) / 64;
  const int last_row_block = (p.n + 63) / 64 * 4 - 1;
  const int slice = blockIdx.z;
  const i64 first_row = static_cast<i64>(blockIdx.x) * kTileM;

  Warp warp;
  warp.lane = tid & 31;
  warp.policy = read_once_policy();
  warp.zero = static_cast<u32>(p.m) >> 31;
  const int index = warp_index();
  warp.wn = index % kWarpsN;
  warp.wk = index / kWarpsN;
  const int first_unit = slice * p.units_quotient + min_of(slice, p.units_remainder);
  const int units = p.units_quotient + (slice < p.units_remainder ? 1 : 0);
  warp.first_block = first_unit * kBlocksPerUnit;
  warp.end_block = min_of(warp.first_block + units * kBlocksPerUnit, blocks_k);
  const int slice_stages = (warp.end_block - warp.first_block + kBlocks - 1) / kBlocks;
  warp.stages = slice_stages > warp.wk ? (slice_stages - warp.wk + kWarpsK - 1) / kWarpsK : 0;
  const i64 rows_left = p.m - first_row;
  warp.rows = rows_left < kTileM ? static_cast<int>(rows_left) : kTileM;
  warp.ring = shared_address(shared) + index * (kStages * kSlotBytes);

  const int first_row_block = (blockIdx.y * kWarpsN + warp.wn) * kRowTiles;
  Sources sources;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    sources.codes[r] = p.weights +
                       (static_cast<i64>(min_of(first_row_block + r, last_row_block)) * blocks_k + warp.block_of(0)) *
                           dequant::kBlockBytes +
                       warp.lane * 16;
  }
  sources.bytes = (warp.end_block - warp.block_of(0)) * dequant::kBlockBytes;
  if constexpr (kStagedPlanes) {
    const int groups = (blocks_k * 64 + kGroupSize - 1) / kGroupSize;
    sources.scales.set(p.scales, groups, first_row_block, last_row_block, warp.lane);
    sources.zeros.set(p.zeros, groups, first_row_block, last_row_block, warp.lane);
    sources.steps.set(p.steps, (blocks_k + 3) / 4, first_row_block, last_row_block, warp.lane);
  }
  Scale row_scale[kRowTiles];  // channel-wise
  if constexpr (kChannelWise) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const i64 row_block = min_of(first_row_block + r, last_row_block);
      row_scale[r] = scales::read(p.scales + row_block * scales::kScaleBytes, p.zeros + row_block * scales::kZeroBytes, nullptr, 0,
                                  warp.lane / 4);
    }
  }

  if constexpr (kSliceActivations) {
    warp.row_bytes = (warp.end_block - warp.first_block) * 128;
    if constexpr (kByteActivations) warp.row_bytes = (warp.row_bytes / 2 + 127) / 128 * 128;
  } else {
    warp.row_bytes = kChunks ? (kChunkBlocks * 64 + 127) / 128 * 128 : kStageRowBytes;
    warp.activations = shared_address(shared) + kRingBytes + (kChunks ? 0 : warp.wk * (kStages * kStageActivationBytes));
  }

  auto copy_stage = [&](int s, int slot) {
    if (s < warp.stages) {
      copy_weights(warp, sources, s, warp.ring + slot * kSlotBytes);
      if constexpr (!kOwnStages) {
        copy_activations<kGroupThreads>(p, warp.activations + slot * kStageActivationBytes, warp.row_bytes, warp.rows, first_row,
                                        warp.block_of(s) * 64, tid % kGroupThreads);
      }
    }
  };
  SlicePlanes planes = {};
  if constexpr (kSliceActivations) {
    const int first_k = warp.first_block * 64;
    u32 free = shared_address(shared) + kRingBytes;
    if constexpr (!kChannelWise) {
      const int groups = (blocks_k * 64 + kGroupSize - 1) / kGroupSize;  // of a row block
      const int first = first_k / kGroupSize;
      const int count = (warp.end_block * 64 + kGroupSize - 1) / kGroupSize - first;
      const int tile_block = blockIdx.y * (kTileN / 16);
      const int row_blocks = min_of(kTileN / 16, last_row_block + 1 - tile_block);
      const auto copy_plane = [&](u32& dst, int& slice, const u8* plane, int pitch, int begin, int bytes) {
        dst = free;
        slice = bytes;
        free += kTileN / 16 * bytes;
        copy_rows<false>(dst, plane + static_cast<i64>(tile_block) * pitch + begin, pitch, row_blocks, bytes, bytes, tid);
      };
      copy_plane(planes.scales, planes.scale_bytes, p.scales, groups * scales::kScaleBytes, first * scales::kScaleBytes,
                 count * scales::kScaleBytes);
      if constexpr (scales::kZeroBytes > 0) {
        copy_plane(planes.zeros, planes.zero_bytes, p.zeros, groups * scales::kZeroBytes, first * scales::kZeroBytes,
                   count * scales::kZeroBytes);
      }
      if constexpr (kTwoLevel) {
        copy_plane(planes.steps, planes.step_bytes, p.steps, (blocks_k + 3) / 4 * scales::kStepBytes,
                   warp.first_block / 4 * scales::kStepBytes,
                   ((warp.end_block + 3) / 4 - warp.first_block / 4) * scales::kStepBytes);
      }
      free = (free + 127) & ~127u;
    }
    warp.activations = free;
    if constexpr (!kByteActivations) {
      wait_for_kernel_before();
      copy_rows<true>(warp.activations, p.x + (first_row * p.ldx + first_k) * 2, p.ldx * 2, warp.rows, warp.row_bytes,
                      (p.k - first_k) * 2, tid);
    }
    copy_commit();
  } else if constexpr (!kChunks) {
    wait_for_kernel_before();
  }
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) {
    copy_stage(s, s);
    copy_commit();
  }
  if (tid == 0) epilogue::prefetch_outputs(out, kTileM * kTileN * 4, first_row, blockIdx.y * kTileN);
  ByteScales byte_scales = {};
  if constexpr (kByteActivations) {
    u8* const bytes = shared + (warp.activations - shared_address(shared));
    byte_scales.scales = reinterpret_cast<float*>(bytes + kTileM * warp.row_bytes);
    byte_scales.sums = byte_scales.scales + (kChunks ? kChunkBlocks : warp.end_block - warp.first_block) * 2 * kTileM;
    wait_for_kernel_before();
  }
  // Blocks of X from `first_block` on as bytes: the slice, or a chunk.
  const auto quantize = [&](int first_block) {
    const int blocks = kChunks ? min_of(kChunkBlocks, warp.end_block - first_block) : warp.end_block - first_block;
    quantize_rows(p, shared + (warp.activations - shared_address(shared)), warp.row_bytes, byte_scales, warp.rows, first_row,
                  first_block * 64, blocks, tid);
  };
  if constexpr (kByteActivations && kSliceActivations) quantize(warp.first_block);
  if constexpr (kSliceActivations) {
    copy_wait<kStages - 1>();  // the activations and the scales are there
    __syncthreads();
  }

  float acc[kRowTiles][kTokenTiles][4];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[r][t][i] = 0.f;
    }
  }
  u32 row_address[kTokenTiles];
  token_addresses(row_address, warp);
  u32 turn[kTokenTiles] = {};
  if constexpr (kByteActivations) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const int row = min_of(t * 8 + (warp.lane & 7), warp.rows - 1);
      row_address[t] = warp.activations + row * warp.row_bytes;
      turn[t] = ((warp.lane >> 3) ^ (row & 7)) * 16;
    }
  }
  const u32 base = shared_address(shared);
  const u8* ring = shared + (warp.ring - base);

  int slot = 0;
  int chunk = warp.first_block;
#pragma unroll 1
  for (int s = 0; s < (kChunks ? (slice_stages + kWarpsK - 1) / kWarpsK : warp.stages); ++s) {
    if constexpr (kChunks) {
      if (s % kChunkStages == 0) {
        chunk = warp.first_block + s * kWarpsK * kBlocks;
        __syncthreads();
        quantize(chunk);
        __syncthreads();
      }
      if (s >= warp.stages) continue;
    }
    const int free_slot = slot == 0 ? kStages - 1 : slot - 1;  // read in the stage before
    if constexpr (kOwnStages) {
      copy_stage(s + kStages - 1, free_slot);
      copy_commit();  // an empty group keeps the count of pending groups right
      copy_wait<kStages - 1>();
      if constexpr (kSyncLanes) __syncwarp();
    } else {
      copy_wait<kStages - 2>();
      if constexpr (kWarpsK == 1) {
        __syncthreads();
      } else {
        group_barrier(warp.wk);
      }
      copy_stage(s + kStages - 1, free_slot);
      copy_commit();
    }
    const u8* stage = ring + slot * kSlotBytes;
    const int block = warp.block_of(s);
#pragma unroll(kUnrollBlocks ? kBlocks : 1)
    for (int first = 0; first < kBlocks; first += kPartBlocks) {
      if (kWholeStages || block + first < warp.end_block) {
        Scale scale[kRowTiles][kGroupsPerBlock];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
          for (int g = 0; g < kGroupsPerBlock; ++g) {
            if constexpr (kChannelWise) {
              scale[r][g] = row_scale[r];
            } else if constexpr (kSliceActivations) {
              const int k = (block + first - warp.first_block) * 64;  // from the slice's start, a multiple of the group there
              const int row_block = warp.wn * kRowTiles + r;
              scale[r][g] = scales::read(shared + (planes.scales - base) + row_block * planes.scale_bytes,
                                         shared + (planes.zeros - base) + row_block * planes.zero_bytes,
                                         shared + (planes.steps - base) + row_block * planes.step_bytes + k / 256 * scales::kStepBytes,
                                         k / kGroupSize + g, warp.lane / 4);
            } else {
              const int group = kGroupSize >= 64 ? first * 64 / kGroupSize : first * kGroupsPerBlock + g;
              scale[r][g] = scales::read(stage + kCodeBytes + r * kRowScaleBytes, stage + kZeroOffset + r * kRowZeroBytes,
                                         stage + kStepOffset + r * kRowStepBytes, group, warp.lane / 4);
            }
          }
        }
        Part part[kGroupsPerBlock];
        if constexpr (kRawParts) clear(part);
#pragma unroll
        for (int j = first; j < first + kPartBlocks; ++j) {
          dequant::Codes q[kRowTiles];
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            q[r] = dequant::load_codes(stage + r * kRowCodeBytes + j * dequant::kBlockBytes, warp.lane);
          }
          const u32 offset = kSliceActivations ? (block + j - warp.first_block) * 128 : slot * kStageActivationBytes + j * 128;
          if constexpr (kByteActivations) {
            block_bytes(acc, q, scale, row_address, turn, byte_scales, block + j - chunk, warp.lane);
          } else if constexpr (kPostScale) {
            block_post(acc, part, q, row_scale, row_address, offset);
          } else {
            block_pre(acc, q, scale, row_address, offset);
          }
        }
        if constexpr (kRawParts) add_parts(acc, part, scale);
      }
    }
    if constexpr (kOwnStages && kSyncLanes) __syncwarp();  // this slot is overwritten next
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  let_next_kernel_start();
  copy_wait<0>();
  __syncthreads();

  float* red = reinterpret_cast<float*>(shared);
  const int g = warp.lane / 4, t2 = warp.lane % 4 * 2;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      epilogue::Partial* o = red + (warp.wk * kTileM + t * 8 + t2) * epilogue::kRow + (warp.wn * kRowTiles + r) * 16 + g;
      float(&c)[4] = acc[r][t];
      if constexpr (scales::kDeferred) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[i] *= row_scale[r].s.value(i / 2);
      }
      o[0] = c[0];
      o[epilogue::kRow] = c[1];
      o[8] = c[2];
      o[epilogue::kRow + 8] = c[3];
    }
  }
  epilogue::run(red, out, warp.rows, static_cast<int>(first_row), blockIdx.y * kTileN);
}

}  // namespace mma_family

// All but the residual in two lines of 64 bytes: a line that is not in the constants' cache takes 0.27 us, and the kernel waits for it.
extern "C" __global__ void __launch_bounds__(config::kThreads, 1)
    qgemm_mma(const u8* x, const u8* weights, const u8* scales, const u8* zeros, const u8* steps, void* y, int m, int n, int k,
              int units_quotient, int units_remainder, i64 ldx, void* workspace, i64 ldy, i64 ldr, const void* bias,
              const void* residual) {
  mma_family::run(Problem{x, weights, scales, zeros, steps, m, n, k, ldx, units_quotient, units_remainder},
                  Output{y, bias, residual, workspace, m, n, ldy, ldr});
}
