// qgemmctl bench: a changed source beside the current one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/client/qgemmctl_fixture.h"

namespace qgemm {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace qgemm
