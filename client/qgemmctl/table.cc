#include "client/qgemmctl/table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace qgemm {
namespace {

void AppendLine(std::string line, std::string& out) {
  absl::StripTrailingAsciiWhitespace(&line);
  absl::StrAppend(&out, line, "\n");
}

}  // namespace

size_t DisplayWidth(absl::string_view text) {
  // Continuation bytes are 0b10xxxxxx.
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

void Table::AddRow(std::vector<std::string> cells) {
  QGEMM_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  if (rows_.empty()) return "";
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (widths[i] == 0) continue;
      const size_t width = std::max(widths[i], DisplayWidth(columns_[i].header));
      const std::string& cell = cell_of(i);
      const std::string padding(width - DisplayWidth(cell), ' ');
      const bool right = columns_[i].align == Align::kRight;
      absl::StrAppend(&text, text.empty() ? "" : "  ", right ? padding : "", cell, right ? "" : padding);
    }
    return text;
  };
  std::string out;
  AppendLine(line([&](size_t i) -> const std::string& { return columns_[i].header; }), out);
  for (const auto& row : rows_) {
    AppendLine(line([&](size_t i) -> const std::string& { return row[i]; }), out);
  }
  return out;
}

std::string KeyValueLines(const std::vector<std::pair<std::string, std::string>>& entries) {
  size_t width = 0;
  for (const auto& [key, value] : entries) width = std::max(width, DisplayWidth(key));
  std::string out;
  for (const auto& [key, value] : entries) {
    if (value.empty()) continue;
    AppendLine(absl::StrCat(key, std::string(width + 2 - DisplayWidth(key), ' '), value), out);
  }
  return out;
}

}  // namespace qgemm
