#ifndef QGEMM_TESTS_EMULATOR_PTX_INSTRUCTION_H_
#define QGEMM_TESTS_EMULATOR_PTX_INSTRUCTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace qgemm {

// A part of an instruction's operands: operand %i of the asm statement, a number, a register that the
// statement declares, or a name (a predicate, a special register, `_`).
struct PtxValue {
  enum class Kind { kOperand, kNumber, kLocal, kName };
  Kind kind = Kind::kName;
  int64_t number = 0;  // of the operand or the declared register, or the number itself
  std::string name;
};

// One instruction of an asm statement: its name with all suffixes, and its operands flattened in order,
// brackets and braces left out: "ldmatrix...x2... {%0,%1}, [%2];" has three.
struct PtxInstruction {
  std::string guard;  // the predicate without which it does nothing; empty: none
  std::string name;
  std::vector<PtxValue> values;

  bool Is(absl::string_view prefix) const {
    return absl::string_view(name).substr(0, prefix.size()) == prefix;
  }
};

// The instructions of an asm statement's text. Of control flow only the loop that waits for an mbarrier is
// known: it is read as its one mbarrier.try_wait, which then blocks.
std::vector<PtxInstruction> ParsePtxStatement(absl::string_view text);

}  // namespace qgemm

#endif  // QGEMM_TESTS_EMULATOR_PTX_INSTRUCTION_H_
