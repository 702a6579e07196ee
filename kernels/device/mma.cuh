// Family `mma` (sm_80 and up): Y^T = W X^T with mma.sync.m16n8k16. Weights are the A operand (16 rows of N), tokens
// the B operand (8 rows of X), so M costs in steps of 8.
//
// Partition
//   grid (M tiles, N tiles, S)        CTA: kTileM rows of X  x  kTileN rows of W  x  one slice of K
//   warps kWarpsN x kWarpsK           warp (wn, wk): rows [wn * 16 * kRowTiles, ...) of the tile, every kWarpsK-th
//                                     stage of the slice (interleaved, so that the CTA reads one contiguous front)
//   stage = kBlocks blocks of 64 k    a block is 16 rows x 64 k = 512 B of codes: 16 B a lane, the four A fragments of
//                                     that lane; nobody but this lane reads them
//
// Shared memory
//   ring   [warp][kStages] { codes [kRowTiles][kBlocks][512 B] | scales [kRowTiles][kGroups][32 B] | zeros [..][16 B] }
//   slice path:   activations [rows][slice k * 2 B + 16 B]: the whole slice, loaded once; warps never wait for each other
//   staged path:  activations [wk][kStages][kTileM][kBlocks * 128 B + 16 B]: one barrier per stage among the warps of a
//                 K group
//   (16 B of padding per row make ldmatrix free of bank conflicts: rows start 4 banks apart)
//   epilogue: red [kWarpsK][kTileM][kTileN + 4] fp32 over all of it
//
// Slices are whole units of max(64, group) k. The host divides: slice z has units_quotient + (z < units_remainder)
// units. K is padded to 64 in the packed weights; activations beyond K are zero-filled by the copy. Weight blocks beyond
// the padded N are clamped to the last one and their results dropped at the store.
//
// Scale: `post` runs the MMAs of a group on exact integers and adds s * partial in fp32 (cheaper for few tokens, more
// accurate); `pre` multiplies the weights once and accumulates in place (cheaper from 4 token tiles or so on).
//
// Sources: swapped operands and fragment-order packing as in Marlin (arXiv 2408.11743) and FLUTE; split-K with tickets as
// in stream-K's fix-up (arXiv 2301.03598).

struct Problem {
  const u8* x;
  const u8* weights;
  const u8* scales;
  const u8* zeros;
  int m, n, k;
  i64 ldx;
  int units_quotient, units_remainder;
};

namespace mma_family {

using namespace config;

constexpr int kGroups = max_of(1, kBlocks * 64 / kGroupSize);  // scale groups of a stage
constexpr int kGroupsPerBlock = max_of(1, 64 / kGroupSize);
constexpr int kBlocksPerUnit = max_of(1, kGroupSize / 64);
constexpr int kCodeBytes = kRowTiles * kBlocks * 512;
constexpr int kScaleBytes = kRowTiles * kGroups * 32;
constexpr int kZeroBytes = kIntegerZeros ? kRowTiles * kGroups * 16 : 0;
constexpr int kSlotBytes = kCodeBytes + kScaleBytes + kZeroBytes;
constexpr int kWarps = kWarpsN * kWarpsK;
constexpr int kRingBytes = kWarps * kStages * kSlotBytes;
constexpr int kGroupThreads = 32 * kWarpsN;  // threads of a K group
constexpr int kStageRowBytes = kBlocks * 128 + 16;
constexpr int kStageActivationBytes = kTileM * kStageRowBytes;

// The scales (and zero points) of one 16-row fragment and group, as this lane needs them.
struct Scale {
  u32 pair;  // row g in the low half, row g + 8 in the high half
  dequant::Offsets offsets;
};

struct Warp {
  int lane, wn, wk;
  int first_block;   // of the slice, in the padded K
  int end_block;     // one past the slice
  int stages;        // stages this warp walks
  int rows;          // rows of X in this tile
  u32 ring;          // this warp's ring
  u32 activations;   // slice path: the slice; staged path: this K group's ring
  int row_bytes;     // of a row of activations in shared memory

  // First block of this warp's stage s.
  QG_DEVICE int block_of(int s) const { return first_block + (wk + s * kWarpsK) * kBlocks; }
};

QG_DEVICE void copy_weights(const Problem& p, const Warp& warp, const u8* const (&codes)[kRowTiles], int first_row_block,
                            int last_row_block, int blocks_k, int s, int slot) {
  const int block = warp.block_of(s);
  const u32 base = warp.ring + slot * kSlotBytes;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    if (block + j < warp.end_block) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        copy_async16(base + (r * kBlocks + j) * 512 + warp.lane * 16, codes[r] + static_cast<i64>(block + j) * 512);
      }
    }
  }
  const int groups = blocks_k * 64 / kGroupSize;
  const int group = block * 64 / kGroupSize;
  if (warp.lane < kRowTiles * kGroups * 2) {
    const int r = warp.lane / (kGroups * 2), part = warp.lane % (kGroups * 2);
    const i64 row_block = min_of(first_row_block + r, last_row_block);
    if (group + part / 2 < groups) {
      copy_async16(base + kCodeBytes + warp.lane * 16, p.scales + (row_block * groups + group) * 32 + part * 16);
    }
  }
  if constexpr (kIntegerZeros) {
    if (warp.lane < kRowTiles * kGroups) {
      const int r = warp.lane / kGroups, part = warp.lane % kGroups;
      const i64 row_block = min_of(first_row_block + r, last_row_block);
      if (group + part < groups) {
        copy_async16(base + kCodeBytes + kScaleBytes + warp.lane * 16, p.zeros + (row_block * groups + group + part) * 16);
      }
    }
  }
}

// Rows [0, rows) of this tile, k in [first_k, first_k + 8 * chunks); zeros beyond K.
template <int kThreadCount>
QG_DEVICE void copy_activations(const Problem& p, u32 dst, int row_bytes, int rows, i64 first_row, int first_k, int chunks,
                                int thread) {
  const u8* x = p.x + first_row * p.ldx * 2;
  if (rows < 4) {
#pragma unroll 1
    for (int m = 0; m < rows; ++m) {
#pragma unroll 2
      for (int c = thread; c < chunks; c += kThreadCount) {
        const bool inside = first_k + c * 8 < p.k;
        copy_async16_or_zero(dst + m * row_bytes + c * 16, x + (m * p.ldx + (inside ? first_k + c * 8 : 0)) * 2, inside);
      }
    }
    return;
  }
#pragma unroll 1
  for (int m = thread / 8; m < rows; m += kThreadCount / 8) {
#pragma unroll 2
    for (int c = thread % 8; c < chunks; c += 8) {
      const bool inside = first_k + c * 8 < p.k;
      copy_async16_or_zero(dst + m * row_bytes + c * 16, x + (m * p.ldx + (inside ? first_k + c * 8 : 0)) * 2, inside);
    }
  }
}

// One block of 64 k: kRowTiles fragments of 16 rows against kTokenTiles of 8 tokens.
// `row_address[t]`: this lane's ldmatrix row for token tile t, at the block's first k (see token_addresses).
QG_DEVICE void block_post(float (&acc)[kRowTiles][kTokenTiles][4], const Vec4 (&q)[kRowTiles],
                          const Scale (&scale)[kRowTiles][kGroupsPerBlock], const u32 (&row_address)[kTokenTiles], u32 offset) {
  u32 a[kRowTiles][4][4];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const u32 words[4] = {q[r].x, q[r].y, q[r].z, q[r].w};
#pragma unroll
    for (int w = 0; w < 4; ++w) dequant::word(words[w], scale[r][w * kGroupsPerBlock / 4].offsets, a[r][w]);
  }
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    u32 b[2][4];
    load_matrix_x4(b[0], row_address[t] + offset);
    load_matrix_x4(b[1], row_address[t] + offset + 64);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int g = 0; g < kGroupsPerBlock; ++g) {
        float part[4] = {0.f, 0.f, 0.f, 0.f};
        constexpr int kSteps = 4 / kGroupsPerBlock;  // k16 steps of a group within the block
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const int w = g * kSteps + i;
          act::mma(part, a[r][w], b[w / 2][w % 2 * 2], b[w / 2][w % 2 * 2 + 1]);
        }
        const float s0 = act::low(scale[r][g].pair), s1 = act::high(scale[r][g].pair);
        float(&c)[4] = acc[r][t];
        c[0] += s0 * part[0];
        c[1] += s0 * part[1];
        c[2] += s1 * part[2];
        c[3] += s1 * part[3];
      }
    }
  }
}

// As block_post, k16 step by k16 step so that only 4 registers of weights per fragment are live; two token tiles share
// one ldmatrix. `row_address[t]` as token_addresses makes it for the pre mode.
QG_DEVICE void block_pre(float (&acc)[kRowTiles][kTokenTiles][4], const Vec4 (&q)[kRowTiles],
                         const Scale (&scale)[kRowTiles][kGroupsPerBlock], const u32 (&row_address)[kTokenTiles], u32 offset) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    u32 a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const Scale& s = scale[r][w * kGroupsPerBlock / 4];
      const u32 word = w == 0 ? q[r].x : w == 1 ? q[r].y : w == 2 ? q[r].z : q[r].w;
      dequant::word(word, s.offsets, a[r]);
      const u32 s0 = __byte_perm(s.pair, 0, 0x1010), s1 = __byte_perm(s.pair, 0, 0x3232);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[r][i] = act::mul_pair(a[r][i], i & 1 ? s1 : s0);
    }
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2) {
      u32 b[4];
      if (t + 1 < kTokenTiles) {
        load_matrix_x4(b, row_address[t] + offset + w * 32);
      } else {
        load_matrix_x2(b[0], b[1], row_address[t] + offset + w * 32);
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
    row_address[t] = warp.activations + min_of(row, warp.rows - 1) * warp.row_bytes + chunk * 16;
  }
}

QG_DEVICE void run(const Problem& p, const Output& out) {
  extern __shared__ __align__(16) u8 shared[];
  const int tid = threadIdx.x;
  const int blocks_k = (p.k + 63) / 64;
  const int last_row_block = (p.n + 63) / 64 * 4 - 1;
  const int slice = blockIdx.z;
  const i64 first_row = static_cast<i64>(blockIdx.x) * kTileM;

  Warp warp;
  warp.lane = tid & 31;
  warp.wn = (tid >> 5) % kWarpsN;
  warp.wk = (tid >> 5) / kWarpsN;
  const int first_unit = slice * p.units_quotient + min_of(slice, p.units_remainder);
  const int units = p.units_quotient + (slice < p.units_remainder ? 1 : 0);
  warp.first_block = first_unit * kBlocksPerUnit;
  warp.end_block = min_of(warp.first_block + units * kBlocksPerUnit, blocks_k);
  const int slice_stages = (warp.end_block - warp.first_block + kBlocks - 1) / kBlocks;
  warp.stages = slice_stages > warp.wk ? (slice_stages - warp.wk + kWarpsK - 1) / kWarpsK : 0;
  const i64 rows_left = p.m - first_row;
  warp.rows = rows_left < kTileM ? static_cast<int>(rows_left) : kTileM;
  warp.ring = shared_address(shared) + (tid >> 5) * (kStages * kSlotBytes);

  const int first_row_block = (blockIdx.y * kWarpsN + warp.wn) * kRowTiles;
  const u8* codes[kRowTiles];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    codes[r] = p.weights + (static_cast<i64>(min_of(first_row_block + r, last_row_block)) * blocks_k) * 512 + warp.lane * 16;
  }

  if constexpr (kSliceActivations) {
    const int slice_k = (warp.end_block - warp.first_block) * 64;
    warp.row_bytes = slice_k * 2 + 16;
    warp.activations = shared_address(shared) + kRingBytes;
    copy_activations<kThreads>(p, warp.activations, warp.row_bytes, warp.rows, first_row, warp.first_block * 64, slice_k / 8,
                               tid);
    copy_commit();
  } else {
    warp.row_bytes = kStageRowBytes;
    warp.activations = shared_address(shared) + kRingBytes + warp.wk * (kStages * kStageActivationBytes);
  }

  auto copy_stage = [&](int s, int slot) {
    if (s < warp.stages) {
      copy_weights(p, warp, codes, first_row_block, last_row_block, blocks_k, s, slot);
      if constexpr (!kSliceActivations) {
        copy_activations<kGroupThreads>(p, warp.activations + slot * kStageActivationBytes, warp.row_bytes, warp.rows, first_row,
                                        warp.block_of(s) * 64, kBlocks * 8, tid % kGroupThreads);
      }
    }
    copy_commit();  // an empty group keeps the count of pending groups right
  };
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) copy_stage(s, s);
  if constexpr (kSliceActivations) {
    copy_wait<kStages - 1>();  // the activations are there
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
  const u8* ring = shared + (warp.ring - shared_address(shared));

  int slot = 0;
#pragma unroll 1
  for (int s = 0; s < warp.stages; ++s) {
    const int free_slot = slot == 0 ? kStages - 1 : slot - 1;  // read in the stage before
    if constexpr (kSliceActivations) {
      copy_stage(s + kStages - 1, free_slot);
      copy_wait<kStages - 1>();
      __syncwarp();
    } else {
      copy_wait<kStages - 2>();
      if constexpr (kWarpsK == 1) {
        __syncthreads();
      } else {
        named_barrier(1 + warp.wk, kGroupThreads);
      }
      copy_stage(s + kStages - 1, free_slot);
    }
    const u8* stage = ring + slot * kSlotBytes;
    const int block = warp.block_of(s);
#pragma unroll(kUnrollBlocks ? kBlocks : 1)
    for (int j = 0; j < kBlocks; ++j) {
      if (block + j < warp.end_block) {
        Vec4 q[kRowTiles];
        Scale scale[kRowTiles][kGroupsPerBlock];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          q[r] = *reinterpret_cast<const Vec4*>(stage + (r * kBlocks + j) * 512 + warp.lane * 16);
#pragma unroll
          for (int g = 0; g < kGroupsPerBlock; ++g) {
            const int group = kGroupSize >= 64 ? j * 64 / kGroupSize : j * kGroupsPerBlock + g;
            const int i = (r * kGroups + group) * 8 + warp.lane / 4;
            scale[r][g].pair = reinterpret_cast<const u32*>(stage + kCodeBytes)[i];
            const u32 zeros = kIntegerZeros ? reinterpret_cast<const u16*>(stage + kCodeBytes + kScaleBytes)[i] : 0x0808u;
            scale[r][g].offsets = dequant::make_offsets(zeros & 0xffu, zeros >> 8);
          }
        }
        const u32 offset = kSliceActivations ? (block + j - warp.first_block) * 128 : slot * kStageActivationBytes + j * 128;
        if constexpr (kPostScale) {
          block_post(acc, q, scale, row_address, offset);
        } else {
          block_pre(acc, q, scale, row_address, offset);
        }
      }
    }
    if constexpr (kSliceActivations) __syncwarp();  // this slot is overwritten next; scales were read across lanes
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  copy_wait<0>();
  __syncthreads();

  float* red = reinterpret_cast<float*>(shared);
  const int g = warp.lane / 4, t2 = warp.lane % 4 * 2;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      float* o = red + (warp.wk * kTileM + t * 8 + t2) * epilogue::kRow + (warp.wn * kRowTiles + r) * 16 + g;
      const float(&c)[4] = acc[r][t];
      o[0] = c[0];
      o[epilogue::kRow] = c[1];
      o[8] = c[2];
      o[epilogue::kRow + 8] = c[3];
    }
  }
  epilogue::run(red, out, warp.rows, static_cast<int>(first_row), blockIdx.y * kTileN);
}

}  // namespace mma_family

extern "C" __global__ void __launch_bounds__(config::kThreads, 1)
    qgemm_mma(const u8* x, const u8* weights, const u8* scales, const u8* zeros, const void* bias, void* y, void* workspace,
              int m, int n, int k, i64 ldx, i64 ldy, int units_quotient, int units_remainder) {
  mma_family::run(Problem{x, weights, scales, zeros, m, n, k, ldx, units_quotient, units_remainder},
                  Output{y, bias, workspace, m, n, ldy});
}
