#include "proto/convert/problem.h"

namespace qgemm {
namespace {

v1::ScalarType ScalarTypeToProto(ScalarType type) {
  switch (type) {
    case ScalarType::kBf16:
      return v1::SCALAR_TYPE_BF16;
    case ScalarType::kFp16:
      return v1::SCALAR_TYPE_FP16;
    case ScalarType::kFp32:
      return v1::SCALAR_TYPE_FP32;
  }
  return v1::SCALAR_TYPE_UNSPECIFIED;
}

v1::ZeroPoint ZeroPointToProto(ZeroPoint zero) {
  switch (zero) {
    case ZeroPoint::kNone:
      return v1::ZERO_POINT_NONE;
    case ZeroPoint::kInteger:
      return v1::ZERO_POINT_INTEGER;
    case ZeroPoint::kFloat:
      return v1::ZERO_POINT_FLOAT;
  }
  return v1::ZERO_POINT_UNSPECIFIED;
}

v1::ActivationQuantization QuantizationToProto(ActivationQuantization quantization) {
  switch (quantization) {
    case ActivationQuantization::kNone:
      return v1::ACTIVATION_QUANTIZATION_NONE;
    case ActivationQuantization::kInt8:
      return v1::ACTIVATION_QUANTIZATION_INT8;
  }
  return v1::ACTIVATION_QUANTIZATION_UNSPECIFIED;
}

v1::Activation ActivationToProto(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return v1::ACTIVATION_NONE;
    case Activation::kSilu:
      return v1::ACTIVATION_SILU;
    case Activation::kGeluTanh:
      return v1::ACTIVATION_GELU_TANH;
    case Activation::kRelu:
      return v1::ACTIVATION_RELU;
  }
  return v1::ACTIVATION_UNSPECIFIED;
}

}  // namespace

v1::Problem ProblemToProto(const Problem& problem) {
  const KernelSignature& signature = problem.signature;
  v1::Problem proto;
  proto.set_n(problem.n);
  proto.set_k(problem.k);
  proto.mutable_format()->set_bits(signature.format.bits);
  proto.mutable_format()->set_group_size(signature.format.group_size);
  proto.mutable_format()->set_scale_type(ScalarTypeToProto(signature.format.scale_type));
  proto.mutable_format()->set_zero_point(ZeroPointToProto(signature.format.zero_point));
  proto.mutable_format()->set_scale_levels(signature.format.scale_levels);
  proto.set_act(ScalarTypeToProto(signature.act));
  proto.set_out(ScalarTypeToProto(signature.out));
  proto.set_act_quantization(QuantizationToProto(signature.quantization));
  proto.mutable_epilogue()->set_bias(signature.epilogue.bias);
  proto.mutable_epilogue()->set_activation(ActivationToProto(signature.epilogue.activation));
  proto.mutable_epilogue()->set_gated(signature.epilogue.gated);
  proto.mutable_epilogue()->set_residual(signature.epilogue.residual);
  return proto;
}

}  // namespace qgemm
