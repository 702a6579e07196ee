#include "tests/unit/kernels/import/import_test_data.h"

#include <algorithm>

namespace qgemm {

std::vector<int32_t> RandomGroupIndex(int64_t k, int64_t group_size, uint64_t seed) {
  std::vector<int64_t> order(k);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return StreamWord(seed, a) < StreamWord(seed, b); });
  std::vector<int32_t> g_idx(k);
  for (int64_t j = 0; j < k; ++j) g_idx[order[j]] = static_cast<int32_t>(j / group_size);
  return g_idx;
}

}  // namespace qgemm
