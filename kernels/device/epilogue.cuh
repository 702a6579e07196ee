// From fp32 partial sums in shared memory to Y, for every family.
//
//   red[w][token][n]  fp32, w = the CTA's K groups, rows of kTileN + 4 floats (the 4 keep the fragment stores free of
//                     bank conflicts), already written by the caller, no barrier yet
//   one slice of K:   sum over w -> bias -> activation, gate -> residual -> cast -> Y
//   S slices:         sum over w -> workspace partial of this slice; the CTA that takes a tile's last ticket adds the
//                     slices in slice order, so that the result does not depend on who was last: bitwise repeatable
//                     for a given (config, S, M). The ticket is set back to 0 for the next launch.
//   S slices in a     the CTAs of a tile's slices are one thread block cluster (sm_90 and up): each adds its share of the
//   cluster:          tile over all slices, in slice order, reading the others' sums through distributed shared memory.
//
// Workspace: [tickets u32 [M tiles][N tiles], rounded up to 256 B | partials fp32 [M tile][N tile][slice][kTileM][kTileN]].
// The loops are rolled: unrolled epilogues cost NVRTC more than the main loop does.

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
  if (slices_in_cluster() > 1) {
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
