#include "client/qgemmctl/problem_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ProblemArguments Arguments(std::vector<std::string> shapes, std::vector<std::string> m) {
  ProblemArguments arguments;
  arguments.shapes = std::move(shapes);
  arguments.m = std::move(m);
  return arguments;
}

std::string ErrorOf(const ProblemArguments& arguments) {
  const auto requested = ResolveProblems(arguments);
  EXPECT_TRUE(absl::IsInvalidArgument(requested.status())) << requested.status();
  return std::string(requested.status().message());
}

TEST(ProblemArguments, ShapesAreRowsTimesColumns) {
  const auto requested = ResolveProblems(Arguments({"5376x4096", "257X128"}, {"1"}));
  ASSERT_TRUE(requested.ok()) << requested.status();
  ASSERT_EQ(requested->problems.size(), 2u);
  EXPECT_EQ(ProblemName(requested->problems[0].problem), "5376x4096 int4-g128-bf16 act bf16 out bf16");
  EXPECT_EQ(requested->problems[1].problem.n, 257);
  EXPECT_EQ(requested->problems[0].layers, "");
}

TEST(ProblemArguments, EveryOptionReachesTheProblem) {
  ProblemArguments arguments = Arguments({"64x64"}, {"1"});
  arguments.group_size = "32";
  arguments.act = "fp16";
  arguments.zero = "int";
  arguments.bias = true;
  const auto requested = ResolveProblems(arguments);
  ASSERT_TRUE(requested.ok()) << requested.status();
  EXPECT_EQ(ProblemName(requested->problems[0].problem), "64x64 int4-g32-fp16-zint act fp16 out fp16 bias");
}

TEST(ProblemArguments, EachBucketIsAskedForOnce) {
  const auto requested = ResolveProblems(Arguments({"64x128"}, {"64", "1", "100", "128", "1"}));
  ASSERT_TRUE(requested.ok()) << requested.status();
  EXPECT_THAT(requested->m, ElementsAre(1, 64, 100));
}

TEST(ProblemArguments, TensorParallelPartsOfAModel) {
  ProblemArguments arguments = Arguments({}, {"1"});
  arguments.model_path = absl::StrCat(QGEMM_SOURCE_DIR, "/deploy/models/llama-3.1-8b-config.json");
  arguments.tp = "2";
  const auto requested = ResolveProblems(arguments);
  ASSERT_TRUE(requested.ok()) << requested.status();
  EXPECT_EQ(requested->problems[0].layers, "q_proj");
  EXPECT_EQ(requested->problems[0].problem.n, 2048);
  for (const char* tp : {"0", "-1", "1025", "two", ""}) {
    arguments.tp = tp;
    EXPECT_THAT(ErrorOf(arguments), HasSubstr("is not allowed: use 1 to 1024")) << tp;
  }
  arguments.tp = "2";
  arguments.model_path.clear();
  arguments.shapes = {"64x64"};
  EXPECT_THAT(ErrorOf(arguments), HasSubstr("--tp is for --model alone"));
}

TEST(ProblemArguments, NoProblemTwice) {
  ProblemArguments arguments = Arguments({"4096x4096", "4096x4096"}, {"1"});
  arguments.model_path = absl::StrCat(QGEMM_SOURCE_DIR, "/deploy/models/llama-3.1-8b-config.json");
  const auto requested = ResolveProblems(arguments);
  ASSERT_TRUE(requested.ok()) << requested.status();
  ASSERT_EQ(requested->problems.size(), 7u);
  EXPECT_EQ(requested->problems[0].layers, "q_proj,o_proj");
  EXPECT_EQ(requested->problems[0].count, 64);
  EXPECT_EQ(requested->problems[1].layers, "k_proj,v_proj");
}

TEST(ProblemArguments, ABadShapeIsOneSentence) {
  EXPECT_THAT(ErrorOf(Arguments({"0x4096"}, {"1"})), HasSubstr("n 0 is out of range: 1 to 2147483647"));
  EXPECT_THAT(ErrorOf(Arguments({"-5x4096"}, {"1"})), HasSubstr("n -5 is out of range"));
  EXPECT_THAT(ErrorOf(Arguments({"2147483648x128"}, {"1"})), HasSubstr("n 2147483648 is out of range"));
  EXPECT_THAT(ErrorOf(Arguments({"128x0"}, {"1"})), HasSubstr("k 0 is out of range"));
  EXPECT_THAT(ErrorOf(Arguments({"128x99999999999999999999"}, {"1"})), HasSubstr("is out of range"));
  EXPECT_THAT(ErrorOf(Arguments({"128x100"}, {"1"})), HasSubstr("k 100 is not a multiple of group_size 128"));
  for (const char* junk :
       {"", "x", "128", "128x", "x128", "1x2x3", "a x b", "128 x 128", "0x10x128", "12.5x128"}) {
    EXPECT_THAT(ErrorOf(Arguments({junk}, {"1"})), AllOf(HasSubstr("is not NxK"), HasSubstr(junk))) << junk;
  }
}

TEST(ProblemArguments, ABadNumberOfRowsIsOneSentence) {
  EXPECT_THAT(ErrorOf(Arguments({"64x128"}, {"0"})), HasSubstr("m 0 is out of range: 1 to 2147483647"));
  EXPECT_THAT(ErrorOf(Arguments({"64x128"}, {"-1"})), HasSubstr("m -1 is out of range"));
  EXPECT_THAT(ErrorOf(Arguments({"64x128"}, {"2147483648"})), HasSubstr("m 2147483648 is out of range"));
  EXPECT_THAT(ErrorOf(Arguments({"64x128"}, {"99999999999999999999"})),
              HasSubstr("m 99999999999999999999: "));
  EXPECT_THAT(ErrorOf(Arguments({"64x128"}, {"1", "many"})), HasSubstr("m \"many\" is not a whole number"));
  EXPECT_THAT(ErrorOf(Arguments({"64x128"}, {"1.5"})), HasSubstr("m \"1.5\""));
  EXPECT_THAT(ErrorOf(Arguments({"64x128"}, {})), HasSubstr("--m is missing"));
}

TEST(ProblemArguments, EveryFormatTypeAndEpilogueHasAnOption) {
  const auto name_with = [](ProblemArguments arguments) {
    arguments.shapes = {"64x256"};
    arguments.m = {"1"};
    const auto requested = ResolveProblems(arguments);
    return requested.ok() ? ProblemName(requested->problems[0].problem)
                          : std::string(requested.status().message());
  };
  EXPECT_EQ(name_with({.format = "int5", .group_size = "256"}), "64x256 int5-g256-bf16 act bf16 out bf16");
  EXPECT_EQ(name_with({.format = "int6", .group_size = "16", .out = "fp32"}),
            "64x256 int6-g16-bf16 act bf16 out fp32");
  EXPECT_EQ(name_with({.format = "int8", .group_size = "-1", .scale = "fp16"}),
            "64x256 int8-channel-fp16 act bf16 out bf16");
  EXPECT_EQ(name_with({.act = "fp16", .out = "fp16", .zero = "float"}),
            "64x256 int4-g128-fp16-zfloat act fp16 out fp16");
  EXPECT_EQ(name_with({.group_size = "32", .zero = "float", .scale_levels = "2"}),
            "64x256 int4-g32-fp16x2-zfloat act bf16 out bf16");
  EXPECT_EQ(name_with({.bias = true, .activation = "gelu_tanh", .gated = true, .residual = true}),
            "64x256 int4-g128-bf16 act bf16 out bf16 bias gelu_tanh gated residual");
  EXPECT_EQ(name_with({.act_quant = "int8"}), "64x256 int4-g128-bf16 act bf16 as int8 out bf16");
  EXPECT_EQ(name_with({.act_quant = "none"}), "64x256 int4-g128-bf16 act bf16 out bf16");
  EXPECT_EQ(name_with({.activation = "relu"}), "64x256 int4-g128-bf16 act bf16 out bf16 relu");
}

TEST(ProblemArguments, ABadFormatIsOneSentence) {
  const auto error_with = [](ProblemArguments arguments) {
    arguments.shapes = {"63x256"};
    arguments.m = {"1"};
    return ErrorOf(arguments);
  };
  for (const char* format : {"q4_0", "int7", "int", "4", "int4 ", "int04"}) {
    ProblemArguments arguments = Arguments({"64x128"}, {"1"});
    arguments.format = format;
    EXPECT_EQ(ErrorOf(arguments),
              absl::StrCat("format \"", format, "\" is not allowed: use int4, int5, int6 or int8"));
  }
  // The API's 0 is -1 here, so that a slip of the finger is no channel-wise format.
  for (const char* group_size : {"0", "-2", "48", "512", "many", ""}) {
    ProblemArguments arguments = Arguments({"64x128"}, {"1"});
    arguments.group_size = group_size;
    EXPECT_EQ(ErrorOf(arguments),
              absl::StrCat("group_size \"", group_size,
                           "\" is not allowed: use 16, 32, 64, 128, 256 or -1 (channel-wise)"));
  }
  EXPECT_EQ(error_with({.act = "fp8"}), "act \"fp8\" is not allowed: use bf16, fp16 or (output only) fp32");
  EXPECT_EQ(error_with({.act = "fp32"}), "act fp32 is not allowed: use bf16 or fp16");
  EXPECT_EQ(error_with({.act_quant = "int4"}), "act_quant \"int4\" is not allowed: use none or int8");
  EXPECT_EQ(
      error_with({.format = "int6", .group_size = "16", .act_quant = "int8"}),
      "group_size 16 is not allowed with int8 activations, whose blocks have 32: use 32, 64, 128, 256 or "
      "channel-wise");
  EXPECT_EQ(error_with({.out = "fp16"}), "out fp16 is not allowed: use the activation type, bf16, or fp32");
  EXPECT_EQ(error_with({.zero = "half"}), "zero \"half\" is not allowed: use none, int or float");
  EXPECT_EQ(error_with({.scale = "fp32"}), "scale_type fp32 is not allowed: use bf16 or fp16");
  EXPECT_EQ(error_with({.scale_levels = "3"}), "scale_levels \"3\" is not allowed: use 1 or 2");
  EXPECT_EQ(error_with({.scale = "bf16", .scale_levels = "2"}),
            "scale_type bf16 is not allowed with scale_levels 2: use fp16");
  EXPECT_EQ(error_with({.group_size = "-1", .scale_levels = "2"}),
            "group_size 0 is not allowed with scale_levels 2: use 16, 32, 64 or 128");
  EXPECT_EQ(error_with({.zero = "int", .scale_levels = "2"}),
            "zero_point int is not allowed with scale_levels 2: use none or float");
  EXPECT_EQ(error_with({.activation = "gelu"}),
            "activation \"gelu\" is not allowed: use none, silu, gelu_tanh or relu");
  EXPECT_EQ(error_with({.gated = true}),
            "gated is not allowed with activation none: use silu, gelu_tanh or relu");
  EXPECT_EQ(error_with({.activation = "silu", .gated = true}),
            "shape 63x256: n 63 is odd: gated rows of W come in pairs of gate and up");
  EXPECT_THAT(error_with({.fuse_gate_up = true}), HasSubstr("--fuse-gate-up is for --model"));
}

TEST(ProblemArguments, AModelsGateAndUpAreFusedOnRequest) {
  ProblemArguments arguments = Arguments({}, {"1"});
  arguments.model_path = absl::StrCat(QGEMM_SOURCE_DIR, "/deploy/models/gemma-3-27b-text-config.json");
  const auto name_of = [&](absl::string_view layer) {
    const auto requested = ResolveProblems(arguments);
    EXPECT_TRUE(requested.ok()) << requested.status();
    for (const RequestedProblem& problem : requested->problems) {
      if (problem.layers == layer) return ProblemName(problem.problem);
    }
    return std::string("none");
  };
  EXPECT_EQ(name_of("gate_up_proj"), "43008x5376 int4-g128-bf16 act bf16 out bf16");
  arguments.fuse_gate_up = true;
  EXPECT_EQ(name_of("gate_up_proj"), "43008x5376 int4-g128-bf16 act bf16 out bf16 gelu_tanh gated");
  EXPECT_EQ(name_of("gate_proj,up_proj"), "21504x5376 int4-g128-bf16 act bf16 out bf16");
  EXPECT_EQ(name_of("down_proj"), "5376x21504 int4-g128-bf16 act bf16 out bf16");
}

TEST(ProblemArguments, ABadModelFileIsAUsageError) {
  ProblemArguments arguments = Arguments({}, {"1"});
  EXPECT_THAT(ErrorOf(arguments), HasSubstr("--shape and --model are missing"));
  arguments.model_path = "/nonexistent.json";
  EXPECT_THAT(ErrorOf(arguments), HasSubstr("/nonexistent.json"));
}

}  // namespace
}  // namespace qgemm
