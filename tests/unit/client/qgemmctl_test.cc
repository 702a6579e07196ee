// The program qgemmctl, started as scripts start it, against a daemon that answers what the test tells it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/digest.h"
#include "base/unique_fd.h"
#include "client/bundle/bundle.h"
#include "client/qgemm/client.h"
#include "kernels/launch_spec.h"
#include "kernels/packing.h"
#include "tests/unit/client/fake_daemon.h"

namespace qgemm {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A running qgemmctl.
class Program {
 public:
  Program(const std::string& folder, const std::vector<std::string>& arguments)
      : stdout_path_(folder + "/stdout"), stderr_path_(folder + "/stderr") {
    std::vector<char*> argv = {const_cast<char*>(QGEMMCTL)};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, stdout_path_.c_str(), flags, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, stderr_path_.c_str(), flags, 0600);
    QGEMM_CHECK(posix_spawn(&pid_, QGEMMCTL, &actions, nullptr, argv.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
  }

  void Signal(int signal) { QGEMM_CHECK(kill(pid_, signal) == 0); }

  // Waits for its end; returns the exit code, or -1 when a signal ended it.
  int Wait() {
    int status = 0;
    QGEMM_CHECK(waitpid(pid_, &status, 0) == pid_);
    out = ReadFile(stdout_path_);
    err = ReadFile(stderr_path_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string out;
  std::string err;

 private:
  const std::string stdout_path_;
  const std::string stderr_path_;
  pid_t pid_ = -1;
};

class Qgemmctl : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "qgemmctl.XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--server", daemon_.address()});
    Program program(folder_, arguments);
    const int code = program.Wait();
    out_ = program.out;
    err_ = program.err;
    return code;
  }

  // A pick of the request's problem, and a summary.
  void AnswerEveryTune() {
    daemon_.answers().tune = [this](const v1::TuneRequest& request, auto* writer) {
      request_ = request;
      // Last bucket first: the order of arrival is not the order of the request.
      for (int i = request.m_size() - 1; i >= 0; --i) {
        for (int problem = 0; problem < request.problems_size(); ++problem) {
          v1::TuneEvent event;
          *event.mutable_result() = MakeResult(request, problem, i);
          writer->Write(event);
        }
      }
      v1::TuneEvent last;
      last.mutable_summary()->set_compiles(44);
      last.mutable_summary()->set_cache_hits(2);
      last.mutable_summary()->set_wall_s(1.5);
      last.mutable_summary()->set_compile_cpu_s(9.5);
      last.mutable_summary()->set_gpu_busy_s(0.25);
      writer->Write(last);
      return grpc::Status::OK;
    };
  }

  static v1::TuneResult MakeResult(const v1::TuneRequest& request, int problem, int m) {
    v1::TuneResult result;
    result.set_problem_index(problem);
    const int bucket = static_cast<int>(request.m(m));
    result.set_m_bucket(bucket);
    *result.mutable_pick() = MakePick(request.problems(problem), bucket);
    return result;
  }

  static v1::Pick MakePick(const v1::Problem& problem, int bucket) {
    v1::Pick pick;
    *pick.mutable_problem() = problem;
    pick.set_m_bucket(bucket);
    pick.set_target("h200");
    pick.set_source(v1::PICK_SOURCE_MODEL);
    pick.set_config("mma_t1_r2_w4x2_s4_b2_slice_post");
    pick.set_split_k(1);
    pick.set_reduction(v1::REDUCTION_NONE);
    pick.set_predicted_us(8.5);
    pick.mutable_kernel()->set_sha256(std::string(64, 'a'));
    pick.mutable_launch()->set_entry("qgemm_mma");
    return pick;
  }

  FakeDaemon daemon_;
  v1::TuneRequest request_;
  std::string folder_;
  std::string out_;
  std::string err_;
};

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

TEST_F(Qgemmctl, LookupAsksForSimilarPicksAndSaysWhoseTheyAre) {
  v1::LookupRequest seen;
  daemon_.answers().lookup = [&](const v1::LookupRequest& request, v1::LookupResponse* response) {
    seen = request;
    v1::Pick pick = MakePick(request.keys(0).problem(), 16);
    pick.set_source(v1::PICK_SOURCE_SIMILAR);
    pick.mutable_similar_to()->set_n(5376);
    pick.mutable_similar_to()->set_distance("log2-l1");
    *response->add_answers()->mutable_pick() = pick;
    return grpc::Status::OK;
  };
  ASSERT_EQ(Run({"--output", "json", "lookup", "--shape", "64x128", "--similar", "--m", "13"}), 0) << err_;
  EXPECT_TRUE(seen.allow_similar());
  EXPECT_EQ(seen.distance(), "");
  const json result = json::parse(out_)["results"][0];
  EXPECT_EQ(result["source"], "SIMILAR");
  EXPECT_EQ(result["similar_to"]["n"], 5376);
  ASSERT_EQ(Run({"lookup", "--shape", "64x128", "--m", "13", "--similar=cost"}), 0) << err_;
  EXPECT_EQ(seen.distance(), "cost");
  ASSERT_EQ(Run({"lookup", "--shape", "64x128", "--m", "13"}), 0) << err_;
  EXPECT_FALSE(seen.allow_similar());
}

TEST_F(Qgemmctl, ExplainShowsTheMissTheCandidatesAndTheQuarantine) {
  daemon_.answers().explain = [](const v1::ExplainRequest&, v1::ExplainResponse* response) {
    response->set_answer("miss; the nearest stored pick differs in m_bucket (wanted 24, stored 16)");
    v1::KeyDifference& difference = *response->add_differences();
    difference.set_field("m_bucket");
    difference.set_wanted("24");
    difference.set_stored("16");
    v1::ExplainedCandidate& timed = *response->add_candidates();
    timed.set_candidate("a/k1/none");
    timed.set_time_us(9.5);
    timed.set_center_us(9.51);
    timed.set_samples(40);
    v1::ExplainedCandidate& wrong = *response->add_candidates();
    wrong.set_candidate("b/k1/none");
    wrong.set_rejected("wrong result: relative error 0.5");
    v1::QuarantinedKernel& kernel = *response->add_quarantined();
    kernel.set_config("c");
    kernel.set_reason("did not end");
    return grpc::Status::OK;
  };
  ASSERT_EQ(Run({"--output", "json", "explain", "--shape", "64x128", "--m", "17"}), 0) << err_;
  const json result = json::parse(out_)["results"][0];
  EXPECT_EQ(result["differences"][0]["field"], "m_bucket");
  EXPECT_EQ(result["tried"][0]["center_us"], 9.51);
  EXPECT_EQ(result["tried"][1]["rejected"], "wrong result: relative error 0.5");
  EXPECT_EQ(result["quarantined"][0]["config"], "c");
  ASSERT_EQ(Run({"explain", "--shape", "64x128", "--m", "17", "--candidates", "1"}), 0) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("wanted 24"), HasSubstr("a/k1/none"), HasSubstr("1 more candidates"),
                          HasSubstr("quarantined: c: did not end"), testing::Not(HasSubstr("b/k1/none"))));
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
    EXPECT_EQ(result.size(), 28u);
    EXPECT_TRUE(result["time_us"].is_null());
  }
  EXPECT_THAT(order, ::testing::ElementsAre("5376 1", "5376 4", "5376 16", "1024 1", "1024 4", "1024 16",
                                            "64 1", "64 4", "64 16"));
  EXPECT_EQ(output.size(), 2u);
  EXPECT_THAT(err_, IsEmpty());
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

// Two candidates: one that gets faster, one that does not compile any more.
grpc::Status AnswerComparison(const v1::CompareSourceRequest&,
                              grpc::ServerWriter<v1::CompareSourceEvent>* writer) {
  v1::CompareSourceEvent event;
  event.mutable_progress()->set_kernels_wanted(4);
  writer->Write(event);
  v1::ComparedCandidate& row = *event.mutable_candidate();
  row.set_m_bucket(16);
  row.set_config("mma_t2_r2_w4x2_s4_b2_slice_post");
  row.set_split_k(4);
  row.set_reduction(v1::REDUCTION_WORKSPACE);
  row.set_is_pick(true);
  row.mutable_current()->set_time_us(10);
  row.mutable_current()->set_relative_error(0.0021);
  row.mutable_current()->mutable_kernel()->set_registers(96);
  row.mutable_changed()->set_time_us(9);
  row.mutable_changed()->set_relative_error(0.0022);
  row.mutable_changed()->mutable_kernel()->set_registers(104);
  writer->Write(event);
  row.set_is_pick(false);
  row.set_config("mma_t2_r1_w4x2_s4_b2_slice_post");
  row.clear_changed();
  row.mutable_changed()->set_failure("mma.cuh(7): error: expected a \";\"");
  writer->Write(event);
  event.mutable_summary()->set_compiles(4);
  event.mutable_summary()->set_timed(true);
  event.mutable_summary()->set_wall_s(0.5);
  writer->Write(event);
  return grpc::Status::OK;
}

TEST_F(Qgemmctl, BenchComparesAChangedSource) {
  v1::CompareSourceRequest request;
  daemon_.answers().compare_source = [&](const v1::CompareSourceRequest& asked, auto* writer) {
    request = asked;
    return AnswerComparison(asked, writer);
  };
  const std::string file = folder_ + "/mma.cuh";
  std::ofstream(file) << "int changed;";
  // A source that does not compile is a failure, and the others' figures are there all the same.
  EXPECT_EQ(Run({"bench", "--source", file, "--shape", "64x128", "--m", "16", "--only", "r[12]",
                 "--candidates", "5"}),
            1);
  EXPECT_EQ(request.source_name(), "mma.cuh");
  EXPECT_EQ(request.source(), "int changed;");
  EXPECT_EQ(request.only(), "r[12]");
  EXPECT_EQ(request.max_candidates(), 5);
  EXPECT_EQ(request.problems(0).n(), 64);
  EXPECT_THAT(
      out_, AllOf(HasSubstr("current us  changed us  ratio"), HasSubstr("10.00        9.00  0.900"),
                  HasSubstr("96 -> 104"), HasSubstr("2.2e-03"), HasSubstr("mma.cuh(7): error"),
                  HasSubstr("2 candidates: 4 kernels compiled, current and changed timed in turn, 0.50 s")));
  EXPECT_THAT(err_, HasSubstr("1 of 2 candidates fail with the changed source: mma_t2_r1"));

  EXPECT_EQ(Run({"--output", "json", "bench", "--source", file, "--shape", "64x128", "--m", "16"}), 1);
  const json output = json::parse(out_);
  EXPECT_EQ(output["candidates"][0]["ratio"], 0.9);
  EXPECT_EQ(output["candidates"][0]["changed"]["kernel"]["registers"], 104);
  EXPECT_EQ(output["candidates"][0]["is_pick"], true);
  EXPECT_TRUE(output["candidates"][1]["ratio"].is_null());
  EXPECT_TRUE(output["candidates"][1]["changed"]["kernel"].is_null());
}

TEST_F(Qgemmctl, BenchKnowsWhichSourceIsMeant) {
  v1::CompareSourceRequest request;
  daemon_.answers().compare_source = [&](const v1::CompareSourceRequest& asked, auto* writer) {
    request = asked;
    v1::CompareSourceEvent event;
    event.mutable_summary();
    writer->Write(event);
    return grpc::Status::OK;
  };
  const std::string file = folder_ + "/mine.cuh";
  std::ofstream(file) << "int changed;";
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"bench", "--source", file, "--shape", "64x128", "--m", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  };
  EXPECT_EQ(run({"--family", "wgmma"}), 0) << err_;
  EXPECT_EQ(request.source_name(), "wgmma.cuh");
  EXPECT_EQ(run({"--replace", "dequant.cuh"}), 0) << err_;
  EXPECT_EQ(request.source_name(), "dequant.cuh");
  EXPECT_EQ(run({}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("\"mine.cuh\" is no device source"), HasSubstr("wgmma.cuh")));
  EXPECT_EQ(run({"--family", "tensor"}), 2);
  EXPECT_EQ(run({"--family", "mma", "--replace", "mma.cuh"}), 2);
  EXPECT_THAT(err_, HasSubstr("one of them"));
  EXPECT_EQ(
      Run({"bench", "--source", folder_ + "/none.cuh", "--family", "mma", "--shape", "64x128", "--m", "1"}),
      2);
  EXPECT_THAT(err_, HasSubstr("none.cuh cannot be opened"));
  std::ofstream(file) << std::string((1 << 20) + 1, ' ');
  EXPECT_EQ(run({"--family", "mma"}), 2);
  EXPECT_THAT(err_, HasSubstr("at most 1048576 bytes are allowed"));
  std::ofstream(file) << "";
  EXPECT_EQ(run({"--family", "mma"}), 2);
}

TEST_F(Qgemmctl, BenchElsewhereIsNotAllowed) {
  daemon_.answers().compare_source = [](const v1::CompareSourceRequest&, auto*) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "use the unix socket or a loopback address");
  };
  const std::string file = folder_ + "/mma.cuh";
  std::ofstream(file) << "int changed;";
  EXPECT_EQ(Run({"bench", "--source", file, "--shape", "64x128", "--m", "1"}), 4);
  EXPECT_THAT(err_, HasSubstr("use the unix socket"));
}

TEST_F(Qgemmctl, LookupFindsOrExitsWith6) {
  daemon_.answers().lookup = [](const v1::LookupRequest& request, v1::LookupResponse* response) {
    for (const v1::LookupKey& key : request.keys()) {
      v1::LookupAnswer& answer = *response->add_answers();
      if (key.m() == 1) {
        *answer.mutable_pick() = MakePick(key.problem(), 1);
      } else {
        answer.set_miss_reason("never tuned");
      }
    }
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"lookup", "--shape", "64x128", "--m", "1", "--output", "json", "--launch-spec"}), 0) << err_;
  json output = json::parse(out_);
  EXPECT_EQ(output["results"][0]["cached"], true);
  EXPECT_EQ(output["results"][0]["launch"]["entry"], "qgemm_mma");
  EXPECT_EQ(output["stats"]["cache_hits"], 1);
  EXPECT_EQ(Run({"lookup", "--shape", "64x128", "--m", "1,2", "--output", "json"}), 6);
  output = json::parse(out_);
  EXPECT_EQ(output["results"][0].size(), 28u);
  EXPECT_EQ(output["results"][1]["error"], "never tuned");
  EXPECT_THAT(err_, HasSubstr("M <= 2: not found: never tuned"));
  EXPECT_EQ(Run({"lookup", "--shape", "64x128", "--m", "1,2,4,8,16,32"}), 6);
  EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 4) << err_;
  EXPECT_THAT(err_, HasSubstr("2 more of 6 picks were not found"));
}

TEST_F(Qgemmctl, KernelGetWritesTheBytes) {
  const std::string bytes(1000, 'k');
  v1::KernelChunk chunk;
  chunk.set_sha256(Sha256Hex(bytes));
  chunk.mutable_info()->set_arch("sm_90a");
  chunk.set_total_bytes(1000);
  chunk.set_data(bytes);
  daemon_.answers().chunks = {chunk};
  const std::string file = folder_ + "/kernel.cubin";
  ASSERT_EQ(Run({"kernel", "get", chunk.sha256(), "-o", file, "--output", "json"}), 0) << err_;
  EXPECT_EQ(ReadFile(file), bytes);
  EXPECT_EQ(json::parse(out_)["kernel"]["arch"], "sm_90a");
  ASSERT_EQ(Run({"kernel", "get", chunk.sha256(), "-o", "-"}), 0) << err_;
  EXPECT_EQ(out_, bytes);

  // Damage: nothing is written, the earlier file stands.
  chunk.set_data(std::string(1000, 'K'));
  daemon_.answers().chunks = {chunk};
  EXPECT_EQ(Run({"kernel", "get", chunk.sha256(), "-o", file}), 8);
  EXPECT_EQ(ReadFile(file), bytes);
  EXPECT_EQ(Run({"kernel", "get", chunk.sha256(), "-o", folder_ + "/other"}), 8);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/other"));
}

class QgemmctlBundle : public Qgemmctl {
 protected:
  // A daemon whose every pick is one kernel.
  void SetUp() override {
    Qgemmctl::SetUp();
    v1::KernelChunk chunk;
    chunk.set_data("cubin");
    chunk.set_sha256(Sha256Hex(chunk.data()));
    chunk.set_total_bytes(5);
    chunk.mutable_info()->set_entry("qgemm_mma");
    chunk.mutable_info()->set_arch("sm_90a");
    daemon_.answers().chunks = {chunk};
    daemon_.answers().tune = [sha256 = chunk.sha256()](const v1::TuneRequest& request, auto* writer) {
      v1::TuneEvent event;
      for (int i = 0; i < request.problems_size(); ++i) {
        for (const int64_t m : request.m()) {
          v1::TuneResult& result = *event.mutable_result();
          result.set_problem_index(i);
          *result.mutable_pick() = MakePick(request.problems(i), static_cast<int>(m));
          result.mutable_pick()->mutable_kernel()->set_sha256(sha256);
          v1::LaunchSpec& launch = *result.mutable_pick()->mutable_launch();
          launch.set_abi_version(kLaunchAbiVersion);
          launch.set_layout_id(std::string(kLayoutId));
          launch.set_tile_m(8);
          launch.set_tile_n(16);
          launch.set_grid_n(4);
          launch.set_split_k(1);
          launch.set_block_threads(32);
          launch.set_max_m(m == 4096 ? 0 : m);
          v1::KernelArgument& x = *launch.add_arguments();
          x.set_name("x");
          x.mutable_pointer()->set_role(v1::KernelArgument::POINTER_ROLE_X);
          x.mutable_pointer()->set_alignment(16);
          writer->Write(event);
        }
      }
      event.mutable_summary()->set_compiles(1);
      writer->Write(event);
      return grpc::Status::OK;
    };
  }
  std::string Path(const std::string& name) { return folder_ + "/" + name; }
};

TEST_F(QgemmctlBundle, CreateMakesWhatVerifyAcceptsAndInspectShows) {
  ASSERT_EQ(Run({"bundle", "create", "-o", Path("b"), "--shape", "64x128", "--method", "decode=1", "--method",
                 "prefill=dynamic", "--output", "json"}),
            0)
      << err_;
  EXPECT_EQ(json::parse(out_)["picks"], 17);  // one, and every bucket
  EXPECT_EQ(json::parse(out_)["kernels"], 1);
  EXPECT_EQ(Run({"bundle", "verify", Path("b")}), 0) << err_;
  ASSERT_EQ(Run({"bundle", "inspect", Path("b"), "--output", "json"}), 0) << err_;
  const json shown = json::parse(out_);
  EXPECT_EQ(shown["methods"][0]["name"], "decode");
  EXPECT_EQ(shown["methods"][0]["layers"][0]["picks"].size(), 1u);
  EXPECT_EQ(shown["methods"][1]["layers"][0]["picks"].size(), 16u);
  EXPECT_TRUE(shown["methods"][1]["static_m"].is_null());
  ASSERT_EQ(Run({"bundle", "inspect", Path("b")}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("dynamic"));
}

TEST_F(QgemmctlBundle, ThePicksOfABundleMakeTheSameBytesWithoutADaemon) {
  const std::vector<std::string> rest = {"--shape", "64x128", "--method", "prefill=dynamic"};
  std::vector<std::string> first = {"bundle", "create", "-o", Path("a.tar")};
  first.insert(first.end(), rest.begin(), rest.end());
  ASSERT_EQ(Run(first), 0) << err_;
  daemon_.Stop();
  std::vector<std::string> second = {"bundle", "create", "-o", Path("b.tar"), "--picks", Path("a.tar")};
  second.insert(second.end(), rest.begin(), rest.end());
  ASSERT_EQ(Run(second), 0) << err_;
  EXPECT_EQ(ReadFile(Path("a.tar")), ReadFile(Path("b.tar")));
  EXPECT_EQ(Run({"bundle", "diff", Path("a.tar"), Path("b.tar")}), 0) << out_;
  // What the old bundle has not is refused by name.
  EXPECT_EQ(Run({"bundle", "create", "-o", Path("c.tar"), "--picks", Path("a.tar"), "--shape", "64x256",
                 "--method", "decode=1"}),
            6);
  EXPECT_THAT(err_, HasSubstr("64x256"));
  EXPECT_FALSE(std::filesystem::exists(Path("c.tar")));
}

TEST_F(QgemmctlBundle, DiffNamesWhatDiffers) {
  ASSERT_EQ(Run({"bundle", "create", "-o", Path("a"), "--shape", "64x128", "--method", "decode=1"}), 0)
      << err_;
  ASSERT_EQ(Run({"bundle", "create", "-o", Path("b"), "--shape", "64x128", "--method", "decode=4"}), 0)
      << err_;
  EXPECT_EQ(Run({"bundle", "diff", Path("a"), Path("b"), "--output", "json"}), 1);
  EXPECT_EQ(json::parse(out_)["changes"].size(), 2u);
}

TEST_F(QgemmctlBundle, CreatePacksCanonicalWeights) {
  auto writer = SafetensorsWriter::Create(Path("canonical"));
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->Write("model.q.codes", "U8", {64, 128}, std::string(64 * 128, '\3')).ok());
  ASSERT_TRUE(writer->Write("model.q.scales", "BF16", {64, 1}, std::string(64 * 2, '\x3f')).ok());
  ASSERT_TRUE(writer->Write("model.k.codes", "U8", {64, 128}, std::string(64 * 128, '\3')).ok());
  ASSERT_TRUE(writer->Write("model.k.scales", "BF16", {64, 2}, std::string(64 * 4, '\x3f')).ok());
  ASSERT_TRUE(writer->Finish({}).ok());
  ASSERT_EQ(Run({"bundle", "create", "-o", Path("b"), "--weights", Path("canonical"), "--method", "decode=1",
                 "--method", "prefill=dynamic"}),
            0)
      << err_;
  EXPECT_EQ(Run({"bundle", "verify", Path("b")}), 0) << err_;
  const auto bundle = Bundle::Open(Path("b"));
  ASSERT_TRUE(bundle.ok());
  const auto weights = bundle->Weights();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->size(), 4u);  // written once for both methods
  EXPECT_EQ(weights->at("model.q.weights").bytes.size(), 64u * 128 / 2);
  const auto method = bundle->Method("decode");
  ASSERT_TRUE(method.ok());
  EXPECT_EQ(method->layers[0].problem.signature.format.group_size, 64);  // model.k
  EXPECT_EQ(method->layers[1].problem.signature.format.group_size, 0);   // model.q: one group a row
}

TEST_F(QgemmctlBundle, UsageErrorsNameTheOption) {
  EXPECT_EQ(Run({"bundle", "create", "-o", Path("b"), "--shape", "64x128"}), 2);
  EXPECT_THAT(err_, HasSubstr("--method is missing"));
  EXPECT_EQ(Run({"bundle", "create", "-o", Path("b"), "--shape", "64x128", "--method", "decode=zero"}), 2);
  EXPECT_THAT(err_, HasSubstr("decode=zero"));
  EXPECT_EQ(Run({"bundle", "verify", Path("nothing")}), 6);
  EXPECT_EQ(Run({"bundle"}), 2);
}

TEST_F(Qgemmctl, KernelGetAccessTellsWhatIsWritten) {
  v1::KernelChunk chunk;
  chunk.set_data("cubin");
  chunk.set_sha256(Sha256Hex(chunk.data()));
  chunk.set_total_bytes(5);
  chunk.mutable_info()->set_entry("qgemm_mma");
  v1::AccessReport::Parameter& y = *chunk.mutable_info()->mutable_access()->add_parameters();
  y.set_index(5);
  y.set_written(true);
  y.set_alignment(8);
  daemon_.answers().chunks = {chunk};
  ASSERT_EQ(Run({"kernel", "get", chunk.sha256(), "-o", "-", "--access"}), 0) << err_;
  const json report = json::parse(out_);
  EXPECT_EQ(report["entry"], "qgemm_mma");
  EXPECT_TRUE(report["failure"].is_null());
  EXPECT_EQ(report["parameters"], json::parse(R"([{"index":5,"read":false,"written":true,"alignment":8}])"));
  EXPECT_EQ(Run({"kernel", "get", chunk.sha256(), "-o", "-", "--access", "--ptx"}), 2);
}

TEST_F(Qgemmctl, KernelGetLaunchSpecListsThePicksOfTheKernel) {
  v1::Problem problem;
  problem.set_n(64);
  v1::CacheEntry entry;
  *entry.mutable_pick() = MakePick(problem, 16);
  v1::CacheEntry other;
  *other.mutable_pick() = MakePick(problem, 1);
  other.mutable_pick()->mutable_kernel()->set_sha256(std::string(64, 'b'));
  daemon_.answers().entries = {other, entry};
  const std::string file = folder_ + "/launch.json";
  ASSERT_EQ(Run({"kernel", "get", std::string(64, 'a'), "-o", file, "--launch-spec"}), 0) << err_;
  const json spec = json::parse(ReadFile(file));
  ASSERT_EQ(spec["launches"].size(), 1u);
  EXPECT_EQ(spec["launches"][0]["m_bucket"], 16);
  EXPECT_EQ(spec["launches"][0]["launch"]["entry"], "qgemm_mma");
  EXPECT_EQ(Run({"kernel", "get", std::string(64, 'c'), "-o", file, "--launch-spec"}), 6);
}

TEST_F(Qgemmctl, ListsAndStats) {
  v1::CacheEntry kernel;
  kernel.mutable_kernel()->set_sha256(std::string(64, 'a'));
  kernel.mutable_kernel()->set_cubin_bytes(int64_t{1} << 33);
  v1::CacheEntry pick;
  v1::Problem problem;
  problem.set_n(64);
  *pick.mutable_pick() = MakePick(problem, 16);
  daemon_.answers().entries = {kernel, pick};
  daemon_.answers().stats.set_kernels(3);
  EXPECT_EQ(Run({"kernel", "ls", "--output", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["kernels"][0]["cubin_bytes"], int64_t{1} << 33);
  EXPECT_EQ(Run({"kernel", "ls"}), 0);
  EXPECT_THAT(out_, HasSubstr(std::string(64, 'a')));
  EXPECT_EQ(Run({"cache", "ls", "--output", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["results"].size(), 1u);
  EXPECT_EQ(Run({"cache", "stats", "--output", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["kernels"], 3);
}

TEST_F(Qgemmctl, DeviceAndVersion) {
  daemon_.answers().description.set_target("h200");
  daemon_.answers().description.set_state("no GPU");
  daemon_.answers().description.set_server_version("9.8.7");
  EXPECT_EQ(Run({"device"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("h200"), HasSubstr("no GPU")));
  EXPECT_EQ(Run({"device", "--output", "json"}), 0);
  EXPECT_TRUE(json::parse(out_)["device"].is_null());
  EXPECT_EQ(Run({"version", "--output", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["server"], "9.8.7");
  daemon_.Stop();
  EXPECT_EQ(Run({"version", "--output", "json"}), 0);
  EXPECT_TRUE(json::parse(out_)["server"].is_null());
  EXPECT_EQ(json::parse(out_)["client"], std::string(ClientVersion()));
}

TEST_F(Qgemmctl, UsageErrorsAreOneSentenceAndExitCode2) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"frob"},
                                             {"kernel"},
                                             {"kernel", "get", "abc", "-o", "x"},
                                             {"tune", "--nonsense"},
                                             {"tune", "--shape", "64x128"},
                                             {"tune", "--shape", "64x128", "--m", "0"},
                                             {"tune", "--shape", "64x128", "--m", "1", "--effort", "max"},
                                             {"--output", "xml", "device"},
                                             {"--timeout", "0", "device"},
                                             {"--timeout", "soon", "device"},
                                             {"lookup", "--shape", "64x128", "--m", "1", "--launch-spec"}}) {
    EXPECT_EQ(Run(arguments), 2) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_THAT(out_, IsEmpty());
  }
}

TEST_F(Qgemmctl, TheDaemonsErrorBecomesExitCodeAndJson) {
  const std::pair<grpc::StatusCode, int> codes[] = {{grpc::StatusCode::INVALID_ARGUMENT, 2},
                                                    {grpc::StatusCode::UNAVAILABLE, 3},
                                                    {grpc::StatusCode::UNAUTHENTICATED, 4},
                                                    {grpc::StatusCode::PERMISSION_DENIED, 4},
                                                    {grpc::StatusCode::DEADLINE_EXCEEDED, 5},
                                                    {grpc::StatusCode::NOT_FOUND, 6},
                                                    {grpc::StatusCode::RESOURCE_EXHAUSTED, 7},
                                                    {grpc::StatusCode::DATA_LOSS, 8},
                                                    {grpc::StatusCode::INTERNAL, 1}};
  for (const auto& [code, exit_code] : codes) {
    daemon_.answers().tune = [code = code](const v1::TuneRequest&, auto*) {
      return grpc::Status(code, "the reason");
    };
    EXPECT_EQ(Run({"tune", "--shape", "64x128", "--m", "1", "--output", "json"}), exit_code) << err_;
    EXPECT_FALSE(json::parse(out_)["error"]["message"].get<std::string>().empty());
  }
}

TEST_F(Qgemmctl, WithoutADaemonSaysHowToStartOne) {
  daemon_.Stop();
  EXPECT_EQ(Run({"device", "--output", "json"}), 3);
  EXPECT_THAT(err_, HasSubstr("start one with `qgemmd`"));
  EXPECT_EQ(json::parse(out_)["error"]["code"], "UNAVAILABLE");
}

TEST_F(Qgemmctl, TheTimeoutEndsATune) {
  daemon_.answers().tune = [](const v1::TuneRequest&, auto* writer) { return TuneForEver(writer, [] {}); };
  EXPECT_EQ(Run({"tune", "--shape", "64x128", "--m", "1", "--timeout", "0.3"}), 5);
  EXPECT_THAT(err_, HasSubstr("--timeout"));
}

TEST_F(Qgemmctl, ASignalCancelsTheCall) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Notification started;
    Notification cancelled;
    daemon_.answers().tune = [&](const v1::TuneRequest&, auto* writer) {
      const grpc::Status status = TuneForEver(writer, [&] { started.Notify(); });
      cancelled.Notify();
      return status;
    };
    Program program(folder_, {"--server", daemon_.address(), "tune", "--shape", "64x128", "--m", "1"});
    started.Wait();
    program.Signal(signal);
    EXPECT_EQ(program.Wait(), 130);
    EXPECT_EQ(program.err, "qgemmctl: interrupted\n");
    cancelled.Wait();
  }
}

TEST_F(Qgemmctl, ASignalEndsTheWaitForAFile) {
  const std::string pipe = folder_ + "/config.json";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  Program program(folder_, {"--server", daemon_.address(), "lookup", "--model", pipe, "--m", "1"});
  const UniqueFd writer(open(pipe.c_str(), O_WRONLY | O_CLOEXEC));  // returns once qgemmctl reads
  ASSERT_TRUE(writer.valid());
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Wait(), 130);
  EXPECT_EQ(program.err, "qgemmctl: interrupted\n");
}

TEST_F(Qgemmctl, DetachedTunePrintsItsJob) {
  daemon_.answers().tune = [this](const v1::TuneRequest& request, auto* writer) {
    request_ = request;
    v1::TuneEvent event;
    event.mutable_accepted()->set_job_id("00ff");
    writer->Write(event);
    return grpc::Status::OK;
  };
  ASSERT_EQ(Run({"tune", "--shape", "64x128", "--m", "1", "--detach", "--class", "interactive", "--priority",
                 "3", "--queue-deadline", "60", "--execution-deadline", "600", "--output", "json"}),
            0)
      << err_;
  EXPECT_EQ(json::parse(out_), json::parse(R"({"job_id": "00ff"})"));
  EXPECT_TRUE(request_.detach());
  EXPECT_EQ(request_.job_class(), v1::JOB_CLASS_INTERACTIVE);
  EXPECT_EQ(request_.priority(), 3);
  EXPECT_EQ(request_.queue_deadline_s(), 60);
  EXPECT_EQ(request_.execution_deadline_s(), 600);
  EXPECT_THAT(daemon_.answers().client_id, HasSubstr("@"));
  ASSERT_EQ(Run({"tune", "--shape", "64x128", "--m", "1", "--detach"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("qgemmctl watch 00ff"));
  EXPECT_EQ(Run({"tune", "--shape", "64x128", "--m", "1", "--class", "lazy"}), 2);
}

TEST_F(Qgemmctl, DaemonThatDoesNotKnowDetachedJobsIsTold) {
  AnswerEveryTune();
  EXPECT_EQ(Run({"tune", "--shape", "64x128", "--m", "1", "--detach"}), 1);
  EXPECT_THAT(err_, HasSubstr("too old"));
}

TEST_F(Qgemmctl, WatchShowsAJobsResultsAsTuneDoes) {
  daemon_.answers().watch = [](const v1::WatchJobRequest& request, auto* writer) {
    if (request.job_id() != "00ff") return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job");
    v1::TuneEvent event;
    v1::TuneRequest& asked = *event.mutable_accepted()->mutable_request();
    asked.add_problems()->set_n(64);
    asked.mutable_problems(0)->set_k(128);
    asked.mutable_problems(0)->mutable_format()->set_bits(4);
    asked.mutable_problems(0)->mutable_format()->set_group_size(128);
    asked.mutable_problems(0)->set_act(v1::SCALAR_TYPE_BF16);
    asked.add_m(16);
    asked.add_m(1);
    const v1::TuneRequest copy = asked;
    writer->Write(event);
    for (const int m : {0, 1}) {
      *event.mutable_result() = MakeResult(copy, 0, m);
      writer->Write(event);
    }
    event.mutable_summary()->set_timings(3);
    writer->Write(event);
    return grpc::Status::OK;
  };
  ASSERT_EQ(Run({"watch", "00ff", "--output", "json"}), 0) << err_;
  const json output = json::parse(out_);
  ASSERT_EQ(output["results"].size(), 2u);
  EXPECT_EQ(output["results"][0]["m_bucket"], 1);
  EXPECT_EQ(output["results"][1]["m_bucket"], 16);
  EXPECT_EQ(output["stats"]["timings"], 3);
  EXPECT_EQ(Run({"watch", "00fe"}), 6);
  EXPECT_THAT(err_, HasSubstr("no such job"));
}

TEST_F(Qgemmctl, JobsAreListedAndCancelled) {
  v1::ListJobsRequest asked;
  daemon_.answers().jobs = [&](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    asked = request;
    v1::Job& job = *response->add_jobs();
    job.set_job_id("00ff");
    job.set_state(v1::JOB_STATE_RUNNING);
    job.set_client("alice@build");
    job.set_job_class(v1::JOB_CLASS_BATCH);
    job.set_accepted_unix_ms(1'700'000'000'000);
    job.set_results_wanted(8);
    job.set_results_done(3);
    job.set_description("5376x4096");
    return grpc::Status::OK;
  };
  ASSERT_EQ(Run({"jobs"}), 0) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("00ff"), HasSubstr("running"), HasSubstr("batch"), HasSubstr("3/8"),
                          HasSubstr("alice@build")));
  ASSERT_EQ(Run({"jobs", "--unfinished", "--client", "bob", "--output", "json"}), 0) << err_;
  EXPECT_TRUE(asked.unfinished_only());
  EXPECT_EQ(asked.client(), "bob");
  EXPECT_EQ(json::parse(out_)["jobs"][0]["state"], "running");
  EXPECT_EQ(json::parse(out_)["jobs"][0]["accepted_unix_ms"], 1'700'000'000'000);
  daemon_.answers().cancel = [](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    response->mutable_job()->set_job_id(request.job_id());
    response->mutable_job()->set_state(v1::JOB_STATE_CANCELLED);
    return grpc::Status::OK;
  };
  ASSERT_EQ(Run({"jobs", "cancel", "00ff"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("job 00ff is cancelled"));
  EXPECT_EQ(Run({"jobs", "cancel"}), 2);
}

TEST_F(Qgemmctl, DeviceIsPausedAndResumed) {
  daemon_.answers().description.set_state("paused");
  ASSERT_EQ(Run({"device", "pause"}), 0) << err_;
  EXPECT_TRUE(daemon_.answers().paused);
  EXPECT_THAT(out_, HasSubstr("paused"));
  ASSERT_EQ(Run({"device", "resume"}), 0) << err_;
  EXPECT_EQ(Run({"device", "resume"}), 3);
  EXPECT_THAT(err_, HasSubstr("pid 7 has the GPU"));
}

}  // namespace
}  // namespace qgemm
