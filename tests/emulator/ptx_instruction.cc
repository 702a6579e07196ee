#include "tests/emulator/ptx_instruction.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"

namespace qgemm {
namespace {

PtxValue ParseValue(absl::string_view text) {
  PtxValue value;
  value.name = std::string(text);
  if (absl::StartsWith(text, "%%")) return value;
  if (absl::ConsumePrefix(&text, "%")) {
    value.kind = PtxValue::Kind::kOperand;
    QGEMM_CHECK(absl::SimpleAtoi(text, &value.number));
  } else if (absl::ascii_isdigit(static_cast<unsigned char>(text[0]))) {
    value.kind = PtxValue::Kind::kNumber;
    const bool hex = absl::ConsumePrefix(&text, "0x");
    QGEMM_CHECK(hex ? absl::SimpleHexAtoi(text, &value.number) : absl::SimpleAtoi(text, &value.number));
  }
  return value;
}

}  // namespace

std::vector<PtxInstruction> ParsePtxStatement(absl::string_view text) {
  std::vector<PtxInstruction> instructions;
  const bool waits = absl::StrContains(text, "mbarrier.try_wait");
  std::vector<absl::string_view> locals;
  for (absl::string_view line : absl::StrSplit(text, ';')) {
    line = absl::StripAsciiWhitespace(line);
    // Braces around the whole statement, and labels.
    while (absl::ConsumePrefix(&line, "{") || absl::ConsumePrefix(&line, "}")) {
      line = absl::StripLeadingAsciiWhitespace(line);
    }
    if (waits) {
      const size_t at = line.find("mbarrier.try_wait");
      if (at == absl::string_view::npos) continue;
      line = line.substr(at);
    }
    if (absl::ConsumePrefix(&line, ".reg .b64 ") || absl::ConsumePrefix(&line, ".reg .b32 ")) {
      for (const absl::string_view name : absl::StrSplit(line, ", ")) locals.push_back(name);
      continue;
    }
    if (line.empty() || absl::StartsWith(line, ".reg")) continue;
    PtxInstruction instruction;
    if (absl::ConsumePrefix(&line, "@")) {
      const size_t end = line.find(' ');
      instruction.guard = std::string(line.substr(0, end));
      line = absl::StripLeadingAsciiWhitespace(line.substr(end));
    }
    const size_t space = std::min(line.find(' '), line.size());
    instruction.name = std::string(line.substr(0, space));
    const std::string rest = absl::StrReplaceAll(
        line.substr(space), {{"{", " "}, {"}", " "}, {"[", " "}, {"]", " "}, {"\n", " "}});
    for (absl::string_view part : absl::StrSplit(rest, ',')) {
      part = absl::StripAsciiWhitespace(part);
      if (part.empty()) continue;
      instruction.values.push_back(ParseValue(part));
      const auto local = std::find(locals.begin(), locals.end(), part);
      if (local == locals.end()) continue;
      instruction.values.back().kind = PtxValue::Kind::kLocal;
      instruction.values.back().number = local - locals.begin();
    }
    instructions.push_back(std::move(instruction));
  }
  return instructions;
}

}  // namespace qgemm
