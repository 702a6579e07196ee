// The store on disk over time: its size limit, space given back, deleted directories, full disks that heal.
#include "cache/housekeeping.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cache/rocksdb_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/env.h"
#include "tests/unit/cache/faulty_file_system.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
namespace fs = std::filesystem;

class HousekeepingTest : public ::testing::Test {
 protected:
  HousekeepingTest() : disk_(std::make_shared<FaultyFileSystem>()), env_(rocksdb::NewCompositeEnv(disk_)) {
    options_.clock = &clock_;
    options_.env = env_.get();
  }

  void Open() {
    auto store = RocksDbStore::Open(temporary_.store(), options_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    housekeeping_ = std::make_unique<Housekeeping>(*store_, clock_, HousekeepingOptions());
  }

  int64_t DiskBytes() { return store_->Stats()->disk_bytes; }

  TemporaryDirectory temporary_;
  SimulatedClock clock_;
  std::shared_ptr<FaultyFileSystem> disk_;
  std::unique_ptr<rocksdb::Env> env_;
  RocksDbStoreOptions options_;
  std::unique_ptr<RocksDbStore> store_;
  std::unique_ptr<Housekeeping> housekeeping_;
};

// A week in which four times the limit is written, and some of it read again and again.
TEST_F(HousekeepingTest, StoreStaysAtItsLimitForAWeekAndKeepsWhatIsUsed) {
  options_.limit_bytes = kMinStoreLimitBytes;
  Open();
  constexpr size_t kKernelBytes = 100'000;
  const int kernels = static_cast<int>(4 * options_.limit_bytes / static_cast<int64_t>(kKernelBytes));
  const int hot = 40;
  int64_t largest = 0;
  for (int i = 0; i < kernels; ++i) {
    const absl::Status status =
        store_->PutKernel(Kernel(absl::StrCat("k", i), Noise(kKernelBytes, static_cast<uint64_t>(i))));
    ASSERT_TRUE(status.ok()) << i << ": " << status;
    if (i % 8 == 0) largest = std::max(largest, DiskBytes());
    clock_.Advance(minutes(7 * 24 * 60 / kernels + 1));
    if (i >= hot && i % 20 == 0) {
      for (int j = 0; j < hot; ++j) ASSERT_TRUE(store_->GetKernel(Key(absl::StrCat("k", j))).ok()) << i;
      housekeeping_->RunDue();
    }
  }
  EXPECT_LE(largest, options_.limit_bytes + options_.limit_bytes / 20);
  // The limit is used, too.
  EXPECT_GE(DiskBytes(), options_.limit_bytes / 2);
  EXPECT_GT(store_->Stats()->evicted, kernels / 2);
  EXPECT_EQ(store_->Stats()->corrupt, 0);
  // What was written last is there.
  for (int i = kernels - 100; i < kernels; ++i) {
    EXPECT_EQ(store_->GetKernel(Key(absl::StrCat("k", i)))->cubin(), Noise(kKernelBytes, i)) << i;
  }
}

TEST_F(HousekeepingTest, PinnedStoreAtItsLimitRefusesMoreInASentence) {
  options_.limit_bytes = kMinStoreLimitBytes;
  Open();
  absl::Status status;
  int i = 0;
  for (; i < 2000 && status.ok(); ++i) {
    const std::string name = absl::StrCat("k", i);
    status = store_->PutKernel(Kernel(name, Noise(100'000, static_cast<uint64_t>(i))));
    if (!status.ok()) break;
    ASSERT_TRUE(store_->SetPinned({{EntryId{EntryKind::kKernel, Key(name)}}}, true).ok());
  }
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("pinned or in use"));
  EXPECT_LE(DiskBytes(), options_.limit_bytes + options_.limit_bytes / 20);
  EXPECT_TRUE(store_->GetKernel(Key("k0")).ok());
  // Room again, by unpinning.
  std::vector<EntryId> pinned;
  for (int j = 0; j < i; ++j) pinned.push_back({EntryKind::kKernel, Key(absl::StrCat("k", j))});
  ASSERT_TRUE(store_->SetPinned(pinned, false).ok());
  status = store_->PutKernel(Kernel("more", Noise(100'000, 1)));
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(HousekeepingTest, CompactingGivesTheSpaceOfDeletedKernelsBack) {
  Open();
  std::vector<EntryId> every_second;
  for (int i = 0; i < 600; ++i) {
    const std::string name = absl::StrCat("k", i);
    ASSERT_TRUE(store_->PutKernel(Kernel(name, Noise(100'000, static_cast<uint64_t>(i)))).ok());
    if (i % 2 == 0) every_second.push_back({EntryKind::kKernel, Key(name)});
  }
  ASSERT_TRUE(store_->Compact().ok());
  EXPECT_GT(DiskBytes(), 60'000'000);
  ASSERT_EQ(store_->Remove(every_second)->kernels, 300);
  ASSERT_TRUE(store_->Compact().ok());
  EXPECT_LT(DiskBytes(), 36'000'000);
  for (int i = 1; i < 600; i += 2) {
    EXPECT_EQ(store_->GetKernel(Key(absl::StrCat("k", i)))->cubin(), Noise(100'000, i)) << i;
  }
}

TEST_F(HousekeepingTest, FullDiskHealsWithoutAnyWrite) {
  Open();
  disk_->SetFreeBytes(100'000);
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = store_->PutKernel(Kernel(absl::StrCat("k", i), Noise(20'000, i)));
  }
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  clock_.Advance(seconds(1));
  housekeeping_->RunDue();
  EXPECT_TRUE(absl::IsResourceExhausted(store_->write_error()));
  disk_->SetUnlimited();
  for (int i = 0; i < 10 && !store_->write_error().ok(); ++i) {
    clock_.Advance(seconds(1));
    housekeeping_->RunDue();
  }
  EXPECT_TRUE(store_->write_error().ok()) << store_->write_error();
  EXPECT_TRUE(store_->GetKernel(Key("k0")).ok());
}

TEST_F(HousekeepingTest, DeletedDirectoryIsNoticedAndBegunAnew) {
  Open();
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {}).ok());
  fs::remove_all(temporary_.store());
  const absl::Status status = store_->PutPick(PickOf("q", "a"), {});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("deleted"));
  housekeeping_->RunDue();
  EXPECT_TRUE(store_->PutPick(PickOf("r", "a"), {}).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("p")).status()));
  housekeeping_.reset();
  store_.reset();
  Open();
  EXPECT_TRUE(store_->GetPick(Key("r")).ok());
}

TEST_F(HousekeepingTest, DeletedFilesAreNoticedAndBegunAnew) {
  Open();
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {}).ok());
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(temporary_.store())) files.push_back(entry.path());
  for (const fs::path& file : files) fs::remove(file);
  EXPECT_TRUE(absl::IsUnavailable(store_->PutPick(PickOf("q", "a"), {})));
  housekeeping_->RunDue();
  EXPECT_TRUE(store_->PutPick(PickOf("r", "a"), {}).ok());
  EXPECT_TRUE(store_->GetPick(Key("r")).ok());
  EXPECT_FALSE(store_->moved_aside().has_value());
}

TEST_F(HousekeepingTest, ReadsAreWrittenDownEveryFiveMinutesAndAtTheEnd) {
  Open();
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {}).ok());
  const auto age = [&] {
    int64_t hours_ago = -1;
    EXPECT_TRUE(store_
                    ->VisitUses([&](const EntryUse& use) {
                      hours_ago = clock_.WallUnixMs() / 3'600'000 - use.used_unix_hour;
                      return true;
                    })
                    .ok());
    return hours_ago;
  };
  clock_.Advance(hours(3));
  housekeeping_->RunDue();
  ASSERT_TRUE(store_->GetPick(Key("p")).ok());
  housekeeping_->RunDue();
  EXPECT_EQ(age(), 3);
  clock_.Advance(minutes(5));
  housekeeping_->RunDue();
  EXPECT_EQ(age(), 0);
  clock_.Advance(hours(4));
  ASSERT_TRUE(store_->GetPick(Key("p")).ok());
  housekeeping_.reset();
  EXPECT_EQ(age(), 0);
}

TEST_F(HousekeepingTest, ThreadEndsAtOnceWhenToldTo) {
  Open();
  // By the real clock it would look again after the test's time is over.
  HousekeepingOptions options;
  options.look_interval = hours(1);
  housekeeping_ = std::make_unique<Housekeeping>(*store_, RealClock(), options);
  housekeeping_->Start();
  housekeeping_.reset();
}

}  // namespace
}  // namespace qgemm
