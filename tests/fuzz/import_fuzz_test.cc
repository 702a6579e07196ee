#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/fuzz/corpus.h"
#include "tests/fuzz/import_input.h"

namespace qgemm {
namespace {

TEST(ImportFuzz, TakesOrRefusesAnyBytes) {
  std::mt19937_64 random(1);
  int accepted = 0;
  int refused = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<uint8_t> input(random() % 1500);
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
    ++(ImportArbitraryLayer(input) ? accepted : refused);
  }
  // Both paths are walked: inputs are neither all broken nor all fine.
  EXPECT_GT(accepted, 2000);
  EXPECT_GT(refused, 2000);
}

TEST(ImportFuzz, HoldsOverTheCorpus) {
  int accepted = 0;
  for (const std::vector<uint8_t>& input : Corpus("import")) accepted += ImportArbitraryLayer(input) ? 1 : 0;
  EXPECT_GT(accepted, 10);
}

}  // namespace
}  // namespace qgemm
