#ifndef QGEMM_TESTS_KERNEL_CASES_KERNEL_CASE_H_
#define QGEMM_TESTS_KERNEL_CASES_KERNEL_CASE_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/packing.h"
#include "kernels/problem.h"

namespace qgemm {

// Signatures for tests of kernels: every width with every zero point, group, scale and epilogue somewhere,
// the output types taking turns.
std::vector<KernelSignature> FormatSignatures();

struct KernelShape {
  int64_t n, k;
};

// Weights of about the same size whatever the width.
CanonicalWeights RandomWeights(const KernelShape& shape, const WeightFormat& format, std::mt19937& random);

// The operands of a launch as they lie in memory, and what comes out, by fp64 on the CPU. Rows of X and Y are
// further apart than they need be; what lies between must neither be read into a result (it is NaN) nor be
// written.
struct KernelCase {
  Problem problem;
  int64_t max_m = 0;
  int64_t ldx = 0, ldy = 0, ldr = 0;
  std::vector<uint16_t> x_numbers;  // [max_m][ldx]
  CanonicalWeights canonical;       // what is packed
  PackedWeights packed;
  std::vector<uint8_t> bias_numbers;      // [n], empty without a bias
  std::vector<uint8_t> residual_numbers;  // [max_m][ldr], empty without a residual
  std::vector<double> expected;           // [max_m][columns of Y]
  double root_sum_squares = 0;            // of all products w * x
};

// `inputs`, [max_m][k], replaces the normal X.
KernelCase MakeKernelCase(const KernelShape& shape, const KernelSignature& signature, int64_t max_m,
                          const std::vector<double>* inputs = nullptr);

// Of an output with `guard` elements before and after its m rows that was all bytes 0xff, NaN in every type,
// before the launch: RelativeError of the results; `violation` is a sentence when something else than results
// was written.
double JudgeOutput(const KernelCase& data, absl::Span<const uint8_t> output, int64_t guard, int64_t m,
                   std::string* violation);

}  // namespace qgemm

#endif  // QGEMM_TESTS_KERNEL_CASES_KERNEL_CASE_H_
