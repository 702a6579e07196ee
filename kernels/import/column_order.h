#ifndef QGEMM_KERNELS_IMPORT_COLUMN_ORDER_H_
#define QGEMM_KERNELS_IMPORT_COLUMN_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/import/import_tensor.h"

namespace qgemm {

// How the columns of a file are sorted so that every group is a run of columns.
struct ColumnOrder {
  std::vector<int32_t> permutation;  // [k], canonical column j is the file's permutation[j]; empty: identity
  std::vector<int32_t> file_groups;  // [groups], which of the file's groups is canonical group i
};

// Without a group index: group i holds columns i * group_size and on.
ColumnOrder GroupsInOrder(int64_t k, int64_t group_size);

// From a group index `g_idx` [k] (int32) of a file with `file_groups` groups: columns sorted by group, those
// of one group in the file's order. A shard of a layer may use only some of the groups. InvalidArgument for
// an index outside [0, file_groups), and where the columns do not sort into groups of `group_size` (only the
// last may be shorter): such a shard has no canonical form.
[[nodiscard]] absl::StatusOr<ColumnOrder> OrderByGroupIndex(const ImportTensor& g_idx, int64_t k,
                                                            int64_t group_size, int64_t file_groups);

// Sorts every row of `codes` [n][k] in place.
void PermuteColumns(const std::vector<int32_t>& permutation, int64_t n, std::vector<uint8_t>* codes);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_IMPORT_COLUMN_ORDER_H_
