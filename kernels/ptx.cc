#include "kernels/ptx.h"

#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

bool IsNameStart(char c) {
  return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
}
bool IsNamePart(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$'; }

// Reads a module's text from front to back. Comments count as white space.
class Reader {
 public:
  explicit Reader(absl::string_view text) : text_(text) {}

  bool done() const { return at_ >= text_.size(); }
  size_t at() const { return at_; }
  char peek() const { return text_[at_]; }
  absl::string_view text(size_t begin, size_t end) const {
    return absl::StripAsciiWhitespace(text_.substr(begin, end - begin));
  }
  void Seek(size_t at) { at_ = at; }

  void SkipSpace() {
    while (!done()) {
      if (absl::ascii_isspace(static_cast<unsigned char>(peek()))) {
        ++at_;
      } else if (!SkipComment()) {
        return;
      }
    }
  }
  // True when a comment stood here and was skipped.
  bool SkipComment() {
    if (text_.substr(at_, 2) == "//") {
      SkipLine();
      return true;
    }
    if (text_.substr(at_, 2) == "/*") {
      const size_t end = text_.find("*/", at_ + 2);
      at_ = end == absl::string_view::npos ? text_.size() : end + 2;
      return true;
    }
    return false;
  }
  void SkipLine() {
    const size_t end = text_.find('\n', at_);
    at_ = end == absl::string_view::npos ? text_.size() : end + 1;
  }
  // Up to `stop` outside of comments and quotes; false when the text ends before.
  bool SkipTo(char stop) {
    while (!done()) {
      if (SkipComment()) continue;
      if (peek() == stop) return true;
      if (peek() == '"') {
        const size_t end = text_.find('"', at_ + 1);
        at_ = end == absl::string_view::npos ? text_.size() : end;
      }
      ++at_;
    }
    return false;
  }
  absl::string_view ReadName() {
    const size_t begin = at_;
    while (!done() && (IsNamePart(peek()) || (at_ == begin && IsNameStart(peek())))) ++at_;
    return text_.substr(begin, at_ - begin);
  }

 private:
  absl::string_view text_;
  size_t at_ = 0;
};

std::vector<absl::string_view> SplitOperands(absl::string_view text) {
  std::vector<absl::string_view> operands;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '[' || c == '{' || c == '(') ++depth;
    if (c == ']' || c == '}' || c == ')') --depth;
    if (c != ',' || (depth > 0 && i < text.size())) continue;
    const absl::string_view operand = absl::StripAsciiWhitespace(text.substr(begin, i - begin));
    if (!operand.empty()) operands.push_back(operand);
    begin = i + 1;
  }
  return operands;
}

// ".param .align 64 .b8 name[128]", ".param .u64 .ptr .global .align 16 name".
absl::StatusOr<PtxParameter> ParseParameter(absl::string_view text) {
  PtxParameter parameter;
  int element_bytes = 0;
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
  for (size_t i = 0; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (word == ".align" && i + 1 < words.size()) {
      if (!absl::SimpleAtoi(words[++i], &parameter.alignment)) parameter.alignment = 0;
    } else if (absl::ConsumePrefix(&word, ".")) {
      int bits = 0;
      if (element_bytes == 0 && word.size() >= 2 && absl::SimpleAtoi(word.substr(1), &bits)) {
        element_bytes = bits / 8;
      }
    } else {
      parameter.name = word.substr(0, word.find('['));
      int count = 1;
      const size_t open = word.find('[');
      if (open != absl::string_view::npos &&
          !absl::SimpleAtoi(word.substr(open + 1, word.find(']') - open - 1), &count)) {
        count = 0;
      }
      const int64_t bytes = int64_t{element_bytes} * count;
      parameter.bytes = bytes <= std::numeric_limits<int>::max() ? static_cast<int>(bytes) : 0;
    }
  }
  if (parameter.name.empty() || parameter.bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("PTX parameter \"", text, "\" has no name or no size"));
  }
  return parameter;
}

// The position behind "(" of the entry's parameter list.
absl::StatusOr<size_t> FindEntry(absl::string_view ptx, absl::string_view entry) {
  for (size_t at = ptx.find(".entry"); at != absl::string_view::npos; at = ptx.find(".entry", at + 1)) {
    Reader reader(ptx);
    reader.Seek(at + 6);
    reader.SkipSpace();
    if (reader.ReadName() != entry) continue;
    reader.SkipSpace();
    if (!reader.done() && (reader.peek() == '(' || reader.peek() == '{')) return reader.at();
  }
  return absl::NotFoundError(absl::StrCat("the PTX has no entry '", entry, "'"));
}

// One instruction without its ";": predicate, opcode, operands.
PtxInstruction ParseInstruction(absl::string_view text) {
  if (absl::StartsWith(text, "@")) {
    const size_t end = text.find_first_of(" \t\n");
    text = end == absl::string_view::npos ? absl::string_view()
                                          : absl::StripLeadingAsciiWhitespace(text.substr(end));
  }
  const size_t end = text.find_first_of(" \t\r\n");
  PtxInstruction instruction;
  instruction.opcode = text.substr(0, end);
  if (end != absl::string_view::npos) instruction.operands = SplitOperands(text.substr(end));
  return instruction;
}

// The body's statements up to the brace that closes it.
absl::Status ParseBody(Reader& reader, PtxEntry& out) {
  int depth = 0;
  while (true) {
    reader.SkipSpace();
    if (reader.done()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the PTX of entry '", out.name, "' ends within its body"));
    }
    const char c = reader.peek();
    if (c == '{' || c == '}' || c == ';') {  // a scope; braces of operands stand inside a statement
      reader.Seek(reader.at() + 1);
      if (c == '{') ++depth;
      if (c == '}' && --depth == 0) return absl::OkStatus();
      continue;
    }
    const size_t begin = reader.at();
    if (c == '.') {  // a directive: a declaration up to ";", or a line of debug information
      reader.Seek(begin + 1);
      const absl::string_view word = reader.ReadName();
      if (word == "loc" || word == "file") {
        reader.SkipLine();
      } else {
        reader.SkipTo(';');
      }
      continue;
    }
    reader.ReadName();
    const size_t end = reader.at();
    reader.SkipSpace();
    if (end > begin && !reader.done() && reader.peek() == ':') {  // a label
      reader.Seek(reader.at() + 1);
      continue;
    }
    reader.Seek(begin);
    if (!reader.SkipTo(';')) continue;
    out.instructions.push_back(ParseInstruction(reader.text(begin, reader.at())));
    if (out.instructions.back().opcode.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the PTX of entry '", out.name, "' has a predicate without an instruction"));
    }
  }
}

}  // namespace

absl::StatusOr<PtxEntry> ParsePtxEntry(absl::string_view ptx, absl::string_view entry) {
  QGEMM_ASSIGN_OR_RETURN(const size_t at, FindEntry(ptx, entry));
  PtxEntry out;
  out.name = entry;
  Reader reader(ptx);
  reader.Seek(at);
  if (reader.peek() == '(') {
    const size_t begin = at + 1;
    if (!reader.SkipTo(')')) {
      return absl::InvalidArgumentError(absl::StrCat("the parameters of PTX entry '", entry, "' do not end"));
    }
    for (const absl::string_view text : SplitOperands(reader.text(begin, reader.at()))) {
      QGEMM_ASSIGN_OR_RETURN(PtxParameter parameter, ParseParameter(text));
      out.parameters.push_back(parameter);
    }
  }
  if (!reader.SkipTo('{')) {
    return absl::InvalidArgumentError(absl::StrCat("PTX entry '", entry, "' has no body"));
  }
  QGEMM_RETURN_IF_ERROR(ParseBody(reader, out));
  return out;
}

std::vector<absl::string_view> PtxOpcodeParts(absl::string_view opcode) {
  return absl::StrSplit(opcode, '.');
}

std::vector<absl::string_view> PtxNames(absl::string_view operand) {
  std::vector<absl::string_view> names;
  for (size_t i = 0; i < operand.size();) {
    const size_t begin = i;
    if (IsNameStart(operand[i])) {
      ++i;
      while (i < operand.size() && IsNamePart(operand[i])) ++i;
      names.push_back(operand.substr(begin, i - begin));
    } else if (IsNamePart(operand[i]) || operand[i] == '.') {  // a number, or what follows a name's dot
      ++i;
      while (i < operand.size() && (IsNamePart(operand[i]) || operand[i] == '.')) ++i;
    } else {
      ++i;
    }
  }
  return names;
}

}  // namespace qgemm
