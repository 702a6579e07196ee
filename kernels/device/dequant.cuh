// 4-bit codes -> exact integers q - z as bf16x2 / f16x2, in the register order of mma.m16n8k16's A operand.
//
// One packed word holds the 8 codes of a lane for one k16 step (kernels/LAYOUT.md): nibble pair p is A register p,
// its even k in bits 4p, its odd k in bits 16+4p. A code is put into the mantissa of a power of two by one lop3 and
// the power and the zero point are taken off by one exact fma:
//   bf16: 0x4300 | q = 128 + q, minus (128 + z)
//   fp16: 0x6400 | q = 1024 + q, minus (1024 + z); the nibble 4 bits up is 1024 + 16 q, times 1/16 minus (64 + z)
// The scale is never folded into that fma: with the magic constant in it the sum would round at up to half a step
// per weight.

namespace dequant {

// The zero point of a fragment's two rows, ready to be subtracted: element 0 for row g, element 1 for row g + 8.
struct Offsets {
  u32 direct[2];   // -(magic + z), both halves
  u32 shifted[2];  // fp16 only: -(64 + z)
};

QG_DEVICE u32 broadcast(u32 half) { return half | (half << 16); }

QG_DEVICE Offsets make_offsets(u32 z0, u32 z1) {
  Offsets o;
  const u32 z[2] = {z0, z1};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (config::kActIsBf16) {
      o.direct[i] = broadcast(0xc300u | z[i]);
      o.shifted[i] = 0;
    } else {
      o.direct[i] = broadcast(0xe400u | z[i]);
      // -(1024 + z) + 960 = -(64 + z), exact.
      o.shifted[i] = act::fma_pair(o.direct[i], 0x3c003c00u, 0x63806380u);
    }
  }
  return o;
}

template <u32 kMask>
QG_DEVICE u32 magic(u32 q) {  // (q & mask) | magic
  u32 t;
  constexpr u32 kMagic = config::kActIsBf16 ? 0x43004300u : 0x64006400u;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(t) : "r"(q), "n"(kMask), "n"(kMagic));
  return t;
}

// One word -> the four A registers of a k16 step.
QG_DEVICE void word(u32 q, const Offsets& o, u32 (&a)[4]) {
  if constexpr (config::kActIsBf16) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      a[p] = act::fma_pair(magic<0x000f000fu>(q >> (4 * p)), 0x3f803f80u, o.direct[p & 1]);
    }
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const u32 part = q >> (8 * h);
      a[2 * h] = act::fma_pair(magic<0x000f000fu>(part), 0x3c003c00u, o.direct[0]);
      a[2 * h + 1] = act::fma_pair(magic<0x00f000f0u>(part), 0x2c002c00u, o.shifted[1]);
    }
  }
}

}  // namespace dequant
