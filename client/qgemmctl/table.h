#ifndef QGEMM_CLIENT_QGEMMCTL_TABLE_H_
#define QGEMM_CLIENT_QGEMMCTL_TABLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace qgemm {

// A table of text for people: aligned columns, two spaces apart. A column without a single value is left out.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string header;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell per column; "" = no value.
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  size_t rows() const { return rows_.size(); }

  // The header and one line per row, each without trailing spaces and with a line break; "" without rows.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "name  value" lines, the values aligned; entries without a value are left out.
std::string KeyValueLines(const std::vector<std::pair<std::string, std::string>>& entries);

// Number of code points of UTF-8 text: what alignment counts.
size_t DisplayWidth(absl::string_view text);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_TABLE_H_
