#include "server/search_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace qgemm {
namespace {

using ::testing::HasSubstr;

v1::TuneRequest Only(const std::string& expression) {
  v1::TuneRequest request;
  request.set_only(expression);
  return request;
}

Candidate Named(const std::string& config, int split_k = 1) {
  return {*ParseConfig(config), split_k, split_k > 1 ? Reduction::kWorkspace : Reduction::kNone};
}

TEST(SearchLimits, ThereAreNoneByDefault) {
  const SearchLimits limits = *SearchLimitsFromProto({});
  EXPECT_FALSE(limits.any());
  EXPECT_EQ(limits.Key(), "");
  EXPECT_EQ(limits.Filter(), nullptr);
}

TEST(SearchLimits, TheExpressionMatchesAnywhereInACandidatesName) {
  const auto filter = SearchLimitsFromProto(Only("^mma_t1.*/k[24]/"))->Filter();
  EXPECT_TRUE(filter(Named("mma_t1_r2_w4x2_s4_b2_slice_post", 4)));
  EXPECT_FALSE(filter(Named("mma_t1_r2_w4x2_s4_b2_slice_post", 3)));
  EXPECT_FALSE(filter(Named("wgmma_t1_r1_w2x1_s6_b2_staged_pre", 4)));
  EXPECT_TRUE(SearchLimitsFromProto(Only("none$"))->Filter()(Named("mma_t1_r2_w4x2_s4_b2_slice_post")));
}

TEST(SearchLimits, RefusesWhatItCannotMatch) {
  for (const std::string& expression : {std::string("("), std::string("[a"), std::string("(a)\\1"),
                                        std::string(257, 'a'), std::string("(((a{255}){255}){255})")}) {
    const absl::Status status = SearchLimitsFromProto(Only(expression)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << expression;
    EXPECT_THAT(std::string(status.message()), HasSubstr("allowed"));
  }
}

// A backtracking matcher would need longer than the test may take.
TEST(SearchLimits, AnExpressionThatBacktracksBadlyIsMatchedAtOnce) {
  const auto filter = SearchLimitsFromProto(Only("^(([a-z0-9_]*)*)*!$"))->Filter();
  EXPECT_FALSE(filter(Named("mma_t1_r2_w4x2_s4_b2_slice_post", 4)));
}

TEST(SearchLimits, RefusesLimitsOutOfRange) {
  v1::TuneRequest request;
  request.set_max_candidates(-1);
  EXPECT_THAT(std::string(SearchLimitsFromProto(request).status().message()), HasSubstr("max_candidates"));
  request.set_max_candidates(0);
  for (const double seconds : {-1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    request.set_budget_s(seconds);
    EXPECT_THAT(std::string(SearchLimitsFromProto(request).status().message()), HasSubstr("budget_s"));
  }
}

TEST(SearchLimits, ABudgetOfLessThanANanosecondIsNotNone) {
  v1::TuneRequest request;
  request.set_budget_s(1e-300);
  const SearchLimits limits = *SearchLimitsFromProto(request);
  EXPECT_GT(limits.budget, Duration::zero());
  EXPECT_TRUE(limits.any());
}

TEST(SearchLimits, OtherLimitsHaveOtherKeys) {
  v1::TuneRequest a = Only("mma");
  v1::TuneRequest b = Only("mma");
  b.set_max_candidates(3);
  v1::TuneRequest c = Only("mma");
  c.set_budget_s(0.5);
  const std::set<std::string> keys = {"", SearchLimitsFromProto(a)->Key(), SearchLimitsFromProto(b)->Key(),
                                      SearchLimitsFromProto(c)->Key()};
  EXPECT_EQ(keys.size(), 4u);
}

}  // namespace
}  // namespace qgemm
