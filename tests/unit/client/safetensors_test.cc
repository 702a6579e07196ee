#include "client/bundle/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/unit/client/sample_bundle.h"

namespace qgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
std::string FileOf(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}
std::string ErrorOf(const std::string& header, const std::string& data) {
  const auto tensors = ReadSafetensors(FileOf(header, data));
  EXPECT_TRUE(absl::IsDataLoss(tensors.status())) << tensors.status();
  return std::string(tensors.status().message());
}

TEST(Safetensors, ComesBackAsItWasWritten) {
  const TemporaryFolder folder;
  auto writer = SafetensorsWriter::Create(folder / "w");
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->Write("b", "U8", {3}, "abc").ok());
  ASSERT_TRUE(writer->Write("a", "BF16", {2, 1}, "wxyz").ok());
  ASSERT_TRUE(writer->Write("b", "U8", {3}, "def").ok());  // again: in its old place
  ASSERT_TRUE(writer->Finish({{"layout_id", "l"}}).ok());
  const std::string file = ReadFile(folder / "w");
  const auto tensors = ReadSafetensors(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2);
  EXPECT_EQ(tensors->at("a").bytes, "wxyz");
  EXPECT_EQ(tensors->at("a").dtype, "BF16");
  EXPECT_THAT(tensors->at("a").shape, ElementsAre(2, 1));
  EXPECT_EQ(tensors->at("b").bytes, "def");
  EXPECT_FALSE(std::filesystem::exists(folder / "w.data"));
}

TEST(Safetensors, RefusesBytesThatDoNotFitTheShape) {
  const TemporaryFolder folder;
  auto writer = SafetensorsWriter::Create(folder / "w");
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(writer->Write("a", "F32", {2}, "1234")));
  EXPECT_TRUE(absl::IsInvalidArgument(writer->Write("a", "F9", {4}, "1234")));
  ASSERT_TRUE(writer->Write("a", "U8", {4}, "1234").ok());
  EXPECT_THAT(std::string(writer->Write("a", "U8", {2, 2}, "1234").message()),
              HasSubstr("tensor a was U8 [4]"));
}

TEST(Safetensors, DamageNamesTensorAndOffsets) {
  EXPECT_THAT(ErrorOf(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", "1234"),
              HasSubstr("tensor t: its bytes 2 to 6 are outside of the 4"));
  EXPECT_THAT(ErrorOf(R"({"t":{"dtype":"U8","shape":[3],"data_offsets":[0,4]}})", "1234"),
              HasSubstr("tensor t: bytes 0 to 4 are 4; U8 [3] needs 3"));
  EXPECT_THAT(ErrorOf(R"({"t":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", "1234"),
              HasSubstr("too large"));
  EXPECT_THAT(ErrorOf(R"({"t":{"dtype":"X","shape":[4],"data_offsets":[0,4]}})", "1234"),
              HasSubstr("dtype X"));
  EXPECT_THAT(ErrorOf(R"({"t":[]})", "1234"), HasSubstr("needs dtype"));
  EXPECT_THAT(ErrorOf("[", ""), HasSubstr("no JSON object"));
  EXPECT_TRUE(absl::IsDataLoss(ReadSafetensors("1234").status()));
  EXPECT_TRUE(absl::IsDataLoss(ReadSafetensors(std::string(16, '\xff')).status()));
}

}  // namespace
}  // namespace qgemm
