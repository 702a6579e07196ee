// Access reports by the C interface.
#include "client/qgemm/access_c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/qgemm/c_api.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

// Reads its first parameter, writes its second; the third is a number.
constexpr char kPtx[] =
    ".version 9.0\n.target sm_90a\n.address_size 64\n"
    ".visible .entry kernel(\n .param .u64 p0,\n .param .u64 p1,\n .param .u32 p2\n)\n{\n"
    " .reg .b32 %r<3>;\n .reg .b64 %rd<3>;\n"
    " ld.param.u64 %rd1, [p0];\n ld.param.u64 %rd2, [p1];\n"
    " ld.global.v4.b32 {%r1,%r1,%r2,%r2}, [%rd1];\n st.global.b32 [%rd2], %r1;\n ret;\n}\n";

class AccessCApi : public ::testing::Test {
 protected:
  qgemm_call Call(const char* kernel) {
    qgemm_call call = {};
    call.kernel = kernel;
    call.entry = "kernel";
    call.arguments = arguments_.data();
    call.argument_count = static_cast<int32_t>(arguments_.size());
    call.ptx = [](void* context) -> const char* {
      ++static_cast<AccessCApi*>(context)->asked_;
      return kPtx;
    };
    call.context = this;
    return call;
  }
  qgemm_access_counts Counts() {
    qgemm_access_counts counts = {};
    qgemm_access_memo_get_counts(memo_.get(), &counts);
    return counts;
  }

  std::vector<qgemm_call_argument> arguments_ = {{QGEMM_POINTER_ARGUMENT, 1, 0x1000},
                                                 {QGEMM_POINTER_ARGUMENT, 1, 0x2000},
                                                 {QGEMM_SCALAR_ARGUMENT, 2, 7}};
  std::unique_ptr<qgemm_access_memo, decltype(&qgemm_access_memo_free)> memo_{qgemm_access_memo_create(),
                                                                              &qgemm_access_memo_free};
  qgemm_access_report report_ = {};
  int asked_ = 0;  // for the PTX
};

TEST_F(AccessCApi, AsksForThePtxOncePerSignature) {
  const qgemm_call call = Call("a");
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(qgemm_access_memo_get(memo_.get(), &call, &report_), QGEMM_OK);
    EXPECT_EQ(report_.failed, 0);
    ASSERT_EQ(report_.count, 2);
    EXPECT_EQ(report_.parameters[0].read, 1);
    EXPECT_EQ(report_.parameters[0].written, 0);
    EXPECT_EQ(report_.parameters[0].alignment, 16);
    EXPECT_EQ(report_.parameters[1].read, 0);
    EXPECT_EQ(report_.parameters[1].written, 1);
    EXPECT_EQ(report_.parameters[1].alignment, 4);
    report_.parameters[1].written = 0;  // the caller's copy
  }
  arguments_[0].value = 0x5010;  // as aligned as before
  ASSERT_EQ(qgemm_access_memo_get(memo_.get(), &call, &report_), QGEMM_OK);
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(Counts().repeats, 3);
}

TEST_F(AccessCApi, TellsSignaturesApart) {
  const qgemm_call call = Call("a");
  const auto analyses_of = [&](const qgemm_call& other) {
    EXPECT_EQ(qgemm_access_memo_get(memo_.get(), &other, &report_), QGEMM_OK);
    return Counts().analyses;
  };
  EXPECT_EQ(analyses_of(call), 1);
  arguments_[0].value = 0x1008;
  EXPECT_EQ(analyses_of(call), 2);
  arguments_[0].dtype = 3;
  EXPECT_EQ(analyses_of(call), 3);
  arguments_[2].value = 8;
  EXPECT_EQ(analyses_of(call), 4);
  arguments_[2].kind = QGEMM_SYMBOLIC_ARGUMENT;
  EXPECT_EQ(analyses_of(call), 5);
  arguments_[2].value = 9;  // any symbolic size is like any other
  EXPECT_EQ(analyses_of(call), 5);
  EXPECT_EQ(analyses_of(Call("b")), 6);
  arguments_[2].kind = QGEMM_OPAQUE_ARGUMENT;  // no key
  EXPECT_EQ(analyses_of(call), 7);
  EXPECT_EQ(analyses_of(call), 8);
}

TEST_F(AccessCApi, AFailedAnalysisWritesEverythingAndIsMadeAgain) {
  qgemm_call call = Call("a");
  call.ptx = nullptr;
  for (int i = 1; i <= 2; ++i) {
    ASSERT_EQ(qgemm_access_memo_get(memo_.get(), &call, &report_), QGEMM_OK);
    EXPECT_EQ(report_.failed, 1);
    EXPECT_THAT(report_.failure, HasSubstr("no PTX of kernel a"));
    ASSERT_EQ(report_.count, 2);
    EXPECT_TRUE(std::all_of(report_.parameters, report_.parameters + 2,
                            [](const auto& access) { return access.read == 1 && access.written == 1; }));
    EXPECT_EQ(Counts().failures, i);
  }
  call = Call("a");
  call.entry = "another";
  ASSERT_EQ(qgemm_access_memo_get(memo_.get(), &call, &report_), QGEMM_OK);
  EXPECT_EQ(report_.failed, 1);
  ASSERT_EQ(report_.count, 2);
  EXPECT_EQ(report_.parameters[0].written, 1);
  call = Call("a");
  ASSERT_EQ(qgemm_access_memo_get(memo_.get(), &call, &report_), QGEMM_OK);
  EXPECT_EQ(report_.failed, 0);
  EXPECT_EQ(std::string(report_.failure), "");
}

TEST_F(AccessCApi, ACallOfFewerArgumentsThanTheKernelHasIsAFailedAnalysis) {
  qgemm_call call = Call("a");
  call.argument_count = 1;
  ASSERT_EQ(qgemm_access_memo_get(memo_.get(), &call, &report_), QGEMM_OK);
  EXPECT_EQ(report_.failed, 1);
  EXPECT_THAT(report_.failure, HasSubstr("more parameters than the call's 1"));
  ASSERT_EQ(report_.count, 1);
  EXPECT_EQ(report_.parameters[0].written, 1);
}

TEST_F(AccessCApi, RefusesWhatIsNoCall) {
  qgemm_call call = Call("a");
  EXPECT_EQ(qgemm_access_memo_get(nullptr, &call, &report_), QGEMM_INVALID_ARGUMENT);
  EXPECT_EQ(qgemm_access_memo_get(memo_.get(), nullptr, &report_), QGEMM_INVALID_ARGUMENT);
  EXPECT_EQ(qgemm_access_memo_get(memo_.get(), &call, nullptr), QGEMM_INVALID_ARGUMENT);
  arguments_[0].kind = 4;
  EXPECT_EQ(qgemm_access_memo_get(memo_.get(), &call, &report_), QGEMM_INVALID_ARGUMENT);
  call.arguments = nullptr;
  EXPECT_EQ(qgemm_access_memo_get(memo_.get(), &call, &report_), QGEMM_INVALID_ARGUMENT);
  EXPECT_EQ(Counts().analyses, 0);
  qgemm_access_memo_free(nullptr);
}

}  // namespace
}  // namespace qgemm
