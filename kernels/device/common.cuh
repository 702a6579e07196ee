// Types and PTX wrappers shared by the kernel families. Included as text before a family's source: NVRTC sees one
// translation unit without library headers (cuda/std headers cost 20-50x an empty compile).
//
// The rendered prologue defines the constants of `config` (kernels/kernel_source.cc). Constants outside of functions are enumerators:
// NVRTC gives a constexpr variable a symbol and its bytes in the kernel, 130 bytes for each of 70.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(16) Vec4 {  // 16 bytes, the unit of every copy
  u32 x, y, z, w;
};
struct alignas(16) Float4 {
  float x, y, z, w;
};
struct alignas(8) Vec2 {
  u32 x, y;
};

#define QG_DEVICE __device__ __forceinline__

QG_DEVICE constexpr int min_of(int a, int b) { return a < b ? a : b; }
QG_DEVICE constexpr int max_of(int a, int b) { return a > b ? a : b; }

QG_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// The number of this thread's warp. What a lane has from another one the compiler knows to be the same in all: what follows from it
// is kept in uniform registers, and computed once for the warp.
QG_DEVICE int warp_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x >> 5), 0); }

// PTX ISA 7.0, cp.async: 16 bytes, bypassing L1. `bytes` 0 fills with zeros and reads nothing.
QG_DEVICE void copy_async16(u32 dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
// PTX ISA 7.4, createpolicy: lines that are the first to leave the L2 again, for bytes that are read once.
QG_DEVICE u64 read_once_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}
// `dst` must not be a sum of which ptxas knows that a part is the same in all lanes: it takes that part from a uniform register then,
// which it forgets to name beside a policy (CUDA 13.0: an illegal instruction). apart() makes it none.
QG_DEVICE u32 apart(u32 dst, u32 zero) {
  u32 same;
  asm("xor.b32 %0, %1, %2;" : "=r"(same) : "r"(dst), "r"(zero));
  return same;
}
QG_DEVICE void copy_async16_once(u32 dst, const void* src, u64 policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "l"(policy) : "memory");
}
QG_DEVICE void copy_async16_or_zero(u32 dst, const void* src, bool valid) {
  const u32 bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
QG_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
QG_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Programmatic dependent launch (PTX ISA, griddepcontrol): what the kernel before has written may be read, and its workspace
// used, from here on; and the next kernel may be launched beside this one. Neither does anything in a plain launch.
QG_DEVICE void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
QG_DEVICE void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Barrier `id` (1..15, constant once unrolled) among `kCount` threads of the CTA.
template <int kCount>
QG_DEVICE void named_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kCount) : "memory");
}

// PTX ISA, ldmatrix: four 8x8 matrices of 16-bit elements; lanes 8i..8i+7 give the row addresses of matrix i.
QG_DEVICE void load_matrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
QG_DEVICE void load_matrix_x2(u32& r0, u32& r1, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(address) : "memory");
}

// D = A * B + c of signed bytes, exact int32 sums, m16n8k32 (PTX ISA, mma.sync.m16n8k32): 4 k a register.
QG_DEVICE void mma_bytes(u32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, u32 c) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}

// To a unit in the last place; a subnormal number counts as 0.
QG_DEVICE float reciprocal(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

// The larger one; a NaN when either is (PTX ISA, max.NaN).
QG_DEVICE float max_or_nan(float a, float b) {
  float d;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}

// Into the L2 cache; nothing waits for it.
QG_DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory"); }
// A line of 128 bytes whose contents nobody wants any more: what is read there next is anything (PTX ISA, discard).
QG_DEVICE void discard(const void* line) { asm volatile("discard.global.L2 [%0], 128;" ::"l"(line) : "memory"); }

QG_DEVICE void store_cg(Float4* p, Float4 v) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
// What another CTA has written to `p`.
QG_DEVICE Float4 load_relaxed(const void* p) {
  Float4 v;
  asm volatile("ld.relaxed.gpu.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}
QG_DEVICE u16 load_u16(const void* p) {
  u16 v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}

// The activation type's arithmetic. kActIsBf16 comes from the prologue.
namespace act {

// D = A * B (+ C), m16n8k16, fp32 accumulate (PTX ISA, mma.sync.m16n8k16).
QG_DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (config::kActIsBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// a * b + c on pairs. fma alone is used because add/sub/mul.bf16x2 need sm_90; a product is fma with -0.
QG_DEVICE u32 fma_pair(u32 a, u32 b, u32 c) {
  u32 d;
  if constexpr (config::kActIsBf16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  }
  return d;
}
QG_DEVICE u32 mul_pair(u32 a, u32 b) { return fma_pair(a, b, 0x80008000u); }

QG_DEVICE float to_float(u16 bits) {
  if constexpr (config::kActIsBf16) {
    return __uint_as_float(static_cast<u32>(bits) << 16);
  } else {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
  }
}
// Low and high element of a pair.
QG_DEVICE float low(u32 pair) { return to_float(static_cast<u16>(pair & 0xffffu)); }
QG_DEVICE float high(u32 pair) { return to_float(static_cast<u16>(pair >> 16)); }

// Round to nearest even, `lo` in the low half.
QG_DEVICE u32 pack(float lo, float hi) {
  u32 d;
  if constexpr (config::kActIsBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  }
  return d;
}

}  // namespace act
