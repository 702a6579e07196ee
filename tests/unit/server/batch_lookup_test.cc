#include "server/batch_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "cache/memory_store.h"
#include "server/proto_convert.h"
#include "tests/fakes/fake_compiler.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

class BatchLookupTest : public ::testing::Test {
 protected:
  BatchLookupTest()
      : store_(clock_),
        supply_(store_, compiler_, clock_, [] {}),
        pick_lookup_(store_, supply_),
        lookup_(pick_lookup_, store_, clock_, 64) {
    target_ = *TargetResolver::Create("h200", "", std::nullopt)->Resolve("");
  }

  static v1::LookupKey KeyOf(int64_t n, int64_t m) {
    v1::LookupKey key;
    key.mutable_problem()->set_n(n);
    key.mutable_problem()->set_k(1024);
    key.mutable_problem()->mutable_format()->set_bits(4);
    key.mutable_problem()->mutable_format()->set_group_size(128);
    key.mutable_problem()->set_act(v1::SCALAR_TYPE_BF16);
    key.set_m(m);
    return key;
  }

  void Put(const v1::LookupKey& key, const std::string& config, double predicted_us = 1) {
    const absl::StatusOr<Problem> problem = ProblemFromProto(key.problem());
    ASSERT_TRUE(problem.ok()) << problem.status();
    internal::PickRecord record;
    record.set_pick_key(PickLookup::KeyFor(*problem, BucketOf(key), target_, v1::EFFORT_MODEL_ONLY));
    record.set_kernel_key(Sha256(config));
    record.mutable_pick()->set_config(config);
    record.mutable_pick()->set_m_bucket(BucketOf(key));
    record.mutable_pick()->set_predicted_us(predicted_us);
    record.mutable_pick()->set_source(v1::PICK_SOURCE_MODEL);
    record.mutable_pick()->mutable_kernel()->set_sha256(Sha256Hex(config));
    ASSERT_TRUE(store_.PutPick(record, {}).ok());
  }
  static int BucketOf(const v1::LookupKey& key) { return key.m() <= 16 ? 16 : 64; }

  v1::LookupResponse Run(const std::vector<v1::LookupKey>& keys, bool brief = false) {
    v1::LookupRequest request;
    for (const v1::LookupKey& key : keys) *request.add_keys() = key;
    request.set_brief(brief);
    std::string bytes;
    const absl::Status status = lookup_.Run(request, target_, "", bytes, counts_);
    EXPECT_TRUE(status.ok()) << status;
    v1::LookupResponse response;
    EXPECT_TRUE(response.ParseFromString(bytes));
    return response;
  }
  std::string ConfigOf(const v1::LookupKey& key) { return Run({key}).answers(0).pick().config(); }

  SimulatedClock clock_;
  MemoryStore store_;
  FakeCompiler compiler_;
  KernelSupply supply_;
  PickLookup pick_lookup_;
  BatchLookup lookup_;
  TuningTarget target_;
  LookupCounts counts_;
};

TEST_F(BatchLookupTest, AnswersInOrderAndCounts) {
  Put(KeyOf(256, 16), "a");
  Put(KeyOf(512, 16), "b");
  const v1::LookupResponse response = Run({KeyOf(512, 16), KeyOf(768, 16), KeyOf(256, 16), KeyOf(512, 16)});
  ASSERT_EQ(response.answers_size(), 4);
  EXPECT_EQ(response.answers(0).pick().config(), "b");
  EXPECT_FALSE(response.answers(1).has_pick());
  EXPECT_THAT(response.answers(1).miss_reason(), HasSubstr("never tuned"));
  EXPECT_EQ(response.answers(2).pick().config(), "a");
  EXPECT_EQ(response.answers(3).SerializeAsString(), response.answers(0).SerializeAsString());
  EXPECT_EQ(counts_.hits, 3);
  EXPECT_EQ(counts_.misses, 1);
}

TEST_F(BatchLookupTest, NewPickShowsAtOnce) {
  EXPECT_EQ(ConfigOf(KeyOf(256, 16)), "");
  Put(KeyOf(256, 16), "a");
  EXPECT_EQ(ConfigOf(KeyOf(256, 16)), "a");
  Put(KeyOf(256, 16), "b");
  EXPECT_EQ(ConfigOf(KeyOf(256, 16)), "b");
}

TEST_F(BatchLookupTest, DeletedPickIsGoneAtOnce) {
  Put(KeyOf(256, 16), "a");
  EXPECT_EQ(ConfigOf(KeyOf(256, 16)), "a");
  std::vector<EntryId> all;
  ASSERT_TRUE(store_
                  .VisitUses([&](const EntryUse& use) {
                    all.push_back(use.id);
                    return true;
                  })
                  .ok());
  ASSERT_EQ(store_.Remove(all)->picks, 1);
  EXPECT_EQ(ConfigOf(KeyOf(256, 16)), "");
}

TEST_F(BatchLookupTest, RepeatedAnswersDoNotReadTheStoreAndUsesAreNotedAllTheSame) {
  Put(KeyOf(256, 16), "a");
  EXPECT_EQ(ConfigOf(KeyOf(256, 16)), "a");
  ASSERT_TRUE(store_.FlushUses().ok());
  const auto hour = [&] {
    ASSERT_TRUE(store_.FlushUses().ok());
    ASSERT_TRUE(store_
                    .VisitUses([&](const EntryUse& use) {
                      EXPECT_EQ(use.used_unix_hour, clock_.WallUnixMs() / 3'600'000);
                      return true;
                    })
                    .ok());
  };
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(std::chrono::hours(1));
    EXPECT_EQ(ConfigOf(KeyOf(256, 16)), "a");
    hour();
  }
}

TEST_F(BatchLookupTest, BriefAnswersHoldNoLaunch) {
  Put(KeyOf(256, 16), "a", 7.5);
  const v1::LookupResponse response = Run({KeyOf(256, 16), KeyOf(512, 16)}, /*brief=*/true);
  EXPECT_FALSE(response.answers(0).has_pick());
  EXPECT_EQ(response.answers(0).brief().config(), "a");
  EXPECT_EQ(response.answers(0).brief().predicted_us(), 7.5);
  EXPECT_EQ(ToHex(response.answers(0).brief().kernel_sha256()), Sha256Hex("a"));
  EXPECT_FALSE(response.answers(1).has_brief());
  EXPECT_THAT(response.answers(1).miss_reason(), HasSubstr("never tuned"));
  EXPECT_EQ(Run({KeyOf(256, 16)}).answers(0).pick().config(), "a");
}

TEST_F(BatchLookupTest, ForgetsWhatDoesNotFit) {
  for (int i = 1; i <= 500; ++i) Put(KeyOf(256 * i, 16), absl::StrCat("c", i));
  for (int round = 0; round < 2; ++round) {
    for (int i = 1; i <= 500; ++i) EXPECT_EQ(ConfigOf(KeyOf(256 * i, 16)), absl::StrCat("c", i));
  }
}

TEST_F(BatchLookupTest, NamesTheKeyThatIsWrong) {
  v1::LookupRequest request;
  *request.add_keys() = KeyOf(256, 16);
  *request.add_keys() = KeyOf(256, 0);
  std::string bytes;
  const absl::Status status = lookup_.Run(request, target_, "", bytes, counts_);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("keys[1]"));
}

}  // namespace
}  // namespace qgemm
