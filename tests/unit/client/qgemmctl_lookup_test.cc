// qgemmctl lookup, explain and kernel: what the cache holds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "kernels/launch_spec.h"
#include "tests/unit/client/qgemmctl_fixture.h"

namespace qgemm {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
  EXPECT_EQ(output["results"][0].size(), 29u);
  EXPECT_EQ(output["results"][1]["error"], "never tuned");
  EXPECT_THAT(err_, HasSubstr("M <= 2: not found: never tuned"));
  EXPECT_EQ(Run({"lookup", "--shape", "64x128", "--m", "1,2,4,8,16,32"}), 6);
  EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 4) << err_;
  EXPECT_THAT(err_, HasSubstr("2 more of 6 picks were not found"));
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

}  // namespace
}  // namespace qgemm
