// Uses, pins, holds and removal, on both stores.
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cache/cache_store.h"
#include "cache/eviction.h"
#include "cache/memory_store.h"
#include "cache/rocksdb_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

using std::chrono::hours;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Peer = RecordStoreTestPeer;

EntryId KernelId(absl::string_view name) { return {EntryKind::kKernel, Key(name)}; }
EntryId PickId(absl::string_view name) { return {EntryKind::kPick, Key(name)}; }

enum class Kind { kMemory, kRocksDb };

class EntriesTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kMemory) {
      store_ = std::make_unique<MemoryStore>(clock_);
      return;
    }
    RocksDbStoreOptions options;
    options.clock = &clock_;
    absl::StatusOr<std::unique_ptr<RocksDbStore>> opened = RocksDbStore::Open(directory_.store(), options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }

  int64_t Hour() const { return clock_.WallUnixMs() / 3'600'000; }

  // Hours since the last use, by key.
  std::map<std::string, int64_t> Ages() {
    std::map<std::string, int64_t> ages;
    EXPECT_TRUE(store_
                    ->VisitUses([&](const EntryUse& use) {
                      ages[use.id.key] = Hour() - use.used_unix_hour;
                      return true;
                    })
                    .ok());
    return ages;
  }

  std::vector<std::string> Configs() {
    std::vector<std::string> configs;
    EXPECT_TRUE(store_
                    ->VisitKernels([&](const v1::KernelInfo& info) {
                      configs.push_back(info.config());
                      return true;
                    })
                    .ok());
    return configs;
  }

  void PutKernel(absl::string_view name, size_t bytes = 1000) {
    ASSERT_TRUE(
        store_->PutKernel(Kernel(name, Noise(bytes, std::hash<std::string>()(std::string(name))))).ok());
  }

  TemporaryDirectory directory_;
  SimulatedClock clock_;
  std::unique_ptr<RecordStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Stores, EntriesTest, ::testing::Values(Kind::kMemory, Kind::kRocksDb),
                         [](const auto& info) { return info.param == Kind::kMemory ? "Memory" : "RocksDb"; });

TEST_P(EntriesTest, WritesAndReadsAreDatedToTheHour) {
  PutKernel("a");
  PutKernel("b");
  ASSERT_TRUE(store_->PutPick(PickOf("p", "b"), {TimingOf("t", 1)}).ok());
  clock_.Advance(hours(5));
  ASSERT_TRUE(store_->GetKernel(Key("a")).ok());
  EXPECT_EQ(Ages()[Key("a")], 5);
  ASSERT_TRUE(store_->FlushUses().ok());
  EXPECT_EQ(Ages()[Key("a")], 0);
  EXPECT_EQ(Ages()[Key("b")], 5);
  EXPECT_EQ(Ages()[Key("p")], 5);
}

TEST_P(EntriesTest, ReadingAPickUsesItsKernelToo) {
  PutKernel("a");
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {}).ok());
  clock_.Advance(hours(2));
  ASSERT_TRUE(store_->GetPick(Key("p")).ok());
  ASSERT_TRUE(store_->FlushUses().ok());
  EXPECT_EQ(Ages()[Key("a")], 0);
  EXPECT_EQ(Ages()[Key("p")], 0);
}

TEST_P(EntriesTest, ListingAndVerifyingAreNoUse) {
  PutKernel("a");
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {}).ok());
  clock_.Advance(hours(2));
  EXPECT_THAT(Configs(), ElementsAre("a"));
  ASSERT_TRUE(store_->Verify().ok());
  ASSERT_TRUE(store_->VisitPicks([](const internal::PickRecord&) { return true; }).ok());
  ASSERT_TRUE(store_->FlushUses().ok());
  EXPECT_EQ(Ages()[Key("a")], 2);
  EXPECT_EQ(Ages()[Key("p")], 2);
}

TEST_P(EntriesTest, ReadsOfRecordsThatAreGoneLeaveNoDate) {
  PutKernel("a");
  ASSERT_TRUE(store_->GetKernel(Key("a")).ok());
  clock_.Advance(hours(2));
  ASSERT_EQ(store_->Remove({{KernelId("a")}})->kernels, 1);
  ASSERT_TRUE(store_->FlushUses().ok());
  EXPECT_EQ(Peer::Count(*store_, RecordFamily::kIndex), 0);
}

TEST_P(EntriesTest, RemovedKernelIsGoneWithAllItsIndexEntries) {
  PutKernel("a");
  PutKernel("b");
  const std::string sha256 = store_->GetKernel(Key("a"))->info().sha256();
  const auto removed = store_->Remove({{KernelId("a")}});
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->kernels, 1);
  EXPECT_GT(removed->bytes, 1000);
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernel(Key("a")).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetKernelBySha256(sha256).status()));
  EXPECT_THAT(Configs(), ElementsAre("b"));
  EXPECT_EQ(Peer::Count(*store_, RecordFamily::kIndex), 3);
}

TEST_P(EntriesTest, RemovedPickTakesItsTimingsAlong) {
  internal::PickRecord pick = PickOf("p", "a");
  pick.add_timing_keys(Key("x"));
  pick.add_timing_keys(Key("y"));
  ASSERT_TRUE(store_->PutPick(pick, {TimingOf("x", 1), TimingOf("y", 2), TimingOf("z", 3)}).ok());
  const auto removed = store_->Remove({{PickId("p")}});
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->picks, 1);
  EXPECT_EQ(removed->timings, 2);
  EXPECT_EQ(store_->Stats()->timings, 1);
  EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("p")).status()));
}

TEST_P(EntriesTest, RemovingWhatIsNotThereIsNothing) {
  const auto removed = store_->Remove({{KernelId("a"), PickId("p")}});
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->kernels + removed->picks + removed->kept, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Remove({{EntryId{EntryKind::kPick, "short"}}}).status()));
}

TEST_P(EntriesTest, PinnedEntriesAndThePinnedPicksKernelStay) {
  PutKernel("a");
  PutKernel("b");
  PutKernel("c");
  ASSERT_TRUE(store_->PutPick(PickOf("p", "b"), {}).ok());
  ASSERT_TRUE(store_->SetPinned({{KernelId("a"), PickId("p")}}, true).ok());
  EXPECT_EQ(store_->Stats()->pinned, 2);
  const auto removed = store_->Remove({{KernelId("a"), KernelId("b"), KernelId("c"), PickId("p")}});
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->kernels, 1);
  EXPECT_EQ(removed->picks, 0);
  EXPECT_EQ(removed->kept, 3);
  ASSERT_TRUE(store_->SetPinned({{KernelId("a"), PickId("p"), PickId("q")}}, false).ok());
  EXPECT_EQ(store_->Remove({{KernelId("a"), PickId("p"), KernelId("b")}})->kernels, 2);
  EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("p")).status()));
}

TEST_P(EntriesTest, PinningWhatIsNotStoredChangesNothing) {
  PutKernel("a");
  const absl::Status status = store_->SetPinned({{KernelId("a"), PickId("p")}}, true);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("pick"));
  EXPECT_EQ(store_->Stats()->pinned, 0);
}

TEST_P(EntriesTest, HeldKernelStaysUntilTheLastHolderLetsGo) {
  PutKernel("a");
  KernelHold first = store_->Hold(Key("a"));
  KernelHold second = store_->Hold(Key("a"));
  EXPECT_EQ(store_->Remove({{KernelId("a")}})->kept, 1);
  first.reset();
  EXPECT_EQ(store_->Remove({{KernelId("a")}})->kept, 1);
  second.reset();
  EXPECT_EQ(store_->Remove({{KernelId("a")}})->kernels, 1);
}

TEST_P(EntriesTest, OldTimingsGoByTheirDate) {
  internal::TimingRecord old = TimingOf("x", 1);
  old.set_unix_ms(1000);
  internal::TimingRecord recent = TimingOf("y", 1);
  recent.set_unix_ms(5000);
  ASSERT_TRUE(store_->PutTimings({old, recent}).ok());
  EXPECT_EQ(store_->RemoveTimingsBefore(5000)->timings, 1);
  const std::vector<std::string> keys = {Key("x"), Key("y")};
  const auto timings = store_->GetTimings(keys);
  EXPECT_FALSE(timings->at(0).has_value());
  EXPECT_TRUE(timings->at(1).has_value());
}

TEST_P(EntriesTest, VerifyCountsWhatIsGoodAndDropsWhatIsNot) {
  PutKernel("a");
  PutKernel("b");
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {TimingOf("t", 1)}).ok());
  ASSERT_TRUE(store_->PutPick(PickOf("q", "missing"), {}).ok());
  ASSERT_TRUE(Peer::Write(*store_, RecordFamily::kTiming, Key("u"), "no record").ok());
  ASSERT_TRUE(Peer::Write(*store_, RecordFamily::kKernel, Key("b"), "no record").ok());
  const auto report = store_->Verify();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kernels, 1);
  EXPECT_EQ(report->picks, 2);
  EXPECT_EQ(report->timings, 1);
  EXPECT_EQ(report->corrupt, 2);
  EXPECT_EQ(report->picks_without_kernel, 1);
  EXPECT_EQ(store_->Verify()->corrupt, 0);
}

TEST_P(EntriesTest, AdoptedToolchainIsKept) {
  EXPECT_EQ(store_->AdoptedToolchain().value(), "");
  ASSERT_TRUE(store_->AdoptToolchain("nvrtc 13.0").ok());
  EXPECT_EQ(store_->AdoptedToolchain().value(), "nvrtc 13.0");
  ASSERT_TRUE(store_->AdoptToolchain("").ok());
  EXPECT_EQ(store_->AdoptedToolchain().value(), "");
}

TEST_P(EntriesTest, EvictsTheLeastRecentlyUsedFirst) {
  for (int i = 0; i < 10; ++i) {
    PutKernel(absl::StrCat("k", i), 10'000);
    clock_.Advance(hours(1));
  }
  ASSERT_TRUE(store_->GetKernel(Key("k0")).ok());
  const auto removed = EvictFraction(*store_, 0.35);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->kernels, 4);
  EXPECT_THAT(Configs(), UnorderedElementsAre("k0", "k5", "k6", "k7", "k8", "k9"));
}

TEST_P(EntriesTest, OfOneHourNoMoreIsEvictedThanNeeded) {
  for (int i = 0; i < 10; ++i) PutKernel(absl::StrCat("k", i), 10'000);
  ASSERT_EQ(EvictFraction(*store_, 0.25)->kernels, 3);
}

TEST_P(EntriesTest, KernelThatAPickNeedsGoesAfterItsPick) {
  PutKernel("needed", 10'000);
  ASSERT_TRUE(store_->PutPick(PickOf("p", "needed"), {}).ok());
  PutKernel("candidate", 10'000);
  ASSERT_EQ(EvictFraction(*store_, 0.3)->kernels, 1);
  EXPECT_THAT(Configs(), ElementsAre("needed"));
  EXPECT_TRUE(store_->GetPick(Key("p")).ok());
  ASSERT_TRUE(EvictFraction(*store_, 1.0).ok());
  EXPECT_THAT(Configs(), ElementsAre());
  EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("p")).status()));
}

TEST_P(EntriesTest, PinnedAndHeldEntriesOutliveEviction) {
  for (const char* name : {"pinned", "held", "free"}) PutKernel(name, 10'000);
  ASSERT_TRUE(store_->SetPinned({{KernelId("pinned")}}, true).ok());
  const KernelHold hold = store_->Hold(Key("held"));
  clock_.Advance(hours(100));
  ASSERT_TRUE(EvictFraction(*store_, 1.0).ok());
  EXPECT_THAT(Configs(), UnorderedElementsAre("pinned", "held"));
}

TEST_P(EntriesTest, IdleEntriesExpireByThePolicy) {
  PutKernel("idle");
  PutKernel("read");
  ASSERT_TRUE(store_->PutPick(PickOf("p", "idle"), {}).ok());
  clock_.Advance(hours(48));
  ASSERT_TRUE(store_->GetKernel(Key("read")).ok());
  RetentionPolicy policy;
  EXPECT_EQ(Expire(*store_, policy, clock_.WallUnixMs())->kernels, 0);
  policy.max_idle_hours = 47;
  const auto removed = Expire(*store_, policy, clock_.WallUnixMs());
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->kernels, 1);
  EXPECT_EQ(removed->picks, 1);
  EXPECT_THAT(Configs(), ElementsAre("read"));
}

}  // namespace
}  // namespace qgemm
