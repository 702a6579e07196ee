#include "kernels/problem.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <vector>

namespace qgemm {
namespace {

Problem ValidProblem() {
  Problem problem;
  problem.n = 5376;
  problem.k = 4096;
  return problem;
}

std::string Refusal(const Problem& problem) {
  const absl::Status status = ValidateProblem(problem);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(Problem, AcceptsAnyPositiveNAndWholeGroups) {
  Problem problem = ValidProblem();
  EXPECT_TRUE(ValidateProblem(problem).ok());
  problem.n = 1;
  problem.k = 128;
  EXPECT_TRUE(ValidateProblem(problem).ok());
  problem.n = 2147483647;
  problem.k = 2147483520;
  EXPECT_TRUE(ValidateProblem(problem).ok());
  problem.signature.format.group_size = 32;
  problem.k = 96;
  EXPECT_TRUE(ValidateProblem(problem).ok());
}

TEST(Problem, RefusesSizesOutOfRange) {
  Problem problem = ValidProblem();
  problem.n = 0;
  EXPECT_EQ(Refusal(problem), "n 0 is out of range: 1 to 2147483647");
  problem.n = -5;
  EXPECT_EQ(Refusal(problem), "n -5 is out of range: 1 to 2147483647");
  problem.n = 2147483648;
  EXPECT_EQ(Refusal(problem), "n 2147483648 is out of range: 1 to 2147483647");
  problem = ValidProblem();
  problem.k = 0;
  EXPECT_EQ(Refusal(problem), "k 0 is out of range: 1 to 2147483647");
  problem.k = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(Refusal(problem), "k -9223372036854775808 is out of range: 1 to 2147483647");
}

TEST(Problem, RefusesAPartialGroup) {
  Problem problem = ValidProblem();
  problem.signature.format.group_size = 32;
  problem.k = 100;
  EXPECT_EQ(Refusal(problem), "k 100 is not a multiple of group_size 32");
}

TEST(Problem, ChannelWiseNeedsWholeRunsOfEight) {
  Problem problem = ValidProblem();
  problem.signature.format.group_size = 0;
  problem.k = 8;
  EXPECT_TRUE(ValidateProblem(problem).ok());
  problem.k = 7396;
  EXPECT_EQ(Refusal(problem), "k 7396 is not a multiple of 8, which channel-wise scales need");
}

TEST(Problem, OutputsHaveTheActivationTypeOrFp32) {
  for (const ScalarType act : {ScalarType::kBf16, ScalarType::kFp16}) {
    Problem problem = ValidProblem();
    problem.signature.act = problem.signature.out = act;
    EXPECT_TRUE(ValidateProblem(problem).ok());
    problem.signature.out = ScalarType::kFp32;
    EXPECT_TRUE(ValidateProblem(problem).ok());
  }
  Problem problem = ValidProblem();
  problem.signature.out = ScalarType::kFp16;
  EXPECT_EQ(Refusal(problem), "out fp16 is not allowed: use the activation type, bf16, or fp32");
}

TEST(Problem, ScalesMayDifferFromTheActivations) {
  Problem problem = ValidProblem();
  problem.signature.format.scale_type = ScalarType::kFp16;
  EXPECT_TRUE(ValidateProblem(problem).ok());
}

TEST(Problem, RefusesOtherActivationTypes) {
  Problem problem = ValidProblem();
  problem.signature.act = problem.signature.out = ScalarType::kFp32;
  EXPECT_EQ(Refusal(problem), "act fp32 is not allowed: use bf16 or fp16");
  problem.signature.act = static_cast<ScalarType>(5);
  EXPECT_EQ(Refusal(problem), "act invalid is not allowed: use bf16 or fp16");
}

TEST(Problem, GatedNeedsAnActivationAndPairsOfRows) {
  Problem problem = ValidProblem();
  problem.signature.epilogue.gated = true;
  EXPECT_EQ(Refusal(problem), "gated is not allowed with activation none: use silu, gelu_tanh or relu");
  problem.signature.epilogue.activation = Activation::kSilu;
  EXPECT_TRUE(ValidateProblem(problem).ok());
  EXPECT_EQ(problem.y_columns(), 2688);
  problem.n = 17;
  EXPECT_EQ(Refusal(problem), "n 17 is odd: gated rows of W come in pairs of gate and up");
  problem.signature.epilogue.gated = false;
  EXPECT_EQ(problem.y_columns(), 17);
}

TEST(Problem, ActivationsParseBackFromTheirNames) {
  for (const Activation activation :
       {Activation::kNone, Activation::kSilu, Activation::kGeluTanh, Activation::kRelu}) {
    EXPECT_EQ(ParseActivation("activation", ActivationName(activation)).value(), activation);
  }
  EXPECT_EQ(
      ParseActivation("activation", "gelu").status(),
      absl::InvalidArgumentError("activation \"gelu\" is not allowed: use none, silu, gelu_tanh or relu"));
}

TEST(Problem, RefusesABadFormatFirst) {
  Problem problem = ValidProblem();
  problem.n = 0;
  problem.signature.format.bits = 3;
  EXPECT_EQ(Refusal(problem), "bits 3 is not allowed: use 4, 5, 6 or 8");
}

TEST(Problem, RowsAreOneToTheLargestInt32) {
  EXPECT_TRUE(ValidateRows(1).ok());
  EXPECT_TRUE(ValidateRows(2147483647).ok());
  EXPECT_EQ(ValidateRows(0).message(), "m 0 is out of range: 1 to 2147483647");
  EXPECT_EQ(ValidateRows(-1).message(), "m -1 is out of range: 1 to 2147483647");
  EXPECT_FALSE(ValidateRows(2147483648).ok());
}

TEST(Problem, NamesSayEveryField) {
  Problem problem = ValidProblem();
  EXPECT_EQ(SignatureName(problem.signature), "int4-g128-bf16 act bf16 out bf16");
  EXPECT_EQ(ProblemName(problem), "5376x4096 int4-g128-bf16 act bf16 out bf16");
  problem.signature.epilogue.bias = true;
  EXPECT_EQ(SignatureName(problem.signature), "int4-g128-bf16 act bf16 out bf16 bias");
  problem.signature.epilogue = {false, Activation::kGeluTanh, true, true};
  problem.signature.out = ScalarType::kFp32;
  EXPECT_EQ(SignatureName(problem.signature), "int4-g128-bf16 act bf16 out fp32 gelu_tanh gated residual");
}

TEST(Problem, Int8ActivationsAreNamedAndNeedWholeBlocks) {
  Problem problem = ValidProblem();
  problem.signature.quantization = ActivationQuantization::kInt8;
  EXPECT_EQ(SignatureName(problem.signature), "int4-g128-bf16 act bf16 as int8 out bf16");
  for (const int group : {0, 32, 64, 128, 256}) {
    problem.signature.format.group_size = group;
    EXPECT_TRUE(ValidateProblem(problem).ok()) << group;
  }
  problem.signature.format.group_size = 16;
  EXPECT_EQ(ValidateProblem(problem).message(),
            "group_size 16 is not allowed with int8 activations, whose blocks have 32: use 32, 64, 128, 256 "
            "or channel-wise");
  for (const char* name : {"none", "int8"}) {
    const auto parsed = ParseActivationQuantization("act_quantization", name);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(ActivationQuantizationName(*parsed), name);
  }
  EXPECT_EQ(ParseActivationQuantization("act_quantization", "int4").status().message(),
            "act_quantization \"int4\" is not allowed: use none or int8");
}

TEST(Problem, NameDiffersWhenAnyFieldDiffers) {
  const std::vector<std::function<void(Problem&)>> changes = {
      [](Problem&) {},
      [](Problem& p) { p.n += 1; },
      [](Problem& p) { p.k += 128; },
      [](Problem& p) { p.signature.format.bits = 8; },
      [](Problem& p) { p.signature.format.group_size = 64; },
      [](Problem& p) { p.signature.format.scale_type = ScalarType::kFp16; },
      [](Problem& p) { p.signature.format.zero_point = ZeroPoint::kInteger; },
      [](Problem& p) { p.signature.act = ScalarType::kFp16; },
      [](Problem& p) { p.signature.out = ScalarType::kFp16; },
      [](Problem& p) { p.signature.epilogue.bias = true; },
      [](Problem& p) { p.signature.format.scale_levels = 2; },
      [](Problem& p) { p.signature.format.zero_point = ZeroPoint::kFloat; },
      [](Problem& p) { p.signature.format.group_size = 0; },
      [](Problem& p) { p.signature.out = ScalarType::kFp32; },
      [](Problem& p) { p.signature.epilogue.activation = Activation::kSilu; },
      [](Problem& p) { p.signature.epilogue.activation = Activation::kGeluTanh; },
      [](Problem& p) { p.signature.epilogue.activation = Activation::kRelu; },
      [](Problem& p) { p.signature.epilogue.gated = true; },
      [](Problem& p) { p.signature.epilogue.residual = true; },
      [](Problem& p) { p.signature.quantization = ActivationQuantization::kInt8; },
  };
  std::set<std::string> names;
  for (const auto& change : changes) {
    Problem problem = ValidProblem();
    change(problem);
    names.insert(ProblemName(problem));
  }
  EXPECT_EQ(names.size(), changes.size());
}

}  // namespace
}  // namespace qgemm
