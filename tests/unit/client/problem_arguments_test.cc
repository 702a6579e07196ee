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

TEST(ProblemArguments, ABadFormatIsOneSentence) {
  ProblemArguments arguments = Arguments({"64x128"}, {"1"});
  arguments.format = "q4_0";
  EXPECT_THAT(ErrorOf(arguments), HasSubstr("format \"q4_0\" is not allowed: use int4, int5, int6 or int8"));
  arguments.format = "int7";
  EXPECT_THAT(ErrorOf(arguments), HasSubstr("bits 7 is not allowed: use 4, 5, 6 or 8"));
  arguments.format = "int4";
  for (const char* group_size : {"-1", "8", "512"}) {
    arguments.group_size = group_size;
    EXPECT_THAT(ErrorOf(arguments), HasSubstr(absl::StrCat("group_size ", group_size, " is not allowed")));
  }
  arguments.group_size = "many";
  EXPECT_THAT(ErrorOf(arguments), HasSubstr("group_size \"many\""));
  arguments.group_size = "128";
  arguments.act = "fp8";
  EXPECT_THAT(ErrorOf(arguments), HasSubstr("act \"fp8\" is not allowed: use bf16, fp16 or"));
  arguments.act = "bf16";
  arguments.zero = "asym";
  EXPECT_THAT(ErrorOf(arguments), HasSubstr("zero \"asym\" is not allowed: use none, int or float"));
}

TEST(ProblemArguments, ABadModelFileIsAUsageError) {
  ProblemArguments arguments = Arguments({}, {"1"});
  EXPECT_THAT(ErrorOf(arguments), HasSubstr("--shape and --model are missing"));
  arguments.model_path = "/nonexistent.json";
  EXPECT_THAT(ErrorOf(arguments), HasSubstr("/nonexistent.json"));
}

}  // namespace
}  // namespace qgemm
