#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

namespace qgemm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Log, JsonLineEscapesWhatJsonForbids) {
  EXPECT_EQ(JsonLogLine(1'700'000'000'123, "info", "qgemmd", "a \"b\" \\ c\nd\x01"),
            "{\"time\":\"2023-11-14T22:13:20.123Z\",\"level\":\"info\",\"program\":\"qgemmd\","
            "\"message\":\"a \\\"b\\\" \\\\ c\\nd\\u0001\"}");
}

TEST(Log, UnknownLevelIsRefusedWithTheAllowedOnes) {
  const absl::Status status = InitLog({.level = "loud"});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'loud'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("trace, debug, info"));
}

TEST(Log, UnknownFormatIsRefused) { EXPECT_TRUE(absl::IsInvalidArgument(InitLog({.format = "xml"}))); }

TEST(Log, WritesJsonToStderrAndHonoursTheLevel) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(InitLog({.format = "json", .level = "warn", .program = "p"}).ok());
  spdlog::info("quiet");
  spdlog::warn("heard {}", 7);
  const std::string out = testing::internal::GetCapturedStderr();
  EXPECT_THAT(out, HasSubstr("\"level\":\"warning\",\"program\":\"p\",\"message\":\"heard 7\"}\n"));
  EXPECT_THAT(out, Not(HasSubstr("quiet")));
}

TEST(Log, WritesTextWithProgramAndLevel) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(InitLog({.program = "qgemm-x"}).ok());
  spdlog::warn("plain");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("warning qgemm-x: plain\n"));
}

}  // namespace
}  // namespace qgemm
