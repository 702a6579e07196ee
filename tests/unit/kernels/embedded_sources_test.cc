#include "kernels/embedded_sources.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace qgemm {
namespace {

std::map<std::string, std::string> DeviceFiles() {
  std::map<std::string, std::string> files;
  const std::filesystem::path root = std::filesystem::path(QGEMM_SOURCE_DIR) / "kernels" / "device";
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root, error)) {
    if (entry.path().extension() != ".cuh") continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[std::filesystem::relative(entry.path(), root).string()] =
        std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return files;
}

TEST(EmbeddedSources, AreTheFilesByteForByte) {
  const auto files = DeviceFiles();
  EXPECT_EQ(EmbeddedSourceNames().size(), files.size());
  for (const auto& [name, text] : files) {
    EXPECT_TRUE(EmbeddedSource(name) == text) << name;
  }
}

TEST(EmbeddedSources, NamesAreSorted) {
  const auto names = EmbeddedSourceNames();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
}

TEST(EmbeddedSources, UnknownNameIsEmpty) {
  EXPECT_TRUE(EmbeddedSource("").empty());
  EXPECT_TRUE(EmbeddedSource("no_such_file.cuh").empty());
}

}  // namespace
}  // namespace qgemm
