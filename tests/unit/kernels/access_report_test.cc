#include "kernels/access_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/ptx.h"

namespace qgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A kernel with three pointers a, b, c and two numbers n (32 bits) and step (64 bits).
std::string Module(const std::string& body) {
  return absl::StrCat(
      "//\n// .entry commented\n.version 9.0\n.target sm_90a\n.address_size 64\n"
      ".global .align 4 .u32 counter;\n.extern .shared .align 16 .b8 tile[];\n"
      ".visible .entry other(.param .u64 other_param_0)\n{\n ret;\n}\n"
      ".visible .entry kernel(\n .param .u64 kernel_param_0,\n .param .u64 .ptr .global .align 16 "
      "kernel_param_1,\n"
      " .param .align 64 .b8 kernel_param_2[128],\n .param .u32 kernel_param_3,\n .param .u64 "
      "kernel_param_4\n)\n"
      ".maxntid 256, 1, 1\n{\n .reg .pred %p<9>;\n .reg .b32 %r<99>;\n .reg .b64 %rd<99>;\n"
      " ld.param.u64 %rd1, [kernel_param_0];\n ld.param.u64 %rd2, [kernel_param_1];\n"
      " ld.param.u32 %r3, [kernel_param_3];\n ld.param.u64 %rd4, [kernel_param_4];\n"
      " cvta.to.global.u64 %rd11, %rd1;\n cvta.to.global.u64 %rd12, %rd2;\n",
      body, "\n ret;\n}\n");
}

AccessReport Analyze(const std::string& body) { return AnalyzeAccess(Module(body), "kernel"); }

ParameterAccess Access(const AccessReport& report, int index) {
  const ParameterAccess* access = report.Find(index);
  return access != nullptr ? *access : ParameterAccess{-1};
}

TEST(AnalyzeAccess, TellsLoadsFromStores) {
  const AccessReport report =
      Analyze("ld.global.v4.f32 {%r1,%r2,%r5,%r6}, [%rd11+16];\nst.global.u16 [%rd12], %r1;");
  EXPECT_EQ(report.failure, "");
  EXPECT_THAT(report.parameters,
              ElementsAre(ParameterAccess{0, true, false, 16}, ParameterAccess{1, false, true, 2},
                          ParameterAccess{2, false, false, 0}, ParameterAccess{4, false, false, 0}));
}

TEST(AnalyzeAccess, FollowsAddressArithmetic) {
  const AccessReport report = Analyze(
      "mul.lo.s64 %rd20, %rd4, 2;\nadd.s64 %rd21, %rd1, %rd20;\nmad.wide.s32 %rd22, %r3, 4, %rd21;\n"
      "and.b64 %rd23, %rd22, -16;\nld.global.nc.u32 %r1, [%rd23];");
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(Access(report, 0), (ParameterAccess{0, true, false, 4}));
  EXPECT_EQ(Access(report, 4), (ParameterAccess{4, false, false, 0}));  // a stride, not a pointer
}

TEST(AnalyzeAccess, TakesEveryValueThatARegisterMayHold) {
  const AccessReport report = Analyze(
      "mov.u64 %rd20, %rd1;\n@%p1 bra $L1;\nmov.u64 %rd20, %rd2;\n$L1:\nst.global.u32 [%rd20], %r3;\n"
      "selp.b64 %rd21, %rd1, %rd2, %p2;\nld.u8 %r1, [%rd21];");
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(Access(report, 0), (ParameterAccess{0, true, true, 4}));
  EXPECT_EQ(Access(report, 1), (ParameterAccess{1, true, true, 4}));
}

TEST(AnalyzeAccess, FollowsALoopBackwards) {
  const AccessReport report = Analyze(
      "$L2:\nst.global.u32 [%rd30], %r3;\nmov.u64 %rd30, %rd31;\nmov.u64 %rd31, %rd1;\n@%p1 bra $L2;");
  EXPECT_EQ(report.failure, "");
  EXPECT_TRUE(Access(report, 0).written);
}

TEST(AnalyzeAccess, FollowsAPointerTakenInHalves) {
  const AccessReport report = Analyze(
      "mov.b64 {%r1, %r2}, %rd1;\nadd.cc.u32 %r5, %r1, 16;\naddc.u32 %r6, %r2, 0;\nmov.b64 %rd20, {%r5, "
      "%r6};\n"
      "st.u8 [%rd20], %r3;");
  EXPECT_EQ(report.failure, "");
  EXPECT_TRUE(Access(report, 0).written);
}

TEST(AnalyzeAccess, CountsADifferenceOfPointersForBoth) {
  const AccessReport report =
      Analyze("sub.s64 %rd20, %rd2, %rd1;\nadd.s64 %rd21, %rd1, %rd20;\nst.global.u8 [%rd21], %r3;");
  EXPECT_EQ(report.failure, "");
  EXPECT_TRUE(Access(report, 1).written);
  // Also when the difference is scaled on its way.
  const AccessReport scaled = Analyze(
      "sub.s64 %rd20, %rd2, %rd1;\nshr.s64 %rd22, %rd20, 2;\nshl.b64 %rd23, %rd22, 2;\nadd.s64 %rd21, %rd1, "
      "%rd23;\n"
      "st.global.u8 [%rd21], %r3;\nld.global.u8 %r1, [%rd2];");
  EXPECT_EQ(scaled.failure, "");
  EXPECT_TRUE(Access(scaled, 1).written);
}

TEST(AnalyzeAccess, AtomicsAndReductionsReadAndWrite) {
  const AccessReport atomic =
      Analyze("atom.global.add.u32 %r1, [%rd11], 1;\nred.relaxed.gpu.global.add.f32 [%rd12], %r1;");
  EXPECT_EQ(Access(atomic, 0), (ParameterAccess{0, true, true, 4}));
  EXPECT_EQ(Access(atomic, 1), (ParameterAccess{1, true, true, 4}));
}

TEST(AnalyzeAccess, KnowsAsynchronousCopies) {
  const AccessReport in = Analyze(
      "cp.async.ca.shared.global [%r1], [%rd1], 8, %r5;\ncp.async.commit_group;\ncp.async.wait_group 0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2], %r5, [%r6];");
  EXPECT_EQ(in.failure, "");
  EXPECT_EQ(Access(in, 0), (ParameterAccess{0, true, false, 8}));
  EXPECT_EQ(Access(in, 1), (ParameterAccess{1, true, false, 16}));
  const AccessReport out = Analyze(
      "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], %r5;\n"
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd2], [%r1], %r5;");
  EXPECT_EQ(out.failure, "");
  EXPECT_EQ(Access(out, 0), (ParameterAccess{0, false, true, 16}));
  EXPECT_EQ(Access(out, 1), (ParameterAccess{1, true, true, 16}));
  // No result depends on what is prefetched.
  const AccessReport prefetched =
      Analyze("cp.async.bulk.prefetch.L2.global [%rd1], %r5;\nprefetch.global.L2 [%rd2];");
  EXPECT_EQ(prefetched.failure, "");
  EXPECT_EQ(Access(prefetched, 0), (ParameterAccess{0, false, false, 0}));
  EXPECT_EQ(Access(prefetched, 1), (ParameterAccess{1, false, false, 0}));
  EXPECT_EQ(Access(Analyze("discard.global.L2 [%rd1], 128;"), 0), (ParameterAccess{0, false, true, 128}));
  const std::string push = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%r1], ";
  EXPECT_EQ(Analyze(push + "{%f1, %f2, %f3, %f4}, [%r2];").failure, "");
  EXPECT_NE(
      Analyze("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r1], %rd1, [%r2];").failure,
      "");
}

TEST(AnalyzeAccess, KnowsTensorMapsPassedByValue) {
  const std::string map = "mov.b64 %rd40, kernel_param_2;\ncvta.param.u64 %rd41, %rd40;\n";
  const AccessReport read = Analyze(map +
                                    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_"
                                    "tx::bytes [%r1], [%rd41, {%r2, %r3}], [%r4];");
  EXPECT_EQ(read.failure, "");
  EXPECT_EQ(Access(read, 2), (ParameterAccess{2, true, false, 16}));
  const AccessReport written =
      Analyze(map + "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd41, {%r2, %r3}], [%r1];");
  EXPECT_EQ(Access(written, 2), (ParameterAccess{2, false, true, 16}));
  const AccessReport reduced = Analyze(
      map +
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd41, {%r2, %r3}], [%r1];");
  EXPECT_EQ(Access(reduced, 2), (ParameterAccess{2, true, true, 16}));
  EXPECT_FALSE(Access(Analyze(map + "prefetch.tensormap [%rd41];"), 2).read);
  // A map somewhere in memory describes memory that no parameter names.
  EXPECT_THAT(
      Analyze("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], "
              "[%rd1, {%r2, %r3}], [%r4];")
          .failure,
      HasSubstr("tensor map that is no parameter"));
}

TEST(AnalyzeAccess, ReadsPointersInsideAStructParameter) {
  const AccessReport report = Analyze("ld.param.u64 %rd20, [kernel_param_2+8];\nst.global.u32 [%rd20], %r3;");
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(Access(report, 2), (ParameterAccess{2, false, true, 4}));
}

TEST(AnalyzeAccess, LeavesSharedAndModuleMemoryAlone) {
  const AccessReport report = Analyze(
      "mov.u64 %rd20, tile;\nst.shared.u32 [%rd20], %r3;\nmov.u64 %rd21, counter;\ncvta.global.u64 %rd22, "
      "%rd21;\n"
      "atom.add.u32 %r1, [%rd22], 1;\nst.shared.u32 [tile+4], %r1;\nmbarrier.init.shared::cta.b64 [%r1], "
      "%r2;");
  EXPECT_EQ(report.failure, "");
  for (const ParameterAccess& access : report.parameters) EXPECT_FALSE(access.read || access.written);
}

struct FailureCase {
  const char* name;
  const char* body;
  const char* why;
};
class AnalyzeAccessFails : public ::testing::TestWithParam<FailureCase> {};

// Unknown flow is never taken for harmless: everything counts as written.
TEST_P(AnalyzeAccessFails, AndThenEverythingIsWritten) {
  const AccessReport report = Analyze(GetParam().body);
  EXPECT_TRUE(report.failed());
  EXPECT_THAT(report.failure, HasSubstr(GetParam().why));
  ASSERT_EQ(report.parameters.size(), 4);
  for (const ParameterAccess& access : report.parameters) EXPECT_TRUE(access.read && access.written);
}

INSTANTIATE_TEST_SUITE_P(
    All, AnalyzeAccessFails,
    ::testing::Values(
        FailureCase{"PointerStored", "st.shared.u64 [tile], %rd1;", "keeps a pointer"},
        FailureCase{"PointerExchanged", "atom.global.exch.b64 %rd20, [%rd2], %rd1;", "keeps a pointer"},
        FailureCase{"AddressLoaded", "ld.global.u64 %rd20, [%rd1];\nst.global.u8 [%rd20], %r3;",
                    "from no parameter"},
        FailureCase{"ConstantAddress", "mov.u64 %rd20, 4096;\nst.global.u8 [%rd20], %r3;",
                    "from no parameter"},
        FailureCase{"TakenApart", "shl.b64 %rd20, %rd1, 4;\nst.global.u8 [%rd20], %r3;", "from no parameter"},
        FailureCase{"Call", "call.uni (%r1), helper, (%r2);", "calls a function"},
        FailureCase{"UnknownMemory", "multimem.st.global.f32 [%rd20], %r3;", "not known here"},
        FailureCase{"UnknownUse", "shfl.sync.idx.b64 %rd20, %rd1, 0, 31, -1;", "takes a pointer"},
        FailureCase{"MapChanged",
                    "mov.b64 %rd40, kernel_param_2;\n"
                    "tensormap.replace.tile.global_address.global.b1024.b64 [%rd40], %rd1;",
                    "not known here"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(AnalyzeAccess, IsToldWhichParametersArePointers) {
  const int pointers[] = {1, 0};
  // Without being told, the 64-bit offset may be a pointer.
  const std::string body =
      "add.s64 %rd20, %rd1, %rd4;\nst.global.u8 [%rd20], %r3;\nst.shared.u64 [tile], %rd4;";
  EXPECT_TRUE(Analyze(body).failed());
  const AccessReport told = AnalyzeAccess(Module(body), "kernel", absl::MakeConstSpan(pointers));
  EXPECT_EQ(told.failure, "");
  EXPECT_THAT(told.parameters,
              ElementsAre(ParameterAccess{0, false, true, 1}, ParameterAccess{1, false, false, 0}));
  const int outside[] = {7};
  EXPECT_THAT(AnalyzeAccess(Module(body), "kernel", absl::MakeConstSpan(outside)).failure,
              HasSubstr("parameter 7"));
}

TEST(AnalyzeAccess, FailsForTextThatIsNoPtx) {
  EXPECT_THAT(AnalyzeAccess("", "kernel").failure, HasSubstr("no entry 'kernel'"));
  EXPECT_THAT(AnalyzeAccess(Module(""), "kern").failure, HasSubstr("no entry 'kern'"));
  const std::string whole = Module("st.global.u8 [%rd1], %r3;");
  for (size_t size = whole.find(".entry kernel"); size + 4 < whole.size(); size += 7) {
    EXPECT_TRUE(AnalyzeAccess(whole.substr(0, size), "kernel").failed()) << size;
  }
}

TEST(AnalyzeAccess, FailsForAPredicateWithoutAnInstruction) {
  for (const char* nothing : {"@%p1;", "@;", "@%p1 ;", "@!%p1\n;"}) {
    EXPECT_THAT(Analyze(nothing).failure, HasSubstr("a predicate without an instruction")) << nothing;
  }
}

TEST(AnalyzeAccess, TakesNoSizeFromNumbersThatAreNone) {
  const AccessReport report = Analyze("ld.global.v65536.b524288 %r1, [%rd11];");
  EXPECT_TRUE(Access(report, 0).read);
  const auto huge = AnalyzeAccess(".entry kernel(.param .b64 p[2147483647]) { ret; }", "kernel");
  EXPECT_THAT(huge.failure, HasSubstr("no size"));
}

// Each pass follows one step of it.
TEST(AnalyzeAccess, GivesUpOnALongChainBackwards) {
  std::string body;
  for (int i = 5000; i > 0; --i) absl::StrAppend(&body, "add.s64 %x", i + 1, ", %x", i, ", 4;\n");
  EXPECT_THAT(Analyze(body + "mov.u64 %x1, %rd1;\nst.global.u32 [%x5001], %r1;").failure,
              HasSubstr("too long a chain"));
  body.clear();
  for (int i = 100; i > 0; --i) absl::StrAppend(&body, "add.s64 %x", i + 1, ", %x", i, ", 4;\n");
  const AccessReport report = Analyze(body + "mov.u64 %x1, %rd1;\nst.global.u32 [%x101], %r1;");
  EXPECT_EQ(report.failure, "");
  EXPECT_TRUE(Access(report, 0).written);
}

TEST(ParsePtxEntry, KnowsParametersAndInstructions) {
  const std::string module = Module(
      "{\n.reg .pred p;\nWAIT: setp.ne.u32 p, %r1, 0; // a comment; not an instruction\n"
      "@p bra WAIT;\n}\n.pragma \"nounroll;\";\n/* ret; */ mov.b64 {%r1, %r2}, %rd1;");
  const auto entry = ParsePtxEntry(module, "kernel");
  ASSERT_TRUE(entry.ok()) << entry.status();
  ASSERT_EQ(entry->parameters.size(), 5);
  EXPECT_EQ(entry->parameters[1].name, "kernel_param_1");
  EXPECT_EQ(entry->parameters[1].bytes, 8);
  EXPECT_EQ(entry->parameters[2].bytes, 128);
  EXPECT_EQ(entry->parameters[2].alignment, 64);
  EXPECT_EQ(entry->parameters[3].bytes, 4);
  ASSERT_EQ(entry->instructions.size(), 10);
  EXPECT_EQ(entry->instructions[6].opcode, "setp.ne.u32");
  EXPECT_THAT(entry->instructions[7].operands, ElementsAre("WAIT"));
  EXPECT_THAT(entry->instructions[8].operands, ElementsAre("{%r1, %r2}", "%rd1"));
  EXPECT_EQ(entry->instructions[9].opcode, "ret");
  EXPECT_THAT(entry->instructions[9].operands, IsEmpty());
}

}  // namespace
}  // namespace qgemm
