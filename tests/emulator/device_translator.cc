#include "tests/emulator/device_translator.h"

#include <cctype>
#include <regex>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace qgemm {
namespace {

bool IsWord(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Where the string literal or comment that begins at `i` ends, or `i` if none does.
size_t SkipOpaque(absl::string_view text, size_t i) {
  if (text[i] == '"') {
    for (++i; text[i] != '"'; ++i) {
      if (text[i] == '\\') ++i;
    }
    return i + 1;
  }
  if (text.substr(i, 2) == "//") return std::min(text.find('\n', i), text.size());
  if (text.substr(i, 2) == "/*") return text.find("*/", i) + 2;
  return i;
}

// The end of the parenthesis that opens at `open`: the index of its closing one.
size_t ClosingParenthesis(absl::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (const size_t end = SkipOpaque(text, i); end != i) {
      i = end - 1;
    } else if (text[i] == '(') {
      ++depth;
    } else if (text[i] == ')' && --depth == 0) {
      return i;
    }
  }
  QGEMM_CHECK(false);  // unbalanced: no device source that NVRTC takes
  return text.size();
}

// Parts between separators that stand in no parentheses and no string.
std::vector<std::string> SplitOutside(absl::string_view text, char separator) {
  std::vector<std::string> parts(1);
  for (size_t i = 0; i < text.size(); ++i) {
    size_t end = SkipOpaque(text, i);
    if (end == i && text[i] == '(') end = ClosingParenthesis(text, i) + 1;
    if (end != i) {
      absl::StrAppend(&parts.back(), text.substr(i, end - i));
      i = end - 1;
    } else if (text[i] == separator) {
      parts.emplace_back();
    } else {
      parts.back() += text[i];
    }
  }
  return parts;
}

// `"+f"(d[0])` -> simt_out('f', d[0]).
std::string Operand(absl::string_view text) {
  const size_t quote = text.find('"'), end = text.find('"', quote + 1), open = text.find('(', end);
  const absl::string_view constraint = text.substr(quote + 1, end - quote - 1);
  const absl::string_view value = text.substr(open, ClosingParenthesis(text, open) + 1 - open);
  const bool out = constraint[0] == '=' || constraint[0] == '+';
  return absl::StrCat(out ? "simt_out('" : "simt_in('", constraint.substr(out ? 1 : 0, 1), "', ", value, ")");
}

// What stands between the parentheses of an asm statement -> a block.
std::string AsmBlock(absl::string_view inside) {
  const std::vector<std::string> parts = SplitOutside(inside, ':');
  std::string operands;
  for (size_t i = 1; i < parts.size() && i < 3; ++i) {
    if (absl::StripAsciiWhitespace(parts[i]).empty()) continue;
    for (const std::string& operand : SplitOutside(parts[i], ',')) {
      absl::StrAppend(&operands, Operand(operand), ", ");
    }
  }
  return absl::StrCat("{ static const int simt_i = SimtParse(", parts[0], "); const SimtOperand simt_o[] = {",
                      operands, "{}}; SimtExecute(simt_i, simt_o); }");
}

}  // namespace

std::string TranslateDeviceSource(absl::string_view source, absl::string_view entry) {
  std::string out;
  for (size_t i = 0; i < source.size();) {
    if (const size_t end = SkipOpaque(source, i); end != i) {
      absl::StrAppend(&out, source.substr(i, end - i));
      i = end;
      continue;
    }
    if (source.substr(i, 3) == "asm" && (i == 0 || !IsWord(source[i - 1])) && !IsWord(source[i + 3])) {
      const size_t open = source.find('(', i), close = ClosingParenthesis(source, open);
      absl::StrAppend(&out, AsmBlock(source.substr(open + 1, close - open - 1)));
      i = source.find(';', close) + 1;
      continue;
    }
    out += source[i++];
  }
  out =
      std::regex_replace(out, std::regex(R"(extern\s+__shared__\s+__align__\((\d+)\)\s+(\w+)\s+(\w+)\[\];)"),
                         "$2* const $3 = static_cast<$2*>(SimtDynamicShared($1));");
  // `__shared__ T name[a][b];` and `__shared__ T name;`.
  const std::regex shared(R"(__shared__\s+(\w+)\s+(\w+)((?:\[[^;]*\])?);)");
  int count = 0;
  for (std::smatch match; std::regex_search(out, match, shared); ++count) {
    const std::string name = match[2];
    const std::string type = absl::StrCat("simt_shared_", count);
    out = absl::StrCat(match.prefix().str(), "using ", type, " = ", match[1].str(), match[3].str(), "; ",
                       type, "& ", name, " = *static_cast<", type, "*>(SimtStaticShared(", count, ", sizeof(",
                       type, ")));", match.suffix().str());
  }
  absl::StrAppend(&out, "\nextern \"C\" const int simt_static_count = ", count,
                  ";\nextern \"C\" void simt_run(const unsigned char* parameters) { simt_call(", entry,
                  ", parameters); }\n");
  return out;
}

}  // namespace qgemm
