#ifndef QGEMM_SERVER_CPU_BUDGET_H_
#define QGEMM_SERVER_CPU_BUDGET_H_

#include <cstdint>
#include <string>

namespace qgemm {

// What this process may use, not what the host has.
struct CpuBudget {
  double cpus = 1;           // the smaller of the CPU affinity and the cgroups' quotas
  int64_t memory_bytes = 0;  // the smaller of the host's memory and the cgroups' limits
};

// Reads /proc and the cgroup (v2, else v1) and its ancestors. Never fails: what cannot be read does not
// limit. `root` is put before every path, for tests; `affinity_cpus` is the number of CPUs the process may
// run on.
CpuBudget ReadCpuBudget(const std::string& root, int affinity_cpus);
CpuBudget ReadCpuBudget();

// How many compile workers fit: one per whole CPU, less one for the timing process when a GPU is pinned, and
// no more than fit into half of the memory. At least one.
int DefaultCompileWorkers(const CpuBudget& budget, bool gpu_pinned);

}  // namespace qgemm

#endif  // QGEMM_SERVER_CPU_BUDGET_H_
