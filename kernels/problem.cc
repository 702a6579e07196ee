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

}  // namespace

absl::Status ValidateSignature(const KernelSignature& signature) {
  QGEMM_RETURN_IF_ERROR(ValidateWeightFormat(signature.format));
  if (signature.act != ScalarType::kBf16 && signature.act != ScalarType::kFp16) {
    return absl::InvalidArgumentError(
        absl::StrCat("act ", static_cast<int>(signature.act), " is not allowed: use bf16 or fp16"));
  }
  if (signature.out != signature.act) {
    return absl::InvalidArgumentError(absl::StrCat("out ", ScalarTypeName(signature.out),
                                                   " is not allowed: use the activation type, ",
                                                   ScalarTypeName(signature.act)));
  }
  if (signature.format.scale_type != signature.act) {
    return absl::InvalidArgumentError(absl::StrCat("scale_type ", ScalarTypeName(signature.format.scale_type),
                                                   " is not allowed: use the activation type, ",
                                                   ScalarTypeName(signature.act)));
  }
  return absl::OkStatus();
}

absl::Status ValidateProblem(const Problem& problem) {
  QGEMM_RETURN_IF_ERROR(ValidateSignature(problem.signature));
  QGEMM_RETURN_IF_ERROR(CheckRange("n", problem.n));
  QGEMM_RETURN_IF_ERROR(CheckRange("k", problem.k));
  const int group_size = problem.signature.format.group_size;
  if (problem.k % group_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("k ", problem.k, " is not a multiple of group_size ", group_size));
  }
  return absl::OkStatus();
}

absl::Status ValidateRows(int64_t m) { return CheckRange("m", m); }

std::string SignatureName(const KernelSignature& signature) {
  return absl::StrCat(WeightFormatName(signature.format), " act ", ScalarTypeName(signature.act), " out ",
                      ScalarTypeName(signature.out), signature.epilogue.bias ? " bias" : "");
}

std::string ProblemName(const Problem& problem) {
  return absl::StrCat(problem.n, "x", problem.k, " ", SignatureName(problem.signature));
}

}  // namespace qgemm
