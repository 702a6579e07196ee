// Real kernels through the real worker program and NVRTC.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "kernels/cuda/nvrtc.h"
#include "kernels/kernel_source.h"
#include "kernels/search_space.h"
#include "server/compile_pool.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

class CompileWorkerTest : public testing::Test {
 protected:
  CompileWorkerTest() {
    spawner_ = *Spawner::Start();
    options_.worker = CompileWorkerProgram(QGEMM_COMPILE);
  }
  void SetUp() override {
    const auto nvrtc = Nvrtc::Load();
    if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status();
  }

  absl::StatusOr<internal::CompileReply> Compile(const KernelSource& source, const std::string& arch) {
    if (pool_ == nullptr) pool_ = std::make_unique<CompilePool>(spawner_.get(), &RealClock(), options_);
    std::promise<absl::StatusOr<internal::CompileReply>> promise;
    CompileTask task;
    task.source = source;
    task.arch = arch;
    const auto ticket = pool_->Compile(
        task, [&promise](absl::StatusOr<internal::CompileReply> reply) { promise.set_value(reply); });
    return promise.get_future().get();
  }
  static KernelSource Small(const std::string& text) {
    return {.name = "small", .entry = "small", .text = text, .options = {"--std=c++17"}};
  }

  std::unique_ptr<Spawner> spawner_;
  CompilePoolOptions options_;
  std::unique_ptr<CompilePool> pool_;
};

TEST_F(CompileWorkerTest, CompilesAKernelOfEachNamedArch) {
  const auto device = FindDeviceProfile("h200");
  ASSERT_TRUE(device.ok());
  const KernelSignature signature;
  const std::vector<KernelConfig> configs = WholeConfigSpace(signature, *device);
  ASSERT_FALSE(configs.empty());
  const KernelSource source = RenderKernelSource(configs.front(), signature);
  for (const char* arch : {"sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"}) {
    const auto reply = Compile(source, arch);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->cubin().substr(0, 4),
              "\x7f"
              "ELF")
        << arch;
    EXPECT_THAT(reply->ptx(), HasSubstr(source.entry));
    EXPECT_GT(reply->report().registers(), 0);
    EXPECT_GT(reply->compile_ms(), 0);
  }
}

TEST_F(CompileWorkerTest, CompilesTheSupportKernels) {
  const auto reply = Compile(SupportKernelSource(), "sm_90a");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_FALSE(reply->cubin().empty());
}

TEST_F(CompileWorkerTest, SameSourceGivesTheSameBytesInAnotherWorker) {
  const KernelSource source =
      Small("extern \"C\" __global__ void small(float* y) { y[threadIdx.x] *= 2.0f; }");
  const auto first = Compile(source, "sm_90a");
  pool_.reset();
  const auto second = Compile(source, "sm_90a");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->cubin(), second->cubin());
}

TEST_F(CompileWorkerTest, ReportsSpills) {
  // Far more values alive than sixteen registers hold.
  const auto reply =
      Compile(Small("extern \"C\" __global__ void __launch_bounds__(1024, 2) small(float* y, int n) {"
                    "  float a[128];"
                    "  for (int i = 0; i < 128; ++i) a[i] = y[i * n];"
                    "  __syncthreads();"
                    "  for (int j = 0; j < n; ++j)\n"
                    "    for (int i = 0; i < 128; ++i) a[i] = a[i] * a[(i + 37) % 128] + y[j];"
                    "  for (int i = 0; i < 128; ++i) y[i * n + 1] = a[i];"
                    "}"),
              "sm_90a");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_GT(reply->report().spill_store_bytes(), 0) << reply->log();
  EXPECT_GT(reply->report().spill_load_bytes(), 0);
}

TEST_F(CompileWorkerTest, SourceThatDoesNotCompileFailsWithItsFirstError) {
  const auto reply = Compile(Small("extern \"C\" __global__ void small() { nothing; }"), "sm_90a");
  EXPECT_TRUE(absl::IsInvalidArgument(reply.status())) << reply.status();
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("identifier \"nothing\" is undefined"));
}

TEST_F(CompileWorkerTest, UnknownArchIsRefused) {
  const auto reply = Compile(Small("extern \"C\" __global__ void small() {}"), "sm_999");
  EXPECT_TRUE(absl::IsInvalidArgument(reply.status())) << reply.status();
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("sm_999"));
}

TEST_F(CompileWorkerTest, WithoutNvrtcEverythingIsUnavailableWithTheReason) {
  options_.worker.env.emplace_back("QGEMM_NVRTC_PATH", "/nonexistent/libnvrtc.so");
  const auto reply = Compile(Small("extern \"C\" __global__ void small() {}"), "sm_90a");
  EXPECT_TRUE(absl::IsUnavailable(reply.status())) << reply.status();
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("/nonexistent/libnvrtc.so"));
}

}  // namespace
}  // namespace qgemm
