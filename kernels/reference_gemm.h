#ifndef QGEMM_KERNELS_REFERENCE_GEMM_H_
#define QGEMM_KERNELS_REFERENCE_GEMM_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/packing.h"

namespace qgemm {

// Bits of a bf16 or fp16 number <-> double; rounding is to nearest even.
double ScalarToDouble(uint16_t bits, ScalarType type);
uint16_t ScalarFromDouble(double value, ScalarType type);

// Y[m][n] in fp64 from the canonical weights: the judge of every kernel, sharing no code with them.
// x: [m][k] bits of `act`; bias: [n] bits of `act`, or empty.
std::vector<double> ReferenceGemm(const CanonicalWeights& weights, absl::Span<const uint16_t> x, int64_t m,
                                  ScalarType act, absl::Span<const uint16_t> bias);

// ||actual - expected|| / ||expected|| (Frobenius); infinite when a value is not finite.
double RelativeError(absl::Span<const double> actual, absl::Span<const double> expected);

// Largest relative error accepted of a kernel: 3e-3 for bf16, 6e-4 for fp16.
double ToleranceFor(ScalarType act);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_REFERENCE_GEMM_H_
