#include "tests/emulator/kernel_run.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "kernels/reference_gemm.h"

namespace qgemm {
namespace {
constexpr int64_t kGuard = 512;  // elements before and after Y
}  // namespace

bool KernelRun::right(const KernelSignature& signature) const {
  return error <= ToleranceFor(signature) && violation.empty() && repeatable && problems.empty();
}

std::string KernelRun::Describe() const {
  return absl::StrCat("error ", error, violation.empty() ? "" : "; ", violation,
                      repeatable ? "" : "; not repeatable", problems.empty() ? "" : "\n  ",
                      absl::StrJoin(problems, "\n  "));
}

absl::StatusOr<KernelRun> RunCandidate(const EmulatedKernel& kernel, const Candidate& candidate,
                                       const KernelCase& data, int64_t m, uint64_t seed) {
  const LaunchSpec spec = MakeLaunchSpec(candidate, data.problem, BucketFor(m));
  const int element = ScalarBytes(data.problem.signature.out);
  KernelRun run;
  std::vector<uint8_t> outputs[2];
  for (int turn = 0; turn < 2; ++turn) {
    GlobalMemory memory;
    const auto copy = [&](const char* name, const auto& numbers, bool of_kernel_before = false) {
      if (numbers.empty()) return uint64_t{0};
      return reinterpret_cast<uint64_t>(
          memory.Copy(name, numbers.data(), numbers.size() * sizeof(numbers[0]), of_kernel_before));
    };
    LaunchOperands operands;
    operands.m = m;
    operands.ldx = data.ldx;
    operands.ldy = data.ldy;
    operands.ldr = data.residual_numbers.empty() ? 0 : data.ldr;
    // No more rows than the launch has.
    operands.x =
        copy("x", std::vector<uint16_t>(data.x_numbers.begin(), data.x_numbers.begin() + m * data.ldx), true);
    operands.weights = copy("weights", data.packed.weights);
    operands.scales = copy("scales", data.packed.scales);
    operands.zeros = copy("zeros", data.packed.zeros);
    operands.steps = copy("steps", data.packed.steps);
    operands.bias = copy("bias", data.bias_numbers);
    operands.residual = copy("residual", data.residual_numbers, true);
    const int64_t y_bytes = (m * data.ldy + 2 * kGuard) * element;
    uint8_t* const y = memory.Allocate("y", y_bytes, true, true);
    operands.y = reinterpret_cast<uint64_t>(y + kGuard * element);
    if (const int64_t bytes = spec.WorkspaceBytes(m); bytes > 0) {
      uint8_t* const workspace = memory.Allocate("workspace", bytes, true, true);
      std::memset(workspace, 0, spec.TicketBytes(m));
      operands.workspace = reinterpret_cast<uint64_t>(workspace);
    }
    QGEMM_ASSIGN_OR_RETURN(const MachineReport report,
                           kernel.Launch(spec, operands, memory, seed * 2 + turn));
    run.problems.insert(run.problems.end(), report.problems.begin(), report.problems.end());
    run.matrix_instructions = report.matrix_instructions;
    outputs[turn].assign(y, y + y_bytes);
    for (int64_t i = 0; i < spec.TicketBytes(m); ++i) {
      if (reinterpret_cast<const uint8_t*>(operands.workspace)[i] != 0) {
        run.violation = "left a ticket behind";
        break;
      }
    }
  }
  run.repeatable = outputs[0] == outputs[1];
  run.error = JudgeOutput(data, outputs[0], kGuard, m, &run.violation);
  return run;
}

}  // namespace qgemm
