// The daemon's view of a real GPU through the real qgemm-time: right kernels, and kernels that fault, hang
// and lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "kernels/reference_gemm.h"
#include "kernels/search_space.h"
#include "server/gpu_process.h"
#include "tests/gpu/gpu_test.h"

namespace qgemm {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class GpuFaultTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    problem_.n = 1024;
    problem_.k = 1024;
    candidates_ = LegalCandidates(problem_, 8, profile());
    ASSERT_GE(candidates_.size(), 2u);
    GpuProcessOptions options;
    options.program = SiblingProgram("qgemm-time");
    options.run_deadline = std::chrono::seconds(4);
    gpu_ = std::make_unique<GpuProcess>(&TestSpawner(), options, &RealClock());
    gpu_->SetSupportKernels(CompileHere(SupportKernelSource(), arch()));
    const absl::Status prepared = gpu_->Prepare(problem_, 8);
    ASSERT_TRUE(prepared.ok()) << prepared;
  }

  // A candidate of the space; `text` replaces its source. Its bytes live as long as the test.
  GpuCandidate Make(const Candidate& candidate, const std::string& text = "") {
    KernelSource source = RenderKernelSource(candidate.config, problem_.signature);
    if (!text.empty()) source.text = text;
    cubins_.push_back(std::make_unique<std::string>(CompileHere(source, arch())));
    GpuCandidate made;
    made.name = CandidateName(candidate);
    made.cubin = cubins_.back().get();
    made.kernel_sha256 = Sha256Hex(*made.cubin);
    made.launch = MakeLaunchSpec(candidate, problem_, 8);
    return made;
  }
  // A kernel with the family's entry and parameters that does something else.
  GpuCandidate Bad(const std::string& body) {
    const Candidate& candidate = candidates_.front();
    const LaunchSpec spec = MakeLaunchSpec(candidate, problem_, 8);
    std::string text = "extern \"C\" __global__ void " + spec.entry + "(";
    for (size_t i = 0; i < spec.arguments.size(); ++i) {
      const KernelArgument& argument = spec.arguments[i];
      const auto* integer = std::get_if<IntegerArgument>(&argument.kind);
      const char* type = integer == nullptr    ? "unsigned short* "
                         : integer->bits == 64 ? "long long "
                                               : "int ";
      text += (i > 0 ? ", " : "") + std::string(type) + argument.name;
    }
    return Make(candidate, text + ") { " + body + " }");
  }
  absl::StatusOr<internal::ScreenReply> Screen(const GpuCandidate& candidate) {
    return gpu_->Screen(candidate, ToleranceFor(problem_.signature.act), absl::Milliseconds(2));
  }
  void ExpectRight(const GpuCandidate& candidate) {
    const auto reply = Screen(candidate);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->failure(), internal::CANDIDATE_FAILURE_NONE) << reply->reason();
    EXPECT_GT(reply->timing().median_us(), 0);
    EXPECT_GT(reply->relative_error(), 0);
  }

  Problem problem_;
  std::vector<Candidate> candidates_;
  std::vector<std::unique_ptr<std::string>> cubins_;
  std::unique_ptr<GpuProcess> gpu_;
};

TEST_F(GpuFaultTest, DescribesTheGpu) {
  const auto info = gpu_->Describe();
  ASSERT_TRUE(info.ok()) << info.status();
  std::printf("%s %s driver %s, %d SMs, L2 %lld MiB, %d GiB, %d bytes of shared memory\n",
              info->device.product_name().c_str(), info->uuid.c_str(), info->driver_version.c_str(),
              info->device.sm_count(), static_cast<long long>(info->device.l2_bytes() >> 20),
              info->device.memory_gib(), info->max_dynamic_smem_bytes);
  EXPECT_EQ(info->uuid, device().properties().uuid);
  EXPECT_GT(info->memory_free_bytes, 0);
}

TEST_F(GpuFaultTest, ScreensAndTimesFinalists) {
  const GpuCandidate first = Make(candidates_.front());
  const GpuCandidate second = Make(candidates_.back());
  ExpectRight(first);
  ExpectRight(second);
  const auto finals = gpu_->Finals({first, second}, absl::Milliseconds(50), 0.003);
  ASSERT_TRUE(finals.ok()) << finals.status();
  for (const internal::Timing& timing : *finals) {
    std::printf("finalist: %.2f us, spread %.2f us, %d samples%s\n", timing.median_us(), timing.spread_us(),
                timing.samples(), timing.low_confidence() ? ", low confidence" : "");
    EXPECT_GT(timing.median_us(), 0);
  }
  EXPECT_EQ(gpu_->starts(), 1);
}

// A driver attribute of the kernel holds the allowed size: the smaller launch must not take the larger one's
// away.
TEST_F(GpuFaultTest, FinalistsOfOneKernelMayNeedDifferentSharedMemory) {
  const KernelConfig config = ParseConfig("mma_t1_r1_w2x4_s4_b2_slice_post").value();
  const GpuCandidate large = Make({config, 1, Reduction::kNone});
  const GpuCandidate small = Make({config, 4, Reduction::kWorkspace});
  ASSERT_EQ(large.kernel_sha256, small.kernel_sha256);
  ASSERT_GT(large.launch.dynamic_smem_bytes, 48 << 10);
  ASSERT_LT(small.launch.dynamic_smem_bytes, large.launch.dynamic_smem_bytes);
  ExpectRight(large);
  ExpectRight(small);
  const auto finals = gpu_->Finals({large, small}, absl::Milliseconds(20), 0.003);
  ASSERT_TRUE(finals.ok()) << finals.status();
}

TEST_F(GpuFaultTest, AnIllegalAddressCostsOnlyItsCandidate) {
  const GpuCandidate good = Make(candidates_.front());
  ExpectRight(good);
  const auto bad = Screen(Bad("*(volatile int*)(threadIdx.x * 4ull + 0x10) = 1;"));
  ASSERT_TRUE(bad.ok()) << bad.status();
  EXPECT_EQ(bad->failure(), internal::CANDIDATE_FAILURE_LAUNCH);
  EXPECT_THAT(bad->reason(), AnyOf(HasSubstr("ILLEGAL_ADDRESS"), HasSubstr("LAUNCH_FAILED")));
  std::printf("reason: %s\n", bad->reason().c_str());
  ExpectRight(good);
  EXPECT_EQ(gpu_->starts(), 2);
}

TEST_F(GpuFaultTest, AHangCostsOnlyItsCandidate) {
  const GpuCandidate good = Make(candidates_.front());
  const auto bad = Screen(Bad("for (;;) asm volatile(\"nanosleep.u32 1000;\" ::: \"memory\");"));
  ASSERT_TRUE(bad.ok()) << bad.status();
  EXPECT_EQ(bad->failure(), internal::CANDIDATE_FAILURE_HANG);
  ExpectRight(good);
}

// As a job that is cancelled: the process is killed long before the deadline, and the driver lets go of the
// GPU.
TEST_F(GpuFaultTest, AHangThatNobodyWaitsForFreesTheGpuWithinASecond) {
  const GpuCandidate good = Make(candidates_.front());
  const GpuCandidate bad = Bad("for (;;) asm volatile(\"nanosleep.u32 1000;\" ::: \"memory\");");
  std::vector<Duration> until_free;
  for (int i = 0; i < 5; ++i) {
    ExpectRight(good);
    std::optional<TimePoint> withdrawn;
    gpu_->SetWithdrawn([&] {
      if (!withdrawn.has_value()) withdrawn = RealClock().Now();
      return true;
    });
    const absl::Status ended = Screen(bad).status();
    EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
    ASSERT_TRUE(withdrawn.has_value());
    until_free.push_back(RealClock().Now() - *withdrawn);
    EXPECT_EQ(gpu_->pid(), 0);
    gpu_->SetWithdrawn(nullptr);
  }
  ExpectRight(good);
  std::sort(until_free.begin(), until_free.end());
  std::printf("a hang's process was gone %.0f ms (at most %.0f) after its job was withdrawn\n",
              std::chrono::duration<double, std::milli>(until_free[until_free.size() / 2]).count(),
              std::chrono::duration<double, std::milli>(until_free.back()).count());
  EXPECT_LT(until_free[until_free.size() / 2], std::chrono::seconds(1));
}

TEST_F(GpuFaultTest, ATrapCostsOnlyItsCandidate) {
  const auto bad = Screen(Bad("__trap();"));
  ASSERT_TRUE(bad.ok()) << bad.status();
  EXPECT_EQ(bad->failure(), internal::CANDIDATE_FAILURE_LAUNCH);
  ExpectRight(Make(candidates_.front()));
}

TEST_F(GpuFaultTest, LiarsAreFoundOut) {
  EXPECT_EQ(Screen(Bad(""))->failure(), internal::CANDIDATE_FAILURE_WRONG);
  EXPECT_EQ(Screen(Bad("y[m * ldy] = 0;"))->failure(), internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS);
  EXPECT_EQ(gpu_->starts(), 1);
}

TEST_F(GpuFaultTest, BytesThatAreNoCubinAreALoadFailure) {
  GpuCandidate candidate = Make(candidates_.front());
  const std::string nonsense = "this is no cubin";
  candidate.cubin = &nonsense;
  candidate.kernel_sha256 = Sha256Hex(nonsense);
  const auto reply = Screen(candidate);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->failure(), internal::CANDIDATE_FAILURE_LOAD) << reply->reason();
  ExpectRight(Make(candidates_.front()));
}

TEST_F(GpuFaultTest, SupportKernelsThatAreNoCubinAreDataLoss) {
  gpu_->SetSupportKernels("this is no cubin");
  const absl::Status refused = gpu_->Prepare(problem_, 8);
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  gpu_->SetSupportKernels(CompileHere(SupportKernelSource(), arch()));
  const absl::Status prepared = gpu_->Prepare(problem_, 8);
  EXPECT_TRUE(prepared.ok()) << prepared;
  ExpectRight(Make(candidates_.front()));
  EXPECT_EQ(gpu_->starts(), 1);
}

TEST_F(GpuFaultTest, AKilledProcessIsReplaced) {
  const GpuCandidate good = Make(candidates_.front());
  ExpectRight(good);
  kill(gpu_->pid(), SIGKILL);
  ExpectRight(good);
  EXPECT_EQ(gpu_->starts(), 2);
}

}  // namespace
}  // namespace qgemm
