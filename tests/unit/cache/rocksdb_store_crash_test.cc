// kill -9 at any time: everything acknowledged is there, nothing is half there.
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/rocksdb_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/child_process.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

namespace fs = std::filesystem;

// Files of a RocksDB store at rest, by name or suffix; a temporary file is none of them.
void ExpectNothingTemporary(const std::string& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    const bool known = name == "CURRENT" || name == "IDENTITY" || name == "LOCK" ||
                       name.rfind("MANIFEST-", 0) == 0 ||
                       (name.rfind("OPTIONS-", 0) == 0 && extension != ".dbtmp") || extension == ".log" ||
                       extension == ".sst" || extension == ".blob";
    EXPECT_TRUE(known) << name;
  }
}

// A pick with twenty timings, all named after `i`.
std::vector<internal::TimingRecord> TimingsOf(int i) {
  std::vector<internal::TimingRecord> timings;
  for (int j = 0; j < 20; ++j) timings.push_back(TimingOf(absl::StrCat("t", i, ".", j), j));
  return timings;
}

// How many of pick i's twenty timings are stored.
int CountTimings(RocksDbStore& store, int i) {
  std::vector<std::string> keys;
  for (const internal::TimingRecord& timing : TimingsOf(i)) keys.push_back(timing.timing_key());
  int count = 0;
  const auto timings = store.GetTimings(keys);
  EXPECT_TRUE(timings.ok()) << timings.status();
  for (const auto& timing : *timings) count += timing.has_value() ? 1 : 0;
  return count;
}

TEST(RocksDbStoreCrash, EverythingAcknowledgedIsThereAfterKill9) {
  TemporaryDirectory temporary;
  std::set<std::string> acknowledged;
  for (int round = 0; round < 4; ++round) {
    ChildProcess child([&](const ChildProcess::Say& say) {
      auto store = RocksDbStore::Open(temporary.store());
      if (!store.ok()) return 1;
      for (int i = round * 100'000;; ++i) {
        if (!(*store)->PutKernel(Kernel(absl::StrCat(i), Noise(20'000, i))).ok()) return 1;
        say(absl::StrCat("k", i));
        if (!(*store)->PutPick(PickOf(absl::StrCat(i), absl::StrCat(i)), TimingsOf(i)).ok()) return 1;
        say(absl::StrCat("p", i));
      }
    });
    // The kill comes at another step of the child's work in every round.
    for (int i = 0; i < 30 + 7 * round; ++i) {
      const std::string line = child.ReadLine();
      ASSERT_FALSE(line.empty()) << "the child failed";
      acknowledged.insert(line);
    }
    child.Kill();
    // What it said before it died was acknowledged too.
    for (std::string line = child.ReadLine(); !line.empty(); line = child.ReadLine())
      acknowledged.insert(line);
  }

  const auto store = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE((*store)->moved_aside().has_value());
  for (const std::string& line : acknowledged) {
    const int i = std::stoi(line.substr(1));
    if (line[0] == 'k') {
      const auto kernel = (*store)->GetKernel(Key(absl::StrCat(i)));
      ASSERT_TRUE(kernel.ok()) << line << ": " << kernel.status();
      EXPECT_EQ(kernel->cubin(), Noise(20'000, i));
      EXPECT_TRUE((*store)->GetKernelBySha256(kernel->info().sha256()).ok());
    } else {
      EXPECT_TRUE((*store)->GetPick(Key(absl::StrCat(i))).ok()) << line;
      EXPECT_EQ(CountTimings(**store, i), 20) << line;
    }
  }
  EXPECT_EQ((*store)->Stats()->corrupt, 0);
  ExpectNothingTemporary(temporary.store());
}

// Runs `write` on the store in a child that dies at `crash_point`.
void CrashAt(const char* crash_point, const std::string& directory,
             const std::function<absl::Status(RocksDbStore&)>& write) {
  ChildProcess child([&](const ChildProcess::Say&) {
    auto store = RocksDbStore::Open(directory);
    if (!store.ok()) return 1;
    setenv("QGEMM_CRASH_POINT", crash_point, 1);
    write(**store).IgnoreError();
    return 2;
  });
  const int status = child.Wait();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child went past " << crash_point;
}

TEST(RocksDbStoreCrash, PickBeforeItsWriteLeavesNothing) {
  TemporaryDirectory temporary;
  CrashAt("store-before-write", temporary.store(),
          [](RocksDbStore& store) { return store.PutPick(PickOf("1", "a"), TimingsOf(1)); });
  const auto store = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(absl::IsNotFound((*store)->GetPick(Key("1")).status()));
  EXPECT_EQ(CountTimings(**store, 1), 0);
  ExpectNothingTemporary(temporary.store());
}

TEST(RocksDbStoreCrash, PickWrittenButNotAcknowledgedIsWhole) {
  TemporaryDirectory temporary;
  CrashAt("store-after-write", temporary.store(),
          [](RocksDbStore& store) { return store.PutPick(PickOf("1", "a"), TimingsOf(1)); });
  const auto store = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->GetPick(Key("1")).ok());
  EXPECT_EQ(CountTimings(**store, 1), 20);
}

TEST(RocksDbStoreCrash, KernelWrittenButNotAcknowledgedIsWhole) {
  TemporaryDirectory temporary;
  CrashAt("store-after-write", temporary.store(),
          [](RocksDbStore& store) { return store.PutKernel(Kernel("a", Noise(50'000, 1))); });
  const auto store = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->GetKernelBySha256(Sha256Hex(Noise(50'000, 1)))->cubin(), Noise(50'000, 1));
  EXPECT_EQ((*store)->Stats()->kernels, 1);
}

// A crash in the middle of writing the log leaves its beginning; many lengths of it are tried.
TEST(RocksDbStoreCrash, TornWriteIsDroppedWhole) {
  TemporaryDirectory temporary;
  const auto log_of = [](const std::string& directory) {
    std::vector<fs::path> logs;
    for (const auto& entry : fs::directory_iterator(directory)) {
      if (entry.path().extension() == ".log" && entry.file_size() > 0) logs.push_back(entry.path());
    }
    EXPECT_EQ(logs.size(), 1);
    return logs.at(0);
  };
  uintmax_t before = 0;
  {
    const auto store = RocksDbStore::Open(temporary.store());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->PutPick(PickOf("1", "a"), TimingsOf(1)).ok());
    before = fs::file_size(log_of(temporary.store()));
    ASSERT_TRUE((*store)->PutPick(PickOf("2", "a"), TimingsOf(2)).ok());
  }
  const uintmax_t after = fs::file_size(log_of(temporary.store()));
  ASSERT_GT(after, before + 1000);
  std::vector<uintmax_t> sizes = {after};
  for (uintmax_t size = before; size < after; size += 211) sizes.push_back(size);
  for (const uintmax_t size : sizes) {
    const std::string torn = absl::StrCat(temporary.path(), "/torn", size);
    fs::copy(temporary.store(), torn);
    fs::resize_file(log_of(torn), size);
    const auto store = RocksDbStore::Open(torn);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_FALSE((*store)->moved_aside().has_value());
    EXPECT_TRUE((*store)->GetPick(Key("1")).ok()) << size;
    EXPECT_EQ(CountTimings(**store, 1), 20) << size;
    EXPECT_EQ((*store)->GetPick(Key("2")).ok(), size == after) << size;
    EXPECT_EQ(CountTimings(**store, 2), size == after ? 20 : 0) << size;
  }
}

}  // namespace
}  // namespace qgemm
