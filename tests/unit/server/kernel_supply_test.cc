#include "server/kernel_supply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/digest.h"
#include "base/host_name.h"
#include "cache/memory_store.h"
#include "kernels/embedded_sources.h"
#include "tests/fakes/fake_compiler.h"

namespace qgemm {
namespace {

class KernelSupplyTest : public ::testing::Test {
 protected:
  KernelSupplyTest()
      : supply_(store_, compiler_, RealClock(), [this] {
          MutexLock lock(mu_);
          changed_.NotifyAll();
        }) {}

  static KernelConfig ConfigWith(int stages) {
    KernelConfig config;
    config.stages = stages;
    return config;
  }
  KernelSupply::Requested Request() {
    return supply_.Request(ConfigWith(3), KernelSignature(), "sm_90a", "nvrtc 13.0", Flow());
  }
  void AwaitReady(const Kernel& kernel) {
    MutexLock lock(mu_);
    while (!kernel.ready()) changed_.Wait(mu_);
  }

  Mutex mu_;
  CondVar changed_;
  MemoryStore store_;
  FakeCompiler compiler_;
  KernelSupply supply_;
};

TEST_F(KernelSupplyTest, KernelIsStoredBeforeItIsReady) {
  const KernelSupply::Requested requested = Request();
  EXPECT_TRUE(requested.created);
  AwaitReady(*requested.kernel);
  ASSERT_TRUE(requested.kernel->status().ok()) << requested.kernel->status();
  const auto stored = store_.GetKernel(requested.kernel->key());
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->info().sha256(), Sha256Hex(stored->cubin()));
  EXPECT_FALSE(stored->ptx().empty());
  // The fake compiler's text is no PTX: nothing is known, and the record says so.
  EXPECT_NE(stored->info().access().failure(), "");
  EXPECT_EQ(stored->info().arch(), "sm_90a");
  EXPECT_EQ(stored->info().toolchain(), "nvrtc 13.0");
  EXPECT_EQ(stored->info().producer(), HostName());
  EXPECT_EQ(requested.kernel->progress()->phase.load(), KernelProgress::kCompiled);
}

TEST_F(KernelSupplyTest, AChangedSourceIsNeverMixedWithTheShippedOne) {
  const SourceOverrides changed = {{"mma.cuh", "int changed;"}};
  const KernelSupply::Requested shipped = Request();
  const KernelSupply::Requested tried =
      supply_.Request(ConfigWith(3), KernelSignature(), "sm_90a", "nvrtc 13.0", Flow(), changed);
  AwaitReady(*shipped.kernel);
  AwaitReady(*tried.kernel);
  EXPECT_NE(tried.kernel->key(), shipped.kernel->key());
  EXPECT_EQ(tried.kernel->key(),
            supply_.CurrentKey(ConfigWith(3), KernelSignature(), "sm_90a", "nvrtc 13.0", changed));
  EXPECT_EQ(shipped.kernel->key(),
            supply_.CurrentKey(ConfigWith(3), KernelSignature(), "sm_90a", "nvrtc 13.0"));
  const std::string name = ConfigName(ConfigWith(3));
  EXPECT_EQ(shipped.kernel->record().info().config(), name);
  EXPECT_EQ(tried.kernel->record().info().config(),
            name + "+" + DeviceSourceDigest(Family::kMma, changed).substr(0, 8));
  EXPECT_EQ(compiler_.compiles(), 2);
}

TEST_F(KernelSupplyTest, AnUnchangedSourceIsTheShippedOne) {
  const KernelSupply::Requested shipped = Request();
  AwaitReady(*shipped.kernel);
  const KernelSupply::Requested same =
      supply_.Request(ConfigWith(3), KernelSignature(), "sm_90a", "nvrtc 13.0", Flow(),
                      {{"mma.cuh", std::string(EmbeddedSource("mma.cuh"))}});
  EXPECT_EQ(same.kernel->key(), shipped.kernel->key());
  EXPECT_EQ(compiler_.compiles(), 1);
}

TEST_F(KernelSupplyTest, StoredKernelIsNotCompiledAgain) {
  AwaitReady(*Request().kernel);
  KernelSupply after_restart(store_, compiler_, RealClock(), [] {});
  const KernelSupply::Requested again =
      after_restart.Request(ConfigWith(3), KernelSignature(), "sm_90a", "nvrtc 13.0", Flow());
  ASSERT_TRUE(again.kernel->ready());
  EXPECT_EQ(again.kernel->progress()->phase.load(), KernelProgress::kStored);
  EXPECT_EQ(compiler_.compiles(), 1);
}

TEST_F(KernelSupplyTest, TwoWhoAskShareOneCompile) {
  compiler_.Hold();
  const KernelSupply::Requested first = Request();
  const KernelSupply::Requested second = Request();
  EXPECT_EQ(first.kernel, second.kernel);
  EXPECT_FALSE(second.created);
  compiler_.Release();
  AwaitReady(*first.kernel);
  EXPECT_EQ(compiler_.compiles(), 1);
}

TEST_F(KernelSupplyTest, LastToLetGoWithdrawsTheCompile) {
  compiler_.Hold();
  KernelSupply::Requested first = Request();
  KernelSupply::Requested second = Request();
  first.kernel.reset();
  EXPECT_EQ(compiler_.cancelled(), 0);
  second.kernel.reset();
  EXPECT_EQ(compiler_.cancelled(), 1);
  compiler_.Release();
  AwaitReady(*Request().kernel);
  EXPECT_EQ(compiler_.compiles(), 1);
}

TEST_F(KernelSupplyTest, RefusedSourceIsNotCompiledAgain) {
  compiler_.SetBehaviour([](const CompileTask&) -> absl::StatusOr<internal::CompileReply> {
    return absl::InvalidArgumentError("error: expected a \";\"");
  });
  AwaitReady(*Request().kernel);
  const KernelSupply::Requested again = Request();
  ASSERT_TRUE(again.kernel->ready());
  EXPECT_TRUE(absl::IsInvalidArgument(again.kernel->status()));
  EXPECT_FALSE(again.kernel->is_system_failure());
  EXPECT_EQ(compiler_.compiles(), 1);
}

TEST_F(KernelSupplyTest, DeadWorkersKernelIsTriedAgainWhenAskedAgain) {
  compiler_.SetBehaviour([](const CompileTask&) -> absl::StatusOr<internal::CompileReply> {
    return absl::InternalError("the worker was killed by signal 11");
  });
  AwaitReady(*Request().kernel);
  compiler_.SetBehaviour(nullptr);
  const KernelSupply::Requested again = Request();
  AwaitReady(*again.kernel);
  EXPECT_TRUE(again.kernel->status().ok());
}

TEST_F(KernelSupplyTest, MissingWorkersAndFullDisksAreTheSystemsFailures) {
  compiler_.SetUnavailable(absl::UnavailableError("no worker"));
  {
    const KernelSupply::Requested requested = Request();
    AwaitReady(*requested.kernel);
    EXPECT_TRUE(requested.kernel->is_system_failure());
  }
  compiler_.SetUnavailable(absl::OkStatus());
  store_.SetWriteError(absl::ResourceExhaustedError("the disk is full"));
  const KernelSupply::Requested requested = Request();
  AwaitReady(*requested.kernel);
  EXPECT_TRUE(requested.kernel->is_system_failure());
  EXPECT_TRUE(absl::IsResourceExhausted(requested.kernel->status()));
}

TEST_F(KernelSupplyTest, SpillingKernelIsStoredSoThatItIsNotCompiledAgain) {
  compiler_.SetBehaviour([](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    return FakeCompiler::Reply(task, /*spill_bytes=*/8);
  });
  AwaitReady(*Request().kernel);
  const KernelSupply::Requested again = Request();
  EXPECT_TRUE(again.kernel->spills());
  EXPECT_EQ(compiler_.compiles(), 1);
}

TEST_F(KernelSupplyTest, SupportKernelsHaveAKeyOfTheirOwn) {
  const KernelSupply::Requested support = supply_.RequestSupport("sm_90a", "nvrtc 13.0", Flow());
  AwaitReady(*support.kernel);
  EXPECT_NE(support.kernel->key(), Request().kernel->key());
  EXPECT_NE(support.kernel->key(), supply_.RequestSupport("sm_80", "nvrtc 13.0", Flow()).kernel->key());
}

}  // namespace
}  // namespace qgemm
