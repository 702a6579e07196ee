// What only the store on disk does: restarts, schema, damaged files, reading offline.
#include "cache/rocksdb_store.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rocksdb/db.h"
#include "tests/unit/cache/child_process.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Peer = RecordStoreTestPeer;
namespace fs = std::filesystem;

std::unique_ptr<RocksDbStore> OpenOrDie(const std::string& directory, RocksDbStoreOptions options = {}) {
  auto store = RocksDbStore::Open(directory, options);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

std::vector<fs::path> FilesNamed(const std::string& directory,
                                 const std::function<bool(const fs::path&)>& wanted) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (wanted(entry.path())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> FilesWithExtension(const std::string& directory, const std::string& extension) {
  return FilesNamed(directory, [&](const fs::path& path) { return path.extension() == extension; });
}

std::vector<fs::path> Manifests(const std::string& directory) {
  return FilesNamed(directory,
                    [](const fs::path& path) { return path.filename().string().rfind("MANIFEST-", 0) == 0; });
}

std::string Slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void Overwrite(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  ASSERT_TRUE(out.good());
}

// A closed store with one kernel, one pick and two timings, in tables and blob files rather than in the log:
// a store that is opened again writes what its log held into tables.
void MakeStore(const std::string& directory) {
  {
    const auto store = OpenOrDie(directory);
    ASSERT_TRUE(store->PutKernel(Kernel("a", Noise(50'000, 1))).ok());
    ASSERT_TRUE(store->PutPick(PickOf("p", "a"), {TimingOf("x", 1), TimingOf("y", 2)}).ok());
  }
  ASSERT_NE(OpenOrDie(directory), nullptr);
}

TEST(RocksDbStore, EverythingIsThereAfterARestart) {
  TemporaryDirectory temporary;
  {
    const auto store = OpenOrDie(temporary.store());
    ASSERT_TRUE(store->PutKernel(Kernel("a", Noise(50'000, 1))).ok());
    ASSERT_TRUE(store->PutPick(PickOf("p", "a"), {TimingOf("x", 1)}).ok());
  }
  for (int restart = 0; restart < 3; ++restart) {
    const auto store = OpenOrDie(temporary.store());
    EXPECT_EQ(store->GetKernelBySha256(Sha256Hex(Noise(50'000, 1)))->cubin(), Noise(50'000, 1));
    EXPECT_EQ(store->GetPick(Key("p"))->pick().config(), "a");
    const CacheStats stats = store->Stats().value();
    EXPECT_EQ(stats.kernels, 1);
    EXPECT_EQ(stats.picks, 1);
    EXPECT_EQ(stats.timings, 1);
    EXPECT_EQ(stats.corrupt, 0);
    EXPECT_FALSE(store->moved_aside().has_value());
  }
}

TEST(RocksDbStore, SecondProcessIsToldWhoHasIt) {
  TemporaryDirectory temporary;
  ChildProcess child([&](const ChildProcess::Say& say) {
    const auto store = RocksDbStore::Open(temporary.store());
    say(store.status().ToString());
    while (store.ok()) pause();
    return 1;
  });
  ASSERT_EQ(child.ReadLine(), "OK");
  const absl::Status status = RocksDbStore::Open(temporary.store()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(temporary.store()), HasSubstr(absl::StrCat("process ", child.pid()))));
  child.Kill();
  EXPECT_NE(OpenOrDie(temporary.store()), nullptr);
}

TEST(RocksDbStore, WritesItsSchemaVersion) {
  TemporaryDirectory temporary;
  const auto store = OpenOrDie(temporary.store());
  EXPECT_EQ(Peer::Read(*store, RecordFamily::kMeta, "schema_version").value(), "2");
}

TEST(RocksDbStore, NewerSchemaIsRefusedNamingBothVersionsAndLeftAlone) {
  TemporaryDirectory temporary;
  MakeStore(temporary.store());
  ASSERT_TRUE(Peer::Write(*OpenOrDie(temporary.store()), RecordFamily::kMeta, "schema_version", "7").ok());
  const absl::Status status = RocksDbStore::Open(temporary.store()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(temporary.store()), HasSubstr("version 7"), HasSubstr("version 2")));
  EXPECT_TRUE(absl::IsFailedPrecondition(RocksDbStore::OpenReadOnly(temporary.store()).status()));
  EXPECT_FALSE(FilesWithExtension(temporary.store(), ".sst").empty());
}

TEST(RocksDbStore, OlderUnknownSchemaIsRefused) {
  TemporaryDirectory temporary;
  ASSERT_TRUE(Peer::Write(*OpenOrDie(temporary.store()), RecordFamily::kMeta, "schema_version", "0").ok());
  const absl::Status status = RocksDbStore::Open(temporary.store()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("version 0"), HasSubstr("version 2")));
}

TEST(RocksDbStore, Version1IsMigrated) {
  TemporaryDirectory temporary;
  MakeStore(temporary.store());
  ASSERT_TRUE(Peer::MakeVersion1(*OpenOrDie(temporary.store())).ok());
  const auto read_only = RocksDbStore::OpenReadOnly(temporary.store());
  ASSERT_TRUE(read_only.ok()) << read_only.status();
  EXPECT_TRUE((*read_only)->GetPick(Key("p")).ok());
  const auto store = OpenOrDie(temporary.store());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(Peer::Read(*store, RecordFamily::kMeta, "schema_version").value(), "2");
  EXPECT_TRUE(store->GetKernel(Key("a")).ok());
  EXPECT_TRUE(store->GetPick(Key("p")).ok());
  EXPECT_EQ(store->Stats()->timings, 2);
  int entries = 0;
  ASSERT_TRUE(store
                  ->VisitUses([&](const EntryUse& use) {
                    ++entries;
                    EXPECT_EQ(use.used_unix_hour, 0);  // MakeStore dates nothing
                    EXPECT_GT(use.bytes, 0);
                    return true;
                  })
                  .ok());
  EXPECT_EQ(entries, 2);
}

// A flipped byte of the manifest can cost its end, and with it the table that holds the version.
TEST(RocksDbStore, RecordsWithoutASchemaVersionAreADamagedStore) {
  TemporaryDirectory temporary;
  MakeStore(temporary.store());
  ASSERT_TRUE(Peer::Delete(*OpenOrDie(temporary.store()), RecordFamily::kMeta, "schema_version").ok());
  EXPECT_TRUE(absl::IsDataLoss(RocksDbStore::OpenReadOnly(temporary.store()).status()));
  const auto store = OpenOrDie(temporary.store());
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->moved_aside().has_value());
  EXPECT_TRUE(store->PutPick(PickOf("p", "a"), {}).ok());
}

TEST(RocksDbStore, FamilyOfALaterVersionIsLeftAlone) {
  TemporaryDirectory temporary;
  MakeStore(temporary.store());
  {
    std::vector<std::string> names;
    ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, temporary.store(), &names).ok());
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const std::string& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, temporary.store(), families, &handles, &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    rocksdb::ColumnFamilyHandle* later = nullptr;
    ASSERT_TRUE(db->CreateColumnFamily({}, "later", &later).ok());
    handles.push_back(later);
    for (rocksdb::ColumnFamilyHandle* handle : handles)
      ASSERT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
  }
  EXPECT_TRUE(OpenOrDie(temporary.store())->GetPick(Key("p")).ok());
  std::vector<std::string> names;
  ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, temporary.store(), &names).ok());
  EXPECT_THAT(names, ::testing::Contains("later"));
}

struct DamageCase {
  const char* name;
  std::function<void(const std::string& directory)> damage;
};

class DamagedStoreTest : public ::testing::TestWithParam<DamageCase> {};

TEST_P(DamagedStoreTest, IsMovedAsideAndAFreshOneStarts) {
  TemporaryDirectory temporary;
  MakeStore(temporary.store());
  GetParam().damage(temporary.store());
  SimulatedClock clock(1'700'000'000'000);
  RocksDbStoreOptions options;
  options.clock = &clock;
  const auto store = OpenOrDie(temporary.store(), options);
  ASSERT_NE(store, nullptr);
  ASSERT_TRUE(store->moved_aside().has_value());
  EXPECT_EQ(*store->moved_aside(), temporary.store() + ".damaged-1700000000");
  EXPECT_FALSE(FilesWithExtension(*store->moved_aside(), ".blob").empty());
  EXPECT_TRUE(absl::IsNotFound(store->GetPick(Key("p")).status()));
  EXPECT_TRUE(store->PutPick(PickOf("p", "a"), {}).ok());
}

INSTANTIATE_TEST_SUITE_P(
    Files, DamagedStoreTest,
    ::testing::Values(
        DamageCase{"CurrentMissing", [](const std::string& dir) { fs::remove(dir + "/CURRENT"); }},
        DamageCase{"CurrentEmpty", [](const std::string& dir) { Overwrite(dir + "/CURRENT", ""); }},
        DamageCase{"CurrentGarbage",
                   [](const std::string& dir) { Overwrite(dir + "/CURRENT", "MANIFEST-\n"); }},
        DamageCase{"ManifestMissing", [](const std::string& dir) { fs::remove(Manifests(dir).back()); }},
        DamageCase{"ManifestEmpty", [](const std::string& dir) { Overwrite(Manifests(dir).back(), ""); }},
        DamageCase{"ManifestFlipped",
                   [](const std::string& dir) {
                     std::string bytes = Slurp(Manifests(dir).back());
                     bytes[20] = static_cast<char>(bytes[20] ^ 0x40);
                     Overwrite(Manifests(dir).back(), bytes);
                   }},
        DamageCase{"TableMissing",
                   [](const std::string& dir) { fs::remove(FilesWithExtension(dir, ".sst").front()); }},
        DamageCase{"TableTruncated",
                   [](const std::string& dir) {
                     const fs::path table = FilesWithExtension(dir, ".sst").front();
                     fs::resize_file(table, fs::file_size(table) / 2);
                   }}),
    [](const auto& info) { return info.param.name; });

TEST(RocksDbStore, FlippedBlobByteIsAMiss) {
  TemporaryDirectory temporary;
  MakeStore(temporary.store());
  const auto blobs = FilesWithExtension(temporary.store(), ".blob");
  ASSERT_EQ(blobs.size(), 1);
  std::string bytes = Slurp(blobs[0]);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x01);
  Overwrite(blobs[0], bytes);
  const auto store = OpenOrDie(temporary.store());
  EXPECT_FALSE(store->moved_aside().has_value());
  EXPECT_TRUE(absl::IsNotFound(store->GetKernel(Key("a")).status()));
  EXPECT_EQ(store->Stats()->corrupt, 1);
  EXPECT_EQ(store->Stats()->kernels, 0);
  EXPECT_TRUE(store->GetPick(Key("p")).ok());
  ASSERT_TRUE(store->PutKernel(Kernel("a", Noise(50'000, 1))).ok());
  EXPECT_TRUE(store->GetKernel(Key("a")).ok());
}

TEST(RocksDbStore, MissingBlobFileIsAMissOrMovedAside) {
  TemporaryDirectory temporary;
  MakeStore(temporary.store());
  fs::remove(FilesWithExtension(temporary.store(), ".blob").front());
  const auto store = OpenOrDie(temporary.store());
  EXPECT_TRUE(absl::IsNotFound(store->GetKernel(Key("a")).status()));
  EXPECT_TRUE(store->PutKernel(Kernel("a", Noise(50'000, 1))).ok());
  EXPECT_TRUE(store->GetKernel(Key("a")).ok());
}

// A store of 200 kernels, picks and timings with one damaged block, in the table of `family`.
void MakeStoreWithDamagedBlock(const std::string& directory, const std::string& family) {
  {
    const auto store = OpenOrDie(directory);
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(store->PutKernel(Kernel(absl::StrCat("kernel-", i), Noise(5'000, i))).ok());
      ASSERT_TRUE(store
                      ->PutPick(PickOf(absl::StrCat(i), absl::StrCat("pick-", i)),
                                {TimingOf(absl::StrCat("timing-", i), i)})
                      .ok());
    }
  }
  ASSERT_NE(OpenOrDie(directory), nullptr);
  int damaged = 0;
  for (const fs::path& table : FilesWithExtension(directory, ".sst")) {
    // A table names its family in its properties; its first half is records, which are compressed.
    std::string bytes = Slurp(table);
    if (bytes.find(absl::StrCat("name", family)) == std::string::npos) continue;
    bytes[bytes.size() / 3] = static_cast<char>(bytes[bytes.size() / 3] ^ 0x01);
    Overwrite(table, bytes);
    ++damaged;
  }
  ASSERT_EQ(damaged, 1);
}

TEST(RocksDbStore, DamagedTableBlockCostsItsRecordsOnly) {
  TemporaryDirectory temporary;
  MakeStoreWithDamagedBlock(temporary.store(), "timing");
  {
    const auto store = OpenOrDie(temporary.store());
    EXPECT_FALSE(store->moved_aside().has_value());
    std::vector<std::string> keys;
    for (int i = 0; i < 200; ++i) keys.push_back(Key(absl::StrCat("timing-", i)));
    const auto timings = store->GetTimings(keys);
    ASSERT_TRUE(timings.ok()) << timings.status();
    size_t lost = 0;
    while (lost < timings->size() && (*timings)[lost].has_value()) ++lost;
    ASSERT_LT(lost, 200);
    const std::string lost_name = absl::StrCat("timing-", lost);
    ASSERT_TRUE(store->PutTimings({TimingOf(lost_name, -1)}).ok());
    EXPECT_EQ(store->GetTimings({keys[lost]})->at(0)->timing().median_us(), -1);
    const auto stats = store->Stats();
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(stats->kernels, 200);
    EXPECT_EQ(stats->picks, 200);
    EXPECT_GT(stats->timings, 100);
    EXPECT_LT(stats->timings, 200);
  }
  // The damage was seen: the next opening leaves it behind.
  const auto store = OpenOrDie(temporary.store());
  EXPECT_TRUE(store->moved_aside().has_value());
  const auto stats = store->Stats();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->kernels, 200);
  EXPECT_EQ(stats->picks, 200);
  EXPECT_GT(stats->timings, 100);
  EXPECT_LT(stats->timings, 200);
  EXPECT_EQ(stats->corrupt, 0);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(store->GetKernelBySha256(Sha256Hex(Noise(5'000, i))).ok()) << i;
  }
}

TEST(RocksDbStore, DamagedIndexIsRebuiltByTheNextOpening) {
  TemporaryDirectory temporary;
  MakeStoreWithDamagedBlock(temporary.store(), "index");
  {
    const auto store = OpenOrDie(temporary.store());
    const auto stats = store->Stats();
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_GT(stats->kernels, 100);
    EXPECT_LT(stats->kernels, 200);
    EXPECT_TRUE(store->GetKernel(Key("kernel-100")).ok());
  }
  const auto store = OpenOrDie(temporary.store());
  EXPECT_TRUE(store->moved_aside().has_value());
  EXPECT_EQ(store->Stats()->kernels, 200);
  EXPECT_EQ(store->Stats()->timings, 200);
}

TEST(RocksDbStore, ReadOnlySeesTheRecordsAndWritesNothing) {
  TemporaryDirectory temporary;
  MakeStore(temporary.store());
  const auto store = RocksDbStore::OpenReadOnly(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->GetKernel(Key("a")).ok());
  EXPECT_TRUE((*store)->GetPick(Key("p")).ok());
  EXPECT_EQ((*store)->Stats()->timings, 2);
  EXPECT_TRUE(absl::IsFailedPrecondition((*store)->PutPick(PickOf("q", "a"), {})));
  EXPECT_TRUE(absl::IsFailedPrecondition((*store)->PutPick(PickOf("q", "a"), {})));
}

TEST(RocksDbStore, ReadOnlySeesWhatIsOnlyInTheLog) {
  TemporaryDirectory temporary;
  const auto writer = OpenOrDie(temporary.store());
  ASSERT_TRUE(writer->PutPick(PickOf("p", "a"), {}).ok());
  const auto reader = RocksDbStore::OpenReadOnly(temporary.store());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->GetPick(Key("p")).ok());
  EXPECT_TRUE(writer->PutPick(PickOf("q", "a"), {}).ok());
}

TEST(RocksDbStore, ReadOnlySkipsCorruptRecordsAndLeavesThem) {
  TemporaryDirectory temporary;
  ASSERT_TRUE(Peer::Write(*OpenOrDie(temporary.store()), RecordFamily::kPick, Key("p"), "no record").ok());
  const auto store = RocksDbStore::OpenReadOnly(temporary.store());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(absl::IsNotFound((*store)->GetPick(Key("p")).status()));
  EXPECT_EQ((*store)->Stats()->corrupt, 1);
  EXPECT_EQ(Peer::Read(**store, RecordFamily::kPick, Key("p")).value(), "no record");
}

TEST(RocksDbStore, ReadOnlyOfNothingIsNotFoundAndCreatesNothing) {
  TemporaryDirectory temporary;
  EXPECT_TRUE(absl::IsNotFound(RocksDbStore::OpenReadOnly(temporary.store()).status()));
  EXPECT_FALSE(fs::exists(temporary.store()));
  EXPECT_TRUE(absl::IsNotFound(RocksDbStore::OpenReadOnly(temporary.path()).status()));
  EXPECT_THAT(FilesNamed(temporary.path(), [](const fs::path&) { return true; }), IsEmpty());
}

}  // namespace
}  // namespace qgemm
