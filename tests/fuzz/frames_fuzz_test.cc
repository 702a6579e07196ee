#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/fuzz/corpus.h"
#include "tests/fuzz/frames_input.h"
#include "tests/fuzz/quiet.h"

namespace qgemm {
namespace {

TEST(FramesFuzz, HoldsOverTheCorpus) {
  SilenceLogs();
  int taken = 0;
  for (const std::vector<uint8_t>& input : Corpus("frames")) taken += ReadArbitraryFrames(input) > 0 ? 1 : 0;
  EXPECT_GE(taken, 20);
}

TEST(FramesFuzz, HoldsOverInputsNearTheCorpus) {
  SilenceLogs();
  std::mt19937_64 random(1);
  const std::vector<std::vector<uint8_t>> corpus = Corpus("frames");
  ASSERT_FALSE(corpus.empty());
  int taken = 0;
  constexpr int kTrials = 4000;
  for (int trial = 0; trial < kTrials; ++trial) {
    taken += ReadArbitraryFrames(Mutated(corpus[random() % corpus.size()], random)) > 0 ? 1 : 0;
  }
  // Both paths are walked: inputs are neither all broken nor all fine.
  EXPECT_GT(taken, kTrials / 20);
  EXPECT_LT(taken, kTrials);
}

}  // namespace
}  // namespace qgemm
