#include "kernels/access_memo.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace qgemm {
namespace {

constexpr int kBf16 = 1, kFp16 = 2, kI64 = 3;

AccessReport WritesTheSecond() {
  AccessReport report;
  report.parameters = {{0, true, false, 16}, {1, false, true, 8}};
  return report;
}

std::vector<CallArgument> SomeCall() {
  return {CallArgument::Pointer(kBf16, 0x1000), CallArgument::Pointer(kBf16, 0x2000),
          CallArgument::Scalar(kI64, 4096), CallArgument::Symbolic(kI64)};
}

// Whether a call is answered by the report of SomeCall.
bool SharesWithSomeCall(const std::string& kernel, const std::vector<CallArgument>& call) {
  AccessMemo memo;
  (void)memo.Get("kernel", SomeCall(), WritesTheSecond);
  (void)memo.Get(kernel, call, WritesTheSecond);
  return memo.counts().analyses == 1;
}

TEST(AccessMemo, AnalysesASignatureOnce) {
  AccessMemo memo;
  const auto first = memo.Get("kernel", SomeCall(), WritesTheSecond);
  const auto second = memo.Get("kernel", SomeCall(), [] {
    ADD_FAILURE() << "analysed again";
    return AccessReport();
  });
  EXPECT_EQ(*second, WritesTheSecond());
  EXPECT_EQ(memo.counts().analyses, 1);
  EXPECT_EQ(memo.counts().repeats, 1);
}

TEST(AccessMemo, SharesWhatCannotDiffer) {
  std::vector<CallArgument> call = SomeCall();
  call[0].value = 0x51230;  // another address of the same alignment
  call[3].value = 77;       // another symbolic size
  EXPECT_TRUE(SharesWithSomeCall("kernel", call));
}

TEST(AccessMemo, AlignmentDiffers) {
  std::vector<CallArgument> call = SomeCall();
  call[0].value = 0x1008;
  EXPECT_FALSE(SharesWithSomeCall("kernel", call));
}

TEST(AccessMemo, DtypeDiffers) {
  std::vector<CallArgument> call = SomeCall();
  call[1].dtype = kFp16;
  EXPECT_FALSE(SharesWithSomeCall("kernel", call));
}

TEST(AccessMemo, ScalarValueDiffers) {
  std::vector<CallArgument> call = SomeCall();
  call[2].value = 4097;
  EXPECT_FALSE(SharesWithSomeCall("kernel", call));
}

TEST(AccessMemo, SymbolicDiffersFromScalar) {
  std::vector<CallArgument> call = SomeCall();
  call[3] = CallArgument::Scalar(kI64, 0);
  EXPECT_FALSE(SharesWithSomeCall("kernel", call));
}

TEST(AccessMemo, KernelAndNumberOfArgumentsDiffer) {
  EXPECT_FALSE(SharesWithSomeCall("kernel2", SomeCall()));
  std::vector<CallArgument> call = SomeCall();
  call.pop_back();
  EXPECT_FALSE(SharesWithSomeCall("kernel", call));
}

TEST(AccessMemo, AnalysesACallThatCannotBeKeyedEachTime) {
  AccessMemo memo;
  std::vector<CallArgument> call = SomeCall();
  call.push_back(CallArgument::Opaque());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*memo.Get("kernel", call, WritesTheSecond), WritesTheSecond());
  EXPECT_EQ(memo.counts().analyses, 3);
  EXPECT_EQ(memo.counts().repeats, 0);
}

TEST(AccessMemo, DoesNotKeepAFailure) {
  AccessMemo memo;
  const auto failed = memo.Get("kernel", SomeCall(), [] {
    AccessReport report;
    report.parameters = {{0, true, true, 16}};
    report.failure = "calls a function";
    return report;
  });
  EXPECT_TRUE(failed->failed());
  EXPECT_EQ(*memo.Get("kernel", SomeCall(), WritesTheSecond), WritesTheSecond());
  EXPECT_EQ(memo.counts().analyses, 2);
  EXPECT_EQ(memo.counts().failures, 1);
}

TEST(AccessMemo, ChangingACopyChangesNothingLater) {
  AccessMemo memo;
  AccessReport copy = *memo.Get("kernel", SomeCall(), WritesTheSecond);
  copy.parameters[1].written = false;
  copy.parameters.clear();
  EXPECT_EQ(*memo.Get("kernel", SomeCall(), WritesTheSecond), WritesTheSecond());
}

TEST(AccessMemo, ManyThreadsAnalyseASignatureOnce) {
  AccessMemo memo;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&memo] {
      for (int j = 0; j < 100; ++j) {
        std::vector<CallArgument> call = SomeCall();
        call[2].value = j;
        EXPECT_EQ(*memo.Get("kernel", call, WritesTheSecond), WritesTheSecond());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memo.counts().analyses, 100);
  EXPECT_EQ(memo.counts().repeats, 700);
}

}  // namespace
}  // namespace qgemm
