#include "client/qgemmctl/exit_code.h"

#include <gtest/gtest.h>

namespace qgemm {
namespace {

int CodeOf(const absl::Status& status) { return static_cast<int>(ExitCodeFor(status)); }

TEST(ExitCode, EveryStatusHasTheDocumentedCode) {
  EXPECT_EQ(CodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(CodeOf(absl::InternalError("")), 1);
  EXPECT_EQ(CodeOf(absl::FailedPreconditionError("")), 1);
  EXPECT_EQ(CodeOf(absl::UnimplementedError("")), 1);
  EXPECT_EQ(CodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(CodeOf(absl::UnavailableError("")), 3);
  EXPECT_EQ(CodeOf(absl::UnauthenticatedError("")), 4);
  EXPECT_EQ(CodeOf(absl::PermissionDeniedError("")), 4);
  EXPECT_EQ(CodeOf(absl::DeadlineExceededError("")), 5);
  EXPECT_EQ(CodeOf(absl::NotFoundError("")), 6);
  EXPECT_EQ(CodeOf(absl::ResourceExhaustedError("")), 7);
  EXPECT_EQ(CodeOf(absl::DataLossError("")), 8);
}

}  // namespace
}  // namespace qgemm
