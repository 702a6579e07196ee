#include "kernels/kernel_config.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace qgemm {
namespace {

KernelConfig RandomConfig(std::mt19937& random) {
  std::uniform_int_distribution<int> small(1, 16);
  KernelConfig config;
  config.token_tiles = small(random);
  config.row_tiles = small(random);
  config.warps_n = small(random);
  config.warps_k = small(random);
  config.stages = small(random);
  config.blocks_per_stage = small(random);
  config.activations = random() % 2 == 0 ? ActivationPath::kSlice : ActivationPath::kStaged;
  config.scale = random() % 2 == 0 ? ScaleMode::kPre : ScaleMode::kPost;
  if (random() % 2 == 0) {
    config.family = Family::kWgmma;
    config.activations = ActivationPath::kStaged;
    config.passes = 1 + random() % 3;
    config.tails = config.passes == 1 && random() % 2 == 0;
  }
  return config;
}

TEST(KernelConfig, PrintsEveryField) {
  const KernelConfig config{Family::kMma, 1, 2, 4, 2, 4, 2, ActivationPath::kSlice, ScaleMode::kPost};
  EXPECT_EQ(ConfigName(config), "mma_t1_r2_w4x2_s4_b2_slice_post");
  const KernelConfig other{Family::kMma, 16, 1, 1, 16, 3, 1, ActivationPath::kStaged, ScaleMode::kPre};
  EXPECT_EQ(ConfigName(other), "mma_t16_r1_w1x16_s3_b1_staged_pre");
  KernelConfig passes{Family::kWgmma, 22, 1, 2, 1, 4, 2, ActivationPath::kStaged, ScaleMode::kPre};
  EXPECT_EQ(ConfigName(passes), "wgmma_t22_r1_w2x1_s4_b2_staged_pre");
  passes.passes = 2;
  EXPECT_EQ(ConfigName(passes), "wgmma_t22_r1_w2x1_s4_b2_staged_pre_p2");
  passes.passes = 1;
  passes.tails = true;
  EXPECT_EQ(ConfigName(passes), "wgmma_t22_r1_w2x1_s4_b2_staged_pre_tails");
}

TEST(KernelConfig, DerivesTileAndThreads) {
  const KernelConfig config{Family::kMma, 2, 2, 4, 3, 4, 2, ActivationPath::kSlice, ScaleMode::kPost};
  EXPECT_EQ(config.tile_m(), 16);
  EXPECT_EQ(config.tile_n(), 128);
  EXPECT_EQ(config.threads(), 384);
  const KernelConfig passes = ParseConfig("wgmma_t22_r1_w2x1_s4_b2_staged_pre_p3").value();
  EXPECT_EQ(passes.tile_m(), 176);
  EXPECT_EQ(passes.launch_tile_m(), 528);
}

TEST(KernelConfig, NameRoundTrips) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const KernelConfig config = RandomConfig(random);
    const auto parsed = ParseConfig(ConfigName(config));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, config);
  }
}

TEST(KernelConfig, ParserRefusesWhatIsNotPrinted) {
  for (const char* text : {"",
                           "mma",
                           "wgmma_t1_r2_w4x2_s4_b2_slice_post",

                           "mma_t0_r2_w4x2_s4_b2_slice_post",
                           "mma_t01_r2_w4x2_s4_b2_slice_post",
                           "mma_t-1_r2_w4x2_s4_b2_slice_post",
                           "mma_t1_r2_w4_s4_b2_slice_post",
                           "mma_t1_r2_w4x2_s4_b2_slice",
                           "mma_t1_r2_w4x2_s4_b2_slice_post ",
                           " mma_t1_r2_w4x2_s4_b2_slice_post",
                           "mma_t99999999999_r2_w4x2_s4_b2_slice_post",
                           "MMA_t1_r2_w4x2_s4_b2_slice_post",
                           "wgmma_t1_r2_w4x2_s4_b2_staged_pre_p0",
                           "wgmma_t1_r2_w4x2_s4_b2_staged_pre_p1",
                           "wgmma_t1_r2_w4x2_s4_b2_staged_pre_p02",
                           "wgmma_t1_r2_w4x2_s4_b2_staged_pre_p",
                           "wgmma_t1_r2_w4x2_s4_b2_staged_pre_p2_p2",
                           "wgmma_t1_r2_w4x2_s4_b2_staged_p2_pre",
                           "mma_t1_r2_w4x2_s4_b2_slice_post_p2",
                           "mma_t1_r2_w4x2_s4_b2_staged_pre_tails",
                           "wgmma_t1_r2_w4x1_s4_b2_staged_pre_p2_tails",
                           "wgmma_t1_r2_w4x1_s4_b2_staged_pre_tails_p2",
                           "mma_t1_r2_w4x2_s4_b2_staged_pre_p2",
                           "mma_t1_r2_w4x2_s4_b2_sliced_post",
                           "mma_t1_r2_w4x2_s4_b2_slice_post/k4/workspace"}) {
    const auto parsed = ParseConfig(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(parsed.status().message().find("mma_t1_r2_w4x2_s4_b2_slice_post (token tiles"),
              std::string::npos);
  }
}

TEST(KernelConfig, ParserSurvivesMutatedNames) {
  std::mt19937 random(11);
  std::uniform_int_distribution<int> byte(0, 255);
  for (int i = 0; i < 20000; ++i) {
    std::string text = ConfigName(RandomConfig(random));
    const int edits = 1 + random() % 3;
    for (int e = 0; e < edits && !text.empty(); ++e) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(byte(random));
          break;
        case 1:
          text.erase(at, 1 + random() % 4);
          break;
        default:
          text.insert(at, 1, static_cast<char>(byte(random)));
      }
    }
    const auto parsed = ParseConfig(text);
    if (parsed.ok()) {
      EXPECT_EQ(ConfigName(*parsed), text);
    }
  }
}

TEST(KernelConfig, OrderIsTotal) {
  std::mt19937 random(3);
  std::vector<KernelConfig> configs;
  std::set<std::string> names;
  for (int i = 0; i < 60; ++i) configs.push_back(RandomConfig(random));
  for (const KernelConfig& a : configs) {
    for (const KernelConfig& b : configs) {
      EXPECT_EQ((a < b) + (b < a) + (a == b), 1);
      EXPECT_EQ(a == b, ConfigName(a) == ConfigName(b));
      for (const KernelConfig& c : configs) {
        if (a < b && b < c) {
          EXPECT_LT(a, c);
        }
      }
    }
  }
}

TEST(Candidate, NamesItsRunTimeChoices) {
  Candidate candidate;
  candidate.config = {Family::kMma, 1, 2, 4, 2, 4, 2, ActivationPath::kSlice, ScaleMode::kPost};
  candidate.split_k = 4;
  candidate.reduction = Reduction::kWorkspace;
  EXPECT_EQ(CandidateName(candidate), "mma_t1_r2_w4x2_s4_b2_slice_post/k4/workspace");
  EXPECT_EQ(ReductionName(Reduction::kNone), "none");
}

TEST(Candidate, OrdersByConfigThenSplitThenReduction) {
  Candidate a, b;
  b.split_k = 2;
  EXPECT_LT(a, b);
  b.config.stages = a.config.stages - 1;
  EXPECT_LT(b, a);
  b = a;
  b.reduction = Reduction::kWorkspace;
  EXPECT_LT(a, b);
}

}  // namespace
}  // namespace qgemm
