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
// Numbers of any type as they lie in memory, fp32 too.
std::vector<double> ScalarsToDouble(absl::Span<const uint8_t> bytes, ScalarType type);

// Row `row` of W in fp64, [k], exactly.
std::vector<double> DequantizedRow(const CanonicalWeights& weights, int64_t row);

// X as a kernel sees it: itself, or what bytes and their scales are worth.
std::vector<double> ActivationsOf(absl::Span<const uint16_t> x, int64_t m, ScalarType act,
                                  ActivationQuantization quantization);

// Y in fp64 from the canonical weights, [m][n] or when gated [m][n / 2]: the judge of every kernel, sharing
// no code with them. x: [m][k] bits of `act`; bias: [n], residual: as Y, both empty where the epilogue has
// none.
std::vector<double> ReferenceGemm(const CanonicalWeights& weights, absl::Span<const uint16_t> x, int64_t m,
                                  ScalarType act, const Epilogue& epilogue, absl::Span<const double> bias,
                                  absl::Span<const double> residual,
                                  ActivationQuantization quantization = ActivationQuantization::kNone);
// The same with no more of an epilogue than a bias in the activation type, or none when it is empty.
std::vector<double> ReferenceGemm(const CanonicalWeights& weights, absl::Span<const uint16_t> x, int64_t m,
                                  ScalarType act, absl::Span<const uint16_t> bias);

// ||actual - expected|| / ||expected|| (Frobenius); infinite when a value is not finite.
double RelativeError(absl::Span<const double> actual, absl::Span<const double> expected);

// Largest relative error accepted of a kernel: 3e-3 for bf16 activations, 6e-4 for fp16, whatever the
// output's type; sqrt(2) times as much when gated, where an output is the product of two sums with errors of
// their own; and 1.22 times after SiLU or GELU, whose slope turns a relative error e of a sum v into up to so
// much: the largest sqrt(E[(v f'(v))^2] / E[f(v)^2]) over normal v of any variance (at 0.5 for GELU, 1 for
// SiLU).
double ToleranceFor(const KernelSignature& signature);
// That of an epilogue that is not gated.
double ToleranceFor(ScalarType act);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_REFERENCE_GEMM_H_
