#ifndef QGEMM_KERNELS_PTX_H_
#define QGEMM_KERNELS_PTX_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

// One kernel of a PTX module, taken apart into instructions. All text points into the module's.

struct PtxParameter {
  absl::string_view name;
  int bytes = 0;
  int alignment = 0;  // bytes
};

// "@%p1 add.s64 %rd1, %rd2, 16;": opcode "add.s64", operands "%rd1", "%rd2", "16".
struct PtxInstruction {
  absl::string_view opcode;                 // with all its suffixes
  std::vector<absl::string_view> operands;  // separated by commas outside of brackets and braces
};

struct PtxEntry {
  absl::string_view name;
  std::vector<PtxParameter> parameters;
  std::vector<PtxInstruction> instructions;  // in the order of the text; directives and labels left out
};

// The kernel `entry` of a module. NotFound: it has none of that name; InvalidArgument: the text is not PTX as
// far as it matters here.
// Source: PTX ISA, sections "Syntax" and "Kernel and Function Directives".
[[nodiscard]] absl::StatusOr<PtxEntry> ParsePtxEntry(absl::string_view ptx, absl::string_view entry);

// The parts of an opcode between its dots: "ld", "global", "v4", "f32".
std::vector<absl::string_view> PtxOpcodeParts(absl::string_view opcode);

// Registers and symbols of an operand in order; numbers are left out, so are special registers' components
// (%tid.x is "%tid").
std::vector<absl::string_view> PtxNames(absl::string_view operand);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_PTX_H_
