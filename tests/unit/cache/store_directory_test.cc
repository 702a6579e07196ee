#include "cache/store_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/child_process.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uid_t kNobody = 65534;

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

// "CODE message" of Acquire(path), asked by a process without root's rights.
std::string AcquireAsNobody(const std::string& path) {
  ChildProcess child([&](const ChildProcess::Say& say) {
    if (geteuid() == 0 && setuid(kNobody) != 0) return 1;
    const absl::Status status = StoreDirectory::Acquire(path).status();
    say(status.ToString());
    return 0;
  });
  return child.ReadLine();
}

TEST(StoreDirectory, IsCreatedWithItsParentsForItsOwnerOnly) {
  TemporaryDirectory temporary;
  const std::string path = temporary.path() + "/a/b/store";
  const auto directory = StoreDirectory::Acquire(path + "/");
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(directory->path(), path);
  EXPECT_EQ(ModeOf(path), 0700);
  EXPECT_EQ(ModeOf(temporary.path() + "/a"), 0700);
}

TEST(StoreDirectory, EmptyPathIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(StoreDirectory::Acquire("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(StoreDirectory::CheckReadable("")));
}

TEST(StoreDirectory, FileInItsPlaceIsNamed) {
  TemporaryDirectory temporary;
  std::ofstream(temporary.store()) << "x";
  const absl::Status status = StoreDirectory::Acquire(temporary.store()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(temporary.store()), HasSubstr("is a file, not a directory")));
}

TEST(StoreDirectory, FileInTheWayIsNamed) {
  TemporaryDirectory temporary;
  std::ofstream(temporary.path() + "/file") << "x";
  const absl::Status status = StoreDirectory::Acquire(temporary.path() + "/file/store").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(temporary.path(), "/file is a file, not a directory")));
}

TEST(StoreDirectory, OfAnotherUserIsRefusedWithOwnerAndMode) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a directory that another user cannot use";
  TemporaryDirectory temporary;
  ASSERT_EQ(chmod(temporary.path().c_str(), 0755), 0);
  ASSERT_EQ(mkdir(temporary.store().c_str(), 0700), 0);
  EXPECT_THAT(
      AcquireAsNobody(temporary.store()),
      AllOf(StartsWith("FAILED_PRECONDITION: "), HasSubstr(temporary.store()), HasSubstr("root (uid 0)"),
            HasSubstr("mode 0700"), HasSubstr("readable and writable"), HasSubstr("uid 65534")));
}

TEST(StoreDirectory, ThatCannotBeWrittenIsRefused) {
  TemporaryDirectory temporary;
  ASSERT_EQ(chmod(temporary.path().c_str(), 0755), 0);
  ASSERT_EQ(mkdir(temporary.store().c_str(), 0500), 0);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(temporary.store().c_str(), kNobody, kNobody), 0);
  }
  EXPECT_THAT(AcquireAsNobody(temporary.store()),
              AllOf(StartsWith("FAILED_PRECONDITION: "), HasSubstr("mode 0500")));
}

TEST(StoreDirectory, ParentThatCannotBeWrittenIsNamed) {
  TemporaryDirectory temporary;
  ASSERT_EQ(chmod(temporary.path().c_str(), 0555), 0);
  EXPECT_THAT(AcquireAsNobody(temporary.path() + "/a/store"),
              AllOf(StartsWith("FAILED_PRECONDITION: "),
                    HasSubstr(absl::StrCat(temporary.path(), " belongs to")), HasSubstr("mode 0555")));
}

TEST(StoreDirectory, ParentThatCannotBeSearchedIsNamed) {
  TemporaryDirectory temporary;
  ASSERT_EQ(mkdir((temporary.path() + "/closed").c_str(), 0755), 0);
  ASSERT_EQ(mkdir((temporary.path() + "/closed/store").c_str(), 0755), 0);
  ASSERT_EQ(chmod(temporary.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod((temporary.path() + "/closed").c_str(), 0600), 0);
  EXPECT_THAT(
      AcquireAsNobody(temporary.path() + "/closed/store"),
      AllOf(StartsWith("FAILED_PRECONDITION: "), HasSubstr("/closed belongs to"), HasSubstr("mode 0600")));
  ASSERT_EQ(chmod((temporary.path() + "/closed").c_str(), 0700), 0);
}

TEST(StoreDirectory, HeldByAnotherProcessIsRefusedWithItsPid) {
  TemporaryDirectory temporary;
  ChildProcess child([&](const ChildProcess::Say& say) {
    const auto directory = StoreDirectory::Acquire(temporary.store());
    say(directory.status().ToString());
    while (directory.ok()) pause();
    return 1;
  });
  ASSERT_EQ(child.ReadLine(), "OK");
  const absl::Status status = StoreDirectory::Acquire(temporary.store()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(temporary.store()), HasSubstr(absl::StrCat("process ", child.pid(), ";"))));
  child.Kill();
  EXPECT_TRUE(StoreDirectory::Acquire(temporary.store()).ok());
}

TEST(StoreDirectory, IsHeldOnceWithinAProcess) {
  TemporaryDirectory temporary;
  const auto directory = StoreDirectory::Acquire(temporary.store());
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(StoreDirectory::Acquire(temporary.store()).status()));
}

TEST(StoreDirectory, MoveAsideKeepsTheFilesAndHoldsAFreshDirectory) {
  TemporaryDirectory temporary;
  auto directory = StoreDirectory::Acquire(temporary.store());
  ASSERT_TRUE(directory.ok()) << directory.status();
  std::ofstream(temporary.store() + "/file") << "x";
  const auto moved = directory->MoveAside(1'700'000'000);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(*moved, temporary.store() + ".damaged-1700000000");
  EXPECT_TRUE(std::filesystem::exists(*moved + "/file"));
  EXPECT_TRUE(std::filesystem::is_empty(temporary.store()));
  EXPECT_EQ(ModeOf(temporary.store()), 0700);
  EXPECT_TRUE(absl::IsFailedPrecondition(StoreDirectory::Acquire(temporary.store()).status()));
  EXPECT_TRUE(StoreDirectory::Acquire(*moved).ok());
}

TEST(StoreDirectory, MoveAsideTwiceInOneSecondLosesNothing) {
  TemporaryDirectory temporary;
  auto directory = StoreDirectory::Acquire(temporary.store());
  ASSERT_TRUE(directory.ok()) << directory.status();
  std::ofstream(temporary.store() + "/first") << "x";
  ASSERT_TRUE(directory->MoveAside(7).ok());
  std::ofstream(temporary.store() + "/second") << "x";
  const auto moved = directory->MoveAside(7);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(*moved, temporary.store() + ".damaged-7-1");
  EXPECT_TRUE(std::filesystem::exists(temporary.store() + ".damaged-7/first"));
  EXPECT_TRUE(std::filesystem::exists(*moved + "/second"));
}

TEST(StoreDirectory, CheckReadableCreatesNothing) {
  TemporaryDirectory temporary;
  EXPECT_TRUE(absl::IsNotFound(StoreDirectory::CheckReadable(temporary.store())));
  EXPECT_FALSE(std::filesystem::exists(temporary.store()));
  EXPECT_TRUE(StoreDirectory::CheckReadable(temporary.path()).ok());
}

TEST(StoreDirectory, FileBytesCountsRegularFiles) {
  TemporaryDirectory temporary;
  std::ofstream(temporary.path() + "/a") << std::string(1000, 'x');
  std::ofstream(temporary.path() + "/b") << std::string(24, 'x');
  std::filesystem::create_directory(temporary.path() + "/c");
  EXPECT_EQ(FileBytes(temporary.path()), 1024);
  EXPECT_EQ(FileBytes(temporary.path() + "/absent"), 0);
}

TEST(StoreDirectory, NetworkFileSystemsAreKnown) {
  EXPECT_TRUE(IsNetworkFileSystem(0x6969));
  EXPECT_TRUE(IsNetworkFileSystem(0xFF534D42));
  EXPECT_TRUE(IsNetworkFileSystem(static_cast<int32_t>(0xFF534D42)));
  EXPECT_FALSE(IsNetworkFileSystem(0xEF53));      // ext4
  EXPECT_FALSE(IsNetworkFileSystem(0x58465342));  // xfs
  EXPECT_FALSE(IsNetworkFileSystem(0x01021994));  // tmpfs
  EXPECT_FALSE(IsNetworkFileSystem(0x794c7630));  // overlayfs
}

}  // namespace
}  // namespace qgemm
