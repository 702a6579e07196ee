// kill -9 at any time: everything acknowledged is there, nothing is half there.
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cache/pack.h"
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
                       absl::StartsWith(name, "MANIFEST-") ||
                       (absl::StartsWith(name, "OPTIONS-") && extension != ".dbtmp") || extension == ".log" ||
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
    for (std::string line = child.ReadLine(); !line.empty(); line = child.ReadLine()) {
      acknowledged.insert(line);
    }
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

TEST(RocksDbStoreCrash, DatesThatWereNotWrittenLeaveTheRecords) {
  TemporaryDirectory temporary;
  SimulatedClock clock;
  RocksDbStoreOptions options;
  options.clock = &clock;
  {
    const auto store = RocksDbStore::Open(temporary.store(), options);
    ASSERT_TRUE((*store)->PutPick(PickOf("1", "a"), TimingsOf(1)).ok());
  }
  clock.Advance(std::chrono::hours(5));
  ChildProcess child([&](const ChildProcess::Say&) {
    auto store = RocksDbStore::Open(temporary.store(), options);
    if (!store.ok() || !(*store)->GetPick(Key("1")).ok()) return 1;
    setenv("QGEMM_CRASH_POINT", "uses-before-write", 1);
    (*store)->FlushUses().IgnoreError();
    return 2;
  });
  const int status = child.Wait();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  const auto store = RocksDbStore::Open(temporary.store(), options);
  ASSERT_TRUE(store.ok()) << store.status();
  int64_t age = -1;
  ASSERT_TRUE((*store)
                  ->VisitUses([&](const EntryUse& use) {
                    age = clock.WallUnixMs() / 3'600'000 - use.used_unix_hour;
                    return true;
                  })
                  .ok());
  EXPECT_EQ(age, 5);
  EXPECT_TRUE((*store)->GetPick(Key("1")).ok());
}

absl::Status RemoveKernelAndPick(RocksDbStore& store) {
  return store.Remove({{EntryId{EntryKind::kKernel, Key("a")}, EntryId{EntryKind::kPick, Key("1")}}})
      .status();
}

// A kernel and a pick with its timings.
void PutKernelAndPick(const std::string& directory) {
  const auto store = RocksDbStore::Open(directory);
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->PutKernel(Kernel("a", Noise(50'000, 1))).ok());
  internal::PickRecord pick = PickOf("1", "b");
  for (const internal::TimingRecord& timing : TimingsOf(1)) pick.add_timing_keys(timing.timing_key());
  ASSERT_TRUE((*store)->PutPick(pick, TimingsOf(1)).ok());
}

TEST(RocksDbStoreCrash, RemovalBeforeItsWriteLeavesEverything) {
  TemporaryDirectory temporary;
  PutKernelAndPick(temporary.store());
  CrashAt("remove-before-write", temporary.store(), RemoveKernelAndPick);
  const auto store = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->GetKernelBySha256(Sha256Hex(Noise(50'000, 1))).ok());
  EXPECT_TRUE((*store)->GetPick(Key("1")).ok());
  EXPECT_EQ(CountTimings(**store, 1), 20);
}

TEST(RocksDbStoreCrash, RemovalAfterItsWriteLeavesNothing) {
  TemporaryDirectory temporary;
  PutKernelAndPick(temporary.store());
  CrashAt("remove-after-write", temporary.store(), RemoveKernelAndPick);
  const auto store = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(absl::IsNotFound((*store)->GetKernel(Key("a")).status()));
  EXPECT_TRUE(absl::IsNotFound((*store)->GetPick(Key("1")).status()));
  EXPECT_EQ(CountTimings(**store, 1), 0);
  EXPECT_EQ(RecordStoreTestPeer::Count(**store, RecordFamily::kIndex), 0);
}

// Dies within the opening that migrates; the next one does it.
void CrashInMigration(const char* crash_point) {
  TemporaryDirectory temporary;
  PutKernelAndPick(temporary.store());
  {
    const auto store = RocksDbStore::Open(temporary.store());
    ASSERT_TRUE(RecordStoreTestPeer::MakeVersion1(**store).ok());
  }
  ChildProcess child([&](const ChildProcess::Say&) {
    setenv("QGEMM_CRASH_POINT", crash_point, 1);
    return RocksDbStore::Open(temporary.store()).ok() ? 1 : 2;
  });
  const int status = child.Wait();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child went past " << crash_point;
  const auto store = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(RecordStoreTestPeer::Read(**store, RecordFamily::kMeta, "schema_version").value(), "2");
  EXPECT_TRUE((*store)->GetKernel(Key("a")).ok());
  int entries = 0;
  ASSERT_TRUE((*store)->VisitUses([&](const EntryUse&) { return ++entries > 0; }).ok());
  EXPECT_EQ(entries, 2);
}

TEST(RocksDbStoreCrash, MigrationBeforeItsFirstBatchIsRepeated) {
  CrashInMigration("migration-before-batch");
}

TEST(RocksDbStoreCrash, MigrationBeforeItsVersionIsRepeated) { CrashInMigration("migration-before-version"); }

TEST(RocksDbStoreCrash, ImportCutShortLeavesWholeEntriesAndIsFinishedByTheNext) {
  TemporaryDirectory temporary;
  PutKernelAndPick(temporary.store());
  const std::string pack = temporary.path() + "/pack";
  {
    const auto store = RocksDbStore::Open(temporary.store());
    std::ofstream out(pack, std::ios::binary);
    v1::CacheSelection selection;
    selection.set_all(true);
    ASSERT_TRUE(WritePack(**store, selection, "test", 0, [&](absl::string_view bytes) {
                  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
                  return absl::OkStatus();
                }).ok());
  }
  const std::string target = temporary.path() + "/target";
  CrashAt("import-after-entry", target,
          [&](RocksDbStore& store) { return ImportPack(pack, false, store).status(); });
  const auto store = RocksDbStore::Open(target);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->GetKernel(Key("a")).ok());
  EXPECT_TRUE(absl::IsNotFound((*store)->GetPick(Key("1")).status()));
  const auto report = ImportPack(pack, false, **store);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->added(), 1);
  EXPECT_EQ(report->already_there(), 1);
  EXPECT_EQ(CountTimings(**store, 1), 20);
  ExpectNothingTemporary(target);
}

TEST(RocksDbStoreCrash, BackupCutShortIsMadeByTheNext) {
  TemporaryDirectory temporary;
  PutKernelAndPick(temporary.store());
  const std::string backup = temporary.path() + "/backup";
  CrashAt("backup-before-checkpoint", temporary.store(),
          [&](RocksDbStore& store) { return store.Backup(backup); });
  EXPECT_FALSE(fs::exists(backup));
  const auto store = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Backup(backup).ok());
  const auto copy = RocksDbStore::Open(backup);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_TRUE((*copy)->GetKernel(Key("a")).ok());
  ExpectNothingTemporary(backup);
}

// What a soak's child does as job `i` of `round`, and what it says when it was acknowledged. Deterministic.
std::string SoakName(int round, int i) { return absl::StrCat("r", round, ".", i); }

absl::Status RunSoakJob(RocksDbStore& store, int round, int i) {
  const std::string name = SoakName(round, i);
  const uint64_t seed = static_cast<uint64_t>(round) * 100'000 + static_cast<uint64_t>(i);
  const absl::Status kernel = store.PutKernel(Kernel(name, Noise(1'000 + seed % 60'000, seed)));
  if (!kernel.ok()) return kernel;
  internal::PickRecord pick = PickOf(name, name);
  std::vector<internal::TimingRecord> timings;
  for (int j = 0; j < static_cast<int>(seed % 30); ++j) {
    timings.push_back(TimingOf(absl::StrCat(name, ".", j), j));
    pick.add_timing_keys(timings.back().timing_key());
  }
  const absl::Status picked = store.PutPick(pick, timings);
  if (!picked.ok()) return picked;
  switch (seed % 7) {
    case 0:
      return store.FlushUses();
    case 1:
      return store.SetPinned({{EntryId{EntryKind::kPick, Key(name)}}}, true);
    case 2:
      return seed % 35 == 2 ? store.Compact() : absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

// Random kills, at random moments: QGEMM_FULL_SOAK=1 runs 20 rounds of 100 jobs.
TEST(RocksDbStoreCrash, SoakLosesNothingAcknowledgedAndLeavesNothingTemporary) {
  const bool full = std::getenv("QGEMM_FULL_SOAK") != nullptr;
  const int rounds = full ? 20 : 5;
  const int jobs = full ? 100 : 20;
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  TemporaryDirectory temporary;
  std::vector<std::pair<int, int>> acknowledged;
  int64_t kills = 0;
  for (int round = 0; round < rounds; ++round) {
    int done = 0;
    while (done < jobs) {
      ChildProcess child([&](const ChildProcess::Say& say) {
        auto store = RocksDbStore::Open(temporary.store());
        if (!store.ok()) return 1;
        for (int i = done; i < jobs; ++i) {
          if (!RunSoakJob(**store, round, i).ok()) return 1;
          say(absl::StrCat(i));
        }
        return 0;
      });
      const int lines = std::uniform_int_distribution<int>(0, jobs / 2)(random);
      std::string line;
      for (int i = 0; i < lines; ++i) {
        line = child.ReadLine();
        if (line.empty()) break;
        acknowledged.emplace_back(round, std::stoi(line));
        done = acknowledged.back().second + 1;
      }
      // Somewhere within the next job, or the opening.
      const auto until = std::chrono::steady_clock::now() +
                         std::chrono::microseconds(std::uniform_int_distribution<int>(0, 20'000)(random));
      while (std::chrono::steady_clock::now() < until) {
      }
      child.Kill();
      ++kills;
      ASSERT_LT(kills, 200 * rounds) << "the child does not get on";
      for (line = child.ReadLine(); !line.empty(); line = child.ReadLine()) {
        acknowledged.emplace_back(round, std::stoi(line));
        done = acknowledged.back().second + 1;
      }
    }
  }
  EXPECT_GE(kills, rounds);
  const auto store = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE((*store)->moved_aside().has_value());
  EXPECT_EQ(acknowledged.size(), static_cast<size_t>(rounds) * static_cast<size_t>(jobs));
  for (const auto& [round, i] : acknowledged) {
    const std::string name = SoakName(round, i);
    const uint64_t number = static_cast<uint64_t>(round) * 100'000 + static_cast<uint64_t>(i);
    const auto kernel = (*store)->GetKernel(Key(name));
    ASSERT_TRUE(kernel.ok()) << name << ": " << kernel.status();
    EXPECT_EQ(kernel->cubin(), Noise(1'000 + number % 60'000, number)) << name;
    EXPECT_TRUE((*store)->GetPick(Key(name)).ok()) << name;
    for (int j = 0; j < static_cast<int>(number % 30); ++j) {
      EXPECT_TRUE((*store)->GetTimings({Key(absl::StrCat(name, ".", j))})->at(0).has_value())
          << name << " " << j;
    }
  }
  const auto verified = (*store)->Verify();
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(verified->corrupt, 0);
  ExpectNothingTemporary(temporary.store());
}

// RocksDB keeps such a file for ever: some 4 KB for each kill at the wrong moment.
TEST(RocksDbStoreCrash, OptionsFileOfAKilledOpeningIsRemovedByTheNext) {
  TemporaryDirectory temporary;
  ASSERT_TRUE(RocksDbStore::Open(temporary.store()).ok());
  const fs::path unfinished = fs::path(temporary.store()) / "OPTIONS-000099.dbtmp";
  std::ofstream(unfinished) << "[Version]";
  ASSERT_TRUE(fs::exists(unfinished));
  const auto store = RocksDbStore::Open(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  ExpectNothingTemporary(temporary.store());
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
