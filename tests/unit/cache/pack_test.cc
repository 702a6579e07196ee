// Packs: what export writes, import takes over; what is wrong is refused whole, or entry by entry with a
// reason.
#include "cache/pack.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/memory_store.h"
#include "cache/rocksdb_store.h"
#include "cache/selection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNowMs = 1'700'000'000'000;

v1::CacheSelection All() {
  v1::CacheSelection selection;
  selection.set_all(true);
  return selection;
}

class PackTest : public ::testing::Test {
 protected:
  // Two kernels, a pick with two timings that uses one of them.
  static void Fill(CacheStore& store) {
    internal::KernelRecord kernel = Kernel("a", Noise(5'000, 1));
    kernel.mutable_info()->set_toolchain("nvrtc 13.0");
    kernel.mutable_info()->set_arch("sm_90a");
    ASSERT_TRUE(store.PutKernel(kernel).ok());
    kernel = Kernel("b", Noise(5'000, 2));
    kernel.mutable_info()->set_toolchain("nvrtc 13.0");
    ASSERT_TRUE(store.PutKernel(kernel).ok());
    internal::PickRecord pick = PickOf("p", "a");
    pick.add_timing_keys(Key("x"));
    pick.add_timing_keys(Key("y"));
    pick.mutable_pick()->set_target("h200");
    ASSERT_TRUE(store.PutPick(pick, {TimingOf("x", 1), TimingOf("y", 2)}).ok());
  }

  static std::string Pack(CacheStore& store, const v1::CacheSelection& selection) {
    std::string pack;
    const absl::Status status =
        WritePack(store, selection, "qgemm test", kNowMs, [&](absl::string_view bytes) {
          pack.append(bytes.data(), bytes.size());
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    return pack;
  }

  absl::StatusOr<v1::CacheImportResponse> Import(const std::string& pack, CacheStore& store,
                                                 bool replace = false) {
    const std::string path = directory_.path() + "/pack";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << pack;
    return ImportPack(path, replace, store);
  }

  TemporaryDirectory directory_;
  MemoryStore from_;
  MemoryStore to_;
};

TEST_F(PackTest, EverythingComesThroughAndTheToolchainIsAdopted) {
  Fill(from_);
  const auto report = Import(Pack(from_, All()), to_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->added(), 3);
  EXPECT_EQ(report->already_there(), 0);
  EXPECT_EQ(report->refused(), 0);
  EXPECT_EQ(report->toolchain(), "nvrtc 13.0");
  EXPECT_EQ(to_.AdoptedToolchain().value(), "nvrtc 13.0");
  EXPECT_EQ(to_.GetKernel(Key("a"))->SerializeAsString(), from_.GetKernel(Key("a"))->SerializeAsString());
  EXPECT_EQ(to_.GetPick(Key("p"))->SerializeAsString(), from_.GetPick(Key("p"))->SerializeAsString());
  EXPECT_EQ(to_.Stats()->timings, 2);
}

TEST_F(PackTest, SelectedPicksBringTheirKernelsAlone) {
  Fill(from_);
  v1::CacheSelection selection;
  selection.set_target("h200");
  const auto report = Import(Pack(from_, selection), to_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->added(), 2);
  EXPECT_TRUE(to_.GetKernel(Key("a")).ok());
  EXPECT_TRUE(absl::IsNotFound(to_.GetKernel(Key("b")).status()));
}

TEST_F(PackTest, SecondImportFindsEverythingThere) {
  Fill(from_);
  const std::string pack = Pack(from_, All());
  ASSERT_TRUE(Import(pack, to_).ok());
  const auto again = Import(pack, to_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->added(), 0);
  EXPECT_EQ(again->already_there(), 3);
}

TEST_F(PackTest, DifferentEntriesStayUnlessReplaced) {
  Fill(from_);
  internal::PickRecord mine = PickOf("p", "c");
  ASSERT_TRUE(to_.PutPick(mine, {}).ok());
  ASSERT_TRUE(to_.PutKernel(Kernel("a", "another cubin")).ok());
  const std::string pack = Pack(from_, All());
  const auto kept = Import(pack, to_);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->added(), 1);
  EXPECT_EQ(kept->refused(), 2);
  ASSERT_EQ(kept->refusals_size(), 2);
  EXPECT_THAT(kept->refusals(0).entry(), HasSubstr("kernel "));
  EXPECT_THAT(kept->refusals(0).reason(), HasSubstr("another kernel"));
  EXPECT_GT(kept->refusals(1).offset(), kept->refusals(0).offset());
  EXPECT_EQ(to_.GetPick(Key("p"))->pick().config(), "c");
  EXPECT_EQ(to_.GetKernel(Key("a"))->cubin(), "another cubin");
  const auto replaced = Import(pack, to_, /*replace=*/true);
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ(replaced->added(), 2);
  EXPECT_EQ(replaced->already_there(), 1);
  EXPECT_EQ(to_.GetPick(Key("p"))->pick().config(), "a");
}

TEST_F(PackTest, KernelWhoseBytesAreAnothersIsRefusedAlone) {
  Fill(from_);
  // A writer that signs what it should not: the entry is whole, the record in it is not.
  MemoryStore forged;
  Fill(forged);
  internal::KernelRecord record = *from_.GetKernel(Key("b"));
  record.set_cubin(Noise(5'000, 3));
  ASSERT_TRUE(RecordStoreTestPeer::Write(forged, RecordFamily::kKernel, Key("b"),
                                         EncodeRecord(RecordType::kKernel, Key("b"), record))
                  .ok());
  const auto report = Import(Pack(forged, All()), to_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->added(), 2);
  EXPECT_EQ(report->refused(), 1);
  EXPECT_THAT(report->refusals(0).reason(), HasSubstr("SHA-256"));
  EXPECT_TRUE(absl::IsNotFound(to_.GetKernel(Key("b")).status()));
}

TEST_F(PackTest, EmptySelectionsAreRefusedAndEmptyResultsNotFound) {
  Fill(from_);
  const auto write = [](absl::string_view) { return absl::OkStatus(); };
  EXPECT_TRUE(absl::IsInvalidArgument(WritePack(from_, {}, "w", kNowMs, write)));
  v1::CacheSelection selection;
  selection.set_target("a100");
  EXPECT_TRUE(absl::IsNotFound(WritePack(from_, selection, "w", kNowMs, write)));
}

// Every byte matters: whichever is wrong or missing, the pack is refused with an offset and nothing is
// written.
TEST_F(PackTest, AnyFlippedByteRefusesTheWholePack) {
  Fill(from_);
  const std::string pack = Pack(from_, All());
  for (size_t at = 0; at < pack.size(); at += (at < 200 || at + 200 > pack.size()) ? 1 : 37) {
    std::string bad = pack;
    bad[at] = static_cast<char>(bad[at] ^ 0x04);
    const absl::Status status = Import(bad, to_).status();
    ASSERT_TRUE(absl::IsInvalidArgument(status)) << at << ": " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr("offset"));
  }
  EXPECT_EQ(RecordStoreTestPeer::Count(to_, RecordFamily::kKernel), 0);
  EXPECT_EQ(RecordStoreTestPeer::Count(to_, RecordFamily::kPick), 0);
  EXPECT_EQ(RecordStoreTestPeer::Count(to_, RecordFamily::kTiming), 0);
}

TEST_F(PackTest, AnyCutRefusesTheWholePack) {
  Fill(from_);
  const std::string pack = Pack(from_, All());
  for (size_t size = 0; size < pack.size(); size += size < 200 ? 1 : 61) {
    const absl::Status status = Import(pack.substr(0, size), to_).status();
    ASSERT_TRUE(absl::IsInvalidArgument(status)) << size << ": " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("offset ", size))) << size;
  }
  const absl::Status longer = Import(pack + "x", to_).status();
  EXPECT_THAT(std::string(longer.message()), HasSubstr(absl::StrCat("offset ", pack.size())));
  EXPECT_EQ(RecordStoreTestPeer::Count(to_, RecordFamily::kKernel), 0);
}

TEST_F(PackTest, OtherFilesAreNamedAsSuch) {
  EXPECT_THAT(std::string(Import(std::string(1000, 'x'), to_).status().message()),
              HasSubstr("does not begin with QGEMMPAK"));
  EXPECT_TRUE(absl::IsNotFound(ImportPack(directory_.path() + "/none", false, to_).status()));
}

TEST_F(PackTest, FullDiskEndsTheImportBetweenEntries) {
  Fill(from_);
  const std::string pack = Pack(from_, All());
  to_.SetWriteError(absl::ResourceExhaustedError("the disk is full"));
  EXPECT_TRUE(absl::IsResourceExhausted(Import(pack, to_).status()));
  to_.SetWriteError(absl::OkStatus());
  EXPECT_EQ(Import(pack, to_)->added(), 3);
}

class SelectionTest : public ::testing::Test {
 protected:
  SelectionTest() : clock_(kNowMs), store_(clock_) {
    for (const char* name : {"a", "b"}) {
      internal::KernelRecord kernel = Kernel(name, Noise(1'000, name[0]));
      kernel.mutable_info()->set_arch(name[0] == 'a' ? "sm_90a" : "sm_80");
      kernel.mutable_info()->set_producer(absl::StrCat("host-", name));
      EXPECT_TRUE(store_.PutKernel(kernel).ok());
      internal::PickRecord pick = PickOf(absl::StrCat("pick-", name), name);
      pick.mutable_pick()->set_producer("host-a");
      *pick.mutable_pick()->mutable_kernel() = kernel.info();
      pick.mutable_pick()->set_target(name[0] == 'a' ? "h200" : "a100");
      pick.mutable_pick()->set_source(name[0] == 'a' ? v1::PICK_SOURCE_MEASURED : v1::PICK_SOURCE_MODEL);
      pick.mutable_pick()->mutable_problem()->set_n(name[0] == 'a' ? 256 : 512);
      pick.mutable_pick()->mutable_problem()->set_k(1024);
      EXPECT_TRUE(store_.PutPick(pick, {}).ok());
    }
  }

  // "picks/kernels" that are selected.
  std::string Selected(const std::function<void(v1::CacheSelection&)>& set) {
    v1::CacheSelection selection;
    set(selection);
    const auto selected = Select(store_, selection, clock_.WallUnixMs());
    if (!selected.ok()) return std::string(selected.status().message());
    return absl::StrCat(selected->picks.size(), "/", selected->kernels.size());
  }

  SimulatedClock clock_;
  MemoryStore store_;
};

TEST_F(SelectionTest, EveryFieldNarrows) {
  EXPECT_EQ(Selected([](auto& s) { s.set_all(true); }), "2/2");
  EXPECT_EQ(Selected([](auto& s) { s.set_target("h200"); }), "1/0");
  EXPECT_EQ(Selected([](auto& s) { s.set_arch("sm_80"); }), "1/1");
  EXPECT_EQ(Selected([](auto& s) { s.set_n(512); }), "1/0");
  EXPECT_EQ(Selected([](auto& s) { s.set_k(1024); }), "2/0");
  EXPECT_EQ(Selected([](auto& s) { s.set_m_bucket(16); }), "2/0");
  EXPECT_EQ(Selected([](auto& s) { s.set_m_bucket(32); }), "0/0");
  EXPECT_EQ(Selected([](auto& s) { s.set_source(v1::PICK_SOURCE_MODEL); }), "1/0");
  EXPECT_EQ(Selected([](auto& s) { s.set_producer("host-b"); }), "1/1");
  EXPECT_EQ(Selected([](auto& s) { s.set_producer("host-a"); }), "2/1");
  EXPECT_EQ(Selected([](auto& s) { s.set_producer("host"); }), "0/0");
  EXPECT_EQ(Selected([](auto& s) { s.add_keys(ToHex(Key("pick-a"))); }), "1/0");
  EXPECT_EQ(Selected([](auto& s) { s.add_keys(Sha256Hex(Noise(1'000, 'b'))); }), "0/1");
  EXPECT_EQ(Selected([](auto& s) {
              s.set_target("h200");
              s.set_n(512);
            }),
            "0/0");
}

TEST_F(SelectionTest, UnusedCountsFromTheLastReadOrWrite) {
  clock_.Advance(std::chrono::hours(30));
  ASSERT_TRUE(store_.GetPick(Key("pick-a")).ok());
  EXPECT_EQ(Selected([](auto& s) { s.set_unused_for_s(29 * 3600); }), "1/1");
  EXPECT_EQ(Selected([](auto& s) { s.set_unused_for_s(31 * 3600); }), "0/0");
}

TEST_F(SelectionTest, MalformedOnesAreRefusedInASentence) {
  EXPECT_THAT(Selected([](auto&) {}), HasSubstr("empty"));
  EXPECT_THAT(Selected([](auto& s) {
                s.set_all(true);
                s.set_n(3);
              }),
              HasSubstr("all alone"));
  EXPECT_THAT(Selected([](auto& s) { s.add_keys("xyz"); }), HasSubstr("xyz"));
  EXPECT_THAT(Selected([](auto& s) { s.set_n(-1); }), HasSubstr("selection.n is -1"));
}

TEST_F(SelectionTest, DeletingAPickTakesTheKernelThatNobodyElseNeeds) {
  ASSERT_TRUE(store_.PutPick(PickOf("other", "a"), {}).ok());
  v1::CacheSelection selection;
  selection.set_target("h200");
  auto removed = DeleteSelected(store_, selection, clock_.WallUnixMs());
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->picks, 1);
  EXPECT_EQ(removed->kernels, 0);
  selection.set_target("a100");
  removed = DeleteSelected(store_, selection, clock_.WallUnixMs());
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->picks, 1);
  EXPECT_EQ(removed->kernels, 1);
}

TEST_F(SelectionTest, DeletingAKernelThatAPickNeedsKeepsIt) {
  v1::CacheSelection selection;
  selection.add_keys(Sha256Hex(Noise(1'000, 'a')));
  const auto removed = DeleteSelected(store_, selection, clock_.WallUnixMs());
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->kernels, 0);
  EXPECT_EQ(removed->kept, 1);
}

TEST_F(SelectionTest, WhatABadHostMadeGoesWithThePicksThatUseIt) {
  v1::CacheSelection selection;
  selection.set_producer("host-b");
  const auto removed = DeleteSelected(store_, selection, clock_.WallUnixMs());
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->picks, 1);
  EXPECT_EQ(removed->kernels, 1);
  EXPECT_TRUE(store_.GetPick(Key("pick-a")).ok());
  EXPECT_TRUE(absl::IsNotFound(store_.GetPick(Key("pick-b")).status()));
}

TEST_F(SelectionTest, DeletingAllLeavesNothing) {
  ASSERT_TRUE(store_.PutTimings({TimingOf("t", 1)}).ok());
  v1::CacheSelection selection;
  selection.set_all(true);
  const auto removed = DeleteSelected(store_, selection, clock_.WallUnixMs());
  ASSERT_TRUE(removed.ok()) << removed.status();
  const CacheStats stats = store_.Stats().value();
  EXPECT_EQ(stats.picks + stats.kernels + stats.timings, 0);
  EXPECT_EQ(RecordStoreTestPeer::Count(store_, RecordFamily::kIndex), 0);
}

TEST(Backup, IsAStoreOfItsOwnAndRestoresAfterALoss) {
  TemporaryDirectory temporary;
  const std::string backup = temporary.path() + "/backup";
  {
    auto store = RocksDbStore::Open(temporary.store());
    ASSERT_TRUE(store.ok()) << store.status();
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE((*store)->PutKernel(Kernel(absl::StrCat("k", i), Noise(20'000, i))).ok());
      ASSERT_TRUE((*store)->PutPick(PickOf(absl::StrCat("p", i), absl::StrCat("k", i)), {}).ok());
    }
    ASSERT_TRUE((*store)->SetPinned({{EntryId{EntryKind::kPick, Key("p0")}}}, true).ok());
    const absl::Status copied = (*store)->Backup(backup);
    ASSERT_TRUE(copied.ok()) << copied;
    EXPECT_TRUE(absl::IsFailedPrecondition((*store)->Backup(backup)));
    EXPECT_TRUE(absl::IsInvalidArgument((*store)->Backup("relative")));
    // What comes later is not in it.
    ASSERT_TRUE((*store)->PutPick(PickOf("later", "k0"), {}).ok());
  }
  std::filesystem::remove_all(temporary.store());
  std::filesystem::copy(backup, temporary.store());
  auto restored = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_FALSE((*restored)->moved_aside().has_value());
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ((*restored)->GetKernel(Key(absl::StrCat("k", i)))->cubin(), Noise(20'000, i)) << i;
    EXPECT_TRUE((*restored)->GetPick(Key(absl::StrCat("p", i))).ok()) << i;
  }
  EXPECT_EQ((*restored)->Stats()->pinned, 1);
  EXPECT_TRUE(absl::IsNotFound((*restored)->GetPick(Key("later")).status()));
  EXPECT_TRUE((*restored)->PutPick(PickOf("new", "k0"), {}).ok());
}

}  // namespace
}  // namespace qgemm
