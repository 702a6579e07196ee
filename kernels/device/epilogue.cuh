// From fp32 partial sums in shared memory to Y, for every family.
//
//   red[w][token][n]  fp32, w = the CTA's K groups, rows of kTileN + 4 floats (the 4 keep the fragment stores free of
//                     bank conflicts), already written by the caller, no barrier yet
//   one slice of K:   sum over w -> bias -> cast -> Y
//   S slices:         sum over w -> workspace partial of this slice; the CTA that takes a tile's last ticket adds the
//                     slices in slice order, so that the result does not depend on who was last: bitwise repeatable
//                     for a given (config, S, M). The ticket is set back to 0 for the next launch.
//   S slices in a     the CTAs of a tile's slices are one thread block cluster (sm_90 and up): each adds its share of the
//   cluster:          tile over all slices, in slice order, reading the others' sums through distributed shared memory.
//
// Workspace: [tickets u32 [M tiles][N tiles], rounded up to 256 B | partials fp32 [M tile][N tile][slice][kTileM][kTileN]].
// The loops are rolled: unrolled epilogues cost NVRTC more than the main loop does.

struct Output {
  void* y;
  const void* bias;
  void* workspace;
  int m, n;  // real sizes
  i64 ldy;
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

// Writes 4 neighbouring columns of a row of Y; columns beyond N are dropped.
QG_DEVICE void store(const Output& out, int row, int col, Float4 v) {
  if (col >= out.n) return;
  if constexpr (config::kBias) {
    const u16* bias = static_cast<const u16*>(out.bias) + col;
    v.x += act::to_float(load_u16(bias));
    if (col + 1 < out.n) v.y += act::to_float(load_u16(bias + 1));
    if (col + 2 < out.n) v.z += act::to_float(load_u16(bias + 2));
    if (col + 3 < out.n) v.w += act::to_float(load_u16(bias + 3));
  }
  const u32 lo = act::pack(v.x, v.y), hi = act::pack(v.z, v.w);
  u16* y = static_cast<u16*>(out.y) + static_cast<i64>(row) * out.ldy + col;
  if (col + 4 <= out.n && (out.ldy & 3) == 0) {
    *reinterpret_cast<Vec2*>(y) = Vec2{lo, hi};
  } else {
    y[0] = static_cast<u16>(lo);
    if (col + 1 < out.n) y[1] = static_cast<u16>(lo >> 16);
    if (col + 2 < out.n) y[2] = static_cast<u16>(hi);
    if (col + 3 < out.n) y[3] = static_cast<u16>(hi >> 16);
  }
}

#if __CUDA_ARCH__ >= 900
QG_DEVICE int cluster_size() {
  int size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
QG_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
QG_DEVICE Float4 load_remote(u32 address, int rank) {
  u32 remote;
  Float4 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(remote)
               : "memory");
  return v;
}
#endif

// The first kEpilogueThreads threads of the CTA call this; others have left. `rows`: rows of Y in this tile.
QG_DEVICE void run(float* red, const Output& out, int rows, int first_row, int first_col) {
  const int tid = threadIdx.x, slices = gridDim.z, total = rows * kVectors;
  barrier();
  auto cta_sum = [&](int m, int v) {
    Float4 s = *reinterpret_cast<const Float4*>(red + m * kRow + v * 4);
#pragma unroll 4
    for (int w = 1; w < config::kWarpsK; ++w) {
      add(s, *reinterpret_cast<const Float4*>(red + (w * config::kTileM + m) * kRow + v * 4));
    }
    return s;
  };
  if (slices == 1) {
#pragma unroll 1
    for (int i = tid; i < total; i += config::kEpilogueThreads) {
      const int m = i / kVectors, v = i % kVectors;
      store(out, first_row + m, first_col + v * 4, cta_sum(m, v));
    }
    return;
  }
#if __CUDA_ARCH__ >= 900
  if (cluster_size() > 1) {
    if constexpr (config::kWarpsK > 1) {
#pragma unroll 1
      for (int i = tid; i < total; i += config::kEpilogueThreads) {
        const int m = i / kVectors, v = i % kVectors;
        *reinterpret_cast<Float4*>(red + m * kRow + v * 4) = cta_sum(m, v);
      }
    }
    cluster_barrier();
#pragma unroll 1
    for (int i = blockIdx.z * config::kEpilogueThreads + tid; i < total; i += slices * config::kEpilogueThreads) {
      const int m = i / kVectors, v = i % kVectors;
      const u32 address = shared_address(red + m * kRow + v * 4);
      Float4 s = load_remote(address, 0);
#pragma unroll 4
      for (int z = 1; z < slices; ++z) add(s, load_remote(address, z));
      store(out, first_row + m, first_col + v * 4, s);
    }
    cluster_barrier();  // nobody leaves while its shared memory is read
    return;
  }
#endif
  __shared__ u32 is_last;
  constexpr i64 kTileFloat4s = config::kTileM * kVectors;
  const i64 tile = static_cast<i64>(blockIdx.x) * gridDim.y + blockIdx.y;
  const i64 ticket_bytes = (static_cast<i64>(gridDim.x) * gridDim.y * 4 + 255) & ~255ll;
  u32* ticket = static_cast<u32*>(out.workspace) + tile;
  Float4* partials = reinterpret_cast<Float4*>(static_cast<u8*>(out.workspace) + ticket_bytes) + tile * slices * kTileFloat4s;
  Float4* mine = partials + blockIdx.z * kTileFloat4s;
#pragma unroll 1
  for (int i = tid; i < total; i += config::kEpilogueThreads) store_cg(mine + i, cta_sum(i / kVectors, i % kVectors));
  __threadfence();
  barrier();
  if (tid == 0) {
    const u32 taken = atomicAdd(ticket, 1u);
    is_last = taken + 1 == slices;
    if (is_last) *ticket = 0;
  }
  barrier();
  if (!is_last) return;
  __threadfence();
#pragma unroll 1
  for (int i = tid; i < total; i += config::kEpilogueThreads) {
    Float4 s = load_cg(partials + i);
#pragma unroll 4
    for (int z = 1; z < slices; ++z) add(s, load_cg(partials + z * kTileFloat4s + i));
    store(out, first_row + i / kVectors, first_col + i % kVectors * 4, s);
  }
}

}  // namespace epilogue
