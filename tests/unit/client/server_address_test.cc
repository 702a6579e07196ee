#include "client/server_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "client/qgemm/client.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ServerAddress, AcceptsSocketsAndPorts) {
  for (const char* address :
       {"unix:/run/qgemm/qgemm.sock", "unix:here.sock", "localhost:5000", "127.0.0.1:1", "[::1]:65535"}) {
    EXPECT_TRUE(ValidateServerAddress(address).ok()) << address;
  }
}

TEST(ServerAddress, SaysWhatIsAllowed) {
  for (const char* address :
       {"", "unix:", "localhost", ":5000", "localhost:", "localhost:0", "localhost:65536", "localhost:http",
        "::1:50", "/run/qgemm.sock", "http://localhost:50"}) {
    const absl::Status status = ValidateServerAddress(address);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << address;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(address), HasSubstr("unix:PATH and HOST:PORT")));
  }
  EXPECT_THAT(std::string(ValidateServerAddress("unix:/" + std::string(200, 'a')).message()),
              HasSubstr("107 bytes"));
}

TEST(ServerAddress, DefaultFollowsTheEnvironment) {
  setenv("QGEMM_SERVER", "localhost:7", 1);
  EXPECT_EQ(DefaultServerAddress(), "localhost:7");
  unsetenv("QGEMM_SERVER");
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(DefaultServerAddress(), "unix:/run/user/7/qgemm.sock");
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(DefaultServerAddress(), "unix:/run/qgemm/qgemm.sock");
}

}  // namespace
}  // namespace qgemm
