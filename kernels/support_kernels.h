#ifndef QGEMM_KERNELS_SUPPORT_KERNELS_H_
#define QGEMM_KERNELS_SUPPORT_KERNELS_H_

// The entries of device/support.cuh and their parameters, in order. i64 = 64-bit integer, int and u32 =
// 32-bit, type: an int, 0 = bf16, 1 = fp16, 2 = fp32 (ScalarTypeCode). Kernels without a grid of their own
// take any grid of 256 threads (the flush 512, the probe 32, clock readers 1) and walk their data with it.

#include "kernels/problem.h"

namespace qgemm::support {

// (u8* out, i64 count, u32 limit, u64 seed): codes below `limit`, a power of two; 256: any byte.
inline constexpr char kFillCodes[] = "qgemm_fill_codes";
// (u16* out, i64 count, type, float low, float high, u64 seed)
inline constexpr char kFillUniform[] = "qgemm_fill_uniform";
// (u16* out, const u16* scales, i64 count, type, float low, float high, u64 seed): scales times uniform
// numbers.
inline constexpr char kFillProducts[] = "qgemm_fill_products";
// (i8* out, const i8* codes, i64 count, u64 seed): about -codes.
inline constexpr char kFillOpposites[] = "qgemm_fill_opposites";
// (void* out, i64 count, type, u64 seed): mean 0, variance 1.
inline constexpr char kFillNormal[] = "qgemm_fill_normal";
// (const u8* codes, u32* packed, i64 n, i64 k, i64 padded_n, i64 padded_k, int bits)
inline constexpr char kPackWeights[] = "qgemm_pack_weights";
// (const u16* numbers, u16* packed, i64 n, i64 canonical_groups, i64 padded_n, i64 groups, int pitch): pitch:
// numbers from one group of 16 rows to the next, at least 16.
inline constexpr char kPackNumbers[] = "qgemm_pack_numbers";
// (const u8* bytes, u8* packed, i64 n, i64 canonical_groups, i64 padded_n, i64 groups, int padding)
inline constexpr char kPackBytes[] = "qgemm_pack_bytes";
// (const u16* x, const u8* codes, const u16* scales, const u8* zeros, const u16* offsets, const i8*
// scale_codes,
//  const i8* offset_codes, const void* bias, const void* residual, float* out,
//  i64 m, i64 n, i64 k, i64 ldx, i64 ldr, i64 group_size, type act, type scale, type out, int center,
//  int activation, int gated, int byte_activations): absent operands are null, group_size is k when
//  channel-wise, bias and residual have the
// output's type. Grid (ceil(n / 64), ceil(m / 64)), 256 threads.
inline constexpr char kReferenceGemm[] = "qgemm_reference_gemm";
// (const void* y, const float* reference, double* partials, i64 m, i64 columns, i64 ldy, type, u32 poison).
// partials: four numbers per block, see CompareField. poison: four bytes of an output never written.
inline constexpr char kCompare[] = "qgemm_compare";
// (const u8* bytes, i64 count, u32 value, u64 result[2])
inline constexpr char kCountUnequal[] = "qgemm_count_unequal";
// (const u8* a, const u8* b, i64 count, u64 result[2])
inline constexpr char kCountDifferent[] = "qgemm_count_different";
// (const uint4* words, i64 count, u32* sink)
inline constexpr char kReadFlush[] = "qgemm_read_flush";
// (u32 iterations, float* sink)
inline constexpr char kClockProbe[] = "qgemm_clock_probe";
// (u64* ns), one thread: writes the GPU's clock, nanoseconds.
inline constexpr char kMark[] = "qgemm_mark";
// (u64* ns, u32 changes, u32 reads), one thread: writes the smallest step of that clock.
inline constexpr char kClockStep[] = "qgemm_clock_step";

// An entry and the size of each of its parameters in bytes, a digit each.
struct Entry {
  const char* name;
  const char* parameter_bytes;
};
inline constexpr Entry kEntries[] = {
    {kFillCodes, "8848"},      {kFillUniform, "884448"}, {kFillProducts, "8884448"},
    {kFillOpposites, "8888"},  {kFillNormal, "8848"},    {kPackWeights, "8888884"},
    {kPackNumbers, "8888884"}, {kPackBytes, "8888884"},  {kReferenceGemm, "88888888888888884444444"},
    {kCompare, "88888844"},    {kCountUnequal, "8848"},  {kCountDifferent, "8888"},
    {kReadFlush, "888"},       {kClockProbe, "48"},      {kMark, "8"},
    {kClockStep, "844"},
};

inline constexpr int kThreads = 256;
inline constexpr int kFlushThreads = 512;
inline constexpr int kProbeThreads = 32;
inline constexpr int kReferenceTile = 64;

enum CompareField {
  kSquaredDifference = 0,
  kSquaredReference = 1,
  kNotFinite = 2,
  kUnwritten = 3,
  kCompareFields = 4
};

inline constexpr int ScalarTypeCode(ScalarType type) {
  return type == ScalarType::kFp32 ? 2 : type == ScalarType::kFp16 ? 1 : 0;
}
inline constexpr int ActivationCode(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return 0;
    case Activation::kSilu:
      return 1;
    case Activation::kGeluTanh:
      return 2;
    case Activation::kRelu:
      return 3;
  }
  return 0;
}

}  // namespace qgemm::support

#endif  // QGEMM_KERNELS_SUPPORT_KERNELS_H_
