// What every CacheStore does, run on both.
#include "cache/cache_store.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/memory_store.h"
#include "cache/rocksdb_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Peer = RecordStoreTestPeer;

internal::JobRecord JobNamed(const std::string& id, v1::JobState state) {
  internal::JobRecord record;
  record.mutable_job()->set_job_id(id);
  record.mutable_job()->set_state(state);
  record.mutable_request()->add_m(16);
  return record;
}

enum class Kind { kMemory, kRocksDb };

class CacheStoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kMemory) {
      store_ = std::make_unique<MemoryStore>();
      return;
    }
    absl::StatusOr<std::unique_ptr<RocksDbStore>> opened = RocksDbStore::Open(directory_.store());
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }

  std::vector<std::string> KernelConfigs() {
    std::vector<std::string> configs;
    EXPECT_TRUE(store_
                    ->VisitKernels([&](const v1::KernelInfo& info) {
                      configs.push_back(info.config());
                      return true;
                    })
                    .ok());
    return configs;
  }

  int64_t Corrupt() { return store_->Stats().value().corrupt; }

  // Flips one bit of a stored value.
  void FlipBit(RecordFamily family, const std::string& key, size_t byte) {
    std::string value = Peer::Read(*store_, family, key).value();
    ASSERT_LT(byte, value.size());
    value[byte] = static_cast<char>(value[byte] ^ 0x10);
    ASSERT_TRUE(Peer::Write(*store_, family, key, value).ok());
  }

  TemporaryDirectory directory_;
  std::unique_ptr<RecordStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Stores, CacheStoreTest, ::testing::Values(Kind::kMemory, Kind::kRocksDb),
                         [](const auto& info) { return info.param == Kind::kMemory ? "Memory" : "RocksDb"; });

TEST_P(CacheStoreTest, KernelRoundTrips) {
  const internal::KernelRecord kernel = Kernel("a", Noise(50'000, 1));
  ASSERT_TRUE(store_->PutKernel(kernel).ok());
  const auto read = store_->GetKernel(kernel.kernel_key());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->SerializeAsString(), kernel.SerializeAsString());
  const auto by_sha256 = store_->GetKernelBySha256(kernel.info().sha256());
  ASSERT_TRUE(by_sha256.ok()) << by_sha256.status();
  EXPECT_EQ(by_sha256->SerializeAsString(), kernel.SerializeAsString());
}

TEST_P(CacheStoreTest, UnknownKeysAreNotFound) {
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernel(Key("a")).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernelBySha256(Sha256Hex("a")).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("a")).status()));
  const std::vector<std::string> keys = {Key("a")};
  EXPECT_FALSE(store_->GetTimings(keys)->at(0).has_value());
  EXPECT_EQ(Corrupt(), 0);
}

TEST_P(CacheStoreTest, KernelWhoseSha256IsNotItsCubinsIsRefused) {
  internal::KernelRecord kernel = Kernel("a", "cubin");
  kernel.set_cubin("another");
  const absl::Status status = store_->PutKernel(kernel);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("info.sha256"));
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernel(Key("a")).status()));
}

TEST_P(CacheStoreTest, KeysOfAnotherLengthAreRefused) {
  internal::KernelRecord kernel = Kernel("a", "cubin");
  kernel.set_kernel_key("short");
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PutKernel(kernel)));
  internal::PickRecord pick = PickOf("p", "a");
  pick.clear_pick_key();
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PutPick(pick, {})));
  internal::TimingRecord timing = TimingOf("t", 1);
  timing.set_timing_key(timing.timing_key() + "x");
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PutTimings({timing})));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PutPick(PickOf("p", "a"), {timing})));
  pick = PickOf("p", "a");
  pick.add_timing_keys("short");
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PutPick(pick, {})));
  pick = PickOf("p", "a");
  pick.set_kernel_key("short");
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PutPick(pick, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->GetKernel("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->GetPick("x").status()));
  const std::vector<std::string> keys = {"x"};
  EXPECT_TRUE(absl::IsInvalidArgument(store_->GetTimings(keys).status()));
  EXPECT_EQ(store_->Stats()->picks, 0);
}

TEST_P(CacheStoreTest, TextsThatCouldNotBeReadAgainAreRefused) {
  const std::string latin1 = "\xdf";
  internal::KernelRecord kernel = Kernel("a", "cubin");
  kernel.set_ptx(latin1);
  internal::PickRecord pick = PickOf("p", "a");
  pick.mutable_pick()->set_config(latin1);
  internal::TimingRecord timing = TimingOf("t", 1);
  timing.set_reason(latin1);
  internal::JobRecord job = JobNamed("job", v1::JOB_STATE_FAILED);
  job.mutable_job()->set_error(latin1);
  for (const absl::Status& status :
       {store_->PutKernel(kernel), store_->PutPick(pick, {}), store_->PutTimings({timing}),
        store_->PutPick(PickOf("p", "a"), {timing}), store_->PutJob(job)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("UTF-8"));
  }
}

TEST_P(CacheStoreTest, ARecordThatNamesAnotherKeyIsAMiss) {
  const auto forge = [&](RecordFamily family, RecordType type, const std::string& key,
                         const google::protobuf::MessageLite& message) {
    ASSERT_TRUE(Peer::Write(*store_, family, key, EncodeRecord(type, key, message)).ok());
  };
  forge(RecordFamily::kKernel, RecordType::kKernel, Key("x"), Kernel("a", "cubin"));
  forge(RecordFamily::kPick, RecordType::kPick, Key("x"), PickOf("p", "a"));
  forge(RecordFamily::kTiming, RecordType::kTiming, Key("x"), TimingOf("t", 1));
  forge(RecordFamily::kJob, RecordType::kJob, "x", JobNamed("job", v1::JOB_STATE_DONE));
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernel(Key("x")).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetJob("x").status()));
  const std::vector<std::string> keys = {Key("x")};
  EXPECT_EQ(store_->GetTimings(keys)->front(), std::nullopt);
  ASSERT_TRUE(store_
                  ->VisitPicks([](const internal::PickRecord&) {
                    ADD_FAILURE();
                    return true;
                  })
                  .ok());
  EXPECT_EQ(store_->Stats()->corrupt, 4);
}

// It would keep its whole store from being exported or emptied.
TEST_P(CacheStoreTest, APickThatRestsOnAKeyThatIsNoneIsAMiss) {
  internal::PickRecord of_no_kernel = PickOf("p", "a");
  of_no_kernel.set_kernel_key("short");
  internal::PickRecord of_no_timing = PickOf("p", "a");
  of_no_timing.add_timing_keys("short");
  for (const internal::PickRecord& pick : {of_no_kernel, of_no_timing}) {
    ASSERT_TRUE(
        Peer::Write(*store_, RecordFamily::kPick, Key("p"), EncodeRecord(RecordType::kPick, Key("p"), pick))
            .ok());
    EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("p")).status()));
  }
  EXPECT_EQ(store_->Stats()->corrupt, 2);
}

TEST_P(CacheStoreTest, MalformedSha256IsRefused) {
  const std::string sha256 = Sha256Hex("a");
  for (const std::string& bad :
       {std::string(), sha256.substr(1), absl::StrCat(sha256, "0"), absl::StrCat("G", sha256.substr(1)),
        absl::StrCat("A", sha256.substr(1)), Sha256("a") + Sha256("b")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(store_->GetKernelBySha256(bad).status())) << bad;
  }
}

TEST_P(CacheStoreTest, TimingsComeInTheOrderAsked) {
  ASSERT_TRUE(store_->PutTimings({TimingOf("x", 1), TimingOf("y", 2)}).ok());
  const std::vector<std::string> keys = {Key("y"), Key("z"), Key("x"), Key("y")};
  const auto timings = store_->GetTimings(keys);
  ASSERT_TRUE(timings.ok()) << timings.status();
  ASSERT_EQ(timings->size(), 4);
  EXPECT_EQ((*timings)[0]->candidate(), "y");
  EXPECT_FALSE((*timings)[1].has_value());
  EXPECT_EQ((*timings)[2]->candidate(), "x");
  EXPECT_EQ((*timings)[3]->candidate(), "y");
}

TEST_P(CacheStoreTest, NoTimingsAreNoWrite) { EXPECT_TRUE(store_->PutTimings({}).ok()); }

TEST_P(CacheStoreTest, PickComesWithItsTimings) {
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {TimingOf("x", 1), TimingOf("y", 2)}).ok());
  EXPECT_EQ(store_->GetPick(Key("p"))->pick().config(), "a");
  const std::vector<std::string> keys = {Key("x"), Key("y")};
  const auto timings = store_->GetTimings(keys);
  EXPECT_TRUE((*timings)[0].has_value());
  EXPECT_TRUE((*timings)[1].has_value());
}

TEST_P(CacheStoreTest, LaterWriteReplacesEarlier) {
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {}).ok());
  ASSERT_TRUE(store_->PutPick(PickOf("p", "b"), {}).ok());
  EXPECT_EQ(store_->GetPick(Key("p"))->pick().config(), "b");
  EXPECT_EQ(store_->Stats()->picks, 1);
}

TEST_P(CacheStoreTest, OneCubinUnderTwoKernelKeysIsFoundWhileEitherIsGood) {
  ASSERT_TRUE(store_->PutKernel(Kernel("a", "cubin")).ok());
  ASSERT_TRUE(store_->PutKernel(Kernel("b", "cubin")).ok());
  FlipBit(RecordFamily::kKernel, Key("a"), 40);
  EXPECT_EQ(store_->GetKernelBySha256(Sha256Hex("cubin"))->kernel_key(), Key("b"));
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernel(Key("a")).status()));
  EXPECT_EQ(store_->GetKernelBySha256(Sha256Hex("cubin"))->kernel_key(), Key("b"));
  EXPECT_THAT(KernelConfigs(), ElementsAre("b"));
}

TEST_P(CacheStoreTest, KernelStoredAgainWithAnotherCubinIsNotFoundByTheOldOne) {
  ASSERT_TRUE(store_->PutKernel(Kernel("a", "old")).ok());
  ASSERT_TRUE(store_->PutKernel(Kernel("a", "new")).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernelBySha256(Sha256Hex("old")).status()));
  EXPECT_EQ(store_->GetKernelBySha256(Sha256Hex("new"))->cubin(), "new");
  EXPECT_EQ(store_->Stats()->kernels, 1);
}

TEST_P(CacheStoreTest, StatsCountRecordsAndBytes) {
  ASSERT_TRUE(store_->PutKernel(Kernel("a", std::string(1000, 'x'))).ok());
  ASSERT_TRUE(store_->PutKernel(Kernel("b", std::string(500, 'y'))).ok());
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {TimingOf("x", 1), TimingOf("y", 2)}).ok());
  ASSERT_TRUE(store_->PutTimings({TimingOf("z", 3)}).ok());
  const CacheStats stats = store_->Stats().value();
  EXPECT_EQ(stats.schema_version, 2);
  EXPECT_EQ(stats.kernels, 2);
  EXPECT_EQ(stats.kernel_bytes, 1500);
  EXPECT_EQ(stats.picks, 1);
  EXPECT_EQ(stats.timings, 3);
  EXPECT_EQ(stats.corrupt, 0);
  EXPECT_EQ(stats.disk_bytes > 0, GetParam() == Kind::kRocksDb);
}

TEST_P(CacheStoreTest, CubinBytesAreFilledIn) {
  internal::KernelRecord kernel = Kernel("a", "cubin");
  kernel.mutable_info()->clear_cubin_bytes();
  ASSERT_TRUE(store_->PutKernel(kernel).ok());
  EXPECT_EQ(store_->GetKernel(Key("a"))->info().cubin_bytes(), 5);
  EXPECT_EQ(store_->Stats()->kernel_bytes, 5);
}

TEST_P(CacheStoreTest, VisitsInKeyOrderOverManyPages) {
  std::vector<std::string> expected;
  for (int i = 0; i < 1300; ++i) {
    internal::PickRecord pick = PickOf(absl::StrCat("p", i), "a");
    expected.push_back(pick.pick_key());
    ASSERT_TRUE(store_->PutPick(pick, {}).ok());
  }
  std::sort(expected.begin(), expected.end());
  std::vector<std::string> visited;
  ASSERT_TRUE(store_
                  ->VisitPicks([&](const internal::PickRecord& pick) {
                    visited.push_back(pick.pick_key());
                    return true;
                  })
                  .ok());
  EXPECT_EQ(visited, expected);
}

TEST_P(CacheStoreTest, VisitStopsWhenToldTo) {
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(store_->PutPick(PickOf(absl::StrCat("p", i), "a"), {}).ok());
    ASSERT_TRUE(store_->PutKernel(Kernel(absl::StrCat("k", i), absl::StrCat("cubin", i))).ok());
  }
  int picks = 0;
  int kernels = 0;
  ASSERT_TRUE(store_->VisitPicks([&](const internal::PickRecord&) { return ++picks < 3; }).ok());
  ASSERT_TRUE(store_->VisitKernels([&](const v1::KernelInfo&) { return ++kernels < 2; }).ok());
  EXPECT_EQ(picks, 3);
  EXPECT_EQ(kernels, 2);
}

TEST_P(CacheStoreTest, VisitorMayUseTheStore) {
  ASSERT_TRUE(store_->PutKernel(Kernel("a", "cubin")).ok());
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {}).ok());
  ASSERT_TRUE(store_
                  ->VisitPicks([&](const internal::PickRecord& pick) {
                    EXPECT_TRUE(store_->GetKernel(pick.kernel_key()).ok());
                    EXPECT_TRUE(store_->PutTimings({TimingOf("t", 1)}).ok());
                    return true;
                  })
                  .ok());
  EXPECT_EQ(store_->Stats()->timings, 1);
}

TEST_P(CacheStoreTest, CorruptKernelIsAMissThatIsCountedAndRemoved) {
  ASSERT_TRUE(store_->PutKernel(Kernel("a", Noise(50'000, 1))).ok());
  FlipBit(RecordFamily::kKernel, Key("a"), 30'000);
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernelBySha256(Sha256Hex(Noise(50'000, 1))).status()));
  EXPECT_EQ(Corrupt(), 1);
  EXPECT_TRUE(absl::IsNotFound(Peer::Read(*store_, RecordFamily::kKernel, Key("a")).status()));
  EXPECT_EQ(Peer::Count(*store_, RecordFamily::kIndex), 0);
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernel(Key("a")).status()));
  EXPECT_EQ(Corrupt(), 1);
  ASSERT_TRUE(store_->PutKernel(Kernel("a", Noise(50'000, 1))).ok());
  EXPECT_TRUE(store_->GetKernel(Key("a")).ok());
}

TEST_P(CacheStoreTest, CorruptPickIsAMissAndIsSkippedByVisits) {
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {}).ok());
  ASSERT_TRUE(store_->PutPick(PickOf("q", "b"), {}).ok());
  FlipBit(RecordFamily::kPick, Key("p"), 45);
  std::vector<std::string> configs;
  ASSERT_TRUE(store_
                  ->VisitPicks([&](const internal::PickRecord& pick) {
                    configs.push_back(pick.pick().config());
                    return true;
                  })
                  .ok());
  EXPECT_THAT(configs, ElementsAre("b"));
  EXPECT_EQ(Corrupt(), 1);
  EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("p")).status()));
  EXPECT_EQ(Corrupt(), 1);
}

TEST_P(CacheStoreTest, CorruptTimingLeavesItsNeighbours) {
  ASSERT_TRUE(store_->PutTimings({TimingOf("x", 1), TimingOf("y", 2)}).ok());
  FlipBit(RecordFamily::kTiming, Key("x"), 0);
  const std::vector<std::string> keys = {Key("x"), Key("y")};
  const auto timings = store_->GetTimings(keys);
  ASSERT_TRUE(timings.ok()) << timings.status();
  EXPECT_FALSE((*timings)[0].has_value());
  EXPECT_TRUE((*timings)[1].has_value());
  EXPECT_EQ(Corrupt(), 1);
}

TEST_P(CacheStoreTest, RecordUnderAnotherKeyIsAMiss) {
  ASSERT_TRUE(store_->PutKernel(Kernel("a", "cubin")).ok());
  const std::string value = Peer::Read(*store_, RecordFamily::kKernel, Key("a")).value();
  ASSERT_TRUE(Peer::Write(*store_, RecordFamily::kKernel, Key("b"), value).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernel(Key("b")).status()));
  EXPECT_TRUE(store_->GetKernel(Key("a")).ok());
  EXPECT_EQ(Corrupt(), 1);
}

TEST_P(CacheStoreTest, RecordOfAnotherFamilyIsAMiss) {
  ASSERT_TRUE(store_->PutTimings({TimingOf("x", 1)}).ok());
  const std::string value = Peer::Read(*store_, RecordFamily::kTiming, Key("x")).value();
  ASSERT_TRUE(Peer::Write(*store_, RecordFamily::kPick, Key("x"), value).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("x")).status()));
  EXPECT_EQ(Corrupt(), 1);
}

TEST_P(CacheStoreTest, CorruptIndexEntryIsRebuiltFromItsKernel) {
  ASSERT_TRUE(store_->PutKernel(Kernel("a", "cubin")).ok());
  FlipBit(RecordFamily::kIndex, absl::StrCat("info/", Key("a")), 50);
  EXPECT_THAT(KernelConfigs(), ElementsAre("a"));
  EXPECT_EQ(Corrupt(), 1);
  EXPECT_THAT(KernelConfigs(), ElementsAre("a"));
  EXPECT_EQ(Corrupt(), 1);
}

TEST_P(CacheStoreTest, CorruptIndexEntryWithoutAKernelIsRemoved) {
  ASSERT_TRUE(Peer::Write(*store_, RecordFamily::kIndex, absl::StrCat("info/", Key("a")), "no record").ok());
  ASSERT_TRUE(Peer::Write(*store_, RecordFamily::kIndex, "info/short", "no record").ok());
  EXPECT_THAT(KernelConfigs(), ElementsAre());
  EXPECT_EQ(Peer::Count(*store_, RecordFamily::kIndex), 0);
}

TEST_P(CacheStoreTest, RemovalSparesARecordThatWasRebuiltMeanwhile) {
  ASSERT_TRUE(store_->PutTimings({TimingOf("x", 1)}).ok());
  const absl::StatusOr<std::string> seen = Peer::Read(*store_, RecordFamily::kTiming, Key("x"));
  ASSERT_TRUE(store_->PutTimings({TimingOf("x", 2)}).ok());
  ASSERT_TRUE(Peer::RemoveIfStill(*store_, RecordFamily::kTiming, Key("x"), seen).ok());
  ASSERT_TRUE(
      Peer::RemoveIfStill(*store_, RecordFamily::kTiming, Key("x"), absl::DataLossError("block damaged"))
          .ok());
  EXPECT_EQ(store_->Stats()->timings, 1);
}

TEST(MemoryStore, WriteErrorRefusesWritesAndReadsGoOn) {
  MemoryStore store;
  ASSERT_TRUE(store.PutPick(PickOf("p", "a"), {}).ok());
  store.SetWriteError(absl::ResourceExhaustedError("the disk is full"));
  EXPECT_TRUE(absl::IsResourceExhausted(store.PutPick(PickOf("q", "a"), {})));
  EXPECT_TRUE(absl::IsResourceExhausted(store.PutKernel(Kernel("a", "cubin"))));
  EXPECT_TRUE(store.GetPick(Key("p")).ok());
  EXPECT_TRUE(absl::IsNotFound(store.GetPick(Key("q")).status()));
  store.SetWriteError(absl::OkStatus());
  EXPECT_TRUE(store.PutPick(PickOf("q", "a"), {}).ok());
}

TEST_P(CacheStoreTest, JobsAreListedUntilTheyAreDeleted) {
  ASSERT_TRUE(store_->PutJob(JobNamed("b", v1::JOB_STATE_QUEUED)).ok());
  ASSERT_TRUE(store_->PutJob(JobNamed("a", v1::JOB_STATE_QUEUED)).ok());
  ASSERT_TRUE(store_->PutJob(JobNamed("b", v1::JOB_STATE_DONE)).ok());
  const auto read = store_->GetJob("b");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->job().state(), v1::JOB_STATE_DONE);
  EXPECT_EQ(read->request().m(0), 16);
  const auto ids = [&] {
    std::vector<std::string> ids;
    EXPECT_TRUE(store_
                    ->VisitJobs([&](const internal::JobRecord& record) {
                      ids.push_back(record.job().job_id());
                      return true;
                    })
                    .ok());
    return ids;
  };
  EXPECT_THAT(ids(), ElementsAre("a", "b"));
  ASSERT_TRUE(store_->DeleteJobs({"a", "never"}).ok());
  EXPECT_THAT(ids(), ElementsAre("b"));
  EXPECT_EQ(store_->GetJob("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->PutJob(JobNamed("", v1::JOB_STATE_DONE)).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(CacheStoreTest, CorruptJobIsAMissAndRemoved) {
  ASSERT_TRUE(store_->PutJob(JobNamed("a", v1::JOB_STATE_QUEUED)).ok());
  FlipBit(RecordFamily::kJob, "a", 40);
  EXPECT_EQ(store_->GetJob("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Corrupt(), 1);
  EXPECT_EQ(Peer::Read(*store_, RecordFamily::kJob, "a").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace qgemm
