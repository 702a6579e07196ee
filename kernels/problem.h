#ifndef QGEMM_KERNELS_PROBLEM_H_
#define QGEMM_KERNELS_PROBLEM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/weight_format.h"

namespace qgemm {

struct Epilogue {
  bool bias = false;  // Y += bias[N], in fp32

  friend bool operator==(const Epilogue&, const Epilogue&) = default;
};

// What a kernel is compiled for, apart from its config and arch: everything of a problem but its shape.
struct KernelSignature {
  WeightFormat format;
  ScalarType act = ScalarType::kBf16;
  ScalarType out = ScalarType::kBf16;
  Epilogue epilogue;

  friend bool operator==(const KernelSignature&, const KernelSignature&) = default;
};

// Y[M,N] = epilogue(X[M,K] @ dequant(W[N,K])^T); fixes all but M.
struct Problem {
  int64_t n = 0;
  int64_t k = 0;
  KernelSignature signature;

  friend bool operator==(const Problem&, const Problem&) = default;
};

// InvalidArgument naming field, value and what is allowed: n, k in 1 .. 2^31-1, k a multiple of the group
// size, a format some family serves, scale and output type equal to the activation type.
[[nodiscard]] absl::Status ValidateSignature(const KernelSignature& signature);
[[nodiscard]] absl::Status ValidateProblem(const Problem& problem);
// InvalidArgument unless 1 <= m < 2^31.
[[nodiscard]] absl::Status ValidateRows(int64_t m);

// "int4-g128-bf16 act bf16 out bf16", stable and unique per signature: part of the kernel key.
std::string SignatureName(const KernelSignature& signature);
// "5376x4096 int4-g128-bf16 act bf16 out bf16": part of pick and timing keys.
std::string ProblemName(const Problem& problem);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_PROBLEM_H_
