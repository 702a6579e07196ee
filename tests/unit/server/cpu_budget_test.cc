#include "server/cpu_budget.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace qgemm {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

class CpuBudgetTest : public testing::Test {
 protected:
  CpuBudgetTest() {
    char folder[] = "/tmp/qgemm_cpu_budget_testXXXXXX";
    root_ = mkdtemp(folder);
    Write("/proc/meminfo", "MemFree: 1 kB\nMemTotal:       16777216 kB\n");
  }
  ~CpuBudgetTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(CpuBudgetTest, HostWithoutCgroupsGivesAffinityAndMemTotal) {
  const CpuBudget budget = ReadCpuBudget(root_, 12);
  EXPECT_EQ(budget.cpus, 12);
  EXPECT_EQ(budget.memory_bytes, 16 * kGiB);
}

TEST_F(CpuBudgetTest, QuotaAndLimitOfTheOwnCgroupApply) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "250000 100000\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "4294967296\n");
  const CpuBudget budget = ReadCpuBudget(root_, 12);
  EXPECT_EQ(budget.cpus, 2.5);
  EXPECT_EQ(budget.memory_bytes, 4 * kGiB);
}

TEST_F(CpuBudgetTest, TightestAncestorWins) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
  Write("/sys/fs/cgroup/cpu.max", "800000 100000\n");
  Write("/sys/fs/cgroup/a/memory.max", "max\n");
  Write("/sys/fs/cgroup/memory.max", "8589934592\n");
  const CpuBudget budget = ReadCpuBudget(root_, 12);
  EXPECT_EQ(budget.cpus, 3);
  EXPECT_EQ(budget.memory_bytes, 8 * kGiB);
}

TEST_F(CpuBudgetTest, VersionOneHierarchyIsUnderstood) {
  Write("/proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/c\n1:name=systemd:/x\n");
  Write("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "400000\n");
  Write("/sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "2147483648\n");
  const CpuBudget budget = ReadCpuBudget(root_, 12);
  EXPECT_EQ(budget.cpus, 4);
  EXPECT_EQ(budget.memory_bytes, 2 * kGiB);
}

TEST(CpuBudget, OfThisProcessIsPositive) {
  const CpuBudget budget = ReadCpuBudget();
  EXPECT_GT(budget.cpus, 0);
  EXPECT_GT(budget.memory_bytes, 0);
}

TEST(DefaultCompileWorkers, OnePerWholeCpu) {
  EXPECT_EQ(DefaultCompileWorkers({.cpus = 8.9, .memory_bytes = 64 * kGiB}, /*gpu_pinned=*/false), 8);
}

TEST(DefaultCompileWorkers, TimingKeepsACoreWhenAGpuIsPinned) {
  EXPECT_EQ(DefaultCompileWorkers({.cpus = 8, .memory_bytes = 64 * kGiB}, /*gpu_pinned=*/true), 7);
}

TEST(DefaultCompileWorkers, MemoryLimitsThem) {
  EXPECT_EQ(DefaultCompileWorkers({.cpus = 64, .memory_bytes = 4 * kGiB}, /*gpu_pinned=*/false), 4);
}

TEST(DefaultCompileWorkers, IsNeverBelowOne) {
  EXPECT_EQ(DefaultCompileWorkers({.cpus = 0.5, .memory_bytes = 1 << 20}, /*gpu_pinned=*/true), 1);
}

}  // namespace
}  // namespace qgemm
