#ifndef QGEMM_TESTS_EMULATOR_KERNEL_RUN_H_
#define QGEMM_TESTS_EMULATOR_KERNEL_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernel_config.h"
#include "tests/emulator/emulated_kernel.h"
#include "tests/kernel_cases/kernel_case.h"

namespace qgemm {

// A candidate on a case's operands in the emulator, twice, with different orders of everything.
struct KernelRun {
  double error = 0;  // relative, of the first
  std::string violation;
  bool repeatable = false;
  std::vector<std::string> problems;
  int64_t matrix_instructions = 0;

  bool right(const KernelSignature& signature) const;
  std::string Describe() const;
};
absl::StatusOr<KernelRun> RunCandidate(const EmulatedKernel& kernel, const Candidate& candidate,
                                       const KernelCase& data, int64_t m, uint64_t seed);

}  // namespace qgemm

#endif  // QGEMM_TESTS_EMULATOR_KERNEL_RUN_H_
