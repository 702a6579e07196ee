#include "kernels/support_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/cuda/nvrtc.h"

namespace qgemm {
namespace {

// The sizes of an entry's parameters as its PTX declares them, a digit each; empty when there is no such
// entry.
std::string ParameterBytes(const std::string& ptx, const std::string& entry) {
  const size_t begin = ptx.find(absl::StrCat(".entry ", entry, "("));
  if (begin == std::string::npos) return "";
  std::string bytes;
  for (absl::string_view line : absl::StrSplit(ptx.substr(begin, ptx.find(')', begin) - begin), '\n')) {
    const size_t type = line.find(".param .");
    if (type == absl::string_view::npos) continue;
    bytes += line.find("64") < line.find("_param") ? "8" : "4";
  }
  return bytes;
}

class SupportKernelsTest : public testing::TestWithParam<const char*> {};

TEST_P(SupportKernelsTest, CompileWithTheEntriesTheHeaderNames) {
  const auto nvrtc = Nvrtc::Load();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status();
  const auto output = (*nvrtc)->Compile(SupportKernelSource(), GetParam(), /*want_ptx=*/true);
  ASSERT_TRUE(output.ok()) << output.status();
  for (const support::Entry& entry : support::kEntries) {
    EXPECT_EQ(ParameterBytes(output->ptx, entry.name), entry.parameter_bytes) << entry.name;
    const auto resources = ParseResources(output->log, entry.name);
    ASSERT_TRUE(resources.ok()) << resources.status();
    EXPECT_EQ(resources->spill_store_bytes, 0) << entry.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Archs, SupportKernelsTest,
                         testing::Values("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"));

}  // namespace
}  // namespace qgemm
