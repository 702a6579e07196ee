#include "server/listen_address.h"

#include <gtest/gtest.h>

#include <string>

namespace qgemm {
namespace {

TEST(ListenAddress, AcceptsSocketsAndPorts) {
  for (const char* text :
       {"unix:/run/qgemm/qgemm.sock", "127.0.0.1:7461", "localhost:0", "[::1]:7461", "127.8.9.1:1"}) {
    const auto address = ParseListenAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ForGrpc(), text);
  }
}

TEST(ListenAddress, KnowsWhatOnlyThisMachineReaches) {
  for (const char* text : {"unix:/run/qgemm/qgemm.sock", "127.0.0.1:7461", "localhost:0", "[::1]:7461"}) {
    EXPECT_TRUE(ParseListenAddress(text).value().IsLocal()) << text;
  }
  for (const char* text : {"0.0.0.0:7461", "[::]:7461", "10.0.0.1:7461", "example.org:7461", "128.0.0.1:1"}) {
    EXPECT_FALSE(ParseListenAddress(text).value().IsLocal()) << text;
  }
}

TEST(ListenAddress, RefusesWhatIsNoAddress) {
  for (const std::string& text :
       {std::string(), std::string("localhost"), std::string(":7461"), std::string("127.0.0.1:"),
        std::string("127.0.0.1:65536"), std::string("127.0.0.1:-1"), std::string("unix:"),
        std::string("unix:relative.sock"), "unix:/" + std::string(200, 'x')}) {
    EXPECT_EQ(ParseListenAddress(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace qgemm
