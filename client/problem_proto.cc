#include "client/problem_proto.h"

namespace qgemm {

absl::string_view ScalarTypeWord(v1::ScalarType type) {
  switch (type) {
    case v1::SCALAR_TYPE_BF16:
      return ScalarTypeName(ScalarType::kBf16);
    case v1::SCALAR_TYPE_FP16:
      return ScalarTypeName(ScalarType::kFp16);
    case v1::SCALAR_TYPE_FP32:
      return ScalarTypeName(ScalarType::kFp32);
    default:
      return "";
  }
}

absl::string_view ZeroPointWord(v1::ZeroPoint zero) {
  switch (zero) {
    case v1::ZERO_POINT_NONE:
      return ZeroPointName(ZeroPoint::kNone);
    case v1::ZERO_POINT_INTEGER:
      return ZeroPointName(ZeroPoint::kInteger);
    case v1::ZERO_POINT_FLOAT:
      return ZeroPointName(ZeroPoint::kFloat);
    default:
      return "";
  }
}

absl::string_view ActivationQuantizationWord(v1::ActivationQuantization quantization) {
  switch (quantization) {
    case v1::ACTIVATION_QUANTIZATION_UNSPECIFIED:
    case v1::ACTIVATION_QUANTIZATION_NONE:
      return ActivationQuantizationName(ActivationQuantization::kNone);
    case v1::ACTIVATION_QUANTIZATION_INT8:
      return ActivationQuantizationName(ActivationQuantization::kInt8);
    default:
      return "";
  }
}

absl::string_view ActivationWord(v1::Activation activation) {
  switch (activation) {
    case v1::ACTIVATION_UNSPECIFIED:
    case v1::ACTIVATION_NONE:
      return ActivationName(Activation::kNone);
    case v1::ACTIVATION_SILU:
      return ActivationName(Activation::kSilu);
    case v1::ACTIVATION_GELU_TANH:
      return ActivationName(Activation::kGeluTanh);
    case v1::ACTIVATION_RELU:
      return ActivationName(Activation::kRelu);
    default:
      return "";
  }
}

absl::string_view PickSourceWord(v1::PickSource source) {
  switch (source) {
    case v1::PICK_SOURCE_MEASURED:
      return "MEASURED";
    case v1::PICK_SOURCE_MODEL:
      return "MODEL";
    case v1::PICK_SOURCE_SIMILAR:
      return "SIMILAR";
    default:
      return "";
  }
}

absl::string_view ReductionWord(v1::Reduction reduction) {
  switch (reduction) {
    case v1::REDUCTION_NONE:
      return "none";
    case v1::REDUCTION_WORKSPACE:
      return "workspace";
    case v1::REDUCTION_CLUSTER:
      return "cluster";
    default:
      return "";
  }
}

absl::string_view EffortWord(v1::Effort effort) {
  switch (effort) {
    case v1::EFFORT_MODEL_ONLY:
      return "model-only";
    case v1::EFFORT_QUICK:
      return "quick";
    case v1::EFFORT_BALANCED:
      return "balanced";
    case v1::EFFORT_EXHAUSTIVE:
      return "exhaustive";
    default:
      return "";
  }
}

}  // namespace qgemm
