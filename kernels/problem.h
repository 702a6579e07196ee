#ifndef QGEMM_KERNELS_PROBLEM_H_
#define QGEMM_KERNELS_PROBLEM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/weight_format.h"

namespace qgemm {

enum class Activation { kNone, kSilu, kGeluTanh, kRelu };
absl::string_view ActivationName(Activation activation);  // "none", "silu", "gelu_tanh", "relu"
[[nodiscard]] absl::StatusOr<Activation> ParseActivation(absl::string_view field, absl::string_view text);

// What happens to the fp32 sums before the one cast to the output type, in this order:
//   v = sum + bias[row of W]                         bias
//   v = activation(v)                                not gated
//   v = activation(v of row 2j) * v of row 2j + 1    gated: rows of W alternate gate, up; Y has N / 2 columns
//   v = v + residual[m][column]                      residual
struct Epilogue {
  bool bias = false;  // [N], in the output type
  Activation activation = Activation::kNone;
  bool gated = false;
  bool residual = false;  // [M][columns of Y], rows ldr elements apart, in the output type

  friend bool operator==(const Epilogue&, const Epilogue&) = default;
};

// What the kernel makes of X before it multiplies. kInt8: bytes, by row and block of 32 along K, s = largest
// magnitude / 127, x ~ s * round(x * (127 / largest magnitude)), in fp32, to nearest even; weights of 8 bits
// and fewer meet them in exact integer sums. A class of its own, which only those get who ask for it: on
// normal X it costs some 0.7 % of relative error.
enum class ActivationQuantization { kNone, kInt8 };
inline constexpr int kActivationBlock = 32;
// A block with nothing larger is zeros: 127 over it may be no number.
inline constexpr float kLeastActivation = 1e-30f;
absl::string_view ActivationQuantizationName(ActivationQuantization quantization);  // "none", "int8"
[[nodiscard]] absl::StatusOr<ActivationQuantization> ParseActivationQuantization(absl::string_view field,
                                                                                 absl::string_view text);

// What a kernel is compiled for, apart from its config and arch: everything of a problem but its shape.
struct KernelSignature {
  WeightFormat format;
  ScalarType act = ScalarType::kBf16;
  ScalarType out = ScalarType::kBf16;
  Epilogue epilogue;
  ActivationQuantization quantization = ActivationQuantization::kNone;  // of X

  friend bool operator==(const KernelSignature&, const KernelSignature&) = default;
};

// Y[M,N] = epilogue(X[M,K] @ dequant(W[N,K])^T); fixes all but M.
struct Problem {
  int64_t n = 0;
  int64_t k = 0;
  KernelSignature signature;

  // Columns of Y (and of the residual).
  int64_t y_columns() const { return signature.epilogue.gated ? n / 2 : n; }

  friend bool operator==(const Problem&, const Problem&) = default;
};

// InvalidArgument naming field, value and what is allowed: n, k in 1 .. 2^31-1, n even when gated, k a
// multiple of the group size (channel-wise: of 8); act bf16 or fp16; out the activation type or fp32; gated
// with an activation; int8 activations with groups of 32 and more or channel-wise.
[[nodiscard]] absl::Status ValidateSignature(const KernelSignature& signature);
[[nodiscard]] absl::Status ValidateProblem(const Problem& problem);
// InvalidArgument unless 1 <= m < 2^31.
[[nodiscard]] absl::Status ValidateRows(int64_t m);

// "int4-g128-bf16 act bf16 out bf16", "... act bf16 as int8 out bf16", stable and unique per signature: part
// of the kernel key.
std::string SignatureName(const KernelSignature& signature);
// "5376x4096 int4-g128-bf16 act bf16 out bf16": part of pick and timing keys.
std::string ProblemName(const Problem& problem);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_PROBLEM_H_
