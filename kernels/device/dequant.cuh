// Packed codes -> exact integers q - z as bf16x2 / f16x2, in the register order of mma.m16n8k16's A operand; scales, zero
// points and offsets of a group as the families need them. Layouts: kernels/LAYOUT.md.
//
// A code is put into the mantissa of a power of two and the power and the zero point are taken off by one exact fma:
//   bf16: 0x4300 | q = 128 + q (q < 128), minus (128 + z)
//   fp16: 0x6400 | q = 1024 + q, minus (1024 + z)
// The scale is never folded into that fma: with the magic constant in it the sum would round at up to half a step
// per weight.
//
//   4 bits  a word is four pairs of nibbles; one lop3 takes a pair out and sets the magic. fp16 takes the pair 4 bits up
//           without a shift: 1024 + 16 q, times 1/16 minus (64 + z).
//   5, 6    high bits are merged into bytes, two pairs at a time; one byte permutation makes a pair with its magic.
//   8 bits  bytes hold q - 128 in two's complement. bf16 has no room for 8 bits under the magic: the low seven bits as
//           128 + l and the sign bit as 128 + h are subtracted, l - h = q - 128 exactly. fp16: lop3 flips the sign bit
//           back and sets the magic, 1024 + q.
// Instructions per 8 weights, bf16 / fp16: 4 bits 11 / 9, 5 and 6 bits 16 / 16, 8 bits 16 / 10.
//
// Raw codes (raw_step) keep their power of two: 4 bits 7 / 7, 5 and 6 bits 12 / 14, 8 bits 14 / 6. What it and the zero point are worth is
// taken off a sum of products instead, as many times as the activations' sum (Scale::of_raw): exact in fp32 but for the rounding of
// sums some 30 (bf16) or 16 times (fp16) as large as the result's terms. Tensor cores round towards zero, so that where activations
// have one sign, every rounding goes the same way: fp16 codes of 4 bits as 1024 + q, two instructions less, would be 2e-3 (K = 5120)
// to 4e-3 (20480) off then, beside the root of the sum of squares; as 64 + q 1e-4 and 2e-4, bf16's 1.4e-4 and 3e-4 (computed, not measured).
// An activation that is not finite, or from 1e34 on, makes its row of Y NaN.
//
// For activations of bytes a code becomes the byte 2^(8 - bits) (q - 2^(bits - 1)), its power of two left to the scale: at the
// top of its byte with the sign bit turned. A word of step w and of row g or g + 8 is four k of m16n8k32's A operand, in
// the order k, k + 8, k + 1, k + 9, which the activations are stored in, too. Instructions per 8 weights: 3, 8, 8, 0.

namespace dequant {

using config::kBits;

enum : int { kBlockBytes = 128 * kBits };                       // 16 rows x 64 k
enum : int { kRowCodeBytes = config::kBlocks * kBlockBytes };  // of a stage
enum : int { kHighWords = kBits == 8 ? 4 : kBits - 4 };         // of a lane, after its four low words
enum : u32 { kMagic = config::kActIsBf16 ? 0x43004300u : 0x64006400u };
enum : u32 { kOne = config::kActIsBf16 ? 0x3f803f80u : 0x3c003c00u };

// One lane's codes of a block.
struct Codes {
  u32 low[4];
  u32 high[kHighWords == 0 ? 1 : kHighWords];
};

QG_DEVICE Codes load_codes(const u8* block, int lane) {
  Codes c;
  const Vec4 low = *reinterpret_cast<const Vec4*>(block + lane * 16);
  c.low[0] = low.x, c.low[1] = low.y, c.low[2] = low.z, c.low[3] = low.w;
  if constexpr (kBits == 5) {
    c.high[0] = *reinterpret_cast<const u32*>(block + 512 + lane * 4);
  } else if constexpr (kBits == 6) {
    const Vec2 high = *reinterpret_cast<const Vec2*>(block + 512 + lane * 8);
    c.high[0] = high.x, c.high[1] = high.y;
  } else if constexpr (kBits == 8) {
    const Vec4 high = *reinterpret_cast<const Vec4*>(block + 512 + lane * 16);
    c.high[0] = high.x, c.high[1] = high.y, c.high[2] = high.z, c.high[3] = high.w;
  }
  return c;
}

// What is added to the codes of a fragment's two rows: element 0 for row g, element 1 for row g + 8.
struct Offsets {
  u32 direct[2];   // -(magic + z), both halves; 8 bits in bf16: -(z - 128)
  u32 shifted[2];  // 4 bits in fp16 only: -(64 + z)
};

QG_DEVICE u32 broadcast(u32 half) { return half | (half << 16); }

QG_DEVICE Offsets make_offsets(u32 z0, u32 z1) {
  Offsets o;
  const u32 z[2] = {z0, z1};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    o.shifted[i] = 0;
    if constexpr (config::kActIsBf16 && kBits == 8) {
      o.direct[i] = act::pack(128.f - static_cast<float>(z[i]), 128.f - static_cast<float>(z[i]));
    } else if constexpr (config::kActIsBf16) {
      o.direct[i] = broadcast(0xc300u | z[i]);
    } else {
      o.direct[i] = broadcast(0xe400u | z[i]);
      // -(1024 + z) + 960 = -(64 + z), exact.
      if constexpr (kBits == 4) o.shifted[i] = act::fma_pair(o.direct[i], 0x3c003c00u, 0x63806380u);
    }
  }
  return o;
}

template <u32 kMask>
QG_DEVICE u32 magic(u32 q) {  // (q & mask) | magic
  u32 t;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(t) : "r"(q), "n"(kMask), "n"(+kMagic));
  return t;
}
template <u32 kMask>
QG_DEVICE u32 merge(u32 q, u32 rest) {  // (q & mask) | rest
  u32 t;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(t) : "r"(q), "n"(kMask), "r"(rest));
  return t;
}

// Bytes of step w: container h holds rows g + 8h, its bytes the codes of {k, k + 8, k + 1, k + 9}; 5 and 6 bits.
template <int kW, int kH>
QG_DEVICE u32 container(const Codes& c) {
  const u32 low = (c.low[kW] >> (4 * kH)) & 0x0f0f0f0fu;
  constexpr int kBit = kBits == 5 ? 2 * kW + kH : 2 * (2 * (kW % 2) + kH);  // of the high bits, in every byte
  const u32 high = c.high[kBits == 5 ? 0 : kW / 2];
  const u32 moved = kBit >= 4 ? high >> (kBit - 4) : high << (4 - kBit);
  return merge<(kBits == 5 ? 0x10101010u : 0x30303030u)>(moved, low);
}

// Raw codes: 2^kRawShift of each are what a step has before the fma, plus raw_zero(0). fp16 codes stand at the top of their bytes, so
// that what is taken off again is not 1024 codes but 64, 128 or 256.
enum : int { kRawShift = config::kActIsBf16 ? 0 : 8 - kBits };
// What a step is before the fma, less this times the sum of the activations, is worth 2^kRawShift (q - z).
QG_DEVICE float raw_zero(float z) {
  if constexpr (config::kActIsBf16) return (kBits == 8 ? -128.f : 128.f) + z;
  return 1024.f + (1 << kRawShift) * z;
}

// Step w of 16 k -> the four A registers, raw; or (`kShift` 0) as the fma wants them.
template <int kW, int kShift>
QG_DEVICE void raw_step(const Codes& c, u32 (&a)[4]) {
  if constexpr (kBits == 4 && config::kActIsBf16) {
#pragma unroll
    for (int p = 0; p < 4; ++p) a[p] = magic<0x000f000fu>(c.low[kW] >> (4 * p));
  } else if constexpr (kBits == 4) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const u32 part = c.low[kW] >> (8 * h);
      a[2 * h] = kShift == 0 ? magic<0x000f000fu>(part) : magic<0x00f000f0u>(h ? c.low[kW] >> 4 : c.low[kW] << 4);
      a[2 * h + 1] = magic<0x00f000f0u>(part);
    }
  } else if constexpr (kBits < 8) {
    const u32 bytes[2] = {container<kW, 0>(c) << kShift, container<kW, 1>(c) << kShift};
#pragma unroll
    for (int p = 0; p < 4; ++p) a[p] = __byte_perm(bytes[p & 1], kMagic, p < 2 ? 0x7250 : 0x7351);
  } else {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const u32 word = kW < 2 ? c.low[2 * (kW % 2) + (p & 1)] : c.high[2 * (kW % 2) + (p & 1)];
      const u32 pair = p < 2 ? word : word >> 8;
      if constexpr (config::kActIsBf16) {
        a[p] = act::fma_pair(magic<0x00800080u>(pair), 0xbf80bf80u, magic<0x007f007fu>(pair));  // l - h
      } else {
        // (pair & mask) ^ (magic | sign bits)
        asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(a[p]) : "r"(pair), "n"(0x00ff00ffu), "n"(0x64806480u));
      }
    }
  }
}
// Step w as exact integers q - z.
template <int kW>
QG_DEVICE void step(const Codes& c, const Offsets& o, u32 (&a)[4]) {
  raw_step<kW, 0>(c, a);
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    if constexpr (kBits == 8 && config::kActIsBf16 && !config::kIntegerZeros && !config::kFloatZeros) {
      // - (z - 128) is nothing.
    } else if (kBits == 4 && !config::kActIsBf16 && (p & 1)) {
      a[p] = act::fma_pair(a[p], 0x2c002c00u, o.shifted[1]);
    } else {
      a[p] = act::fma_pair(a[p], kOne, o.direct[p & 1]);
    }
  }
}
// Step w as signed bytes: [0] row g, [1] row g + 8.
template <int kW>
QG_DEVICE void byte_step(const Codes& c, u32* a) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (kBits == 8) {
      a[h] = kW < 2 ? c.low[2 * (kW % 2) + h] : c.high[2 * (kW % 2) + h];
    } else {
      u32 top;
      if constexpr (kBits == 4) {
        top = (h ? c.low[kW] : c.low[kW] << 4) & 0xf0f0f0f0u;
      } else {
        top = (h ? container<kW, 1>(c) : container<kW, 0>(c)) << (8 - kBits);
      }
      a[h] = top ^ 0x80808080u;
    }
  }
}
// For loops over w that are unrolled.
QG_DEVICE void raw_step(const Codes& c, int w, u32 (&a)[4]) {
  if (w == 0) {
    raw_step<0, kRawShift>(c, a);
  } else if (w == 1) {
    raw_step<1, kRawShift>(c, a);
  } else if (w == 2) {
    raw_step<2, kRawShift>(c, a);
  } else {
    raw_step<3, kRawShift>(c, a);
  }
}
QG_DEVICE void step(const Codes& c, int w, const Offsets& o, u32 (&a)[4]) {
  if (w == 0) {
    step<0>(c, o, a);
  } else if (w == 1) {
    step<1>(c, o, a);
  } else if (w == 2) {
    step<2>(c, o, a);
  } else {
    step<3>(c, o, a);
  }
}

}  // namespace dequant

// The scale of one 16-row fragment and group, as one lane needs it: of rows g and g + 8, with zero points or offsets.
namespace scales {

using config::kChannelWise;
using config::kFloatZeros;
using config::kIntegerZeros;
using config::kTwoLevel;

// Bytes of a fragment's 16 rows: a group in the scale and zero planes, 256 k in the plane of steps.
enum : int { kScaleBytes = kTwoLevel ? 16 : 32 };
enum : int { kZeroBytes = kIntegerZeros ? 16 : kFloatZeros ? kScaleBytes : 0 };
enum : int { kStepBytes = kTwoLevel ? (kFloatZeros ? 64 : 32) : 0 };
// Scale groups of a stage's kBlocks blocks of 64 k, and of a block; blocks of a unit, which slices are whole numbers of.
enum : int { kStageGroups = kChannelWise ? 0 : max_of(1, config::kBlocks * 64 / config::kGroupSize) };
enum : int { kGroupsPerBlock = kChannelWise ? 1 : max_of(1, 64 / config::kGroupSize) };
enum : int { kBlocksPerUnit = kTwoLevel ? 4 : kChannelWise ? 1 : max_of(1, config::kGroupSize / 64) };
// The scale is left to the end of K: nothing about it changes on the way, and no offset is added to the weights.
enum : bool { kDeferred = kChannelWise && !kFloatZeros && !config::kByteActivations };
// The activations' type does not hold the scale exactly. A weight must still be rounded once: the scale is split in two
// numbers of that type, w = q s_high + (q s_low), or, with offsets, computed in fp32. (A rounded scale alone put the results
// of bf16 activations and fp16 or two-level scales at 3.3e-3 to 5.5e-3 from fp64, against 2.5e-3 so.) RunningStep needs neither.
enum : bool { kSplit = kTwoLevel || (config::kActIsBf16 && !config::kScaleIsBf16) };

QG_DEVICE float number(u16 bits) {
  if constexpr (config::kScaleIsBf16) {
    return __uint_as_float(static_cast<u32>(bits) << 16);
  } else {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
  }
}

// Rows g and g + 8: two 16-bit numbers of the scales' type, or two floats.
struct Pair {
  u32 bits[kTwoLevel ? 2 : 1];

  QG_DEVICE float value(int h) const {
    if constexpr (kTwoLevel) {
      return __uint_as_float(bits[h]);
    } else {
      return number(static_cast<u16>(h ? bits[0] >> 16 : bits[0] & 0xffffu));
    }
  }
  // Both halves, in the activations' type.
  QG_DEVICE u32 both(int h) const {
    if constexpr (!kTwoLevel && config::kScaleIsBf16 == config::kActIsBf16) {
      return __byte_perm(bits[0], 0, h ? 0x3232 : 0x1010);
    } else {
      return act::pack(value(h), value(h));
    }
  }
  // What both() lost.
  QG_DEVICE u32 rest(int h) const {
    const float lost = value(h) - act::low(both(h));
    return act::pack(lost, lost);
  }
};

struct Scale {
  Pair s, b;
  dequant::Offsets offsets;
  u32 zeros;  // zero points of the two rows, a byte each

  // Whether raw codes are worth what they are: with none of the activations' sums taken off.
  enum : bool { kRawIsExact = dequant::kBits == 8 && config::kActIsBf16 && !kIntegerZeros && !kFloatZeros };
  // A part of a sum, of row g + 8h: raw codes times activations, and the activations' sum.
  QG_DEVICE float of_raw(int h, float part, float sum) const {
    constexpr float kCenter = kFloatZeros ? 0.f : 1 << (config::kBits - 1);
    const float z = kIntegerZeros ? static_cast<float>(h ? zeros >> 8 : zeros & 0xffu) : kCenter;
    if constexpr (kRawIsExact) return s.value(h) * part;
    float worth = s.value(h) * (1.f / (1 << dequant::kRawShift)) * (part - dequant::raw_zero(z) * sum);
    if constexpr (kFloatZeros) worth += b.value(h) * sum;
    return worth;
  }

  // Bytes of weights times this, plus sums of activations times offset(), is what the weights are worth.
  QG_DEVICE float byte_scale(int h) const { return s.value(h) * (1.f / (1 << (8 - config::kBits))); }
  QG_DEVICE float byte_offset(int h) const {
    constexpr float kCenter = 1 << (config::kBits - 1);
    if constexpr (kFloatZeros) return b.value(h) + s.value(h) * kCenter;
    return s.value(h) * (kCenter - static_cast<float>(h ? zeros >> 8 : zeros & 0xffu));
  }
};

// `plane`: two-level codes or numbers; `step`: the fragment's 16 steps. `i` counts pairs.
QG_DEVICE Pair read_pair(const u8* plane, const u8* step, int i, int g) {
  Pair pair;
  if constexpr (kTwoLevel) {
    // 2^23 + 128 + code, less 2^23 + 128: a conversion takes four times as long.
    const u32 codes = reinterpret_cast<const u16*>(plane)[i] ^ 0x8080u;
    const u32 steps = reinterpret_cast<const u32*>(step)[g];
    const float low = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7440)) - 8388736.f;
    const float high = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7441)) - 8388736.f;
    pair.bits[0] = __float_as_uint(number(static_cast<u16>(steps & 0xffffu)) * low);
    pair.bits[1] = __float_as_uint(number(static_cast<u16>(steps >> 16)) * high);
  } else {
    pair.bits[0] = reinterpret_cast<const u32*>(plane)[i];
  }
  return pair;
}

// `scale`, `zero`: the planes' bytes from the fragment's first group here on; `step`: the fragment's steps; in shared or
// global memory. `group` counts from there.
QG_DEVICE Scale read(const u8* scale, const u8* zero, const u8* step, int group, int g) {
  Scale r;
  const int i = group * 8 + g;
  r.s = read_pair(scale, step, i, g);
  u32 zeros = config::kFloatZeros ? 0 : (1u << (config::kBits - 1)) * 0x0101u;
  if constexpr (kIntegerZeros) zeros = reinterpret_cast<const u16*>(zero)[i];
  if constexpr (kFloatZeros) r.b = read_pair(zero, step + 32, i, g);
  r.zeros = zeros;
  r.offsets = dequant::make_offsets(zeros & 0xffu, zeros >> 8);
  return r;
}

// Exact integers of one step -> weights, in the activations' type.
QG_DEVICE void apply(const Scale& s, u32 (&a)[4]) {
  if constexpr (!kDeferred) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kFloatZeros && kSplit) {
        const float scale = s.s.value(i & 1), offset = s.b.value(i & 1);
        a[i] = act::pack(act::low(a[i]) * scale + offset, act::high(a[i]) * scale + offset);
      } else if constexpr (kSplit) {
        a[i] = act::fma_pair(a[i], s.s.both(i & 1), act::mul_pair(a[i], s.s.rest(i & 1)));
      } else if constexpr (kFloatZeros) {
        a[i] = act::fma_pair(a[i], s.s.both(i & 1), s.b.both(i & 1));
      } else {
        a[i] = act::mul_pair(a[i], s.s.both(i & 1));
      }
    }
  }
}

// Two levels without float zero points, where sums are kept in units of the steps: weights are multiplied by their group's code
// alone, which both types of activations hold exactly. For rows g and g + 8 of a fragment.
// Tried: codes as bits of subnormal numbers, made whole by one fma with a large number: two instructions less a group, two more a step, and
// no fewer in all.
struct RunningStep {
  float value[2] = {1.f, 1.f};  // what sums are in units of
  u32 select = 0;               // the byte permutation that takes the codes of the two rows
  u32 codes = 0;                // of the group read last

  // To the next 256 k. `ratio`: what sums so far are multiplied by. A step of 0 is none to divide by: the one before stays, and its
  // codes are read as 0.
  QG_DEVICE void advance(const u8* step, int g, float (&ratio)[2]) {
    const u32 steps = reinterpret_cast<const u32*>(step)[g];
    select = 0x7170;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = number(static_cast<u16>(h ? steps >> 16 : steps & 0xffffu));
      if (next == 0.f) select |= h ? 0x0400 : 0x0004;
      const float kept = next == 0.f ? value[h] : next;
      ratio[h] = value[h] * reciprocal(kept);
      value[h] = kept;
    }
  }
  // As weights of 8 bits are made.
  QG_DEVICE void read_codes(const u8* plane, int group, int g) {
    const u32 bytes = reinterpret_cast<const u16*>(plane)[group * 8 + g];
    const u32 pair = __byte_perm(bytes, dequant::kMagic & 0xff000000u, select);
    if constexpr (config::kActIsBf16) {
      codes = act::fma_pair(pair & 0xff80ff80u, 0xbf80bf80u, pair & 0xff7fff7fu);  // l - h
    } else {
      codes = act::fma_pair(pair ^ 0x00800080u, dequant::kOne, 0xe480e480u);  // 1024 + 128 + code, less 1152
    }
  }
};

QG_DEVICE void apply(const RunningStep& s, u32 (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = act::mul_pair(a[i], __byte_perm(s.codes, 0, i & 1 ? 0x3232 : 0x1010));
}

}  // namespace scales
