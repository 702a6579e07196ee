#include "kernels/problem.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

absl::Status CheckRange(absl::string_view field, int64_t value) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (value >= 1 && value <= kMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " ", value, " is out of range: 1 to ", kMax));
}

std::string EpilogueName(const Epilogue& epilogue) {
  std::string name;
  if (epilogue.bias) name += " bias";
  if (epilogue.activation != Activation::kNone) {
    absl::StrAppend(&name, " ", ActivationName(epilogue.activation));
  }
  if (epilogue.gated) name += " gated";
  if (epilogue.residual) name += " residual";
  return name;
}

}  // namespace

absl::string_view ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kSilu:
      return "silu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kRelu:
      return "relu";
  }
  return "invalid";
}

absl::StatusOr<Activation> ParseActivation(absl::string_view field, absl::string_view text) {
  for (const Activation activation :
       {Activation::kNone, Activation::kSilu, Activation::kGeluTanh, Activation::kRelu}) {
    if (text == ActivationName(activation)) return activation;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " \"", text, "\" is not allowed: use none, silu, gelu_tanh or relu"));
}

absl::string_view ActivationQuantizationName(ActivationQuantization quantization) {
  return quantization == ActivationQuantization::kInt8 ? "int8" : "none";
}

absl::StatusOr<ActivationQuantization> ParseActivationQuantization(absl::string_view field,
                                                                   absl::string_view text) {
  for (const ActivationQuantization quantization :
       {ActivationQuantization::kNone, ActivationQuantization::kInt8}) {
    if (text == ActivationQuantizationName(quantization)) return quantization;
  }
  return absl::InvalidArgumentError(absl::StrCat(field, " \"", text, "\" is not allowed: use none or int8"));
}

absl::Status ValidateSignature(const KernelSignature& signature) {
  QGEMM_RETURN_IF_ERROR(ValidateWeightFormat(signature.format));
  if (signature.act != ScalarType::kBf16 && signature.act != ScalarType::kFp16) {
    return absl::InvalidArgumentError(
        absl::StrCat("act ", ScalarTypeName(signature.act), " is not allowed: use bf16 or fp16"));
  }
  if (signature.out != signature.act && signature.out != ScalarType::kFp32) {
    return absl::InvalidArgumentError(absl::StrCat("out ", ScalarTypeName(signature.out),
                                                   " is not allowed: use the activation type, ",
                                                   ScalarTypeName(signature.act), ", or fp32"));
  }
  if (signature.epilogue.gated && signature.epilogue.activation == Activation::kNone) {
    return absl::InvalidArgumentError(
        "gated is not allowed with activation none: use silu, gelu_tanh or relu");
  }
  if (signature.quantization == ActivationQuantization::kInt8 && !signature.format.channel_wise() &&
      signature.format.group_size < kActivationBlock) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_size ", signature.format.group_size,
                     " is not allowed with int8 activations, whose blocks have ", kActivationBlock,
                     ": use 32, 64, 128, 256 or channel-wise"));
  }
  return absl::OkStatus();
}

absl::Status ValidateProblem(const Problem& problem) {
  const WeightFormat& format = problem.signature.format;
  QGEMM_RETURN_IF_ERROR(ValidateSignature(problem.signature));
  QGEMM_RETURN_IF_ERROR(CheckRange("n", problem.n));
  QGEMM_RETURN_IF_ERROR(CheckRange("k", problem.k));
  if (format.channel_wise() && problem.k % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("k ", problem.k, " is not a multiple of 8, which channel-wise scales need"));
  }
  if (!format.channel_wise() && problem.k % format.group_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("k ", problem.k, " is not a multiple of group_size ", format.group_size));
  }
  if (problem.signature.epilogue.gated && problem.n % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("n ", problem.n, " is odd: gated rows of W come in pairs of gate and up"));
  }
  return absl::OkStatus();
}

absl::Status ValidateRows(int64_t m) { return CheckRange("m", m); }

std::string SignatureName(const KernelSignature& signature) {
  return absl::StrCat(WeightFormatName(signature.format), " act ", ScalarTypeName(signature.act),
                      signature.quantization == ActivationQuantization::kInt8 ? " as int8" : "", " out ",
                      ScalarTypeName(signature.out), EpilogueName(signature.epilogue));
}

std::string ProblemName(const Problem& problem) {
  return absl::StrCat(problem.n, "x", problem.k, " ", SignatureName(problem.signature));
}

}  // namespace qgemm
