// From fp32 partial sums in shared memory to Y, for every family.
//
//   red[w][token][n]  fp32, w = the CTA's K groups, rows of kTileN + 4 floats (the 4 keep the fragment stores free of
//                     bank conflicts), already written by the caller, no barrier yet
//   one slice of K:   sum over w -> bias -> activation, gate -> residual -> cast -> Y
//   S slices:         sum over w -> workspace partial of this slice; the CTA that takes a tile's last ticket, or all of the
//                     tile's CTAs, add the slices in slice order, so that the result does not depend on who does it:
//                     bitwise repeatable for a given (config, S, M). The ticket is set back to 0 for the next launch.
//   S slices in a     the CTAs of a tile's slices are one thread block cluster (sm_90 and up): each adds its share of the
//   cluster:          tile over all slices, in slice order, reading the others' sums through distributed shared memory.
//
// Workspace: [tickets u32 [M tiles][N tiles], rounded up to 256 B | partials fp32 [M tile][N tile][slice][kTileM][kTileN]].
// The loops are rolled: unrolled epilogues cost NVRTC more than the main loop does. Tried on an H200 and no faster (6656x19968, M 64,
// five slices): four vectors of each slice asked for at a time before they are added.

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

constexpr int kRow = config::kTileN + 4;
constexpr int kVectors = config::kTileN / 4;  // float4 per row

// Among the threads that run the epilogue.
QG_DEVICE void barrier() {
  if constexpr (config::kEpilogueThreads == config::kThreads) {
    __syncthreads();
  } else {
    asm volatile("bar.sync 15, %0;" ::"n"(config::kEpilogueThreads) : "memory");
  }
}

QG_DEVICE void add(Float4& s, const Float4& v) {
  s.x += v.x;
  s.y += v.y;
  s.z += v.z;
  s.w += v.w;
}

constexpr int kOutBytes = config::kOutIsFp32 ? 4 : 2;
constexpr int kColumns = config::kGated ? 2 : 4;  // of Y that four rows of W make

QG_DEVICE float read_out_type(const void* base, i64 index) {
  if constexpr (config::kOutIsFp32) {
    return static_cast<const float*>(base)[index];
  } else {
    return act::to_float(load_u16(static_cast<const u16*>(base) + index));
  }
}

// 1 / (1 + exp(-v)) to a few units in the last place.
QG_DEVICE float sigmoid(float v) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.f + e));
  return r;
}

QG_DEVICE float activation(float v) {
  if constexpr (config::kActivation == 1) return v * sigmoid(v);  // SiLU
  // GELU, tanh form: 0.5 (1 + tanh u) = sigmoid(2 u), u = sqrt(2 / pi) (v + 0.044715 v^3).
  if constexpr (config::kActivation == 2) return v * sigmoid(1.5957691216057308f * (v + 0.044715f * v * v * v));
  if constexpr (config::kActivation == 3) return v > 0.f ? v : v != v ? v : 0.f;  // ReLU
  return v;
}

// Writes what 4 neighbouring rows of W make of a row of Y; columns beyond N are dropped.
QG_DEVICE void store(const Output& out, int row, int col, Float4 sum) {
  if (col >= out.n) return;
  float v[4] = {sum.x, sum.y, sum.z, sum.w};
  if constexpr (config::kBias) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (col + i < out.n) v[i] += read_out_type(out.bias, col + i);
    }
  }
  if constexpr (config::kGated) {
    v[0] = activation(v[0]) * v[1];
    v[1] = activation(v[2]) * v[3];
    col >>= 1;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = activation(v[i]);
  }
  const int columns = config::kGated ? out.n >> 1 : out.n;
  if constexpr (config::kResidual) {
    const i64 base = static_cast<i64>(row) * out.ldr + col;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (col + i < columns) v[i] += read_out_type(out.residual, base + i);
    }
  }
  u8* y = static_cast<u8*>(out.y) + (static_cast<i64>(row) * out.ldy + col) * kOutBytes;
  const bool whole = col + kColumns <= columns && (out.ldy & (kColumns - 1)) == 0;
  if constexpr (config::kOutIsFp32) {
    if (whole && kColumns == 4) {
      *reinterpret_cast<Float4*>(y) = Float4{v[0], v[1], v[2], v[3]};
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (col + i < columns) reinterpret_cast<float*>(y)[i] = v[i];
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
        if (col + i < columns) reinterpret_cast<u16*>(y)[i] = static_cast<u16>((i < 2 ? low : high) >> (i & 1) * 16);
      }
    }
  }
}

#if __CUDA_ARCH__ >= 900
QG_DEVICE int slices_in_cluster() {
  int size;
  asm volatile("mov.u32 %0, %%cluster_nctaid.z;" : "=r"(size));
  return size;
}
QG_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Where the CTA `rank` of this cluster has what this one has at `p`, in shared memory (PTX ISA, mapa).
QG_DEVICE const u8* in_cluster(const void* p, int rank) {
  u64 peer;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(peer) : "l"(p), "r"(rank));
  return reinterpret_cast<const u8*>(peer);
}
#else
QG_DEVICE int slices_in_cluster() { return 1; }
QG_DEVICE void cluster_barrier() {}
QG_DEVICE const u8* in_cluster(const void* p, int) { return static_cast<const u8*>(p); }
#endif

// Of what another CTA has written, in global or distributed shared memory.
QG_DEVICE Float4 load_partial(const u8* p) {
  Float4 v;
  asm volatile("ld.relaxed.gpu.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}

constexpr u32 kDeparture = 0x100u, kLeft = 0x10000u;  // of a ticket, below

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
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(ticket), "n"(kDeparture) : "memory");
  return before;
}

// Where all CTAs of the grid can be resident at once, those of a tile stay until its last slice has come, and each adds its own
// share of the tile; what it adds itself it does not write. One CTA alone took 3 to 8 us for 64 rows of X, of a kernel's 12 to 40.
// None waits for ever: who loses patience writes its share and leaves it to the last one. A ticket has its arrivals in bits 0
// to 7, departures in 8 to 15, and from 16 on a bit for each slice whose CTA has left.
constexpr int kPatience = 24;  // reads of the ticket, some 0.6 us each

QG_DEVICE u32 arrivals(u32 state) { return state & 0xffu; }
QG_DEVICE u32 departures(u32 state) { return state >> 8 & 0xffu; }

QG_DEVICE int sm_count() {
  u32 count;
  asm volatile("mov.u32 %0, %%nsmid;" : "=r"(count));
  return static_cast<int>(count);
}

// One thread, once its CTA's slice is written: 1 for the CTA that adds all slices.
QG_DEVICE u32 take_all(u32* ticket, int slices) {
  if (ticket_add(ticket, 1) + 1 != slices) return 0;
  *ticket = 0;
  return 1;
}
// One thread, once the CTA has written what others add: the shares that the CTA adds, as bits; 0: its patience is over.
QG_DEVICE u32 take_shares(u32* ticket, int slices) {
  const u32 state = ticket_add(ticket, 1);
  if (arrivals(state) + 1 == slices) return 1u << blockIdx.z | state >> 16;
#pragma unroll 1
  for (int i = 0; i < kPatience; ++i) {
    if (arrivals(ticket_read(ticket)) == slices) return 1u << blockIdx.z;
  }
  return 0;
}
// One thread, once its CTA's own share is written, too: 0, or its own share all the same, because the last CTA came in the meantime.
QG_DEVICE u32 leave(u32* ticket, int slices) {
  const u32 state = ticket_add(ticket, kDeparture + (kLeft << blockIdx.z));
  if (departures(state) + 1 == slices) *ticket = 0;
  return arrivals(state) == slices ? 1u << blockIdx.z : 0;
}

// The first kEpilogueThreads threads of the CTA call this; others have left. `rows`: rows of Y in this tile. The three
// ways to sum meet in one loop that stores: a kernel's code is cold as its operands are, and every 128 bytes of it that
// a CTA runs through are a trip to memory.
QG_DEVICE void run(float* red, const Output& out, int rows, int first_row, int first_col) {
  const int tid = threadIdx.x, slices = gridDim.z, total = rows * kVectors;
  barrier();
  auto shared_sum = [&](int m, int v) { return reinterpret_cast<Float4*>(red + m * kRow + v * 4); };
  auto cta_sum = [&](int m, int v) {
    Float4 s = *shared_sum(m, v);
#pragma unroll 4
    for (int w = 1; w < config::kWarpsK; ++w) add(s, *shared_sum(w * config::kTileM + m, v));
    return s;
  };
  const bool cluster = slices > 1 && slices_in_cluster() > 1;
  bool together = false;  // the same for all CTAs of a tile
  if constexpr (config::kMayShare) {
    together = slices > 1 && !cluster && slices <= config::kMostShares && total > config::kEpilogueThreads &&
               static_cast<i64>(gridDim.x) * gridDim.y * slices <= sm_count();
  }
  const int parts = cluster || together ? slices : 1;
  u32 shares = cluster ? 1u << blockIdx.z : 1u;  // of `parts`, as bits
  u32* ticket = nullptr;
  constexpr i64 kTileFloat4s = config::kTileM * kVectors;
  const u8* partials = nullptr;  // of this tile's slices, or null in a cluster
  u32 state = ~0u;               // of the ticket, before a departure that is written down at the end
  if (slices > 1) {
    __shared__ u32 taken;
    Float4* mine = nullptr;
    if (!cluster) {
      const i64 tile = static_cast<i64>(blockIdx.x) * gridDim.y + blockIdx.y;
      const i64 ticket_bytes = (static_cast<i64>(gridDim.x) * gridDim.y * 4 + 255) & ~255ll;
      ticket = static_cast<u32*>(out.workspace) + tile;
      partials = static_cast<const u8*>(out.workspace) + ticket_bytes + tile * slices * kTileFloat4s * 16;
      mine = reinterpret_cast<Float4*>(const_cast<u8*>(partials)) + blockIdx.z * kTileFloat4s;
    }
    bool leaves = false;  // and so writes its own share, which it had kept
#pragma unroll 1
    while (true) {
      if (config::kWarpsK > 1 || !cluster) {
        int part = 0;
#pragma unroll 1
        for (int i = tid; i < total; i += config::kEpilogueThreads) {
          if (!together || (part == blockIdx.z) == leaves) {
            const Float4 s = cta_sum(i / kVectors, i % kVectors);
            if (cluster) {
              *shared_sum(i / kVectors, i % kVectors) = s;
            } else {
              store_cg(mine + i, s);
            }
          }
          if constexpr (config::kMayShare) part = part + 1 == parts ? 0 : part + 1;
        }
      }
      if (cluster) {
        cluster_barrier();
        break;
      }
      barrier();
      if (tid == 0) taken = !together ? take_all(ticket, slices) : leaves ? leave(ticket, slices) : take_shares(ticket, slices);
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
#pragma unroll 1
    for (int i = tid + (__ffs(shares) - 1) * config::kEpilogueThreads; i < total; i += parts * config::kEpilogueThreads) {
      const int m = i / kVectors, v = i % kVectors;
      Float4 own = {0, 0, 0, 0};  // this CTA's slice of it
      if (slices == 1 || (config::kMayShare && !cluster)) own = cta_sum(m, v);
      Float4 s = own;
      if (slices > 1) {
        const auto slice = [&](int z) {
          if (config::kMayShare && !cluster && z == blockIdx.z) return own;
          return load_partial(cluster ? in_cluster(shared_sum(m, v), z) : partials + (z * kTileFloat4s + i) * 16);
        };
        s = slice(0);
#pragma unroll 4
        for (int z = 1; z < slices; ++z) add(s, slice(z));
      }
      store(out, first_row + m, first_col + v * 4, s);
    }
  }
  if (together && departures(state) + 1 == slices) *ticket = 0;
  if (cluster) cluster_barrier();  // nobody leaves while its shared memory is read
}

}  // namespace epilogue
