// A full or broken disk under the store: writes answer, reads go on, and it heals without a restart.
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cache/rocksdb_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/env.h"
#include "tests/unit/cache/child_process.h"
#include "tests/unit/cache/faulty_file_system.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RocksDbStoreFaultTest : public ::testing::Test {
 protected:
  RocksDbStoreFaultTest()
      : disk_(std::make_shared<FaultyFileSystem>()), env_(rocksdb::NewCompositeEnv(disk_)) {
    options_.clock = &clock_;
    options_.env = env_.get();
    options_.reopen_interval = milliseconds(1000);
  }

  absl::Status Open() {
    store_.reset();
    auto store = RocksDbStore::Open(temporary_.store(), options_);
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    return absl::OkStatus();
  }

  // Writes kernels until one fails; returns how many were acknowledged and that failure.
  std::pair<int, absl::Status> FillDisk() {
    for (int i = 0; i < 1000; ++i) {
      const absl::Status status = store_->PutKernel(Kernel(absl::StrCat("k", i), Noise(20'000, i)));
      if (!status.ok()) return {i, status};
    }
    return {1000, absl::OkStatus()};
  }

  void ExpectKernels(int count) {
    for (int i = 0; i < count; ++i) {
      const auto kernel = store_->GetKernel(Key(absl::StrCat("k", i)));
      ASSERT_TRUE(kernel.ok()) << i << ": " << kernel.status();
      EXPECT_EQ(kernel->cubin(), Noise(20'000, i));
    }
  }

  TemporaryDirectory temporary_;
  SimulatedClock clock_;
  std::shared_ptr<FaultyFileSystem> disk_;
  std::unique_ptr<rocksdb::Env> env_;
  RocksDbStoreOptions options_;
  std::unique_ptr<RocksDbStore> store_;
};

TEST_F(RocksDbStoreFaultTest, FullDiskTurnsWritesAwayWhileReadsGoOn) {
  ASSERT_TRUE(Open().ok());
  disk_->SetFreeBytes(300'000);
  const auto [written, failure] = FillDisk();
  EXPECT_GT(written, 5);
  EXPECT_LT(written, 20);
  EXPECT_TRUE(absl::IsResourceExhausted(failure)) << failure;
  EXPECT_THAT(std::string(failure.message()),
              AllOf(HasSubstr(temporary_.store()), HasSubstr("disk is full")));
  EXPECT_TRUE(absl::IsResourceExhausted(store_->write_error()));
  EXPECT_TRUE(absl::IsResourceExhausted(store_->PutPick(PickOf("p", "k0"), {})));
  ExpectKernels(written);
  EXPECT_EQ(store_->Stats()->corrupt, 0);
}

TEST_F(RocksDbStoreFaultTest, WritesComeBackWithoutARestartWhenThereIsSpace) {
  ASSERT_TRUE(Open().ok());
  disk_->SetFreeBytes(300'000);
  const auto [written, failure] = FillDisk();
  ASSERT_TRUE(absl::IsResourceExhausted(failure));
  disk_->SetUnlimited();
  clock_.Advance(milliseconds(1000));
  const absl::Status status = store_->PutPick(PickOf("p", "k0"), {TimingOf("x", 1)});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(store_->write_error().ok());
  ExpectKernels(written);
  EXPECT_TRUE(store_->GetPick(Key("p")).ok());
  ASSERT_TRUE(Open().ok());
  ExpectKernels(written);
  EXPECT_TRUE(store_->GetPick(Key("p")).ok());
}

TEST_F(RocksDbStoreFaultTest, ReopeningIsTriedOncePerInterval) {
  ASSERT_TRUE(Open().ok());
  disk_->SetFreeBytes(100'000);
  const auto [written, failure] = FillDisk();
  ASSERT_TRUE(absl::IsResourceExhausted(failure));
  disk_->SetUnlimited();
  clock_.Advance(milliseconds(999));
  const int64_t openings = disk_->openings();
  ASSERT_GE(openings, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(store_->PutPick(PickOf("p", "k0"), {})));
  EXPECT_EQ(disk_->openings(), openings);
  clock_.Advance(milliseconds(1));
  EXPECT_TRUE(store_->PutPick(PickOf("p", "k0"), {}).ok());
  EXPECT_EQ(disk_->openings(), openings + 1);
}

TEST_F(RocksDbStoreFaultTest, ReadsGoOnWhenReopeningFindsTheDiskStillFull) {
  ASSERT_TRUE(Open().ok());
  disk_->SetFreeBytes(200'000);
  const auto [written, failure] = FillDisk();
  ASSERT_TRUE(absl::IsResourceExhausted(failure));
  for (int attempt = 0; attempt < 3; ++attempt) {
    clock_.Advance(milliseconds(1000));
    const absl::Status status = store_->PutPick(PickOf("p", "k0"), {});
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    ExpectKernels(written);
    EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("p")).status()));
  }
  disk_->SetUnlimited();
  clock_.Advance(milliseconds(1000));
  EXPECT_TRUE(store_->PutPick(PickOf("p", "k0"), {}).ok());
  ExpectKernels(written);
}

TEST_F(RocksDbStoreFaultTest, FilledAgainAndAgainItLosesNothingAcknowledged) {
  ASSERT_TRUE(Open().ok());
  std::vector<std::string> acknowledged;
  for (int round = 0; round < 5; ++round) {
    // Different each time: the torn write ends at another place.
    disk_->SetFreeBytes(50'000 + 7'777 * round);
    for (int i = 0; i < 100; ++i) {
      const std::string name = absl::StrCat("r", round, "k", i);
      if (!store_->PutKernel(Kernel(name, Noise(3'000, round * 1000 + i))).ok()) break;
      acknowledged.push_back(name);
    }
    disk_->SetUnlimited();
    clock_.Advance(milliseconds(1000));
    ASSERT_TRUE(store_->PutPick(PickOf(absl::StrCat("p", round), "k"), {}).ok());
  }
  EXPECT_GT(acknowledged.size(), 25);
  ASSERT_TRUE(Open().ok());
  for (const std::string& name : acknowledged) EXPECT_TRUE(store_->GetKernel(Key(name)).ok()) << name;
  EXPECT_EQ(store_->Stats()->picks, 5);
  EXPECT_EQ(store_->Stats()->corrupt, 0);
}

TEST_F(RocksDbStoreFaultTest, CrashWhileReopeningLosesNothingAcknowledged) {
  ChildProcess child([&](const ChildProcess::Say& say) {
    if (!Open().ok()) return 1;
    disk_->SetFreeBytes(200'000);
    say(absl::StrCat(FillDisk().first));
    disk_->SetUnlimited();
    clock_.Advance(milliseconds(1000));
    setenv("QGEMM_CRASH_POINT", "store-before-reopen", 1);
    store_->PutPick(PickOf("p", "k0"), {}).IgnoreError();
    return 2;
  });
  const int written = std::stoi(child.ReadLine());
  EXPECT_GT(written, 3);
  const int status = child.Wait();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  ASSERT_TRUE(Open().ok());
  ExpectKernels(written);
  EXPECT_TRUE(store_->PutPick(PickOf("p", "k0"), {}).ok());
}

TEST_F(RocksDbStoreFaultTest, StartsOnAFullDiskForReadingAndHeals) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(store_->PutKernel(Kernel("k0", Noise(20'000, 0))).ok());
  store_.reset();
  disk_->SetFreeBytes(0);
  const absl::Status opened = Open();
  ASSERT_TRUE(opened.ok()) << opened;
  ExpectKernels(1);
  EXPECT_FALSE(store_->moved_aside().has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(store_->PutPick(PickOf("p", "k0"), {})));
  disk_->SetUnlimited();
  clock_.Advance(milliseconds(1000));
  EXPECT_TRUE(store_->PutPick(PickOf("p", "k0"), {}).ok());
  ExpectKernels(1);
}

TEST_F(RocksDbStoreFaultTest, NoStoreYetOnAFullDiskIsOneSentence) {
  disk_->SetFreeBytes(0);
  const absl::Status status = Open();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(temporary_.store()));
  disk_->SetUnlimited();
  EXPECT_TRUE(Open().ok());
}

TEST_F(RocksDbStoreFaultTest, FirstOpeningCutShortByAFullDiskIsFinishedLater) {
  for (int64_t bytes = 1; bytes < 4000; bytes += 97) {
    disk_->SetFreeBytes(bytes);
    const absl::Status status = Open();
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << bytes << ": " << status;
    store_.reset();
  }
  disk_->SetUnlimited();
  ASSERT_TRUE(Open().ok());
  EXPECT_FALSE(store_->moved_aside().has_value());
  EXPECT_TRUE(store_->PutPick(PickOf("p", "k0"), {}).ok());
}

TEST_F(RocksDbStoreFaultTest, CorruptRecordOnAFullDiskIsAMissAllTheSame) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(RecordStoreTestPeer::Write(*store_, RecordFamily::kPick, Key("p"), "no record").ok());
  disk_->SetFreeBytes(0);
  EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("p")).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetPick(Key("p")).status()));
}

TEST_F(RocksDbStoreFaultTest, WriteThatWasNotSyncedIsNotAcknowledged) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(store_->PutPick(PickOf("p", "a"), {}).ok());
  disk_->SetBrokenSync(true);
  const absl::Status status = store_->PutPick(PickOf("q", "a"), {});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::IsUnavailable(store_->PutPick(PickOf("r", "a"), {})));
  EXPECT_TRUE(store_->GetPick(Key("p")).ok());
  disk_->SetBrokenSync(false);
  clock_.Advance(milliseconds(1000));
  EXPECT_TRUE(store_->PutPick(PickOf("r", "a"), {}).ok());
  EXPECT_TRUE(store_->GetPick(Key("p")).ok());
  EXPECT_TRUE(store_->GetPick(Key("r")).ok());
}

}  // namespace
}  // namespace qgemm
