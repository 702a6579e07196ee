#include "client/qgemmctl/file_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace qgemm {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileOutput : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "file_output.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  int Files() const {
    return static_cast<int>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(FileOutput, WritesAFileAndNothingBesideIt) {
  const std::string bytes("a\0b", 3);
  ASSERT_TRUE(WriteFileAtomically(Path("out"), bytes).ok());
  EXPECT_EQ(Read(Path("out")), bytes);
  EXPECT_EQ(Files(), 1);
}

TEST_F(FileOutput, ReplacesAFileAndKeepsALink) {
  ASSERT_TRUE(WriteFileAtomically(Path("out"), "old, and longer").ok());
  fs::create_symlink("out", folder_ / "link");
  ASSERT_TRUE(WriteFileAtomically(Path("link"), "new").ok());
  EXPECT_EQ(Read(Path("out")), "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
}

TEST_F(FileOutput, RightsFollowTheUmask) {
  const mode_t old = umask(027);
  const absl::Status status = WriteFileAtomically(Path("out"), "x");
  umask(old);
  ASSERT_TRUE(status.ok());
  struct stat info;
  ASSERT_EQ(stat(Path("out").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST_F(FileOutput, ADeviceIsWrittenNotReplaced) {
  ASSERT_TRUE(WriteFileAtomically("/dev/null", "x").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(FileOutput, AFullDiskIsResourceExhausted) {
  const absl::Status status = WriteFileAtomically("/dev/full", "x");
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/dev/full"));
}

TEST_F(FileOutput, NamesThePathThatCannotBeWritten) {
  const absl::Status missing = WriteFileAtomically(Path("none/out"), "x");
  EXPECT_TRUE(absl::IsFailedPrecondition(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("none/out: No such file or directory"));
  const absl::Status folder = WriteFileAtomically(folder_.string(), "x");
  EXPECT_THAT(std::string(folder.message()), HasSubstr("Is a directory"));
  EXPECT_EQ(Files(), 0);
}

}  // namespace
}  // namespace qgemm
