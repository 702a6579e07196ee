#include "server/proto_convert.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

absl::StatusOr<ScalarType> ScalarTypeFromProto(absl::string_view field, v1::ScalarType type) {
  switch (type) {
    case v1::SCALAR_TYPE_BF16:
      return ScalarType::kBf16;
    case v1::SCALAR_TYPE_FP16:
      return ScalarType::kFp16;
    case v1::SCALAR_TYPE_FP32:
      return ScalarType::kFp32;
    case v1::SCALAR_TYPE_UNSPECIFIED:
      return absl::InvalidArgumentError(absl::StrCat(field, " is not set; allowed: BF16, FP16"));
    default:
      return absl::InvalidArgumentError(absl::StrCat(field, " is the unknown scalar type ",
                                                     static_cast<int>(type), "; allowed: BF16, FP16, FP32"));
  }
}

absl::StatusOr<ZeroPoint> ZeroPointFromProto(v1::ZeroPoint zero) {
  switch (zero) {
    case v1::ZERO_POINT_UNSPECIFIED:
    case v1::ZERO_POINT_NONE:
      return ZeroPoint::kNone;
    case v1::ZERO_POINT_INTEGER:
      return ZeroPoint::kInteger;
    case v1::ZERO_POINT_FLOAT:
      return ZeroPoint::kFloat;
    default:
      return absl::InvalidArgumentError(absl::StrCat("format.zero_point is the unknown kind ",
                                                     static_cast<int>(zero),
                                                     "; allowed: NONE, INTEGER, FLOAT"));
  }
}

absl::StatusOr<Activation> ActivationFromProto(v1::Activation activation) {
  switch (activation) {
    case v1::ACTIVATION_UNSPECIFIED:
    case v1::ACTIVATION_NONE:
      return Activation::kNone;
    case v1::ACTIVATION_SILU:
      return Activation::kSilu;
    case v1::ACTIVATION_GELU_TANH:
      return Activation::kGeluTanh;
    case v1::ACTIVATION_RELU:
      return Activation::kRelu;
    default:
      return absl::InvalidArgumentError(absl::StrCat("epilogue.activation is the unknown kind ",
                                                     static_cast<int>(activation),
                                                     "; allowed: NONE, SILU, GELU_TANH, RELU"));
  }
}

absl::StatusOr<ActivationQuantization> QuantizationFromProto(v1::ActivationQuantization quantization) {
  switch (quantization) {
    case v1::ACTIVATION_QUANTIZATION_UNSPECIFIED:  // what an old client sends
    case v1::ACTIVATION_QUANTIZATION_NONE:
      return ActivationQuantization::kNone;
    case v1::ACTIVATION_QUANTIZATION_INT8:
      return ActivationQuantization::kInt8;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "act_quantization is the unknown kind ", static_cast<int>(quantization), "; allowed: NONE, INT8"));
  }
}

}  // namespace

absl::StatusOr<Problem> ProblemFromProto(const v1::Problem& proto) {
  Problem problem;
  problem.n = proto.n();
  problem.k = proto.k();
  KernelSignature& signature = problem.signature;
  QGEMM_ASSIGN_OR_RETURN(signature.act, ScalarTypeFromProto("act", proto.act()));
  signature.out = signature.act;
  if (proto.out() != v1::SCALAR_TYPE_UNSPECIFIED) {
    QGEMM_ASSIGN_OR_RETURN(signature.out, ScalarTypeFromProto("out", proto.out()));
  }
  QGEMM_ASSIGN_OR_RETURN(signature.quantization, QuantizationFromProto(proto.act_quantization()));
  signature.format.bits = proto.format().bits();
  signature.format.group_size = proto.format().group_size();
  // 0 is what an old client sends.
  signature.format.scale_levels = proto.format().scale_levels() == 0 ? 1 : proto.format().scale_levels();
  signature.format.scale_type = signature.format.two_level() ? ScalarType::kFp16 : signature.act;
  if (proto.format().scale_type() != v1::SCALAR_TYPE_UNSPECIFIED) {
    QGEMM_ASSIGN_OR_RETURN(signature.format.scale_type,
                           ScalarTypeFromProto("format.scale_type", proto.format().scale_type()));
  }
  QGEMM_ASSIGN_OR_RETURN(signature.format.zero_point, ZeroPointFromProto(proto.format().zero_point()));
  signature.epilogue.bias = proto.epilogue().bias();
  QGEMM_ASSIGN_OR_RETURN(signature.epilogue.activation, ActivationFromProto(proto.epilogue().activation()));
  signature.epilogue.gated = proto.epilogue().gated();
  signature.epilogue.residual = proto.epilogue().residual();
  QGEMM_RETURN_IF_ERROR(ValidateProblem(problem));
  return problem;
}

v1::Reduction ReductionToProto(Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return v1::REDUCTION_NONE;
    case Reduction::kWorkspace:
      return v1::REDUCTION_WORKSPACE;
    case Reduction::kCluster:
      return v1::REDUCTION_CLUSTER;
  }
  return v1::REDUCTION_UNSPECIFIED;
}

absl::StatusOr<v1::Effort> CanonicalEffort(v1::Effort effort) {
  switch (effort) {
    case v1::EFFORT_UNSPECIFIED:
      return v1::EFFORT_BALANCED;
    case v1::EFFORT_MODEL_ONLY:
    case v1::EFFORT_QUICK:
    case v1::EFFORT_BALANCED:
    case v1::EFFORT_EXHAUSTIVE:
      return effort;
    default:
      return absl::InvalidArgumentError(absl::StrCat("effort is the unknown value ", static_cast<int>(effort),
                                                     "; allowed: MODEL_ONLY, QUICK, BALANCED, EXHAUSTIVE"));
  }
}

absl::string_view FailureText(internal::CandidateFailure failure) {
  switch (failure) {
    case internal::CANDIDATE_FAILURE_NONE:
      return "";
    case internal::CANDIDATE_FAILURE_LOAD:
      return "refused by the driver";
    case internal::CANDIDATE_FAILURE_LAUNCH:
      return "launch failed";
    case internal::CANDIDATE_FAILURE_WRONG:
      return "wrong result";
    case internal::CANDIDATE_FAILURE_NOT_REPEATABLE:
      return "not repeatable";
    case internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS:
      return "wrote out of bounds";
    case internal::CANDIDATE_FAILURE_HANG:
      return "did not end in time";
    case internal::CANDIDATE_FAILURE_COMPILE:
      return "does not compile";
    case internal::CANDIDATE_FAILURE_SPILLS:
      return "spills registers";
    default:
      return "failed for an unknown reason";
  }
}

}  // namespace qgemm
