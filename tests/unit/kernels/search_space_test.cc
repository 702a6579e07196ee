#include "kernels/search_space.h"

#include <algorithm>
#include <map>
#include <set>

#include "gtest/gtest.h"
#include "kernels/bucket.h"
#include "kernels/legality.h"

namespace qgemm {
namespace {

Problem MakeProblem(int64_t n, int64_t k, int group = 128) {
  Problem p;
  p.n = n;
  p.k = k;
  p.signature.format.group_size = group;
  return p;
}

TEST(SearchSpace, OffersAtLeastSixtyCandidatesForEveryBucketOnEveryProfile) {
  for (const DeviceProfile& device : DeviceProfiles()) {
    for (const int bucket : BucketLadder()) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5376, 4096}, {1024, 6656}, {6656, 19968}}) {
        EXPECT_GE(LegalCandidates(MakeProblem(n, k), bucket, device).size(), 60u)
            << device.name << " bucket " << bucket << " " << n << "x" << k;
      }
    }
  }
}

TEST(SearchSpace, OffersSomethingForEveryAwkwardProblem) {
  const DeviceProfile device = FindDeviceProfile("h200").value();
  for (const int64_t n : {1, 17, 257, 262208}) {
    for (const int64_t k : {32, 96, 192, 7392, 21504}) {
      for (const int bucket : BucketLadder()) {
        const Problem p = MakeProblem(n, k, 32);
        EXPECT_FALSE(LegalCandidates(p, bucket, device).empty()) << n << "x" << k << " bucket " << bucket;
      }
    }
  }
}

TEST(SearchSpace, OffersFamilyMmaForInt8ActivationsOfEveryShape) {
  for (const DeviceProfile& device : DeviceProfiles()) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{17, 96}, {5376, 4096}, {6656, 19968}, {5376, 21504}, {262208, 5376}}) {
      for (const int bucket : BucketLadder()) {
        Problem p = MakeProblem(n, k, 32);
        p.signature.quantization = ActivationQuantization::kInt8;
        const std::vector<Candidate> candidates = LegalCandidates(p, bucket, device);
        EXPECT_FALSE(candidates.empty()) << device.name << " " << n << "x" << k << " bucket " << bucket;
        for (const Candidate& c : candidates) {
          EXPECT_EQ(c.config.family, Family::kMma);
          EXPECT_EQ(c.config.scale, ScaleMode::kPost);
        }
      }
    }
  }
}

TEST(SearchSpace, ListsOnlyLegalCandidatesInOrderWithoutRepeats) {
  const DeviceProfile device = FindDeviceProfile("l40s").value();
  const Problem p = MakeProblem(8448, 6656);
  for (const int bucket : BucketLadder()) {
    const std::vector<Candidate> candidates = LegalCandidates(p, bucket, device);
    EXPECT_TRUE(std::is_sorted(candidates.begin(), candidates.end()));
    EXPECT_EQ(std::adjacent_find(candidates.begin(), candidates.end()), candidates.end());
    for (const Candidate& c : candidates) {
      EXPECT_TRUE(IsLegal(c, p, bucket, device).ok()) << CandidateName(c) << IsLegal(c, p, bucket, device);
    }
  }
}

TEST(SearchSpace, OffersPassesWhereTilesAreMoreThanAWave) {
  const DeviceProfile device = FindDeviceProfile("h200").value();
  const auto with_passes = [&](const Problem& p, int bucket) {
    std::set<std::string> names;
    for (const Candidate& c : LegalCandidates(p, bucket, device)) {
      if (c.config.passes == 1) continue;
      EXPECT_EQ(c.split_k, 1);
      names.insert(ConfigName(c.config));
    }
    return names;
  };
  // 42 x 6 tiles on 132 SMs are 42 x 3 CTAs of two passes; of 66 x 6 tiles, 66 x 2 of three.
  EXPECT_EQ(with_passes(MakeProblem(5376, 4096), 1024).count("wgmma_t22_r1_w2x1_s4_b2_staged_pre_p2"), 1u);
  EXPECT_EQ(with_passes(MakeProblem(8448, 6656), 1024).count("wgmma_t22_r1_w2x1_s4_b2_staged_pre_p3"), 1u);
  EXPECT_FALSE(with_passes(MakeProblem(8448, 6656), 4096).empty());
  // Few tiles are left to CTAs of their own.
  EXPECT_TRUE(with_passes(MakeProblem(1024, 6656), 1024).empty());
  EXPECT_TRUE(with_passes(MakeProblem(262208, 5376), 128).empty());
  int several = 0;
  const std::vector<KernelConfig> whole = WholeConfigSpace(MakeProblem(1, 128).signature, device);
  for (const KernelConfig& config : whole) several += config.passes > 1 ? 1 : 0;
  EXPECT_GT(several, 0);
  EXPECT_LT(several * 20, static_cast<int>(whole.size()));
}

// As many tokens as registers allow: device/wgmma.cuh moves some of the producers' to them.
TEST(SearchSpace, OffersFourWarpgroupsBeyond64Tokens) {
  const DeviceProfile device = FindDeviceProfile("h200").value();
  std::map<int, int> threads;  // by token tiles
  for (const KernelConfig& config : WholeConfigSpace(MakeProblem(1, 128).signature, device)) {
    if (config.family != Family::kWgmma || config.epilogue_threads() != 512) continue;
    threads[config.token_tiles] = config.threads();
  }
  ASSERT_FALSE(threads.empty());
  EXPECT_EQ(threads.rbegin()->first, 12);
  for (const auto& [tiles, count] : threads) EXPECT_EQ(count, tiles > 8 ? 640 : 576) << tiles;
}

TEST(SearchSpace, OffersTailsWhereSomeSmsWouldIdle) {
  const DeviceProfile device = FindDeviceProfile("h200").value();
  const auto with_tails = [&](const Problem& p, int bucket) {
    std::set<std::string> names;
    for (const Candidate& c : LegalCandidates(p, bucket, device)) {
      if (c.config.tails) names.insert(CandidateName(c));
    }
    return names;
  };
  // 52 x 2 tiles of 128 x 128 leave 28 of 132 SMs idle.
  EXPECT_EQ(with_tails(MakeProblem(6656, 19968), 256)
                .count("wgmma_t16_r1_w2x1_s4_b2_staged_pre_tails/k5/workspace"),
            1u);
  EXPECT_TRUE(with_tails(MakeProblem(6656, 4096), 256).empty());   // K too short
  EXPECT_TRUE(with_tails(MakeProblem(8448, 19968), 256).empty());  // 132 tiles
  EXPECT_TRUE(with_tails(MakeProblem(4096, 19968), 256).empty());  // 64 tiles
  EXPECT_TRUE(with_tails(MakeProblem(6656, 19968), 64).empty());   // small tiles
}

TEST(SearchSpace, ConfigsDoNotDependOnTheShape) {
  const DeviceProfile device = FindDeviceProfile("h200").value();
  const KernelSignature signature = MakeProblem(1, 128).signature;
  const std::vector<KernelConfig> whole = WholeConfigSpace(signature, device);
  EXPECT_TRUE(std::is_sorted(whole.begin(), whole.end()));
  for (const int bucket : BucketLadder()) {
    for (const KernelConfig& config : ConfigSpace(signature, bucket, device)) {
      EXPECT_TRUE(std::binary_search(whole.begin(), whole.end(), config)) << ConfigName(config);
    }
  }
}

TEST(SearchSpace, NamesOfAWholeSpaceAreUniqueAndParseBack) {
  const DeviceProfile device = FindDeviceProfile("h200").value();
  std::set<std::string> names;
  for (const KernelConfig& config : WholeConfigSpace(MakeProblem(1, 128).signature, device)) {
    EXPECT_TRUE(names.insert(ConfigName(config)).second) << ConfigName(config);
    const auto parsed = ParseConfig(ConfigName(config));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, config);
  }
}

}  // namespace
}  // namespace qgemm
