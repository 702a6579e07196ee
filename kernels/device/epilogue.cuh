// From fp32 sums to Y, for every family: what their epilogues have in common. rows.cuh (family mma) has sums in shared memory, fragments.cuh
// (wgmma) those in registers.
//
//   one slice of K:   sums of the CTA's K groups -> bias -> activation, gate -> residual -> cast -> Y
//   S slices:         sums -> workspace partial of this slice; the CTA that takes a tile's last ticket, or all of the tile's CTAs, each its
//                     share, add the slices. The ticket is set back to 0 for the next launch.
//   S slices in a     the CTAs of a tile's slices are one thread block cluster (sm_90 and up): each adds its share, and the others push
//   cluster:          their sums to it (st.async): a fence of the cluster, which reading them would take, and the trip there and back are
//                     0.4 us. Kernels of large tiles have no code for it (kPush).
//
// A share's own slice comes first, then the others in their order; where there are no shares (rows.cuh), all in their order. So the result
// does not depend on who adds: bitwise repeatable for a given (config, S, M).
//
// Workspace: [tickets u32 [M tiles][N tiles], rounded up to 256 B | partials [M tile][N tile][slice], each kTileM x kTileN fp32 in the
// family's own order].
// Code is cold, few warps are left to hide behind each other, and unrolled epilogues cost NVRTC more than the main loop does: loops are
// rolled, but for what waits for memory. A trip for each slice, one after the other, was what took the time: on an H200 6656x19968, M 64,
// five slices, takes 34.7 us with all slices of two rows asked for at once, and 36.3 without; 5376x21504, M 64, six slices, 31.8 and 33.6.
//
// Tried and no faster, or slower: sixteen loads at once with 64 tokens (two CTAs no longer fit an SM: 36 to 42 us); pushing in tiles of
// 128 x 64 (10.0 against 9.8 us, since the network between SMs has a quarter of shared memory's bandwidth); one thread's release for all
// before a cluster's barrier; three reads of a ticket under way at once, 0.2 us apart (nothing); the code behind a wait run through once for
// nothing while it waits, so that it is no longer cold (0.3 to 1.5 us slower: it is the number of instructions that counts, some 1.5 us
// for 300 of them).
//
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

enum : int { kRow = config::kTileN + 4 };  // floats of a row of sums; the 4 keep the fragment stores free of bank conflicts
// Where the families write rows of sums. Volatile, since NVRTC else looks for pairs among some hundred stores: 10 ms for 64 tokens and two
// row tiles, 60 for 176, for the same machine code.
using Partial = volatile float;
enum : int { kVectors = config::kTileN / 4 };  // float4 per row
enum : int { kRowStep = config::kEpilogueThreads / kVectors };  // rows that the threads have under their hands at a time
static_assert(config::kEpilogueThreads % kVectors == 0, "");

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
  i64 y_step, residual_step;  // bytes to the row `step` further
  float bias[4];
  int there;  // columns that exist, 0 to kColumns
  bool whole;

  Columns() = default;
  // From `row` of Y on; `col`: of Y before it is gated.
  QG_DEVICE Columns(const Output& out, int col, i64 row, int step) {
    const int columns = (config::kGated ? out.n >> 1 : out.n), first = config::kGated ? col >> 1 : col;
    there = min_of(max_of(columns - first, 0), kColumns);
    whole = there == kColumns && (out.ldy & (kColumns - 1)) == 0;
    y = static_cast<u8*>(out.y) + (row * out.ldy + first) * kOutBytes;
    y_step = out.ldy * (step * kOutBytes);
    if constexpr (config::kResidual) {
      residual = static_cast<const u8*>(out.residual) + (row * out.ldr + first) * kOutBytes;
      residual_step = out.ldr * (step * kOutBytes);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) bias[i] = config::kBias && col + i < out.n ? read_out_type(out.bias, col + i) : 0.f;
  }

  // Stores a row's sums, and goes on to the next.
  QG_DEVICE void store(const Float4& sum) {
    put(sum, y, residual);
    y += y_step;
    if constexpr (config::kResidual) residual += residual_step;
  }
  // Of the row `steps` steps further.
  QG_DEVICE void store_at(const Float4& sum, int steps) const {
    put(sum, y + steps * y_step, config::kResidual ? residual + steps * residual_step : nullptr);
  }
  QG_DEVICE void put(const Float4& sum, u8* y, const u8* residual) const {
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
  }
};

#if __CUDA_ARCH__ >= 900
QG_DEVICE int slices_in_cluster() {
  int size;
  asm volatile("mov.u32 %0, %%cluster_nctaid.z;" : "=r"(size));
  return size;
}
// Has them meet, and orders no writes: a release waits for all that a thread has written, to global memory, too.
QG_DEVICE void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// An mbarrier of this CTA that completes its first phase once `count` of its threads have said how many bytes they expect to be pushed here, and
// these have been; cluster_meet tells the others that it is there.
QG_DEVICE void make_push_barrier(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(barrier), "r"(count) : "memory");
}
QG_DEVICE void expect_pushes(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
QG_DEVICE void wait_for_pushes(u32 barrier) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(
          barrier),
      "r"(0)
      : "memory");
}
// Into the CTA `rank`, which has `to` and `barrier` where this one has them and expects it: no fence, and no trip there and back (PTX ISA,
// st.async).
QG_DEVICE void push_if(u32 to, int rank, const Float4& v, u32 barrier, bool there) {
  asm volatile(
      "{\n.reg .pred there;\n.reg .b32 at, signal;\nsetp.ne.b32 there, %7, 0;\n@there mapa.shared::cluster.u32 at, %0, %1;\n"
      "@there mapa.shared::cluster.u32 signal, %6, %1;\n"
      "@there st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [at], {%2,%3,%4,%5}, [signal];\n}" ::"r"(to),
      "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier), "r"(static_cast<int>(there))
      : "memory");
}
#else
QG_DEVICE int slices_in_cluster() { return 1; }
QG_DEVICE void cluster_meet() {}
QG_DEVICE void make_push_barrier(u32, u32) {}
QG_DEVICE void expect_pushes(u32, u32) {}
QG_DEVICE void wait_for_pushes(u32) {}
QG_DEVICE void push_if(u32, int, const Float4&, u32, bool) {}
#endif

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

QG_DEVICE int tiles_along_n(int n) { return (n + config::kTileN - 1) / config::kTileN; }

// All CTAs of the grid at once, one on an SM.
QG_DEVICE bool all_resident(int slices) { return static_cast<i64>(gridDim.x) * gridDim.y * slices <= sm_count(); }

// What a tile has in the workspace, `column` of `columns` along N: its ticket, and the partial sums of slice 0, `tile_bytes` before those of
// the next.
QG_DEVICE void find_in_workspace(const Output& out, int slices, int tile_bytes, int place, u32*& ticket, const u8*& partials,
                                 unsigned column = blockIdx.y, unsigned columns = gridDim.y) {
  const i64 tile = static_cast<i64>(blockIdx.x) * columns + column;
  const i64 ticket_bytes = (static_cast<i64>(gridDim.x) * columns * 4 + 255) & ~255ll;
  ticket = static_cast<u32*>(out.workspace) + tile;
  partials = static_cast<const u8*>(out.workspace) + ticket_bytes + tile * slices * tile_bytes + place;
}

// One thread, while all wait for the first copies: the pages that the epilogue will touch are then known to the SM, and what it asks for first
// is in the L2 cache. 0.1 to 0.3 us of kernels of 3 to 6 (256x6656).
QG_DEVICE void prefetch_outputs(const Output& out, int tile_bytes, i64 first_row, int first_col) {
  const int col = config::kGated ? first_col >> 1 : first_col;
  prefetch(static_cast<const u8*>(out.y) + (first_row * out.ldy + col) * kOutBytes);
  if (gridDim.z > 1 && slices_in_cluster() == 1) {
    u32* ticket;
    const u8* partials;
    find_in_workspace(out, gridDim.z, tile_bytes, 0, ticket, partials);
    prefetch(ticket);
    prefetch(partials);
  }
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

}  // namespace epilogue
