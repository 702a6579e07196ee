#include "kernels/import/column_order.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/ceil_div.h"
#include "base/status_macros.h"

namespace qgemm {

ColumnOrder GroupsInOrder(int64_t k, int64_t group_size) {
  ColumnOrder order;
  order.file_groups.resize(CeilDiv(k, group_size));
  std::iota(order.file_groups.begin(), order.file_groups.end(), 0);
  return order;
}

absl::StatusOr<ColumnOrder> OrderByGroupIndex(const ImportTensor& g_idx, int64_t k, int64_t group_size,
                                              int64_t file_groups) {
  QGEMM_RETURN_IF_ERROR(
      CheckTensorShape(g_idx, {k}, {ElementType::kInt32}, absl::StrCat("for ", k, " columns")));
  std::vector<int64_t> columns(file_groups);
  for (int64_t column = 0; column < k; ++column) {
    const int32_t group = g_idx.I32(column);
    if (group < 0 || group >= file_groups) {
      return BadElement(g_idx, column, group, absl::StrCat("in 0 to ", file_groups - 1));
    }
    ++columns[group];
  }

  ColumnOrder order;
  std::vector<int64_t> next(file_groups);  // where the next column of a group goes
  int64_t placed = 0;
  for (int64_t group = 0; group < file_groups; ++group) {
    if (columns[group] == 0) continue;
    next[group] = placed;
    placed += columns[group];
    order.file_groups.push_back(static_cast<int32_t>(group));
    if (columns[group] != group_size && (columns[group] > group_size || placed != k)) {
      return absl::InvalidArgumentError(
          absl::StrCat(g_idx.Describe(), " puts ", columns[group], " columns into group ", group,
                       ": sorted columns form groups only if each has ", group_size,
                       " (the last may have fewer). A shard of an act-order layer cut along K has this "
                       "fault: import the whole "
                       "layer instead"));
    }
  }

  order.permutation.resize(k);
  for (int64_t column = 0; column < k; ++column) {
    order.permutation[next[g_idx.I32(column)]++] = static_cast<int32_t>(column);
  }
  if (std::is_sorted(order.permutation.begin(), order.permutation.end())) order.permutation.clear();
  return order;
}

void PermuteColumns(const std::vector<int32_t>& permutation, int64_t n, std::vector<uint8_t>* codes) {
  if (permutation.empty()) return;
  const int64_t k = static_cast<int64_t>(permutation.size());
  std::vector<uint8_t> source(k);
  for (int64_t row = 0; row < n; ++row) {
    uint8_t* target = codes->data() + row * k;
    std::copy_n(target, k, source.data());
    for (int64_t column = 0; column < k; ++column) target[column] = source[permutation[column]];
  }
}

}  // namespace qgemm
