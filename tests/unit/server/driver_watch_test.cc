#include "server/driver_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace qgemm {
namespace {

class DriverWatchTest : public ::testing::Test {
 protected:
  DriverWatchTest() : file_(::testing::TempDir() + "/driver-" + std::to_string(getpid())) {}
  ~DriverWatchTest() override { std::filesystem::remove(file_); }
  void Write(const std::string& version) { std::ofstream(file_) << version << "\n"; }

  const std::string file_;
};

TEST_F(DriverWatchTest, TellsAnotherDriverOnce) {
  Write("580.95.05");
  DriverWatch watch("580.95.05", file_);
  EXPECT_EQ(watch.Changed(), std::nullopt);
  std::filesystem::remove(file_);  // unloaded
  EXPECT_EQ(watch.Changed(), std::nullopt);
  Write("590.10");
  EXPECT_EQ(watch.Changed(), "590.10");
  EXPECT_EQ(watch.Changed(), std::nullopt);
}

TEST_F(DriverWatchTest, IsSilentWhereTheFileSaysAnotherThingThanTheGpuProcess) {
  Write("580.95.05");
  DriverWatch other("cuda 13.0", file_);
  DriverWatch none("", file_);
  DriverWatch missing("580.95.05", file_ + "-missing");
  Write("590.10");
  EXPECT_EQ(other.Changed(), std::nullopt);
  EXPECT_EQ(none.Changed(), std::nullopt);
  EXPECT_EQ(missing.Changed(), std::nullopt);
}

}  // namespace
}  // namespace qgemm
