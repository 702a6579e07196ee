// A real file system that really is full.
#include <sys/mount.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cache/housekeeping.h"
#include "cache/rocksdb_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

namespace fs = std::filesystem;

// A small tmpfs, gone at the end.
class Tmpfs {
 public:
  explicit Tmpfs(const std::string& path) : path_(path) {
    fs::create_directory(path);
    if (mount("tmpfs", path.c_str(), "tmpfs", 0, "size=64m") != 0) error_ = errno;
  }
  ~Tmpfs() {
    if (error_ == 0) umount2(path_.c_str(), MNT_DETACH);
  }
  int error() const { return error_; }

 private:
  const std::string path_;
  int error_ = 0;
};

TEST(FullDisk, ReadsGoOnAndWritesComeBackWithinTenSeconds) {
  TemporaryDirectory temporary;
  const std::string mount_point = temporary.path() + "/disk";
  const Tmpfs disk(mount_point);
  if (disk.error() != 0) GTEST_SKIP() << "no tmpfs can be mounted: " << std::strerror(disk.error());

  auto opened = RocksDbStore::Open(mount_point + "/store");
  ASSERT_TRUE(opened.ok()) << opened.status();
  RocksDbStore& store = **opened;
  Housekeeping housekeeping(store, RealClock(), HousekeepingOptions());
  housekeeping.Start();
  // Somebody else takes most of the disk.
  const std::string other = mount_point + "/other";
  std::ofstream(other) << std::string(40 << 20, 'x');
  absl::Status status;
  int written = 0;
  for (; written < 1000; ++written) {
    status =
        store.PutKernel(Kernel(absl::StrCat("k", written), Noise(50'000, static_cast<uint64_t>(written))));
    if (!status.ok()) break;
  }
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  ASSERT_GT(written, 3);
  for (int i = 0; i < written; ++i) {
    EXPECT_EQ(store.GetKernel(Key(absl::StrCat("k", i)))->cubin(), Noise(50'000, i)) << i;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(store.PutPick(PickOf("p", "k0"), {})));
  EXPECT_THAT(store.Stats()->write_error, ::testing::HasSubstr("full"));

  fs::remove(other);
  const auto room = std::chrono::steady_clock::now();
  while (!store.write_error().ok() && std::chrono::steady_clock::now() - room < std::chrono::seconds(60)) {
    std::this_thread::yield();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - room, std::chrono::seconds(10));
  EXPECT_TRUE(store.PutPick(PickOf("p", "k0"), {}).ok());
  for (int i = 0; i < written; ++i) {
    EXPECT_EQ(store.GetKernel(Key(absl::StrCat("k", i)))->cubin(), Noise(50'000, i)) << i;
  }
  EXPECT_EQ(store.Stats()->corrupt, 0);
}

}  // namespace
}  // namespace qgemm
