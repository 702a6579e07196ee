// qgemmctl tune --detach, watch and jobs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/client/qgemmctl_fixture.h"

namespace qgemm {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace qgemm
