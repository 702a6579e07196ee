// qgemmctl tune and warm: what is asked of the daemon and how its answers are shown.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/unit/client/qgemmctl_fixture.h"

namespace qgemm {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Qgemmctl, TunePassesTheSearchsLimitsOn) {
  AnswerEveryTune();
  ASSERT_EQ(Run({"tune", "--shape", "64x128", "--m", "1", "--effort", "quick", "--only", "mma.*/k2/",
                 "--max-candidates", "9", "--budget", "0.5"}),
            0)
      << err_;
  EXPECT_EQ(request_.effort(), v1::EFFORT_QUICK);
  EXPECT_EQ(request_.only(), "mma.*/k2/");
  EXPECT_EQ(request_.max_candidates(), 9);
  EXPECT_EQ(request_.budget_s(), 0.5);
}

TEST_F(Qgemmctl, AGridIsEveryNWithEveryK) {
  AnswerEveryTune();
  ASSERT_EQ(Run({"tune", "--grid", "1024,4096x256,512,768", "--m", "64,4096"}), 0) << err_;
  std::vector<std::string> shapes;
  for (const v1::Problem& problem : request_.problems()) {
    shapes.push_back(absl::StrCat(problem.n(), "x", problem.k()));
  }
  EXPECT_THAT(shapes,
              testing::ElementsAre("1024x256", "1024x512", "1024x768", "4096x256", "4096x512", "4096x768"));
  EXPECT_EQ(Run({"tune", "--grid", "1024,4096", "--m", "64"}), 2);
  EXPECT_THAT(err_, HasSubstr("grid"));
}

TEST_F(Qgemmctl, ADryRunTunesNothing) {
  AnswerEveryTune();
  daemon_.answers().estimate = [](const v1::TuneRequest& request, v1::TuneEstimate* estimate) {
    estimate->set_results(request.problems_size() * request.m_size());
    estimate->set_compiles(17);
    estimate->set_kernels(20);
    estimate->set_candidates(64);
    estimate->set_wall_s(1.25);
    estimate->set_store_bytes(2'000'000);
    return grpc::Status::OK;
  };
  ASSERT_EQ(Run({"--output", "json", "tune", "--shape", "64x128", "--m", "1,16", "--dry-run"}), 0) << err_;
  EXPECT_EQ(request_.problems_size(), 0);
  const json output = json::parse(out_);
  EXPECT_EQ(output["results"], 2);
  EXPECT_EQ(output["compiles"], 17);
  EXPECT_EQ(output["candidates"], 64);
  EXPECT_EQ(output["wall_s"], 1.25);
  ASSERT_EQ(Run({"tune", "--shape", "64x128", "--m", "1,16", "--dry-run"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("17 of 20"), HasSubstr("2.0 MB")));
}

TEST_F(Qgemmctl, TunePrintsResultsInTheOrderOfTheRequest) {
  AnswerEveryTune();
  ASSERT_EQ(Run({"--output", "json", "tune", "--format", "int4", "--group-size", "128", "--act", "bf16",
                 "--shape", "5376x4096,1024x6656", "--shape", "64x128", "--m", "16,1", "--m", "4"}),
            0)
      << err_;
  const json output = json::parse(out_);
  EXPECT_EQ(
      output["stats"],
      json::parse(R"({"compiles": 44, "timings": 0, "cache_hits": 2, "wall_s": 1.5, "compile_cpu_s": 9.5,
                           "gpu_busy_s": 0.25})"));
  std::vector<std::string> order;
  for (const json& result : output["results"]) {
    order.push_back(absl::StrCat(result["n"].get<int>(), " ", result["m_bucket"].get<int>()));
    EXPECT_EQ(result.size(), 29u);
    EXPECT_TRUE(result["time_us"].is_null());
  }
  EXPECT_THAT(order, ::testing::ElementsAre("5376 1", "5376 4", "5376 16", "1024 1", "1024 4", "1024 16",
                                            "64 1", "64 4", "64 16"));
  EXPECT_EQ(output.size(), 2u);
  EXPECT_THAT(err_, IsEmpty());
}

TEST_F(Qgemmctl, TuneSaysThatAPickUnderLimitsIsPredicted) {
  daemon_.answers().tune = [](const v1::TuneRequest& request, auto* writer) {
    v1::TuneEvent event;
    *event.mutable_result() = MakeResult(request, 0, 0);
    event.mutable_result()->mutable_pick()->set_partial(true);
    writer->Write(event);
    v1::TuneEvent last;
    last.mutable_summary();
    writer->Write(last);
    return grpc::Status::OK;
  };
  ASSERT_EQ(Run({"tune", "--shape", "64x128", "--m", "1", "--budget", "0.01"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("MODEL (partial)"));
  EXPECT_THAT(err_, HasSubstr("no candidate was timed: this is the cost model's pick under the limits"));
}

TEST_F(Qgemmctl, TuneSendsWhatTheOptionsSay) {
  AnswerEveryTune();
  ASSERT_EQ(Run({"tune", "--act", "fp16", "--group-size", "32", "--zero", "int", "--bias", "--shape", "64x96",
                 "--m", "1", "--effort", "exhaustive", "--target", "a100", "--retune"}),
            0)
      << err_;
  EXPECT_EQ(request_.effort(), v1::EFFORT_EXHAUSTIVE);
  EXPECT_EQ(request_.target(), "a100");
  EXPECT_TRUE(request_.retune());
  const v1::Problem& problem = request_.problems(0);
  EXPECT_EQ(problem.n(), 64);
  EXPECT_EQ(problem.k(), 96);
  EXPECT_EQ(problem.format().bits(), 4);
  EXPECT_EQ(problem.format().group_size(), 32);
  EXPECT_EQ(problem.format().scale_type(), v1::SCALAR_TYPE_FP16);
  EXPECT_EQ(problem.format().zero_point(), v1::ZERO_POINT_INTEGER);
  EXPECT_EQ(problem.act(), v1::SCALAR_TYPE_FP16);
  EXPECT_EQ(problem.out(), v1::SCALAR_TYPE_FP16);
  EXPECT_TRUE(problem.epilogue().bias());
}

TEST_F(Qgemmctl, Int8ActivationsAreSentAndShownWhereTheyAreAskedFor) {
  AnswerEveryTune();
  ASSERT_EQ(Run({"--output", "json", "tune", "--shape", "64x128", "--m", "1"}), 0) << err_;
  EXPECT_EQ(request_.problems(0).act_quantization(), v1::ACTIVATION_QUANTIZATION_NONE);
  EXPECT_EQ(json::parse(out_)["results"][0]["act_quantization"], "none");
  ASSERT_EQ(Run({"--output", "json", "tune", "--act-quant", "int8", "--shape", "64x128", "--m", "1"}), 0)
      << err_;
  EXPECT_EQ(request_.problems(0).act_quantization(), v1::ACTIVATION_QUANTIZATION_INT8);
  EXPECT_EQ(json::parse(out_)["results"][0]["act_quantization"], "int8");
  EXPECT_EQ(json::parse(out_)["results"][0]["act"], "bf16");
  ASSERT_EQ(Run({"tune", "--act-quant", "int8", "--shape", "64x128", "--m", "1"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("int4-g128 bf16 as int8"));
  EXPECT_EQ(Run({"tune", "--act-quant", "fp8", "--shape", "64x128", "--m", "1"}), 2);
  EXPECT_THAT(err_, HasSubstr("act_quant \"fp8\" is not allowed: use none or int8"));
  EXPECT_EQ(Run({"lookup", "--act-quant", "int8", "--format", "int6", "--group-size", "16", "--shape",
                 "64x128", "--m", "1"}),
            2);
  EXPECT_THAT(err_, HasSubstr("group_size 16 is not allowed with int8 activations"));
}

TEST_F(Qgemmctl, TuneSendsEveryFormatTypeAndEpilogue) {
  AnswerEveryTune();
  ASSERT_EQ(
      Run({"--output",       "json",    "tune",       "--format", "int5",  "--group-size", "32",
           "--scale-levels", "2",       "--zero",     "float",    "--out", "fp32",         "--activation",
           "silu",           "--gated", "--residual", "--shape",  "64x96", "--m",          "1"}),
      0)
      << err_;
  const v1::Problem& problem = request_.problems(0);
  EXPECT_EQ(problem.format().bits(), 5);
  EXPECT_EQ(problem.format().scale_levels(), 2);
  EXPECT_EQ(problem.format().scale_type(), v1::SCALAR_TYPE_FP16);
  EXPECT_EQ(problem.format().zero_point(), v1::ZERO_POINT_FLOAT);
  EXPECT_EQ(problem.act(), v1::SCALAR_TYPE_BF16);
  EXPECT_EQ(problem.out(), v1::SCALAR_TYPE_FP32);
  EXPECT_EQ(problem.epilogue().activation(), v1::ACTIVATION_SILU);
  EXPECT_TRUE(problem.epilogue().gated());
  EXPECT_TRUE(problem.epilogue().residual());
  const json result = json::parse(out_)["results"][0];
  EXPECT_EQ(result["format"], "int5");
  EXPECT_EQ(result["zero"], "float");
  EXPECT_EQ(result["epilogue"], "silu+gated+residual");

  ASSERT_EQ(Run({"--output", "json", "tune", "--format", "int8", "--group-size", "-1", "--scale", "fp16",
                 "--shape", "64x104", "--m", "1"}),
            0)
      << err_;
  EXPECT_EQ(request_.problems(0).format().group_size(), 0);
  EXPECT_EQ(request_.problems(0).format().scale_type(), v1::SCALAR_TYPE_FP16);
  EXPECT_EQ(json::parse(out_)["results"][0]["group_size"], 0);
}

TEST_F(Qgemmctl, TuneFusesGateAndUpWhenAsked) {
  AnswerEveryTune();
  const std::string model = absl::StrCat(QGEMM_SOURCE_DIR, "/deploy/models/llama-3.1-8b-config.json");
  const auto gated = [this] {
    return std::count_if(
        request_.problems().begin(), request_.problems().end(), [](const v1::Problem& problem) {
          return problem.epilogue().gated() && problem.epilogue().activation() == v1::ACTIVATION_SILU;
        });
  };
  ASSERT_EQ(Run({"tune", "--model", model, "--m", "1"}), 0) << err_;
  EXPECT_EQ(gated(), 0);
  ASSERT_EQ(Run({"tune", "--model", model, "--fuse-gate-up", "--m", "1"}), 0) << err_;
  EXPECT_EQ(gated(), 1);
}

TEST_F(Qgemmctl, TuneOfAModelNamesItsLayers) {
  AnswerEveryTune();
  const std::string model = absl::StrCat(QGEMM_SOURCE_DIR, "/deploy/models/gemma-3-27b-text-config.json");
  ASSERT_EQ(Run({"tune", "--model", model, "--m", "1"}), 0) << err_;
  EXPECT_THAT(
      out_,
      AllOf(HasSubstr("k_proj,v_proj"), HasSubstr("fused"), HasSubstr("variant"),
            HasSubstr("8 of 8 picks: 44 kernels compiled, 0 candidates timed, 2 from the cache, 1.50 s")));
}

TEST_F(Qgemmctl, AFailedResultIsExitCode1) {
  daemon_.answers().tune = [](const v1::TuneRequest& request, auto* writer) {
    v1::TuneEvent good;
    *good.mutable_result() = MakeResult(request, 0, 0);
    writer->Write(good);
    v1::TuneEvent bad;
    bad.mutable_result()->set_m_bucket(16);
    bad.mutable_result()->set_error("no candidate is left");
    v1::Rejection& rejection = *bad.mutable_result()->add_rejections();
    rejection.set_reason("spills registers");
    rejection.set_candidates(60);
    writer->Write(bad);
    v1::TuneEvent last;
    last.mutable_summary();
    writer->Write(last);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"--output", "json", "tune", "--shape", "64x128", "--m", "1,16"}), 1);
  const json output = json::parse(out_);
  EXPECT_FALSE(output["results"][0].contains("error"));
  EXPECT_EQ(output["results"][1]["error"], "no candidate is left; 60 candidates: spills registers");
  EXPECT_EQ(output["results"][1]["m_bucket"], 16);
  EXPECT_THAT(err_, HasSubstr("64x128 int4-g128 bf16 M <= 16: no candidate is left"));
}

TEST_F(Qgemmctl, AMissingResultIsAnError) {
  daemon_.answers().tune = [](const v1::TuneRequest&, auto* writer) {
    v1::TuneEvent last;
    last.mutable_summary();
    writer->Write(last);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"tune", "--shape", "64x128", "--m", "1"}), 1);
  EXPECT_THAT(err_, HasSubstr("0 of 1 results"));
}

TEST_F(Qgemmctl, WarmSendsAFormatWithoutAShape) {
  v1::WarmRequest seen;
  daemon_.answers().warm = [&](const v1::WarmRequest& request, grpc::ServerWriter<v1::WarmEvent>* writer) {
    seen = request;
    v1::WarmEvent event;
    event.set_kernels(12);
    writer->Write(event);
    event.set_ready(11);
    event.set_failed(1);
    event.set_done(true);
    event.add_failures("a config: out of registers");
    writer->Write(event);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"--output", "json", "warm", "--format", "int4", "--group-size", "64", "--target", "a100"}),
            1);
  EXPECT_EQ(seen.problem().format().group_size(), 64);
  EXPECT_EQ(seen.target(), "a100");
  EXPECT_EQ(seen.m_size(), 0);
  EXPECT_EQ(json::parse(out_)["ready"], 11);
  EXPECT_THAT(err_, HasSubstr("out of registers"));
  EXPECT_EQ(Run({"warm", "--shape", "64x128"}), 2);
  EXPECT_EQ(Run({"warm", "--m", "1,16"}), 1);
  EXPECT_EQ(seen.m_size(), 2);
}

}  // namespace
}  // namespace qgemm
