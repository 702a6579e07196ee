// From fp32 partial sums in shared memory to Y, for every family.
//
//   red[w][token][n]  fp32, w = the CTA's K groups, rows of kTileN + 4 floats (the 4 keep the fragment stores free of
//                     bank conflicts), already written by the caller, no barrier yet
//   one slice of K:   sum over w -> bias -> activation, gate -> residual -> cast -> Y
//   S slices:         sum over w -> workspace partial of this slice; the CTA that takes a tile's last ticket, or all of the
//                     tile's CTAs, add the slices. The ticket is set back to 0 for the next launch.
//   S slices in a     the CTAs of a tile's slices are one thread block cluster (sm_90 and up): each adds its share of the
//   cluster:          tile's rows. Of small tiles the others push their sums to it (st.async): a fence of the cluster, which
//                     reading them would take, and the trip there and back are 0.4 us. Of large ones it reads them.
//
// A share's own slice comes first, then the others in their order; where there are no shares, all in their order. So the result does not
// depend on who adds: bitwise repeatable for a given (config, S, M).
//
// Workspace: [tickets u32 [M tiles][N tiles], rounded up to 256 B | partials fp32 [M tile][N tile][slice][kTileM][kTileN]].
// Code is cold, and unrolled epilogues cost NVRTC more than the main loop does: loops are rolled, but for what waits for memory. A trip for
// each slice, one after the other, was what took the time: on an H200 6656x19968, M 64, five slices, takes 34.7 us with all slices of
// two rows asked for at once, and 36.3 without; 5376x21504, M 64, six slices, 31.8 and 33.6.
//
// Tried and no faster, or slower: sixteen loads at once (two CTAs no longer fit an SM: 36 to 42 us); pushing in tiles of 128 x 64 (10.0 against
// 9.8 us, since the network between SMs has a quarter of shared memory's bandwidth); one thread's release for all before a
// cluster's barrier.

// Gated: rows of W alternate gate and up, and Y has half as many columns. All of it is in fp32 up to the one cast.

struct Output {
  void* y;
  const void* bias;
  const void* residual;
  void* workspace;
  int m, n;  // real sizes
  i64 ldy, ldr;
};

namespace epilogue {

enum : int { kRow = config::kTileN + 4 };
// Where the families write red. Volatile, since NVRTC else looks for pairs among some hundred stores: 10 ms for 64 tokens and two row
// tiles, 60 for 176, for the same machine code.
using Partial = volatile float;
enum : int { kVectors = config::kTileN / 4 };  // float4 per row
enum : int { kRowStep = config::kEpilogueThreads / kVectors };  // rows that the threads have under their hands at a time
static_assert(config::kEpilogueThreads % kVectors == 0, "");
// Rows whose partial sums, of kSlicesAtOnce slices, a thread asks for before it adds the first: each is a trip to another SM or to the L2.
enum : int { kRowsAtOnce = config::kTileM > kRowStep ? 2 : 1 };

// Among the threads that run the epilogue.
QG_DEVICE void barrier() {
  if constexpr (config::kEpilogueThreads == config::kThreads) {
    __syncthreads();
  } else {
    asm volatile("bar.sync 15, %0;" ::"n"(+config::kEpilogueThreads) : "memory");
  }
}

QG_DEVICE void add(Float4& s, const Float4& v) {
  s.x += v.x;
  s.y += v.y;
  s.z += v.z;
  s.w += v.w;
}

enum : int { kOutBytes = config::kOutIsFp32 ? 4 : 2 };
enum : int { kColumns = config::kGated ? 2 : 4 };  // of Y that four rows of W make

QG_DEVICE float read_out_type(const void* base, i64 index) {
  if constexpr (config::kOutIsFp32) {
    return static_cast<const float*>(base)[index];
  } else {
    return act::to_float(load_u16(static_cast<const u16*>(base) + index));
  }
}

// 1 / (1 + exp(-v)) to a few units in the last place.
QG_DEVICE float sigmoid(float v) {
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v * -1.4426950408889634f));
  return reciprocal(1.f + e);
}

// a / part, rounded down, by 1 / part; exact below 2^20. A division of integers is three times as long.
QG_DEVICE int whole_parts(int a, float part_inverse) { return static_cast<int>((static_cast<float>(a) + 0.5f) * part_inverse); }

QG_DEVICE float activation(float v) {
  if constexpr (config::kActivation == 1) return v * sigmoid(v);  // SiLU
  // GELU, tanh form: 0.5 (1 + tanh u) = sigmoid(2 u), u = sqrt(2 / pi) (v + 0.044715 v^3).
  if constexpr (config::kActivation == 2) return v * sigmoid(1.5957691216057308f * (v + 0.044715f * v * v * v));
  if constexpr (config::kActivation == 3) return v > 0.f ? v : v != v ? v : 0.f;  // ReLU
  return v;
}

// Where a thread stores: the columns of Y that four neighbouring rows of W make. All that is the same for every row of Y is here, since few
// warps are left to hide behind each other: a loop that worked it out again took 240 clocks a row.
struct Columns {
  u8* y;               // of a row, in its first column
  const u8* residual;  // likewise
  i64 y_step, residual_step;  // bytes to the row kRowStep further
  float bias[4];
  int there;  // columns that exist, 0 to kColumns
  bool whole;

  // From `row` of Y on; `col`: of Y before it is gated.
  QG_DEVICE Columns(const Output& out, int col, i64 row) {
    const int columns = (config::kGated ? out.n >> 1 : out.n), first = config::kGated ? col >> 1 : col;
    there = min_of(max_of(columns - first, 0), kColumns);
    whole = there == kColumns && (out.ldy & (kColumns - 1)) == 0;
    y = static_cast<u8*>(out.y) + (row * out.ldy + first) * kOutBytes;
    y_step = out.ldy * (kRowStep * kOutBytes);
    if constexpr (config::kResidual) {
      residual = static_cast<const u8*>(out.residual) + (row * out.ldr + first) * kOutBytes;
      residual_step = out.ldr * (kRowStep * kOutBytes);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) bias[i] = config::kBias && col + i < out.n ? read_out_type(out.bias, col + i) : 0.f;
  }

  // Stores a row's sums, and goes on to the row kRowStep further.
  QG_DEVICE void store(const Float4& sum) {
    float v[4] = {sum.x, sum.y, sum.z, sum.w};
    if constexpr (config::kBias) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] += bias[i];
    }
    if constexpr (config::kGated) {
      v[0] = activation(v[0]) * v[1];
      v[1] = activation(v[2]) * v[3];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = activation(v[i]);
    }
    if constexpr (config::kResidual) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i < there) v[i] += read_out_type(residual, i);
      }
      residual += residual_step;
    }
    if constexpr (config::kOutIsFp32) {
      if (whole && kColumns == 4) {
        *reinterpret_cast<Float4*>(y) = Float4{v[0], v[1], v[2], v[3]};
      } else {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if (i < there) reinterpret_cast<float*>(y)[i] = v[i];
        }
      }
    } else {
      const u32 low = act::pack(v[0], v[1]);
      const u32 high = kColumns == 4 ? act::pack(v[2], v[3]) : 0;
      if (whole && kColumns == 4) {
        *reinterpret_cast<Vec2*>(y) = Vec2{low, high};
      } else if (whole) {
        *reinterpret_cast<u32*>(y) = low;
      } else {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if (i < there) reinterpret_cast<u16*>(y)[i] = static_cast<u16>((i < 2 ? low : high) >> (i & 1) * 16);
        }
      }
    }
    y += y_step;
  }
};

#if __CUDA_ARCH__ >= 900
QG_DEVICE int slices_in_cluster() {
  int size;
  asm volatile("mov.u32 %0, %%cluster_nctaid.z;" : "=r"(size));
  return size;
}
// What all threads of the cluster have written to shared memory before, all may read behind it.
QG_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Has them meet, and orders no writes: a release waits for all that a thread has written, to global memory, too.
QG_DEVICE void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Where the CTA `rank` of this cluster has what this one has at `address`, in shared memory (PTX ISA, mapa).
QG_DEVICE u32 address_in_cluster(u32 address, int rank) {
  u32 peer;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
  return peer;
}
// An mbarrier of this CTA that completes its first phase once `bytes` have been pushed here; cluster_meet tells the others that it is there.
QG_DEVICE void expect_pushes(u32 barrier, u32 bytes) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}
QG_DEVICE void wait_for_pushes(u32 barrier) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(
          barrier),
      "r"(0)
      : "memory");
}
// To where another CTA expects it: no fence, and no trip there and back (PTX ISA, st.async).
QG_DEVICE void push(u32 to, const Float4& v, u32 barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
               : "memory");
}
#else
QG_DEVICE int slices_in_cluster() { return 1; }
QG_DEVICE void cluster_barrier() {}
QG_DEVICE void cluster_meet() {}
QG_DEVICE u32 address_in_cluster(u32 address, int) { return address; }
QG_DEVICE void expect_pushes(u32, u32) {}
QG_DEVICE void wait_for_pushes(u32) {}
QG_DEVICE void push(u32, const Float4&, u32) {}
#endif

// The slices z, z + 1, ... of a row, as many as there are below `end`, counted without the slice `skipped`; zeros where there is none. They come
// from where their CTAs wrote them: `from` + slice * kTileBytes in global memory, or, of a cluster, what `from` is in the CTA of that
// rank (PTX ISA, mapa). Without a branch, so that all are asked for before the first is waited for, and with as little as may be in sight of
// the compiler, which takes 0.1 ms for an instruction.
template <int kTileBytes, int kCount>
QG_DEVICE void load_slices(Float4 (&v)[kCount], const u8* from, int z, int end, int skipped, bool cluster) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int slice = z + i + (z + i >= skipped ? 1 : 0);
    asm volatile(
        "{\n.reg .pred there, peer;\n.reg .b64 at;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
        "setp.lt.s32 there, %5, %6;\nmad.wide.u32 at, %7, %9, %4;\n"
#if __CUDA_ARCH__ >= 900
        "setp.ne.and.s32 peer, %8, 0, there;\n@peer mapa.u64 at, %4, %7;\n"
#endif
        "@there ld.relaxed.gpu.v4.f32 {%0,%1,%2,%3}, [at];\n}"
        : "=f"(v[i].x), "=f"(v[i].y), "=f"(v[i].z), "=f"(v[i].w)
        : "l"(from), "r"(z + i), "r"(end), "r"(slice), "r"(static_cast<int>(cluster)), "n"(kTileBytes)
        : "memory");
  }
}

enum : u32 { kDeparture = 0x100u };  // of a ticket, below

// Tickets in the workspace. One thread behind a barrier releases and acquires for its CTA (PTX ISA, memory consistency model:
// causality order is transitive); fences by all threads cost 0.3 to 0.8 us more.
QG_DEVICE u32 ticket_add(u32* ticket, u32 value) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(ticket), "r"(value) : "memory");
  return before;
}
QG_DEVICE u32 ticket_read(const u32* ticket) {
  u32 now;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(ticket) : "memory");
  return now;
}

// Orders nothing.
QG_DEVICE u32 ticket_depart(u32* ticket) {
  u32 before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(ticket), "n"(+kDeparture) : "memory");
  return before;
}

// Where all CTAs of the grid can be resident at once, those of a tile stay until its last slice has come, and each adds its own
// share of the tile; what it adds itself it does not write. One CTA alone took 3 to 8 us for 64 rows of X, of a kernel's 12 to 40.
// None waits for ever: who loses patience writes its share and leaves it to the last one. A ticket has its arrivals in bits 0
// to 7, departures in 8 to 15, and from 16 on a bit for each slice whose CTA has left.
enum : int { kPatience = 24 };  // reads of the ticket, some 0.6 us each

QG_DEVICE u32 arrivals(u32 state) { return state & 0xffu; }
QG_DEVICE u32 departures(u32 state) { return state >> 8 & 0xffu; }

QG_DEVICE int sm_count() {
  u32 count;
  asm volatile("mov.u32 %0, %%nsmid;" : "=r"(count));
  return static_cast<int>(count);
}

// One thread: the shares that its CTA adds, as bits.
//   alone      once its slice is written: all for the CTA that is the last, else none
//   together   once what others add is written: its own, and those of CTAs that have left; 0: its patience is over
//   leaves     once its own share is written, too: 0, or its own all the same, because the last CTA came in the meantime
QG_DEVICE u32 take(u32* ticket, int slices, bool sharing, bool together, bool leaves) {
  const u32 own = 1u << blockIdx.z;
  const u32 state = ticket_add(ticket, leaves ? kDeparture + (own << 16) : 1);
  if (leaves) {
    if (departures(state) + 1 == slices) *ticket = 0;
    return arrivals(state) == slices ? own : 0;
  }
  if (!together) {
    if (state + 1 != slices) return 0;
    *ticket = 0;
    return sharing ? (1u << slices) - 1 : 1;
  }
  if (arrivals(state) + 1 == slices) return own | state >> 16;
#pragma unroll 1
  for (int i = 0; i < kPatience; ++i) {
    if (arrivals(ticket_read(ticket)) == slices) return own;
  }
  return 0;
}

// The first kEpilogueThreads threads of the CTA call this; others have left. `rows`: rows of Y in this tile. The three
// ways to sum meet in one loop that stores: a kernel's code is cold as its operands are, and every 128 bytes of it that
// a CTA runs through are a trip to memory.
QG_DEVICE void run(float* red, const Output& out, int rows, int first_row, int first_col) {
  const int tid = threadIdx.x, slices = gridDim.z;
  const int v = tid % kVectors, first = tid / kVectors;  // this thread's float4 of each row, and the first of its rows
  const bool cluster = slices > 1 && slices_in_cluster() > 1;
  // Both the same for all CTAs of a tile: whether its rows are added share by share, and whether by all of its CTAs.
  bool sharing = cluster, together = false;
  if constexpr (config::kMayShare) {
    sharing = cluster || (slices > 1 && slices <= config::kMostShares && rows > kRowStep);
    together = sharing && !cluster && static_cast<i64>(gridDim.x) * gridDim.y * slices <= sm_count();
  }
  const auto shared_sum = [&](int m, int w) { return reinterpret_cast<Float4*>(red + (w * config::kTileM + m) * kRow + v * 4); };
  // Shares of the tile: whole rows.
  const int share_rows = sharing ? whole_parts(rows + slices - 1, reciprocal(static_cast<float>(slices))) : rows;
  const int own_first = blockIdx.z * share_rows;  // of this CTA's share
  __shared__ u64 pushed;
  // In a cluster, small tiles: slices are pushed to behind the sums of the CTA that adds them, row for row of its share.
  const bool pushes = config::kPush && cluster;
  const auto received = [&](int slice, int m) {
    return reinterpret_cast<Float4*>(red + (config::kWarpsK * config::kTileM + slice * share_rows + m) * kRow + v * 4);
  };
  if (pushes && tid == 0) {
    const int own_rows = max_of(min_of(rows - own_first, share_rows), 0);
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
  u32 shares = cluster ? 1u << blockIdx.z : 1u;  // that this CTA adds, as bits
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
      if (z == self) continue;
      const u32 to = shared_address(received(self - (self > z ? 1 : 0), m - z * share_rows));
      push(address_in_cluster(to, z), cta_sum(m), address_in_cluster(shared_address(&pushed), z));
    }
    wait_for_pushes(shared_address(&pushed));
  } else if (slices > 1) {
    __shared__ u32 taken;
    u8* mine = nullptr;
    if (!cluster) {
      const i64 tile = static_cast<i64>(blockIdx.x) * gridDim.y + blockIdx.y;
      const i64 ticket_bytes = (static_cast<i64>(gridDim.x) * gridDim.y * 4 + 255) & ~255ll;
      ticket = static_cast<u32*>(out.workspace) + tile;
      partials = static_cast<const u8*>(out.workspace) + ticket_bytes + tile * slices * kSliceBytes + v * 16;
      mine = const_cast<u8*>(partials) + static_cast<i64>(blockIdx.z) * kSliceBytes;
    }
    bool leaves = false;  // and so writes its own share, which it had kept
#pragma unroll 1
    while (true) {
      if (!cluster) {
#pragma unroll 1
        for (int m = first; m < rows; m += kRowStep) {
          // What the CTA adds itself stays in shared memory.
          const bool own = together && static_cast<u32>(m - own_first) < static_cast<u32>(share_rows);
          if (own == leaves) store_cg(reinterpret_cast<Float4*>(mine + m * (config::kTileN * 4)), *shared_sum(m, 0));
        }
      }
      if (cluster) {
        cluster_barrier();
        break;
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
      const bool here = (cluster || together) && share == blockIdx.z;
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
          from[h] = !config::kPush && cluster ? reinterpret_cast<const u8*>(shared_sum(row, 0)) : partials + row * (config::kTileN * 4);
          if (row >= end) continue;
          if (here) {
            sum[h] = *shared_sum(row, 0);
          } else if (config::kMayShare && sharing) {
            Float4 first_slice[1];
            load_slices<kSliceBytes>(first_slice, from[h], share, slices, slices, false);
            sum[h] = first_slice[0];
          }
        }
#pragma unroll 1
        for (int z = 0; z < others; z += config::kSlicesAtOnce) {
          Float4 part[kRowsAtOnce][config::kSlicesAtOnce];
#pragma unroll
          for (int h = 0; h < kRowsAtOnce; ++h) {
            load_slices<kSliceBytes>(part[h], from[h], z, limit[h], skipped, !config::kPush && cluster);
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
    Columns columns(out, first_col + v * 4, static_cast<i64>(first_row) + begin);
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
  if (cluster && !pushes) cluster_meet();  // nobody leaves while its shared memory is read
}

}  // namespace epilogue
