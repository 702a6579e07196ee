// Family `wgmma` (sm_90a): Y^T = W X^T with wgmma.m64nNk16. Weights are dequantized into registers and are the A operand
// (64 rows of N a warpgroup), activations are the B operand, read by the tensor cores from shared memory.
//
// Partition
//   grid (M tiles, N tiles, S)             CTA: kTileM rows of X  x  kTileN = 64 * kRowTiles * kGroupsN rows of W  x  a slice;
//                                          kPasses of these, one after the other, M tiles being kPasses * kTileM rows then
//   kGroupsN x kGroupsK consumer warpgroups, K groups take stages in turn; warp w of a warpgroup owns rows
//                                          16 w .. 16 w + 15 of each 64-row tile: one fragment block, as in family mma
//   two producer threads, a warp each      all copies by the tensor copy engine (activations with a 128-byte swizzle, the
//                                          packed planes as matrices of words, a row per 16 rows of N); a ring of stages
//                                          with full and empty barriers, no CTA barrier inside the loop
//
// Shared memory (1024-byte aligned for the swizzle)
//   ring [kStages] { activations [kBlocks][kTileM][128 B] | codes [kTileN / 16][kBlocks][128 * bits B]
//                    | scales [kTileN / 16][kStageGroups][32 B, two levels: 16 B] | zeros [kTileN / 16][kStageGroups][16 or 32 B]
//                    | steps [kTileN / 16][32 or 64 B] }, each a multiple of 128 B, the whole of 1024 B; channel-wise: no scales
//   epilogue: what it has (fragments.cuh), over the ring; several tiles: behind the ring's first kSlotsAhead slots
//   behind both: barriers full[kStages], empty[kStages]; several tiles: and summed, every consumer warp's, once it has read its sums
//
// Passes (no split): where M tiles x N tiles are two or three waves of CTAs that have an SM to themselves, each wave begins with launch,
// barriers and the first stages' trip from memory while the SM idles. One CTA for the same tiles does not: while its consumers are
// in the epilogue of a pass, its producers fill the first kSlotsAhead slots for the next. The rest waits until red was read.
// Passes begin at slot 0, wherever the one before ended, so a slot's barriers have their parity by how often that slot was used.
// The accumulators stay alive through an epilogue, since ptxas does not know that the next pass's first wgmma overwrites them; without the
// code that adds slices, which passes do not need (kMaySplit), no config spills for it.
//
// Tails (kTails; stream-K in its simplest form: Osama et al., PPoPP 2023): where the tiles are fewer than the SMs, and too many to be split in
// two, the SMs left over take the last part of K from all of them. grid (M tiles, N tiles + CTAs for tails, 1): the first N tiles' CTAs go
// as far as the tails, each of the others does `tails_per_cta` tails, one after the other. Neither waits: of a tile's two CTAs the second adds
// what the first left in the workspace, and stores. 104 tiles of 64 x 256 on 132 SMs: four fifths of K each, 26 CTAs with four tails each.
//
// A stage is kBlocks blocks of 64 k. The last stage of a slice may hold fewer: the missing blocks' activations are read
// from beyond K, where the copy engine writes zeros, so that the loop has no branch: a wgmma
// under a branch makes ptxas serialise all of them (warnings C7512 to C7515). For the same reason accumulators are never
// zeroed by code: the first wgmma overwrites them.
//
// A batch is the four k16 steps of one 64 x 64 block of weights. While it runs the next block is dequantized into other
// registers; one batch stays in flight.
//
// Scale: `pre` multiplies the weights; `post`, for few tokens, multiplies the exact integers, a group (its part in a stage)
// at a time into other accumulators, and adds s * part in fp32 once the next group's first block is dequantized. Channel-wise
// scales without offsets wait for the end. `pre` of two levels without offsets multiplies the weights by the code, and keeps
// the accumulators in units of the row's step: where a step begins, every 256 k, they are multiplied by old / new once its first
// block is dequantized, and by the last step at the end. fp32 has the range: of a sum S it holds S / 6e-8 at most. K groups
// take all stages of a step in turn, so that there are as few of these as can be.
//
// Tried and slower on an H200 (int4 g128 bf16): pairs of CTAs of neighbouring N tiles as a cluster, each copying half of the
// activations into both by multicast: won none of 20 cells (four shapes, M 128 to 2048), so reading X from L2 is not what
// bounds large M. What does is the last wave: token tiles of fixed sizes lost 8 to 17 % to tiles that divide M in equal parts.
// Raw codes in `post`, as in family mma, with a wgmma of ones for the activations' sums: not fewer instructions (840 against 816), since
// ones and sums take registers of their own, and up to 150 of these. What did pay is to have the warp's number from another lane
// (warp_index): 199 instructions a stage instead of 222, and M = 64 takes 7 % less.
// prefetch.tensormap by the producer before the barriers are made, these made by a thread each: 0.3 us slower at M = 8 to 64. The barriers made
// by the weights' producer, which asks for its first stage before the others know of them: 0.2 to 0.6 slower in most (5376x4096, M = 64 10.2 to
// 10.7; one slice of 8448x6656, M = 64 16.6 to 16.2). The kernel's code in the L2 cache before it starts: nothing.
//
// The same, int4 g128 bf16, M = 64 on 8448x6656 and 6656x19968 (18.2 and 39.9 us after a memset): weights in panels of 64 rows, one bulk copy
// without a tensor map each (18.5, 40.1); every k16 step's wgmma issued as soon as that step is dequantized (18.5, no better);
// four K groups instead of two (20.7); tensor maps that promote L2 reads to 256 bytes (within noise); weights copied by the warps
// that dequantize them into rings of their own, as in family mma, activations alone by the producer (M = 16 on 5376x4096 11.1 against 9.5,
// M = 64 23.4 against 18.5 on 8448x6656). What did pay is the second
// producer thread (19.8 to 18.1). Left out one at a time: activations 0.1 us, epilogue 0.9, dequantization 1.6, wgmma 2.2; copies alone take 13.7.
//
// A block's codes loaded from shared memory before the wait for the batch before it, not after: nothing in most (M = 64 on 5376x21504 32.0
// and 32.2, on 8448x6656 16.6 and 17.1; two warpgroups a CTA, split 3, on 5376x21504 33.8 to 32.6). A profile of four warpgroups at M = 64 has
// no unit above 55 % (tensor cores 47, issue 41, L2 55, DRAM 41): of the loop's samples 20 % wait for dispatch, 16 for a turn, 14 each for a
// pipe and for the instruction before, 9 for data.
//
// Weights come with an evict-first hint: after a memset, which leaves the L2 dirty, their lines then replace each other instead of lines
// that must be written back first (M = 8: 8448x6656 13.4 to 12.1 us, 6656x19968 27.6 to 25.8; nothing after reads, nothing at M = 64).
// An evict-last hint for the activations changes nothing beside it.
//
// Four warpgroups along N in one CTA read the activations half as often, and their 126 to 130 CTAs add their slices together: M = 64
// on 6656x19968 39.0 to 36.5, on 5376x21504 37.7 to 34.4. Without any addition of slices these take 33.5 and 30.3; without
// copies of the activations, 0.5 to 1.5 less. Two along N and two along K need half as many slices: M = 64 on 5376x21504 31.1 to 30.0, on
// 8448x6656 no gain. Three along N and 128 tokens, registers moved, four slices in a cluster: no gain (5376x4096 15.5, two along N 15.0).
//
// Two K groups and 64 rows, for up to 128 tokens: a batch takes the tensor cores 2 clocks a token, and one warpgroup some 300 to dequantize the
// next. One slice, 128 tokens: 1024x6656, M 1024 24.2 to 21.7, 6656x4096, M 128 16.4 to 14.9; with four stages instead of six, two for each
// group, 29.5 and 19.6. Four warpgroups of 96 tokens: 5376x21504 37.0 to 35.2 (two along N and K), 6656x19968 43.4 to 41.0 (four along N).
// They get 112 registers: 120, for 120 tokens, are more than the producers' warpgroup can give back.
//
// Tails: a fifth of K for four tails a CTA is too much, since each costs some 2 us beside its products (TailUnits): 6656x19968, M 256, tiles of
// 128 x 128, 95.2 us, with 28 units of 156 90.1, with 23 93.6; tails that nobody waits for, who writes them nor who adds them, 89.9.
//
// Sources: PTX ISA, asynchronous warpgroup MMA, matrix descriptors and cp.async.bulk.tensor; swapped operands as in Machete.

struct alignas(64) TensorMap {  // CUtensorMap
  u8 bytes[128];
};

struct Problem {
  const TensorMap* x;        // [M][K], boxes of kTileM rows of 64
  const TensorMap* weights;  // [N / 16][words], boxes of the tile's row blocks of a stage
  const TensorMap* scales;
  const TensorMap* zeros;
  const TensorMap* steps;
  const u8* channel_scales;  // channel-wise: [N / 16][8][2], else unused
  const u8* channel_zeros;
  int m, n, k;
  int units_quotient, units_remainder;  // of K in slices; tails: units of one, and how many a CTA does
};

namespace wgmma_family {

using namespace config;

enum : int { kGroupsN = kWarpsN };  // warpgroups along N
enum : int { kGroupsK = kWarpsK };  // warpgroups along K
using dequant::kRowCodeBytes;
using scales::kBlocksPerUnit;
using scales::kGroupsPerBlock;
using scales::kStageGroups;
enum : int { kRowBlocks = kTileN / 16 };
enum : int { kActivationBytes = kBlocks * kTileM * 128 };
enum : int { kRowScaleBytes = kStageGroups * scales::kScaleBytes };
enum : int { kRowZeroBytes = kStageGroups * scales::kZeroBytes };
enum : int { kRowStepBytes = kChannelWise ? 0 : scales::kStepBytes };
// Where the planes of a stage begin: tensor copies write to multiples of 128 bytes.
constexpr int align128(int bytes) { return (bytes + 127) / 128 * 128; }
enum : int { kCodeOffset = kActivationBytes };
enum : int { kScaleOffset = kCodeOffset + align128(kRowBlocks * kRowCodeBytes) };
enum : int { kZeroOffset = kScaleOffset + align128(kRowBlocks * kRowScaleBytes) };
enum : int { kStepOffset = kZeroOffset + align128(kRowBlocks * kRowZeroBytes) };
enum : int { kSlotBytes = (kStepOffset + align128(kRowBlocks * kRowStepBytes) + 1023) / 1024 * 1024 };
enum : int { kWeightBytes = kRowBlocks * (kRowCodeBytes + kRowScaleBytes + kRowZeroBytes + kRowStepBytes) };
// `post`: blocks of a stage that share a scale.
enum : bool { kScaleParts = kPostScale && !scales::kDeferred };
enum : int { kPartBlocks = min_of(kBlocks, kChannelWise ? 1 : max_of(1, kGroupSize / 64)) };
// `pre` of two levels: sums are in units of the row's step.
enum : bool { kRunningSteps = kTwoLevel && !kFloatZeros && !kPostScale };
// Stages that a K group takes at a time: those of one step, where each group then sees the same slots again and again.
enum : int { kStepStages = kRunningSteps ? kBlocksPerUnit / kBlocks : 1 };
enum : int { kTurnStages = kGroupsK == 1 || kStages % (kGroupsK * kStepStages) == 0 ? kStepStages : 1 };
static_assert(!kRunningSteps || (!kIntegerZeros && kBlocksPerUnit % kBlocks == 0), "");
static_assert(!kScaleParts || (kGroupsPerBlock == 1 && !kFloatZeros), "");
enum : int { kConsumers = config::kEpilogueThreads };
enum : bool { kSeveral = kPasses > 1 || kTails };  // tiles that a CTA may compute, one after the other
// What is left to sum up lies over the ring; of several tiles, behind the slots that the next one may fill meanwhile. Nothing lies over
// the barriers: of what was pushed there, words came out wrong (H200; PTX ISA, mbarrier.inval: else their memory is not to be used).
enum : int { kRingBytes = kStages * kSlotBytes };
enum : int { kRedOffset = config::kSlotsAhead * kSlotBytes };
enum : int { kBarrierOffset = max_of(kRingBytes, kRedOffset + config::kEpilogueBytes) };
// Large tiles take registers from the producer's warpgroup, two of whose warps do nothing.
enum : bool { kMoveRegisters = kThreads - kConsumers == 128 };
enum : int { kProducerRegisters = kConsumers == 384 ? 32 : 24 };
enum : int { kConsumerRegisters = kConsumers == 256 ? 240 : kConsumers == 384 ? 160 : 112 };
// A CTA has what it was launched with: who asks for more than others have given back waits for ever.
enum : int { kLaunchRegisters = 65536 / kThreads / 8 * 8 };
static_assert(!kMoveRegisters || (kConsumerRegisters - kLaunchRegisters) * kConsumers <= (kLaunchRegisters - kProducerRegisters) * 128, "");

QG_DEVICE void barrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
QG_DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
QG_DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
QG_DEVICE void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
QG_DEVICE void tensor_copy(u32 dst, const TensorMap* map, int column, int row, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                   dst),
               "l"(map), "r"(column), "r"(row), "r"(barrier)
               : "memory");
}
// Of bytes that no other CTA reads, or that all token tiles read at about the same time: they are the first to leave the L2 again,
// but stay for the pass after this one. What createpolicy.fractional makes for all lines:
enum : u64 { kEvictFirst = 0x12f0000000000000ull };  // L2::evict_first
enum : u64 { kKeep = 0x16f0000000000000ull };        // L2::evict_normal
QG_DEVICE void weights_copy(u32 dst, const TensorMap* map, int column, int row, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          dst),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
QG_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
QG_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
QG_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// K-major B in 128-byte swizzled rows: 8 rows are 1024 B apart (PTX ISA, matrix descriptor format).
QG_DEVICE u64 descriptor(u32 address) {
  return static_cast<u64>((address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// What a thread has read or written in shared memory comes before copies into it that it lets others issue (PTX ISA, proxies).
QG_DEVICE void fence_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

struct Slice {
  int first_block, end_block, stages;
};

// The tiles that a CTA computes, one after the other: passes move along M, tails along N.
struct Tiles {
  int count;
  int first_row, first_tile;  // of X; of the tiles along N

  QG_DEVICE void advance() {
    if constexpr (kTails) {
      ++first_tile;
    } else {
      first_row += kTileM;
    }
  }
};

// The parity of the phase that a slot's barriers are in: of how often this thread has taken the slot. Within one tile
// it is that of the ring's rounds; tiles begin at slot 0 and end anywhere, and it is a bit for each slot.
static_assert(!kSeveral || kStages <= 32, "");
QG_DEVICE u32 parity_of(u32 parities, int slot) { return kSeveral ? parities >> slot & 1 : parities; }

// This CTA's.
QG_DEVICE Slice find_slice(const Problem& p) {
  Slice slice;
  if constexpr (kTails) {
    const int blocks_k = (p.k + 63) / 64;
    const int units = (blocks_k + kBlocksPerUnit - 1) / kBlocksPerUnit;
    const int tail = (units - p.units_quotient) * kBlocksPerUnit;
    const bool does_tails = blockIdx.y >= epilogue::tiles_along_n(p.n);
    slice.first_block = does_tails ? tail : 0;
    slice.end_block = does_tails ? blocks_k : tail;
  } else {
    const int z = blockIdx.z;
    const int units = p.units_quotient + (z < p.units_remainder ? 1 : 0);
    slice.first_block = (z * p.units_quotient + min_of(z, p.units_remainder)) * kBlocksPerUnit;
    slice.end_block = min_of(slice.first_block + units * kBlocksPerUnit, (p.k + 63) / 64);
  }
  slice.stages = (slice.end_block - slice.first_block + kBlocks - 1) / kBlocks;
  return slice;
}
QG_DEVICE Tiles find_tiles(const Problem& p) {
  Tiles tiles{1, static_cast<int>(blockIdx.x) * (kPasses * kTileM), static_cast<int>(blockIdx.y)};
  if constexpr (kPasses > 1) tiles.count = min_of((p.m - tiles.first_row + kTileM - 1) / kTileM, kPasses);  // that have rows of X
  if constexpr (kTails) {
    const int along_n = epilogue::tiles_along_n(p.n);
    if (tiles.first_tile >= along_n) {
      tiles.first_tile = (tiles.first_tile - along_n) * p.units_remainder;
      tiles.count = min_of(along_n - tiles.first_tile, p.units_remainder);
    }
  }
  return tiles;
}

// One thread fills its planes of stage after stage as the consumers free them. A copy instruction costs it about 100
// clocks, whatever its size: one per plane and stage (a copy per 16-row block was limited by this thread alone), and one
// thread for the activations beside that of the weights.
template <bool kActivations>
QG_DEVICE void produce(const Problem& p, const Slice& slice, Tiles tiles, u32 ring, u32 full, u32 empty, u32 summed) {
  const int blocks_k = (p.k + 63) / 64;
  int slot;
  u32 parities = kSeveral ? ~0u : 1;
#pragma unroll 1
  for (int tile = 0; tile < tiles.count; ++tile) {
    const int first_row_block = tiles.first_tile * kRowBlocks;
    const u64 policy = !kTails && tile + 1 < tiles.count ? kKeep : kEvictFirst;
    slot = 0;
#pragma unroll 1
    for (int s = 0; s < slice.stages; ++s) {
      // A slot is empty before it is first taken.
      if (kSeveral || s >= kStages) barrier_wait(empty + slot * 8, parity_of(parities, slot));
      if constexpr (kSeveral) parities ^= 1u << slot;
      // The first slot that holds what the tile before leaves to sum up.
      if (kSeveral && kSlotsAhead < kStages && s == kSlotsAhead && tile > 0) barrier_wait(summed, (tile - 1) & 1);
      const u32 base = ring + slot * kSlotBytes, barrier = full + slot * 8;
      const int block = slice.first_block + s * kBlocks;
      if constexpr (kActivations) {
        barrier_expect(barrier, kActivationBytes);
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const int k = block + j < slice.end_block ? (block + j) * 64 : blocks_k * 64;  // beyond K: zeros
          tensor_copy(base + j * kTileM * 128, p.x, k, tiles.first_row, barrier);
        }
      } else {
        barrier_expect(barrier, kWeightBytes);
        weights_copy(base + kCodeOffset, p.weights, block * (dequant::kBlockBytes / 8), first_row_block, barrier, policy);
        if constexpr (!kChannelWise) {
          const int group = block * 64 / kGroupSize;
          weights_copy(base + kScaleOffset, p.scales, group * (scales::kScaleBytes / 8), first_row_block, barrier, policy);
          if constexpr (kRowZeroBytes > 0) {
            weights_copy(base + kZeroOffset, p.zeros, group * (scales::kZeroBytes / 8), first_row_block, barrier, policy);
          }
          if constexpr (kRowStepBytes > 0) {
            weights_copy(base + kStepOffset, p.steps, block / 4 * (kRowStepBytes / 8), first_row_block, barrier, policy);
          }
        }
      }
      if (++slot == kStages) {
        slot = 0;
        if constexpr (!kSeveral) parities ^= 1;
      }
    }
    tiles.advance();
  }
}

using scales::RunningStep;
using scales::Scale;

// Codes of one fragment and block, dequantized and scaled: the A registers of four k16 steps.
QG_DEVICE void load_block(u32 (&a)[4][4], scales::Pair& last, const u8* stage, int row_block, int j, int lane,
                          const Scale& row_scale, RunningStep& step) {
  const dequant::Codes q =
      dequant::load_codes(stage + kCodeOffset + row_block * kRowCodeBytes + j * dequant::kBlockBytes, lane);
#pragma unroll
  for (int g = 0; g < kGroupsPerBlock; ++g) {
    Scale scale = row_scale;
    if constexpr (!kChannelWise) {
      const int group = kGroupSize >= 64 ? j * 64 / kGroupSize : j * kGroupsPerBlock + g;
      const u8* plane = stage + kScaleOffset + row_block * kRowScaleBytes;
      if constexpr (kRunningSteps) {
        if (kGroupSize <= 64 || j * 64 % kGroupSize == 0) step.read_codes(plane, group, lane / 4);
        scale.offsets = dequant::make_offsets(1u << (kBits - 1), 1u << (kBits - 1));
      } else {
        scale = scales::read(plane, stage + kZeroOffset + row_block * kRowZeroBytes,
                             stage + kStepOffset + row_block * kRowStepBytes, group, lane / 4);
      }
    }
#pragma unroll
    for (int w = g * 4 / kGroupsPerBlock; w < (g + 1) * 4 / kGroupsPerBlock; ++w) {
      dequant::step(q, w, scale.offsets, a[w]);
      if constexpr (kRunningSteps) {
        scales::apply(step, a[w]);
      } else if constexpr (!kScaleParts) {
        scales::apply(scale, a[w]);
      }
    }
    last = scale.s;
  }
}

// Orders the compiler's uses of accumulators behind the asm before: it does not know that a batch writes them late.
template <int kCount>
QG_DEVICE void settle(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// acc += s * part; rows g and g + 8 take turns in pairs.
QG_DEVICE void add_part(float (&acc)[kTileM / 2], const float (&part)[kTileM / 2], const scales::Pair& s, bool nothing) {
#pragma unroll
  for (int i = 0; i < kTileM / 2; ++i) acc[i] += nothing ? 0.f : s.value(i / 2 % 2) * part[i];
}

// Sums in units of another step.
QG_DEVICE void rescale(float (&acc)[kTileM / 2], const float (&ratio)[2]) {
#pragma unroll
  for (int i = 0; i < kTileM / 2; ++i) acc[i] *= ratio[i / 2 % 2];
}

QG_DEVICE void run(const Problem& p, const Output& out) {
  extern __shared__ __align__(1024) u8 shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = warp_index();
  const u32 ring = shared_address(shared);
  const u32 full = ring + kBarrierOffset, empty = full + kStages * 8, summed = empty + kStages * 8;
  if (tid == 0) {
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) {
      barrier_init(full + s * 8, 2);  // the producers
      barrier_init(empty + s * 8, 4 * kGroupsN);
    }
    if constexpr (kSeveral) barrier_init(summed, kConsumers / 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  const Slice slice = find_slice(p);
  Tiles tiles = find_tiles(p);

  if (warp >= kConsumers / 32) {
    if constexpr (kMoveRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(+kProducerRegisters));
    if (tid == kConsumers) produce<false>(p, slice, tiles, ring, full, empty, summed);
    if (tid == kConsumers + 32) {
      wait_for_kernel_before();  // whatever else this one reads or writes waits for these activations
      produce<true>(p, slice, tiles, ring, full, empty, summed);
    }
    return;
  }
  if constexpr (kMoveRegisters) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(+kConsumerRegisters));
  const int group_n = (warp >> 2) % kGroupsN, group_k = (warp >> 2) / kGroupsN;
  const int fragment = warp & 3;
  int rows = min_of(p.m - tiles.first_row, kTileM);
  epilogue::Plan plan = {};
  if constexpr (epilogue::kPlansEarly) plan = epilogue::make_plan(out, rows);
  if (tid == 0) epilogue::prefetch_outputs(out, kTileM * kTileN * 4, tiles.first_row, tiles.first_tile * kTileN);
  Scale row_scale[kRowTiles];  // channel-wise
  const auto read_row_scales = [&] {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const i64 row_block = min_of(tiles.first_tile * kRowBlocks + (group_n * kRowTiles + r) * 4 + fragment, (p.n + 63) / 64 * 4 - 1);
      row_scale[r] = scales::read(p.channel_scales + row_block * scales::kScaleBytes,
                                  p.channel_zeros + row_block * scales::kZeroBytes, nullptr, 0, lane / 4);
    }
  };
  if constexpr (kChannelWise) read_row_scales();
  int slot, previous;
  u32 parities = 0;
#pragma unroll 1
  for (int tile = 0; tile < tiles.count; ++tile) {
    float acc[kRowTiles][kTileM / 2];
    float part[kRowTiles][kTileM / 2];  // `post`
    scales::Pair part_scale[kRowTiles];
    if constexpr (kScaleParts) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < kTileM / 2; ++i) acc[r][i] = 0.f;
      }
    }
    RunningStep step[kRowTiles];
    const int first_stage = group_k * kTurnStages;
    slot = first_stage;
    previous = 0;
    int next_stage;
#pragma unroll 1
    for (int s = first_stage; s < slice.stages; s = next_stage) {
      barrier_wait(full + slot * 8, parity_of(parities, slot));
      if constexpr (kSeveral) parities ^= 1u << slot;
      const u8* stage = shared + slot * kSlotBytes;
      const u64 activations = descriptor(ring + slot * kSlotBytes);
      const auto batch = [&](float(&d)[kTileM / 2], const u32(&a)[4][4], int j, bool fresh) {
        wgmma_fence();
#pragma unroll
        for (int w = 0; w < 4; ++w) wgmma_issue(d, a[w], activations + j * kTileM * 8 + w * 2, !fresh || w != 0);
        wgmma_commit();
        wgmma_wait<1>();
      };
      // After a stage's first batch all batches of the stage before are done.
      const auto release = [&] {
        if (s != first_stage && lane == 0) barrier_arrive(empty + previous * 8);
      };
      if constexpr (kScaleParts) {
#pragma unroll
        for (int first = 0; first < kBlocks; first += kPartBlocks) {
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            scales::Pair next;
#pragma unroll
            for (int j = first; j < first + kPartBlocks; ++j) {
              u32 a[4][4];
              load_block(a, next, stage, (group_n * kRowTiles + r) * 4 + fragment, j, lane, row_scale[r], step[r]);
              if (j == first) {
                wgmma_wait<0>();
                settle(part[r]);
                add_part(acc[r], part[r], part_scale[r], first == 0 && s == first_stage);
              }
              batch(part[r], a, j, j == first);
              if (j == 0 && r == 0) release();
            }
            part_scale[r] = next;
          }
        }
      } else {
        float ratio[kRowTiles][2];
        const bool next_unit = kRunningSteps && s % kTurnStages == 0;
        if (next_unit) {
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            step[r].advance(stage + kStepOffset + ((group_n * kRowTiles + r) * 4 + fragment) * kRowStepBytes, lane / 4, ratio[r]);
          }
        }
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            u32 a[4][4];
            scales::Pair unused;
            load_block(a, unused, stage, (group_n * kRowTiles + r) * 4 + fragment, j, lane, row_scale[r], step[r]);
            if (j == 0 && r == 0 && next_unit) {
              wgmma_wait<0>();
#pragma unroll
              for (int i = 0; i < kRowTiles; ++i) {
                settle(acc[i]);
                rescale(acc[i], ratio[i]);
              }
            }
            batch(acc[r], a, j, s == first_stage && j == 0);
            if (j == 0 && r == 0) release();
          }
        }
      }
      previous = slot;
      const int distance = (s + 1) % kTurnStages == 0 ? (kGroupsK - 1) * kTurnStages + 1 : 1;
      next_stage = s + distance;
      slot += distance;
      if (slot >= kStages) {
        slot -= kStages;
        if constexpr (!kSeveral) parities ^= 1;
      }
    }
    if (tile + 1 == tiles.count) let_next_kernel_start();
    wgmma_wait<0>();
    if (kSeveral && first_stage < slice.stages && lane == 0) barrier_arrive(empty + previous * 8);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      if constexpr (kScaleParts) {
        settle(part[r]);
        add_part(acc[r], part[r], part_scale[r], false);
      } else {
        settle(acc[r]);  // else casts may come before the wait, and ptxas serialises every wgmma for them
      }
    }
    const bool idle = kGroupsK > 1 && first_stage >= slice.stages;  // this K group had no stage; a slice has one at least
    if constexpr (scales::kDeferred || kRunningSteps) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < kTileM / 2; ++i) {
          if constexpr (scales::kDeferred) acc[r][i] *= row_scale[r].s.value(i / 2 % 2);
          if constexpr (kRunningSteps) acc[r][i] *= step[r].value[i / 2 % 2];
        }
      }
    }
    epilogue::run(acc, idle, shared + kRedOffset, out, plan, rows, tiles.first_row, tiles.first_tile * kTileN);
    if constexpr (kSeveral) {
      fence_before_copies();
      __syncwarp();
      if (lane == 0) barrier_arrive(summed);
      tiles.advance();
      rows = min_of(p.m - tiles.first_row, kTileM);
      if constexpr (kTails && kChannelWise) read_row_scales();
    }
  }
}

}  // namespace wgmma_family

// What every kernel needs is in one line of 64 bytes behind the maps: a line that is not in the constants' cache takes 0.27 us, and the
// kernel waits for it.
extern "C" __global__ void __launch_bounds__(config::kThreads, 1)
    qgemm_wgmma(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weights,
                const __grid_constant__ TensorMap scales, const __grid_constant__ TensorMap zeros,
                const __grid_constant__ TensorMap steps, int m, int n, int k, int units_quotient, int units_remainder, void* y,
                void* workspace, i64 ldy, i64 ldr, const void* bias, const void* residual, const u8* channel_scales,
                const u8* channel_zeros) {
  wgmma_family::run(Problem{&x, &weights, &scales, &zeros, &steps, channel_scales, channel_zeros, m, n, k, units_quotient,
                            units_remainder},
                    Output{y, bias, residual, workspace, m, n, ldy, ldr});
}
