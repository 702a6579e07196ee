#include "server/proto_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::Problem MinimalProblem() {
  v1::Problem proto;
  proto.set_n(5376);
  proto.set_k(4096);
  proto.mutable_format()->set_bits(4);
  proto.mutable_format()->set_group_size(128);
  proto.set_act(v1::SCALAR_TYPE_BF16);
  return proto;
}

std::string ErrorOf(const v1::Problem& proto) {
  const auto problem = ProblemFromProto(proto);
  EXPECT_EQ(problem.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(problem.status().message());
}

TEST(ProtoConvert, FillsDefaultsFromTheActivationType) {
  v1::Problem proto = MinimalProblem();
  proto.set_act(v1::SCALAR_TYPE_FP16);
  const auto problem = ProblemFromProto(proto);
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->signature.out, ScalarType::kFp16);
  EXPECT_EQ(problem->signature.format.scale_type, ScalarType::kFp16);
  EXPECT_EQ(problem->signature.format.zero_point, ZeroPoint::kNone);
  EXPECT_FALSE(problem->signature.epilogue.bias);
}

TEST(ProtoConvert, CanonicalProblemSurvivesARoundTrip) {
  v1::Problem proto = MinimalProblem();
  proto.mutable_format()->set_zero_point(v1::ZERO_POINT_INTEGER);
  proto.mutable_format()->set_group_size(32);
  proto.mutable_epilogue()->set_bias(true);
  const auto problem = ProblemFromProto(proto);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto again = ProblemFromProto(ProblemToProto(*problem));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *problem);
}

TEST(ProtoConvert, EveryFieldSurvivesARoundTrip) {
  v1::Problem proto = MinimalProblem();
  proto.mutable_format()->set_bits(5);
  proto.mutable_format()->set_group_size(32);
  proto.mutable_format()->set_zero_point(v1::ZERO_POINT_FLOAT);
  proto.mutable_format()->set_scale_levels(2);
  proto.set_out(v1::SCALAR_TYPE_FP32);
  proto.mutable_epilogue()->set_gated(true);
  proto.mutable_epilogue()->set_residual(true);
  for (const v1::Activation activation :
       {v1::ACTIVATION_SILU, v1::ACTIVATION_GELU_TANH, v1::ACTIVATION_RELU}) {
    proto.mutable_epilogue()->set_activation(activation);
    const auto problem = ProblemFromProto(proto);
    ASSERT_TRUE(problem.ok()) << problem.status();
    EXPECT_EQ(problem->signature.format, (WeightFormat{5, 32, ScalarType::kFp16, ZeroPoint::kFloat, 2}));
    EXPECT_EQ(problem->signature.out, ScalarType::kFp32);
    EXPECT_TRUE(problem->signature.epilogue.gated && problem->signature.epilogue.residual);
    const v1::Problem again = ProblemToProto(*problem);
    EXPECT_EQ(again.epilogue().activation(), activation);
    EXPECT_EQ(*ProblemFromProto(again), *problem);
  }
}

TEST(ProtoConvert, EveryFormatTypeAndEpilogueSurvivesARoundTrip) {
  int checked = 0;
  for (const int bits : {4, 5, 6, 8}) {
    for (const int group_size : {0, 16, 32, 64, 128, 256}) {
      for (const ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
        for (const int levels : {1, 2}) {
          for (const Activation activation :
               {Activation::kNone, Activation::kSilu, Activation::kGeluTanh, Activation::kRelu}) {
            for (const ScalarType out : {ScalarType::kBf16, ScalarType::kFp32}) {
              Problem problem{.n = 64, .k = 512};
              problem.signature.format = {bits, group_size, ScalarType::kFp16, zero, levels};
              problem.signature.out = out;
              problem.signature.epilogue = {.bias = bits == 4,
                                            .activation = activation,
                                            .gated = activation != Activation::kNone && bits > 4,
                                            .residual = bits == 8};
              if (!ValidateProblem(problem).ok()) continue;
              const auto again = ProblemFromProto(ProblemToProto(problem));
              ASSERT_TRUE(again.ok()) << ProblemName(problem) << ": " << again.status();
              EXPECT_EQ(*again, problem) << ProblemName(problem);
              ++checked;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(checked, 4 * (6 * 3 + 4 * 2) * 4 * 2);
}

TEST(ProtoConvert, TwoLevelScalesAreFp16UnlessSaidOtherwise) {
  v1::Problem proto = MinimalProblem();
  proto.mutable_format()->set_scale_levels(2);
  const auto problem = ProblemFromProto(proto);
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->signature.format.scale_type, ScalarType::kFp16);
  proto.mutable_format()->set_scale_type(v1::SCALAR_TYPE_BF16);
  EXPECT_THAT(ErrorOf(proto), HasSubstr("scale_type bf16 is not allowed with scale_levels 2: use fp16"));
}

TEST(ProtoConvert, UnspecifiedAndExplicitDefaultsAreTheSameProblem) {
  v1::Problem full = MinimalProblem();
  full.mutable_format()->set_scale_levels(1);
  full.mutable_epilogue()->set_activation(v1::ACTIVATION_NONE);
  full.set_out(v1::SCALAR_TYPE_BF16);
  full.mutable_format()->set_scale_type(v1::SCALAR_TYPE_BF16);
  full.mutable_format()->set_zero_point(v1::ZERO_POINT_NONE);
  full.mutable_format()->set_scale_levels(1);
  full.mutable_epilogue()->set_activation(v1::ACTIVATION_NONE);
  EXPECT_EQ(*ProblemFromProto(full), *ProblemFromProto(MinimalProblem()));
}

TEST(ProtoConvert, NamesTheActivationTypeWhenItIsNotSet) {
  v1::Problem proto = MinimalProblem();
  proto.clear_act();
  EXPECT_THAT(ErrorOf(proto), HasSubstr("act"));
}

TEST(ProtoConvert, RefusesUnknownEnumerators) {
  v1::Problem proto = MinimalProblem();
  proto.set_act(static_cast<v1::ScalarType>(77));
  EXPECT_THAT(ErrorOf(proto), HasSubstr("77"));
  proto = MinimalProblem();
  proto.mutable_format()->set_zero_point(static_cast<v1::ZeroPoint>(78));
  EXPECT_THAT(ErrorOf(proto), HasSubstr("78"));
  proto = MinimalProblem();
  proto.mutable_epilogue()->set_activation(static_cast<v1::Activation>(76));
  EXPECT_THAT(ErrorOf(proto), HasSubstr("76"));
  proto = MinimalProblem();
  proto.mutable_epilogue()->set_activation(static_cast<v1::Activation>(76));
  EXPECT_THAT(ErrorOf(proto), AllOf(HasSubstr("76"), HasSubstr("SILU")));
  EXPECT_FALSE(CanonicalEffort(static_cast<v1::Effort>(79)).ok());
}

TEST(ProtoConvert, Int8ActivationsAreThereForWhoAsksAlone) {
  v1::Problem proto = MinimalProblem();
  const Problem plain = *ProblemFromProto(proto);
  EXPECT_EQ(plain.signature.quantization, ActivationQuantization::kNone);
  EXPECT_EQ(ProblemToProto(plain).act_quantization(), v1::ACTIVATION_QUANTIZATION_NONE);
  proto.set_act_quantization(v1::ACTIVATION_QUANTIZATION_NONE);
  EXPECT_EQ(*ProblemFromProto(proto), plain);

  proto.set_act_quantization(v1::ACTIVATION_QUANTIZATION_INT8);
  const auto bytes = ProblemFromProto(proto);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->signature.quantization, ActivationQuantization::kInt8);
  EXPECT_EQ(ProblemToProto(*bytes).act_quantization(), v1::ACTIVATION_QUANTIZATION_INT8);
  EXPECT_EQ(*ProblemFromProto(ProblemToProto(*bytes)), *bytes);
  EXPECT_NE(ProblemName(*bytes), ProblemName(plain));

  proto.set_act_quantization(static_cast<v1::ActivationQuantization>(75));
  EXPECT_THAT(ErrorOf(proto), AllOf(HasSubstr("act_quantization"), HasSubstr("75"), HasSubstr("INT8")));
  proto.set_act_quantization(v1::ACTIVATION_QUANTIZATION_INT8);
  proto.mutable_format()->set_bits(6);
  proto.mutable_format()->set_group_size(16);
  EXPECT_THAT(ErrorOf(proto), HasSubstr("group_size 16 is not allowed with int8 activations"));
}

TEST(ProtoConvert, RefusesShapesOutOfRange) {
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    v1::Problem proto = MinimalProblem();
    proto.set_n(bad);
    EXPECT_THAT(ErrorOf(proto), HasSubstr(std::to_string(bad)));
    proto = MinimalProblem();
    proto.set_k(bad);
    EXPECT_THAT(ErrorOf(proto), HasSubstr(std::to_string(bad)));
  }
}

TEST(ProtoConvert, RefusesAnOutputTypeOtherThanTheActivations) {
  v1::Problem proto = MinimalProblem();
  proto.set_out(v1::SCALAR_TYPE_FP16);
  EXPECT_THAT(ErrorOf(proto), HasSubstr("out"));
}

TEST(ProtoConvert, UnspecifiedEffortIsBalanced) {
  EXPECT_EQ(*CanonicalEffort(v1::EFFORT_UNSPECIFIED), v1::EFFORT_BALANCED);
}

}  // namespace
}  // namespace qgemm
