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

// The code (row, column) of a padded weight goes where the B fragment of an m16n8k16 MMA wants it: within 16
// columns, lane 4 (row % 8) + (column % 8) / 2 holds it as value 2 (column / 8) + column % 2 of four. A word
// holds two such fragments of four; its eight values v stand at nibbles 0 2 4 6 | 1 3 5 7 -> v0 v4 v1 v5 v2
// v6 v3 v7 by position.
std::vector<uint32_t> PackInt4Tiles(const std::vector<uint8_t>& codes, int64_t n, int64_t k,
                                    int64_t inner_k_tiles) {
  std::vector<uint32_t> words(n * k / 8);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const int64_t k_tile = column / 16;
      const int64_t lane = row % 8 * 4 + column % 8 / 2;
      const int64_t value = k_tile % 2 * 4 + column % 16 / 8 * 2 + column % 2;
      const int64_t nibble = value / 2 + value % 2 * 4;
      const int64_t outer = k_tile / inner_k_tiles;
      const int64_t word = ((row / 8 * (k / 16 / inner_k_tiles) + outer) * 32 + lane) * (inner_k_tiles / 2) +
                           k_tile % inner_k_tiles / 2;
      words[word] |= uint32_t{codes[row * k + column]} << (4 * nibble);
    }
  }
  return words;
}

}  // namespace qgemm
