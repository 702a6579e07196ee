// The epilogue of family mma.
//
//   red[w][token][n]  fp32, w = the CTA's K groups, rows of kTileN + 4 floats, already written by the caller, no barrier yet
//   partials          [kTileM][kTileN]
//   shares            whole rows; where not all of a tile's CTAs add, the last one adds slice after slice
//
// Tried: sums of K groups kept in registers, without a barrier, where no thread has more than one row: nothing beyond noise (0.99 of the time
// at 256x6656, M 1 to 32; 1.00 elsewhere), 32 instructions more.

namespace epilogue {

// Rows whose partial sums, of kSlicesAtOnce slices, a thread asks for before it adds the first: each is a trip to another SM or to the L2.
enum : int { kRowsAtOnce = config::kTileM > kRowStep ? 2 : 1 };

// The slices z, z + 1, ... of a row, as many as there are below `end`, counted without the slice `skipped`; zeros where there is none. They come
// from where their CTAs wrote them, `from` + slice * kTileBytes. Without a branch, so that all are asked for before the first is waited for,
// and with as little as may be in sight of the compiler, which takes 0.1 ms for an instruction.
template <int kTileBytes, int kCount>
QG_DEVICE void load_slices(Float4 (&v)[kCount], const u8* from, int z, int end, int skipped) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int slice = z + i + (z + i >= skipped ? 1 : 0);
    asm volatile(
        "{\n.reg .pred there;\n.reg .b64 at;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
        "setp.lt.s32 there, %5, %6;\nmad.wide.u32 at, %7, %8, %4;\n"
        "@there ld.relaxed.gpu.v4.f32 {%0,%1,%2,%3}, [at];\n}"
        : "=f"(v[i].x), "=f"(v[i].y), "=f"(v[i].z), "=f"(v[i].w)
        : "l"(from), "r"(z + i), "r"(end), "r"(slice), "n"(kTileBytes)
        : "memory");
  }
}

// The first kEpilogueThreads threads of the CTA call this; others have left. `rows`: rows of Y in this tile. The three
// ways to sum meet in one loop that stores: a kernel's code is cold as its operands are, and every 128 bytes of it that
// a CTA runs through are a trip to memory.
QG_DEVICE void run(float* red, const Output& out, int rows, int first_row, int first_col) {
  const int tid = threadIdx.x, slices = gridDim.z;
  const int v = tid % kVectors, first = tid / kVectors;  // this thread's float4 of each row, and the first of its rows
  const bool pushes = config::kPush && slices > 1 && slices_in_cluster() > 1;
  // Both the same for all CTAs of a tile: whether its rows are added share by share, and whether by all of its CTAs.
  bool sharing = pushes, together = false;
  if constexpr (config::kMayShare) {
    sharing = pushes || (slices > 1 && slices <= config::kMostShares && rows > kRowStep);
    together = sharing && !pushes && all_resident(slices);
  }
  const auto shared_sum = [&](int m, int w) { return reinterpret_cast<Float4*>(red + (w * config::kTileM + m) * kRow + v * 4); };
  // Shares of the tile: whole rows.
  const int share_rows = sharing ? whole_parts(rows + slices - 1, reciprocal(static_cast<float>(slices))) : rows;
  const int own_first = blockIdx.z * share_rows;  // of this CTA's share
  __shared__ u64 pushed;
  // In a cluster slices are pushed to behind the sums of the CTA that adds them, row for row of its share.
  const auto received = [&](int slice, int m) {
    return reinterpret_cast<Float4*>(red + (config::kWarpsK * config::kTileM + slice * share_rows + m) * kRow + v * 4);
  };
  if (pushes && tid == 0) {
    const int own_rows = max_of(min_of(rows - own_first, share_rows), 0);
    make_push_barrier(shared_address(&pushed), 1);
    expect_pushes(shared_address(&pushed), (slices - 1) * own_rows * (kVectors * 16));
  }
  barrier();
  // The sums of the K groups are added once; of two groups, where that would be a pass of its own, as each is used.
  bool summed = true;
  if constexpr (config::kWarpsK > 1) {
    summed = config::kWarpsK > 2 || (slices > 1 && !pushes);
#pragma unroll 1
    for (int m = first; m < rows && summed; m += kRowStep) {
      Float4 s = *shared_sum(m, 0);
#pragma unroll 4
      for (int w = 1; w < config::kWarpsK; ++w) add(s, *shared_sum(m, w));
      *shared_sum(m, 0) = s;
    }
    // Own rows are read by other threads below; elsewhere a barrier comes, or each thread goes on with its rows.
    if (config::kWarpsK > 2 && pushes) barrier();
  }
  const auto cta_sum = [&](int m) {
    Float4 s = *shared_sum(m, 0);
    if (config::kWarpsK == 2 && !summed) add(s, *shared_sum(m, 1));
    return s;
  };
  u32 shares = pushes ? 1u << blockIdx.z : 1u;  // that this CTA adds, as bits
  u32* ticket = nullptr;
  enum : int { kSliceBytes = config::kTileM * config::kTileN * 4 };
  const u8* partials = nullptr;  // this thread's float4 of row 0 of this tile's slice 0; unused in a cluster
  u32 state = ~0u;               // of the ticket, before a departure that is written down at the end
  if (pushes) {
    cluster_meet();  // nobody reads its ring any more, and all expect pushes
    const int self = blockIdx.z;
    const float rows_inverse = reciprocal(static_cast<float>(share_rows));
#pragma unroll 1
    for (int m = first; m < rows; m += kRowStep) {
      const int z = whole_parts(m, rows_inverse);  // who adds this row
      const u32 to = shared_address(received(self - (self > z ? 1 : 0), m - z * share_rows));
      push_if(to, z, cta_sum(m), shared_address(&pushed), z != self);
    }
    wait_for_pushes(shared_address(&pushed));
  } else if (slices > 1) {
    __shared__ u32 taken;
    find_in_workspace(out, slices, kSliceBytes, v * 16, ticket, partials);
    u8* const mine = const_cast<u8*>(partials) + static_cast<i64>(blockIdx.z) * kSliceBytes;
    bool leaves = false;  // and so writes its own share, which it had kept
#pragma unroll 1
    while (true) {
#pragma unroll 1
      for (int m = first; m < rows; m += kRowStep) {
        // What the CTA adds itself stays in shared memory.
        const bool own = together && static_cast<u32>(m - own_first) < static_cast<u32>(share_rows);
        if (own == leaves) store_cg(reinterpret_cast<Float4*>(mine + m * (config::kTileN * 4)), *shared_sum(m, 0));
      }
      barrier();
      if (tid == 0) taken = take(ticket, slices, sharing, together, leaves);
      barrier();
      shares = taken;
      if (!together || leaves || shares != 0) break;
      leaves = true;
    }
    // Nothing waits for the answer before the end.
    if (together && !leaves && tid == 0) state = ticket_depart(ticket);
  }
#pragma unroll 1
  for (; shares != 0; shares &= shares - 1) {
    const int share = __ffs(shares) - 1, share_first = share * share_rows;
    const int begin = share_first + first, end = min_of(share_first + share_rows, rows);
    if (slices > 1 && !pushes) {
      // Sums of all slices, into shared memory: where this thread stores them from.
      const bool here = together && share == blockIdx.z;
      const int others = sharing ? slices - 1 : slices, skipped = sharing ? share : slices;
#pragma unroll 1
      for (int m = begin; m < end; m += kRowsAtOnce * kRowStep) {
        Float4 sum[kRowsAtOnce] = {};
        const u8* from[kRowsAtOnce];
        int limit[kRowsAtOnce];  // slices to add: none of a row that does not exist
#pragma unroll
        for (int h = 0; h < kRowsAtOnce; ++h) {
          const int row = m + h * kRowStep;
          limit[h] = row < end ? others : 0;
          from[h] = partials + row * (config::kTileN * 4);
          if (row >= end) continue;
          if (here) {
            sum[h] = *shared_sum(row, 0);
          } else if (config::kMayShare && sharing) {
            Float4 first_slice[1];
            load_slices<kSliceBytes>(first_slice, from[h], share, slices, slices);
            sum[h] = first_slice[0];
          }
        }
#pragma unroll 1
        for (int z = 0; z < others; z += config::kSlicesAtOnce) {
          Float4 part[kRowsAtOnce][config::kSlicesAtOnce];
#pragma unroll
          for (int h = 0; h < kRowsAtOnce; ++h) {
            load_slices<kSliceBytes>(part[h], from[h], z, limit[h], skipped);
          }
#pragma unroll
          for (int h = 0; h < kRowsAtOnce; ++h) {
#pragma unroll
            for (int i = 0; i < config::kSlicesAtOnce; ++i) add(sum[h], part[h][i]);
          }
        }
#pragma unroll
        for (int h = 0; h < kRowsAtOnce; ++h) {
          if (m + h * kRowStep < end) *shared_sum(m + h * kRowStep, 0) = sum[h];
        }
      }
    }
    Columns columns(out, first_col + v * 4, static_cast<i64>(first_row) + begin, kRowStep);
#pragma unroll 1
    for (int m = begin; m < end && columns.there > 0; m += kRowStep) {
      Float4 s = cta_sum(m);
      if (pushes) {
#pragma unroll 1
        for (int z = 0; z < slices - 1; ++z) add(s, *received(z, m - share_first));
      }
      columns.store(s);
    }
  }
  if (together && departures(state) + 1 == slices) *ticket = 0;
}

}  // namespace epilogue
