#include "server/grpc_status.h"

#include <gtest/gtest.h>

#include <string>

namespace qgemm {
namespace {

TEST(GrpcStatus, KeepsEveryCodeAndMessageBothWays) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "n is 0; allowed: 1 .. 2^31-1");
    const grpc::Status rpc = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(rpc.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(rpc), status);
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(GrpcStatus, CutsLongMessages) {
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(std::string(100000, 'x'))).error_message().size(), 4096u);
}

TEST(GrpcStatus, ShowsControlCharactersOfTheRequest) {
  EXPECT_EQ(
      ToGrpcStatus(absl::InternalError("target \"a\n\x1b[31m\x7f\u00e9\" is not known")).error_message(),
      "target \"a\\x0a\\x1b[31m\\x7f\u00e9\" is not known");
}

}  // namespace
}  // namespace qgemm
