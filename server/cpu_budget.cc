#include "server/cpu_budget.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace qgemm {
namespace {

// A worker with NVRTC loaded takes about 100 MB and, for the largest kernels, a few times that.
constexpr int64_t kBytesPerWorker = int64_t{512} << 20;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// The cgroup of this process for `controller` ("" = the unified hierarchy), "/" when there is none.
std::string CgroupPath(const std::string& root, absl::string_view controller) {
  for (const absl::string_view line : absl::StrSplit(ReadFile(root + "/proc/self/cgroup"), '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      return parts[2];
    }
  }
  return "/";
}

// The folders of a cgroup and of its ancestors, each of which limits: mount/a/b, mount/a, mount.
std::vector<std::string> CgroupFolders(const std::string& mount, std::string path) {
  std::vector<std::string> folders;
  while (path.size() > 1) {
    folders.push_back(mount + path);
    path.resize(path.rfind('/'));
  }
  folders.push_back(mount);
  return folders;
}

void LimitCpus(double quota, double period, CpuBudget* budget) {
  if (quota > 0 && period > 0) budget->cpus = std::min(budget->cpus, quota / period);
}

void LimitMemory(const std::string& text, CpuBudget* budget) {
  int64_t bytes = 0;
  if (absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &bytes) && bytes > 0) {
    budget->memory_bytes = std::min(budget->memory_bytes, bytes);
  }
}

double ReadNumber(const std::string& path) {
  double value = 0;
  return absl::SimpleAtod(absl::StripAsciiWhitespace(ReadFile(path)), &value) ? value : 0;
}

}  // namespace

CpuBudget ReadCpuBudget(const std::string& root, int affinity_cpus) {
  CpuBudget budget;
  budget.cpus = std::max(1, affinity_cpus);
  budget.memory_bytes = std::numeric_limits<int64_t>::max();
  for (const absl::string_view line : absl::StrSplit(ReadFile(root + "/proc/meminfo"), '\n')) {
    int64_t kib = 0;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() >= 2 && words[0] == "MemTotal:" && absl::SimpleAtoi(words[1], &kib)) {
      budget.memory_bytes = kib * 1024;
    }
  }
  const std::string mount = root + "/sys/fs/cgroup";
  // Version 2: "max 100000" or "150000 100000" in one file.
  for (const std::string& folder : CgroupFolders(mount, CgroupPath(root, ""))) {
    const std::string cpu_max = ReadFile(folder + "/cpu.max");
    const std::vector<absl::string_view> words =
        absl::StrSplit(cpu_max, absl::ByAnyChar(" \n"), absl::SkipEmpty());
    double quota = 0;
    double period = 0;
    if (words.size() == 2 && absl::SimpleAtod(words[0], &quota) && absl::SimpleAtod(words[1], &period)) {
      LimitCpus(quota, period, &budget);
    }
    LimitMemory(ReadFile(folder + "/memory.max"), &budget);
  }
  // Version 1: a mount per controller; no quota is -1.
  for (const std::string& folder : CgroupFolders(mount + "/cpu", CgroupPath(root, "cpu"))) {
    LimitCpus(ReadNumber(folder + "/cpu.cfs_quota_us"), ReadNumber(folder + "/cpu.cfs_period_us"), &budget);
  }
  for (const std::string& folder : CgroupFolders(mount + "/memory", CgroupPath(root, "memory"))) {
    LimitMemory(ReadFile(folder + "/memory.limit_in_bytes"), &budget);
  }
  return budget;
}

CpuBudget ReadCpuBudget() {
  cpu_set_t allowed;
  const int cpus = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  return ReadCpuBudget("", cpus);
}

int DefaultCompileWorkers(const CpuBudget& budget, bool gpu_pinned) {
  const int cpus = static_cast<int>(budget.cpus) - (gpu_pinned ? 1 : 0);
  const int64_t fitting = budget.memory_bytes / 2 / kBytesPerWorker;
  return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(cpus, fitting)));
}

}  // namespace qgemm
