// Kernels that only read: what a GEMM of few rows cannot beat. Each CTA reads one contiguous slice of `words` 16-byte
// words; sums are stored only in a case that does not occur, but that the compiler cannot exclude.
//
//   read_flush        grid-wide stride: replaces what the L2 holds by clean lines
//   read_direct_<u>   up to u 16-byte loads in flight per thread
//   read_bulk_<c>     ring of bulk copies of c KiB to shared memory, one thread issues; sm_90 and newer. The data is
//                     not read back. Dynamic shared memory: BULK_STAGES chunks.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

namespace {

__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}

struct Slice {
  i64 begin, end;
};

__device__ __forceinline__ Slice slice_of_block(i64 words) {
  const i64 per_block = (words + gridDim.x - 1) / gridDim.x;
  const i64 begin = per_block * blockIdx.x;
  return {begin < words ? begin : words, begin + per_block < words ? begin + per_block : words};
}

template <int kInFlight>
__device__ __forceinline__ void read_direct(const uint4* data, i64 words, u32* sink) {
  const Slice slice = slice_of_block(words);
  const i64 step = blockDim.x;
  i64 i = slice.begin + threadIdx.x;
  u32 sum = 0;
  for (; i + (kInFlight - 1) * step < slice.end; i += kInFlight * step) {
    uint4 v[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) v[u] = load_once(data + i + u * step);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
#pragma unroll 1
  for (; i < slice.end; i += step) {
    const uint4 v = load_once(data + i);
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}

#if __CUDA_ARCH__ >= 900
constexpr u32 kStages = BULK_STAGES;

__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

template <int kChunkBytes>
__device__ __forceinline__ void read_bulk(const uint4* data, i64 words) {
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ __align__(8) u64 arrived[kStages];
  if (threadIdx.x != 0) return;
  for (u32 s = 0; s < kStages; ++s) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrived + s)) : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  const Slice slice = slice_of_block(words);
  constexpr int kChunkWords = kChunkBytes / 16;
  const u32 chunks = static_cast<u32>((slice.end - slice.begin + kChunkWords - 1) / kChunkWords);
  const auto issue = [&](u32 chunk) {
    const i64 begin = slice.begin + i64(chunk) * kChunkWords;
    const i64 left = slice.end - begin;
    const u32 bytes = left < kChunkWords ? static_cast<u32>(left) * 16 : kChunkBytes;
    const u32 s = chunk % kStages;
    const u32 barrier = shared_address(arrived + s);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(ring + s * kChunkBytes)),
                 "l"(data + begin), "r"(bytes), "r"(barrier)
                 : "memory");
  };
  for (u32 chunk = 0; chunk < chunks && chunk < kStages; ++chunk) issue(chunk);
  for (u32 chunk = 0; chunk < chunks; ++chunk) {
    const u32 barrier = shared_address(arrived + chunk % kStages);
    const u32 parity = chunk / kStages & 1;
    u32 done = 0;
    while (!done) {
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    }
    if (chunk + kStages < chunks) issue(chunk + kStages);
  }
}
#endif

}  // namespace

extern "C" __global__ void __launch_bounds__(512) read_flush(const uint4* data, i64 words, u32* sink) {
  u32 sum = 0;
  const i64 threads = i64(gridDim.x) * blockDim.x;
#pragma unroll 4
  for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += threads) {
    const uint4 v = data[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}

extern "C" __global__ void __launch_bounds__(1024) read_direct_4(const uint4* data, i64 words, u32* sink) {
  read_direct<4>(data, words, sink);
}
extern "C" __global__ void __launch_bounds__(512) read_direct_8(const uint4* data, i64 words, u32* sink) {
  read_direct<8>(data, words, sink);
}
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void read_bulk_4(const uint4* data, i64 words, u32*) { read_bulk<4096>(data, words); }
extern "C" __global__ void read_bulk_8(const uint4* data, i64 words, u32*) { read_bulk<8192>(data, words); }
extern "C" __global__ void read_bulk_16(const uint4* data, i64 words, u32*) { read_bulk<16384>(data, words); }
#endif
