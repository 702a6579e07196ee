#include "server/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "server/gpu_lock.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

class FileLockTest : public ::testing::Test {
 protected:
  FileLockTest() {
    std::string name = (std::filesystem::temp_directory_path() / "qgemm-lock-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~FileLockTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(FileLockTest, SecondTakerLearnsWhoHoldsIt) {
  const auto first = FileLock::Take(folder_ + "/a.lock", "pid 1, user alice");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = FileLock::Take(folder_ + "/a.lock", "pid 2, user bob");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(second.status().message(), "pid 1, user alice");
}

TEST_F(FileLockTest, IsFreeAgainAfterItsHolderAndSaysWhoIsNext) {
  std::optional<FileLock> first =
      *FileLock::Take(folder_ + "/a.lock", "a much longer description of a holder");
  first.reset();
  const auto second = FileLock::Take(folder_ + "/a.lock", "bob");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(FileLock::Take(folder_ + "/a.lock", "carol").status().message(), "bob");
}

TEST_F(FileLockTest, FailsWhereNothingCanBeCreated) {
  EXPECT_EQ(FileLock::Take(folder_ + "/missing/a.lock", "x").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FileLockTest, DoesNotFollowALink) {
  std::ofstream(folder_ + "/target") << "precious";
  std::filesystem::create_symlink(folder_ + "/target", folder_ + "/a.lock");
  EXPECT_FALSE(FileLock::Take(folder_ + "/a.lock", "x").ok());
}

TEST_F(FileLockTest, GpuLockNamesGpuAndHolder) {
  const auto first = TakeGpuLock("GPU-1", folder_, folder_ + "/unused", "pid 1, user alice, data dir /a");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = TakeGpuLock("GPU-1", folder_, folder_, "pid 2");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("GPU-1"));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("pid 1, user alice, data dir /a"));
  EXPECT_TRUE(TakeGpuLock("GPU-2", folder_, folder_, "pid 2").ok());
}

TEST_F(FileLockTest, GpuLockFallsBackWhereTheUsualFolderIsMissing) {
  const auto lock = TakeGpuLock("GPU-1", folder_ + "/missing", folder_, "pid 1");
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/qgemm-GPU-1.lock"));
}

}  // namespace
}  // namespace qgemm
