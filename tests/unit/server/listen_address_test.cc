#include "server/listen_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace qgemm {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddress, AcceptsSocketsAndLoopbackPorts) {
  for (const char* text :
       {"unix:/run/qgemm/qgemm.sock", "127.0.0.1:7461", "localhost:0", "[::1]:7461", "127.8.9.1:1"}) {
    const auto address = ParseListenAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ForGrpc(), text);
  }
}

TEST(ListenAddress, RefusesPortsThatOthersCanReach) {
  for (const char* text :
       {"0.0.0.0:7461", "[::]:7461", "10.0.0.1:7461", "example.org:7461", ":7461", "128.0.0.1:1"}) {
    const auto address = ParseListenAddress(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("loopback"));
  }
}

TEST(ListenAddress, RefusesWhatIsNoAddress) {
  for (const std::string& text :
       {std::string(), std::string("localhost"), std::string("127.0.0.1:"), std::string("127.0.0.1:65536"),
        std::string("127.0.0.1:-1"), std::string("unix:"), std::string("unix:relative.sock"),
        "unix:/" + std::string(200, 'x')}) {
    EXPECT_EQ(ParseListenAddress(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace qgemm
