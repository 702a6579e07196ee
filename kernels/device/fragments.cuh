// The epilogue of family wgmma, whose accumulators are in registers.
//
// A fragment is what a warp has of 16 rows of W and 8 tokens: a Float4 of each lane, 512 bytes. It is exchanged as it is, in this order:
// staged, in the workspace or pushed.
//
//   K groups          two: each keeps every second fragment, gives the others away and adds what it gets
//   one slice         kept sums -> rows of sums in shared memory -> Y: whole lines
//   S slices          kept fragments are dealt to the slices in turn, so that each CTA has about as many to add in each warp. What others
//                     add goes straight from registers to the workspace, or to them. A warp turns what it has added round in its own
//                     corner of shared memory and stores 16 columns of 8 rows: no barrier behind the wait for the others.
//                     Kernels of more than 32 kept fragments a warp, or of several passes, have no code for it (kMaySplit).
//                     Partial sums that were added are dropped from the L2 cache, which else writes them to memory later.
//   packed            where sums want nothing but a bias and their cast to 16 bits (kPacked), they are cast in registers and turned round by
//                     stmatrix: rows of 16-bit results in shared memory, and 16 bytes a store. The rest is in fp32 until it is stored.
//   tails             (wgmma.cuh) two CTAs a tile: all fragments of the first to the workspace, from which the second adds them to its
//                     accumulators, and goes on as with one slice
//   partials          [fragment u][warp of the K group][lane][4], u = token fragment * kRowTiles + row tile
//
// Shared memory: staged fragments [u][warp of the K group], in the tile's order | corners [warp][kAtOnce][8][20] fp32 | pushed fragments
// [of the warp's share][slice but one][warp]. All over the ring.
//
// Beside rows.cuh's way for the same candidates (H200, int4 g128 bf16, us after a memset): 5376x21504, M 64, six slices in the workspace
// 31.2 -> 29.9, 6656x19968, five slices, 34.6 -> 33.4, 5376x4096, M 128, three 15.8 -> 15.0; in clusters 8448x6656, M 128, two slices
// 24.5 -> 23.9, 1024x6656, M 128, six 9.8 -> 8.9, M 16 5.7 -> 5.4.
// Packed, beside rows of fp32: 5376x4096 M 128, three slices 15.5 -> 15.1, M 256, one slice 24.7 -> 23.9, 8448x6656 M 128, two slices of a
// cluster 24.5 -> 23.9; nothing at M 64. Six fragments of two slices at once instead of four of four: 15.1 -> 14.7. Discarded lines cost 0.1 to
// 0.3 us after a memset (M 128 13.6 -> 13.9, M 64 29.5 -> 29.5 to 29.9) and save 0.5 to 3 after reads (15.0 -> 13.9, 30.5 -> 29.9, 34.7 -> 33.3
// with five slices), where memory would else write them back while the next kernel reads.
//
// Tried and slower: a ticket for each warp of a tile, so that warps wait for none but their like, without barriers (0.2 to 0.7 us); one CTA with
// a longer slice that adds the sums of the others, copied into its ring while it still multiplies (5376x4096, M 128, slices of 9, 9 and 14
// groups 14.9 against 14.7 us; a quarter less for NVRTC; faster only where CTAs of a tile do not add together, M 96 15.6 -> 13.5);
// branches around loads of slices that do not exist instead of predicates (16.9 against 15.5 us, 192 x 128 results, four
// slices of a cluster); pushes from staged sums in a rolled loop (0.1 to 0.3 us); one loop that stores both rows and what was turned round
// (M 1024 60.8 to 63.7; 5 ms of 190 less for NVRTC); pushes of 128 x 64 results and more from several warpgroups to one other slice (1 to 7 %
// more; to three and more they are as fast as reads, or faster: one warpgroup with one row tile always pushes, 1024x6656, M 128, 9.6 to 8.9).
// Tiles of 64 tokens and two warpgroups along N added by all of their CTAs, six fragments of two slices at once: 2 to 8 % less, and still
// behind others (M 64, 5376x4096 11.8 to 10.7 beside 9.6, 5376x21504 32.9 to 31.4 beside 30.2); of 96 tokens, where it is done, 15.4 to 13.1
// and 40.3 to 37.0, the best there. Sums of tiles of more than 4096 results and several warpgroups read in a cluster by each CTA for its share:
// within 1 % of the workspace or behind it in all cells but one (M 96, 6 %, before the above).

namespace epilogue {

enum : int { kWarps = config::kEpilogueThreads / 32 };
enum : int { kGroupWarps = kWarps / config::kWarpsK };
enum : int { kFragments = config::kRowTiles * config::kTileM / 8 };  // of a warp's accumulators: u = token fragment * kRowTiles + row tile
enum : int { kKept = (kFragments + config::kWarpsK - 1) / config::kWarpsK };
enum : int { kFragmentBytes = 512 };  // a Float4 of each lane
enum : int { kStepBytes = config::kWarpsK * kGroupWarps * kFragmentBytes };  // from a kept fragment to the next
enum : int { kTileBytes = kFragments * kGroupWarps * kFragmentBytes };
enum : int { kAtOnce = min_of(kKept, config::kFragmentsAtOnce) };  // whose partial sums a warp asks for before it adds the first
enum : int { kTurnRow = 20 };  // floats from a token to the next where a warp turns a fragment round: few bank conflicts
enum : int { kTurnFloats = 8 * kTurnRow };
static_assert(config::kWarpsK <= 2 && kTileBytes == config::kTileM * config::kTileN * 4, "");

// Accumulators of fragment u: rows g, g, g + 8, g + 8 of W with tokens t2, t2 + 1, t2, t2 + 1.
template <int kCount>
QG_DEVICE Float4 fragment(const float (&acc)[config::kRowTiles][kCount], int u, bool nothing) {
  const float* c = acc[u % config::kRowTiles] + u / config::kRowTiles * 4;
  return nothing ? Float4{} : Float4{c[0], c[1], c[2], c[3]};
}

// Sums that want nothing but a bias and their cast change places in Y's 16-bit type: half the bytes, and a quarter of the instructions.
enum : bool { kPacked = !config::kOutIsFp32 && config::kActivation == 0 && !config::kGated && !config::kResidual };
enum : int { kPackedRow = config::kTileN * 2 + 16 };  // bytes from a token to the next: no bank conflicts

// What is added to rows g and g + 8 of the 16 that a fragment has.
struct RowBias {
  float low, high;
};
QG_DEVICE RowBias row_bias(const Output& out, int row) {
  if constexpr (!config::kBias) return RowBias{};
  return RowBias{row < out.n ? read_out_type(out.bias, row) : 0.f, row + 8 < out.n ? read_out_type(out.bias, row + 8) : 0.f};
}
// A fragment is two matrices of 8 rows of W and 8 tokens. Turned round, a row of them is 8 columns of Y (PTX ISA, stmatrix): lane i of each
// eight says where that of token i goes.
QG_DEVICE void store_turned(u32 address, const Float4& a, const RowBias& bias) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(address), "r"(act::pack(a.x + bias.low, a.y + bias.low)),
               "r"(act::pack(a.z + bias.high, a.w + bias.high))
               : "memory");
}
QG_DEVICE void store_turned(u32 address, const Float4& a, const RowBias& bias_a, const Float4& b, const RowBias& bias_b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(act::pack(a.x + bias_a.low, a.y + bias_a.low)), "r"(act::pack(a.z + bias_a.high, a.w + bias_a.high)),
               "r"(act::pack(b.x + bias_b.low, b.y + bias_b.low)), "r"(act::pack(b.z + bias_b.high, b.w + bias_b.high))
               : "memory");
}
// 8 columns of a row of Y, from 16 bytes of shared memory on: whole ones by one store, others one by one.
QG_DEVICE void copy_columns(const Output& out, i64 row, int col, const u8* from) {
  const int there = min_of(out.n - col, 8);
  u16* const y = static_cast<u16*>(out.y) + (row * out.ldy + col);
  if (there == 8 && (out.ldy & 7) == 0) {
    *reinterpret_cast<Vec4*>(y) = *reinterpret_cast<const Vec4*>(from);
  } else {
#pragma unroll 1
    for (int i = 0; i < there; ++i) y[i] = reinterpret_cast<const u16*>(from)[i];
  }
}

// One slice of K, and one K group: all sums packed into shared memory, and rows of them to Y.
template <int kCount>
QG_DEVICE void store_packed(const float (&acc)[config::kRowTiles][kCount], u8* packed, const Output& out, int rows, int first_row,
                            int first_col) {
  const int tid = threadIdx.x, lane = tid & 31, warp = warp_index();
#pragma unroll
  for (int r = 0; r < config::kRowTiles; ++r) {
    const int first = ((warp / 4 * config::kRowTiles + r) * 4 + warp % 4) * 16;
    const RowBias bias = row_bias(out, first_col + first + lane / 4);
    const u32 to = shared_address(packed) + (lane / 16 * 8 + lane % 8) * kPackedRow + (first + (lane & 8)) * 2;
#pragma unroll
    for (int t = 0; t < config::kTileM / 8; t += 2) {
      const Float4 even = fragment(acc, t * config::kRowTiles + r, false);
      if (t + 1 < config::kTileM / 8) {
        store_turned(to + t * 8 * kPackedRow, even, bias, fragment(acc, (t + 1) * config::kRowTiles + r, false), bias);
      } else {
        store_turned(to + t * 8 * kPackedRow, even, bias);
      }
    }
  }
  barrier();
  enum : int { kVectors8 = config::kTileN / 8, kStep = config::kEpilogueThreads / kVectors8 };
  const int col = tid % kVectors8 * 8;
#pragma unroll 1
  for (int m = tid / kVectors8; m < rows && first_col + col < out.n; m += kStep) {
    copy_columns(out, static_cast<i64>(first_row) + m, first_col + col, packed + m * kPackedRow + col * 2);
  }
}

// One slice of K: all sums into shared memory, and rows of them to Y.
template <int kCount>
QG_DEVICE void store_rows(const float (&acc)[config::kRowTiles][kCount], bool nothing, float* red, const Output& out, int rows,
                          int first_row, int first_col) {
  const int tid = threadIdx.x, lane = tid & 31, warp = warp_index();
  const int group_k = warp / kGroupWarps, group_warp = warp % kGroupWarps;
  const int g = lane / 4, t2 = lane % 4 * 2;
#pragma unroll
  for (int r = 0; r < config::kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < config::kTileM / 8; ++t) {
      Partial* o = red + (group_k * config::kTileM + t * 8 + t2) * kRow + ((group_warp / 4 * config::kRowTiles + r) * 4 + group_warp % 4) * 16 + g;
      const float* c = acc[r] + t * 4;
      o[0] = nothing ? 0.f : c[0];
      o[kRow] = nothing ? 0.f : c[1];
      o[8] = nothing ? 0.f : c[2];
      o[kRow + 8] = nothing ? 0.f : c[3];
    }
  }
  barrier();
  const int v = tid % kVectors, first = tid / kVectors;  // this thread's float4 of each row, and the first of its rows
  Columns columns(out, first_col + v * 4, static_cast<i64>(first_row) + first, kRowStep);
#pragma unroll 1
  for (int m = first; m < rows && columns.there > 0; m += kRowStep) {
    const float* sum = red + m * kRow + v * 4;
    Float4 s = *reinterpret_cast<const Float4*>(sum);
    if constexpr (config::kWarpsK > 1) add(s, *reinterpret_cast<const Float4*>(sum + config::kTileM * kRow));
    columns.store(s);
  }
}

// A slice's sums, from where its CTA wrote them. Without a branch, so that all are asked for before the first is waited for. Where it is not
// there, nothing is known of `v`, and add_if() takes it for nothing.
template <int kTileBytes>
QG_DEVICE void load_slice(Float4& v, const u8* from, int slice, bool there) {
  asm volatile(
      "{\n.reg .pred there;\n.reg .b64 at;\nsetp.ne.b32 there, %5, 0;\nmad.wide.u32 at, %6, %7, %4;\n"
      "@there ld.relaxed.gpu.v4.f32 {%0,%1,%2,%3}, [at];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "l"(from), "r"(static_cast<int>(there)), "r"(slice), "n"(kTileBytes)
      : "memory");
}
QG_DEVICE void add_if(Float4& s, const Float4& v, bool there) {
  if (there) add(s, v);
}
QG_DEVICE void stage_if(u32 address, const Float4& v, bool there) {
  asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n@there st.shared.v4.f32 [%0], {%1,%2,%3,%4};\n}" ::"r"(address),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(static_cast<int>(there))
               : "memory");
}
QG_DEVICE void write_if(u8* partial, const Float4& v, bool there) {
  asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n@there st.global.cg.v4.f32 [%0], {%1,%2,%3,%4};\n}" ::"l"(partial),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(static_cast<int>(there))
               : "memory");
}

// Who adds what, and where the sums of slices are: what a warp can know before it has any. Its hundred instructions are run while all wait for
// the first copies, not behind the main loop (M 64, four warpgroups along N: 30.0 -> 29.6 us, 32.5 -> 32.1), but where the main loop wants the
// registers (128 tokens: 22.7 -> 23.4, 96 tokens: 36.8 -> 39.0; four warpgroups with more than the plainest format and epilogue would spill)
// or CTAs of one warpgroup would no longer share an SM (5376x4096, M 64: 9.9 -> 15.0).
enum : bool { kPlain = kPacked && !config::kBias && !scales::kSplit && !config::kIntegerZeros && !config::kFloatZeros };
enum : bool { kFewRegisters = config::kEpilogueThreads >= 512 && !kPlain };
enum : bool { kPlansEarly = config::kMaySplit && config::kEpilogueThreads >= 256 && config::kTileM <= 64 && !kFewRegisters };
struct Plan {
  bool pushes, together;  // in a cluster; by all CTAs of the tile
  int place;              // of this lane's part of the first fragment that this warp keeps, in what a slice has of this tile
  int start;              // the slice that adds the first
  int count;              // of fragments with tokens that exist
  u32 own, others;        // of these, as bits: what this CTA adds, and what it does not
  u32* ticket = nullptr;  // these two early only, and not in a cluster
  const u8* partials = nullptr;  // of slice 0, at `place`

  QG_DEVICE int first_of(int share, int slices) const { return share >= start ? share - start : share - start + slices; }
};

QG_DEVICE Plan make_plan(const Output& out, int rows) {
  static_assert(kKept <= 32 || !config::kMaySplit, "");
  Plan p;
  const int slices = gridDim.z, warp = warp_index();
  const int group_k = warp / kGroupWarps, group_warp = warp % kGroupWarps;
  p.pushes = config::kPush && slices_in_cluster() > 1;
  p.together = false;
  if constexpr (config::kMayShare) {
    p.together = !p.pushes && slices <= config::kMostShares && all_resident(slices);
  }
  p.place = (group_k * kGroupWarps + group_warp) * kFragmentBytes + (threadIdx.x & 31) * 16;
  p.count = ((rows + 7) / 8 * config::kRowTiles - group_k + config::kWarpsK - 1) / config::kWarpsK;
  // Fragments of a tile are dealt to its slices in turn, warp after warp; who has one adds it.
  const int dealt = warp * kKept;
  p.start = dealt - whole_parts(dealt, reciprocal(static_cast<float>(slices))) * slices;
  p.own = 0;
#pragma unroll 1
  for (int i = p.first_of(blockIdx.z, slices); i < p.count; i += slices) p.own |= 1u << i;
  p.others = static_cast<u32>((1ull << p.count) - 1) & ~p.own;
  if constexpr (kPlansEarly) {
    find_in_workspace(out, slices, kTileBytes, p.place, p.ticket, p.partials);
    // Else the compiler puts off what is not used before the end.
    asm volatile("" : "+r"(p.start), "+r"(p.count), "+r"(p.own), "+r"(p.others), "+l"(p.ticket), "+l"(p.partials));
  }
  return p;
}

// Several slices of K.
template <int kCount>
QG_DEVICE void add_slices(const float (&acc)[config::kRowTiles][kCount], bool nothing, u8* shared, const Output& out, const Plan& plan,
                          int rows, int first_row, int first_col) {
  const int slices = gridDim.z, self = blockIdx.z;
  const int tid = threadIdx.x, lane = tid & 31, warp = warp_index();
  const int group_k = warp / kGroupWarps, group_warp = warp % kGroupWarps;
  const bool pushes = plan.pushes, together = plan.together;
  u8* const staged = shared + plan.place;
  const int count = plan.count, start = plan.start;
  const auto next = [&](int z) { return z + 1 == slices ? 0 : z + 1; };
  const auto first_of = [&](int share) { return plan.first_of(share, slices); };
  const u32 own = plan.own, others = plan.others;

  Float4 kept[kKept];
  if constexpr (config::kWarpsK == 1) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) kept[i] = fragment(acc, i, false);
  } else {
    // The K groups keep fragments in turn, and give the others away.
    barrier();  // nobody reads the ring any more, and every copy into it was waited for
    u8* const given = shared + ((1 - group_k) * kGroupWarps + group_warp) * kFragmentBytes + lane * 16;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const Float4 even = fragment(acc, 2 * i, nothing), odd = 2 * i + 1 < kFragments ? fragment(acc, 2 * i + 1, nothing) : Float4{};
      kept[i] = group_k ? odd : even;
      if (2 * i + 1 < kFragments || group_k) *reinterpret_cast<Float4*>(given + i * kStepBytes) = group_k ? even : odd;
    }
    barrier();
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (2 * i + 1 < kFragments || !group_k) add(kept[i], *reinterpret_cast<const Float4*>(staged + i * kStepBytes));
    }
  }
  __shared__ u64 pushed;
  __shared__ u32 taken;
  float* const turn = reinterpret_cast<float*>(shared + kTileBytes) + warp * (kAtOnce * kTurnFloats);
  u8* const received = shared + kTileBytes + kWarps * kAtOnce * kTurnFloats * 4 + warp * kFragmentBytes + lane * 16;
  const int g = lane / 4, t2 = lane % 4 * 2;
  // The columns of Y that row tile r of this warp is.
  const auto first_of_tile = [&](int r) { return first_col + ((group_warp / 4 * config::kRowTiles + r) * 4 + group_warp % 4) * 16; };
  const auto columns_of = [&](int r) { return Columns(out, first_of_tile(r) + t2 * 2, static_cast<i64>(first_row) + g, 8); };
  u32 shares = 1u << self;  // that this CTA adds, as bits
  bool all = false;         // or every one
  u32* ticket = plan.ticket;
  u32 state = ~0u;  // of the ticket, before a departure that is written down at the end
  const u8* partials = plan.partials;
  if (pushes) {
    if (tid == 0) make_push_barrier(shared_address(&pushed), kWarps);
    cluster_meet();  // nobody reads its ring any more, and there is the barrier of each
    if (lane == 0) expect_pushes(shared_address(&pushed), __popc(own) * (slices - 1) * kFragmentBytes);
    int z = start, round = 0, in_round = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const u32 to = shared_address(received) + (round * (slices - 1) + self - (self > z ? 1 : 0)) * (kWarps * kFragmentBytes);
      push_if(to, z, kept[i], shared_address(&pushed), (others & 1u << i) != 0);
      z = next(z);
      if (++in_round == slices) in_round = 0, ++round;
    }
  } else {
    if constexpr (!kPlansEarly) find_in_workspace(out, slices, kTileBytes, plan.place, ticket, partials);
    u8* const mine = const_cast<u8*>(partials) + static_cast<i64>(self) * kTileBytes;
    const u32 written = together ? others : own | others;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      write_if(mine + i * kStepBytes, kept[i], (written & 1u << i) != 0);
    }
    barrier();  // and nobody reads the ring any more
    if (tid == 0) taken = take(ticket, slices, false, together, false);
  }
  const u32 kept_here = pushes || together ? own : 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) stage_if(shared_address(staged) + i * kStepBytes, kept[i], (kept_here & 1u << i) != 0);
  Columns columns;
  RowBias bias;
  if constexpr (kPacked) {
    bias = row_bias(out, first_of_tile(0) + g);
  } else {
    columns = columns_of(0);
  }
  if (pushes) {
    wait_for_pushes(shared_address(&pushed));
  } else {
    barrier();
    shares = taken;
    all = !together && shares != 0;
    if (together && shares == 0) {  // its patience is over
      u8* const mine = const_cast<u8*>(partials) + static_cast<i64>(self) * kTileBytes;
#pragma unroll 1
      for (int i = first_of(self); i < count; i += slices) {
        store_cg(reinterpret_cast<Float4*>(mine + i * kStepBytes), *reinterpret_cast<const Float4*>(staged + i * kStepBytes));
      }
      barrier();
      if (tid == 0) taken = take(ticket, slices, false, together, true);
      barrier();
      shares = taken;
    } else if (together && tid == 0) {
      state = ticket_depart(ticket);  // nothing waits for the answer before the end
    }
  }

#pragma unroll 1
  for (; shares != 0; shares &= shares - 1) {
    int share = all ? start : __ffs(shares) - 1, round = 0;
    const int stride = all ? 1 : slices, begin = all ? 0 : first_of(share);
#pragma unroll 1
    for (int i = begin; i < count; i += kAtOnce * stride) {
      Float4 sum[kAtOnce];
      const u8* from[kAtOnce];
      int skipped[kAtOnce], limit[kAtOnce];
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
        const int offset = (i + h * stride) * kStepBytes;
        const bool there = i + h * stride < count;
        skipped[h] = share;
        limit[h] = there ? slices - 1 : 0;
        from[h] = partials + offset;
        if ((pushes || together) && share == self) {
          if (there) sum[h] = *reinterpret_cast<const Float4*>(staged + offset);
        } else {
          load_slice<kTileBytes>(sum[h], from[h], share, there);
        }
        if (all) share = next(share);
      }
      if (pushes) {
#pragma unroll
        for (int h = 0; h < kAtOnce; ++h) {
#pragma unroll 1
          for (int z = 0; z < limit[h]; ++z) {
            add(sum[h], *reinterpret_cast<const Float4*>(received + (round * (slices - 1) + z) * (kWarps * kFragmentBytes)));
          }
          ++round;
        }
      } else {
#pragma unroll 1
        for (int z = 0; z < slices - 1; z += config::kSlicesAtOnce) {
          Float4 part[kAtOnce][config::kSlicesAtOnce];
#pragma unroll
          for (int h = 0; h < kAtOnce; ++h) {
#pragma unroll
            for (int j = 0; j < config::kSlicesAtOnce; ++j) {
              load_slice<kTileBytes>(part[h][j], from[h], z + j + (z + j >= skipped[h] ? 1 : 0), z + j < limit[h]);
            }
          }
#pragma unroll
          for (int h = 0; h < kAtOnce; ++h) {
#pragma unroll
            for (int j = 0; j < config::kSlicesAtOnce; ++j) add_if(sum[h], part[h][j], z + j < limit[h]);
          }
        }
      }
      if constexpr (kPacked) {
        u8* const packed = reinterpret_cast<u8*>(turn) + lane * 16;
        const auto bias_of = [&](int i) {
          if constexpr (config::kRowTiles == 1) return bias;
          return row_bias(out, first_of_tile((i * config::kWarpsK + group_k) % config::kRowTiles) + g);
        };
#pragma unroll
        for (int h = 0; h < kAtOnce; h += 2) {
          const u32 to = shared_address(packed) + h * 256;
          if (h + 1 < kAtOnce) {
            store_turned(to, sum[h], bias_of(i + h * stride), sum[h + 1], bias_of(i + (h + 1) * stride));
          } else {
            store_turned(to, sum[h], bias_of(i + h * stride));
          }
        }
        __syncwarp();
        // Half a warp copies each of two fragments.
#pragma unroll 1
        for (int h = lane / 16; h < kAtOnce; h += 2) {
          const int at = i + h * stride, u = at * config::kWarpsK + group_k;
          const int m = u / config::kRowTiles * 8 + lane % 8, col = first_of_tile(u % config::kRowTiles) + (lane & 8);
          if (at < count && m < rows && col < out.n) {
            copy_columns(out, static_cast<i64>(first_row) + m, col, packed + h / 2 * 512);
          }
        }
      } else {
#pragma unroll
        for (int h = 0; h < kAtOnce; ++h) {
          Partial* o = turn + h * kTurnFloats + t2 * kTurnRow + g;
          o[0] = sum[h].x;
          o[kTurnRow] = sum[h].y;
          o[8] = sum[h].z;
          o[kTurnRow + 8] = sum[h].w;
        }
        __syncwarp();
#pragma unroll 1
        for (int h = 0; h < kAtOnce && i + h * stride < count; ++h) {
          const int u = (i + h * stride) * config::kWarpsK + group_k, t = u / config::kRowTiles;
          if constexpr (config::kRowTiles > 1) columns = columns_of(u % config::kRowTiles);
          if (t * 8 + g < rows && columns.there > 0) {
            columns.store_at(*reinterpret_cast<const Float4*>(turn + h * kTurnFloats + g * kTurnRow + t2 * 2), t);
          }
        }
      }
      __syncwarp();
    }
    if constexpr (config::kMayShare) {
      // Partial sums that were added are dropped from the L2 cache, which else writes them to memory one day. A line of 128 bytes a lane.
      if (!pushes) {
#pragma unroll 1
        for (int i = begin + lane / 4 * stride; i < count; i += 8 * stride) {
          const u8* line = partials + (lane % 4 * 128 - lane * 16) + i * kStepBytes;
#pragma unroll 1
          for (int z = 0; z < slices; ++z, line += kTileBytes) {
            if (z != self || all) discard(line);
          }
        }
      }
    }
    if (all) break;
  }
  if (together && departures(state) + 1 == slices) *ticket = 0;
}

// Tails (wgmma.cuh): of a tile's two CTAs the first leaves its sums in the workspace, the second adds them to its own, whichever it is: two
// numbers have one sum. Whether this one is the second. A ticket is 1 once one of them has come, and then 0 again.
template <int kCount>
QG_DEVICE bool add_other_part(float (&acc)[config::kRowTiles][kCount], const Output& out, int first_col) {
  static_assert(config::kWarpsK == 1 || !config::kTails, "");
  const int lane = threadIdx.x & 31, along_n = tiles_along_n(out.n);
  u32* ticket;
  const u8* parts;  // of this warp: the sums up to the tail, and kTileBytes further the tail's
  find_in_workspace(out, 2, kTileBytes, warp_index() * kFragmentBytes, ticket, parts, first_col / config::kTileN, along_n);
  const int self = blockIdx.y >= along_n ? 1 : 0;
  __shared__ u32 came[2];  // before this one: when it looked first, and when its sums were in the workspace
  u32 before = 0;
  if (self == 0) {  // a tail is mostly there by now
    if (threadIdx.x == 0) came[0] = ticket_read(ticket);
    barrier();
    before = came[0];
  }
  if (before == 0) {
#pragma unroll
    for (int u = 0; u < kFragments; ++u) {
      u8* const part = const_cast<u8*>(parts) + self * kTileBytes + u * kStepBytes + lane * 16;
      store_cg(reinterpret_cast<Float4*>(part), fragment(acc, u, false));
    }
    barrier();
    if (threadIdx.x == 0) came[1] = ticket_add(ticket, 1);
    barrier();
    before = came[1];
  }
  if (before == 0) return false;
  if (threadIdx.x == 0) *ticket = 0;
  enum : int { kLoads = 8 };  // under way at once; without load_slice's predicate, for which their registers would live through the main loop
#pragma unroll
  for (int first = 0; first < kFragments; first += kLoads) {
    Float4 part[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i < kFragments) part[i] = load_relaxed(parts + (1 - self) * kTileBytes + (first + i) * kStepBytes + lane * 16);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i >= kFragments) continue;
      float* const c = acc[(first + i) % config::kRowTiles] + (first + i) / config::kRowTiles * 4;
      c[0] += part[i].x;
      c[1] += part[i].y;
      c[2] += part[i].z;
      c[3] += part[i].w;
    }
  }
  __syncwarp();
#pragma unroll 1
  for (int u = lane / 4; u < kFragments; u += 8) {
    const u8* const line = parts + u * kStepBytes + lane % 4 * 128;
    discard(line);
    discard(line + kTileBytes);
  }
  return true;
}

// The first kEpilogueThreads threads of the CTA call this; others have left. `nothing`: this K group had no stage. `rows`: rows of Y in
// this tile.
template <int kCount>
QG_DEVICE void run(float (&acc)[config::kRowTiles][kCount], bool nothing, u8* shared, const Output& out, const Plan& plan, int rows,
                   int first_row, int first_col) {
  if constexpr (config::kTails) {
    if (!add_other_part(acc, out, first_col)) return;
  }
  if (!config::kMaySplit || gridDim.z == 1) {
    barrier();  // nobody reads the ring any more, and every copy into it was waited for
    if constexpr (kPacked && config::kWarpsK == 1) {
      store_packed(acc, shared, out, rows, first_row, first_col);
    } else {
      store_rows(acc, nothing, reinterpret_cast<float*>(shared), out, rows, first_row, first_col);
    }
  } else if constexpr (config::kMaySplit) {
    add_slices(acc, nothing, shared, out, kPlansEarly ? plan : make_plan(out, rows), rows, first_row, first_col);
  }
}

}  // namespace epilogue
