#ifndef QGEMM_KERNELS_SUPPORT_KERNELS_H_
#define QGEMM_KERNELS_SUPPORT_KERNELS_H_

// The entries of device/support.cuh and their parameters, in order. i64 = 64-bit integer, int and u32 =
// 32-bit, type: an int, 0 = bf16, 1 = fp16 (ScalarTypeCode). Kernels without a grid of their own take any
// grid of 256 threads (the flush 512, the probe 32) and walk their data with it.

#include "kernels/weight_format.h"

namespace qgemm::support {

// (u8* out, i64 count, u32 limit, u64 seed): codes below `limit`, a power of two.
inline constexpr char kFillCodes[] = "qgemm_fill_codes";
// (u16* out, i64 count, type, float low, float high, u64 seed)
inline constexpr char kFillUniform[] = "qgemm_fill_uniform";
// (u16* out, i64 count, type, u64 seed): mean 0, variance 1.
inline constexpr char kFillNormal[] = "qgemm_fill_normal";
// (const u8* codes, u32* packed, i64 n, i64 k, i64 padded_n, i64 padded_k, int padding_code)
inline constexpr char kPackWeights[] = "qgemm_pack_weights";
// (const u16* scales, u16* packed, i64 n, i64 canonical_groups, i64 padded_n, i64 groups)
inline constexpr char kPackScales[] = "qgemm_pack_scales";
// (const u8* zeros, u8* packed, i64 n, i64 canonical_groups, i64 padded_n, i64 groups, int padding_code)
inline constexpr char kPackZeros[] = "qgemm_pack_zeros";
// (const u16* x, const u8* codes, const u16* scales, const u8* zeros or null, const u16* bias or null, float*
// out,
//  i64 m, i64 n, i64 k, i64 ldx, int group_size, type act, type scale, int default_zero); grid (ceil(n / 64),
//  ceil(m / 64)), 256 threads.
inline constexpr char kReferenceGemm[] = "qgemm_reference_gemm";
// (const u16* y, const float* reference, double* partials, i64 m, i64 n, i64 ldy, type, u32 poison);
// partials: four numbers per block, see CompareField.
inline constexpr char kCompare[] = "qgemm_compare";
// (const u8* bytes, i64 count, u32 value, u64 result[2])
inline constexpr char kCountUnequal[] = "qgemm_count_unequal";
// (const u8* a, const u8* b, i64 count, u64 result[2])
inline constexpr char kCountDifferent[] = "qgemm_count_different";
// (const uint4* words, i64 count, u32* sink)
inline constexpr char kReadFlush[] = "qgemm_read_flush";
// (u32 iterations, float* sink)
inline constexpr char kClockProbe[] = "qgemm_clock_probe";

// An entry and the size of each of its parameters in bytes, a digit each.
struct Entry {
  const char* name;
  const char* parameter_bytes;
};
inline constexpr Entry kEntries[] = {
    {kFillCodes, "8848"},
    {kFillUniform, "884448"},
    {kFillNormal, "8848"},
    {kPackWeights, "8888884"},
    {kPackScales, "888888"},
    {kPackZeros, "8888884"},
    {kReferenceGemm, "88888888884444"},
    {kCompare, "88888844"},
    {kCountUnequal, "8848"},
    {kCountDifferent, "8888"},
    {kReadFlush, "888"},
    {kClockProbe, "48"},
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

inline constexpr int ScalarTypeCode(ScalarType type) { return type == ScalarType::kFp16 ? 1 : 0; }

}  // namespace qgemm::support

#endif  // QGEMM_KERNELS_SUPPORT_KERNELS_H_
