#include "kernels/launch_spec.h"

#include "base/ceil_div.h"
#include "gtest/gtest.h"
#include "kernels/family/family.h"
#include "kernels/packing.h"
#include "kernels/search_space.h"

namespace qgemm {
namespace {

Problem MakeProblem(int64_t n, int64_t k, int group) {
  Problem p;
  p.n = n;
  p.k = k;
  p.signature.format.group_size = group;
  return p;
}

int64_t Constant(const LaunchSpec& spec, const std::string& name) {
  for (const KernelArgument& argument : spec.arguments) {
    if (argument.name == name) return std::get<int64_t>(std::get<IntegerArgument>(argument.kind).value);
  }
  ADD_FAILURE() << "no argument " << name;
  return -1;
}

TEST(LaunchSpec, GridCoversEveryRowAndColumn) {
  const Candidate candidate{ParseConfig("mma_t2_r1_w3x4_s4_b2_slice_post").value(), 1, Reduction::kNone};
  const LaunchSpec spec = MakeLaunchSpec(candidate, MakeProblem(257, 192, 32), 16);
  EXPECT_EQ(spec.tile_m, 16);
  EXPECT_EQ(spec.tile_n, 48);
  EXPECT_EQ(spec.grid_n, 6);
  EXPECT_EQ(spec.Grid(16).x, 1);
  EXPECT_EQ(spec.Grid(17).x, 2);
  EXPECT_EQ(spec.Grid(0).x, 0);
  EXPECT_EQ(spec.Grid(1).z, 1);
  EXPECT_EQ(spec.layout_id, kLayoutId);
}

TEST(LaunchSpec, SlicesAddUpToTheWholeK) {
  for (const int group : {32, 64, 128}) {
    for (const int64_t k : {384, 1152, 6656}) {
      for (const int split : {1, 2, 3}) {
        const Candidate candidate{ParseConfig("mma_t1_r1_w2x4_s4_b2_slice_post").value(), split,
                                  split == 1 ? Reduction::kNone : Reduction::kWorkspace};
        const LaunchSpec spec = MakeLaunchSpec(candidate, MakeProblem(64, k, group), 1);
        const int64_t unit = std::max(64, group);
        EXPECT_EQ(Constant(spec, "units_quotient") * split + Constant(spec, "units_remainder"),
                  (k + unit - 1) / unit);
        EXPECT_LT(Constant(spec, "units_remainder"), split);
        EXPECT_GT(Constant(spec, "units_quotient"), 0);
      }
    }
  }
}

TEST(LaunchSpec, WorkspaceIsTicketsThenPartials) {
  const Candidate split{ParseConfig("mma_t8_r2_w4x1_s4_b1_staged_pre").value(), 3, Reduction::kWorkspace};
  const LaunchSpec spec = MakeLaunchSpec(split, MakeProblem(5376, 4096, 128), 256);
  ASSERT_EQ(spec.grid_n, 42);
  EXPECT_EQ(spec.TicketBytes(65), 512);  // 2 M tiles x 42 N tiles x 4 B, rounded up to 256
  EXPECT_EQ(spec.WorkspaceBytes(65), 512 + 2 * 42 * 3 * 64 * 128 * 4);
  EXPECT_EQ(spec.WorkspaceBytes(0), 0);

  const Candidate whole{split.config, 1, Reduction::kNone};
  EXPECT_EQ(MakeLaunchSpec(whole, MakeProblem(5376, 4096, 128), 256).WorkspaceBytes(200), 0);
}

TEST(LaunchSpec, SharedMemoryCountsOnlyTheBucketsRows) {
  const Candidate candidate{ParseConfig("mma_t1_r1_w2x4_s4_b2_slice_post").value(), 1, Reduction::kNone};
  const Problem p = MakeProblem(5376, 4096, 128);
  const int one = MakeLaunchSpec(candidate, p, 1).dynamic_smem_bytes;
  const int eight = MakeLaunchSpec(candidate, p, 8).dynamic_smem_bytes;
  EXPECT_NEAR(eight - one, 7 * (4096 * 2 + 16), 128);
}

// As device/rows.cuh lays them out: a CTA's own sums, behind them its share's rows of every other slice.
TEST(LaunchSpec, SharedMemoryHoldsWhatAClusterPushes) {
  const DeviceProfile h200 = FindDeviceProfile("h200").value();
  int pushing = 0;
  for (const int bucket : {1, 16, 64, 128, 1024}) {
    for (const Candidate& candidate : LegalCandidates(MakeProblem(1024, 6656, 128), bucket, h200)) {
      const KernelConfig& config = candidate.config;
      if (candidate.reduction != Reduction::kCluster) continue;
      ++pushing;
      const LaunchSpec spec = MakeLaunchSpec(candidate, MakeProblem(1024, 6656, 128), bucket);
      for (int rows = 1; rows <= config.tile_m(); ++rows) {
        const int64_t pushed = (candidate.split_k - 1) * CeilDiv(rows, candidate.split_k);
        const int64_t all = config.warps_k * config.tile_m() + pushed;
        ASSERT_LE(all * (config.tile_n() + 4) * 4, spec.dynamic_smem_bytes)
            << CandidateName(candidate) << " " << rows;
      }
    }
  }
  EXPECT_GT(pushing, 100);
}

// The launch's tile holds all passes; the tensor maps' boxes are one pass's.
TEST(LaunchSpec, PassesMakeFewerAndLargerTilesOfM) {
  const Problem p = MakeProblem(5376, 4096, 128);
  const Candidate two{ParseConfig("wgmma_t22_r1_w2x1_s4_b2_staged_pre_p2").value(), 1, Reduction::kNone};
  Candidate one = two;
  one.config.passes = 1;
  const LaunchSpec spec = MakeLaunchSpec(two, p, 1024), single = MakeLaunchSpec(one, p, 1024);
  EXPECT_EQ(spec.tile_m, 352);
  EXPECT_EQ(spec.tile_n, single.tile_n);
  EXPECT_EQ(single.Grid(1024).x * single.grid_n, 252);
  EXPECT_EQ(spec.Grid(1024).x * spec.grid_n, 126);
  EXPECT_EQ(spec.Grid(352).x, 1);
  EXPECT_EQ(spec.Grid(353).x, 2);
  EXPECT_EQ(spec.block_threads, single.block_threads);
  EXPECT_EQ(spec.WorkspaceBytes(1024), 0);
  EXPECT_EQ(std::get<TensorMapArgument>(spec.arguments[0].kind).box_rows, 176);
}

// CTAs for tails follow those of the tiles; two partial sums and a ticket a tile, however many slices.
TEST(LaunchSpec, TailsHaveCtasOfTheirOwn) {
  const Problem p = MakeProblem(6656, 19968, 128);
  const KernelConfig config = ParseConfig("wgmma_t16_r1_w2x1_s4_b2_staged_pre_tails").value();
  const LaunchSpec spec = MakeLaunchSpec({config, 5, Reduction::kWorkspace}, p, 256);
  EXPECT_EQ(spec.grid_n, 52 + 13);
  EXPECT_EQ(spec.split_k, 1);
  const Dim3 grid = spec.Grid(256);
  EXPECT_EQ(grid.x * grid.y * grid.z, 130);
  EXPECT_EQ(spec.WorkspaceBytes(256), 512 + int64_t{2} * 52 * 2 * 128 * 128 * 4);
  const auto constant = [&](const char* name) {
    for (const KernelArgument& argument : spec.arguments) {
      if (argument.name == name) return std::get<int64_t>(std::get<IntegerArgument>(argument.kind).value);
    }
    return int64_t{-1};
  };
  // Of 156 units the other CTA does 128, and each of 13 x 2 four times 28.
  EXPECT_EQ(constant("tail_units"), 28);
  EXPECT_EQ(constant("tails_per_cta"), 4);
  // The last CTA has fewer.
  EXPECT_EQ(MakeLaunchSpec({config, 4, Reduction::kWorkspace}, p, 256).grid_n, 52 + 18);
}

// As device/wgmma.cuh lays them out: the ring, what a pass leaves to sum up behind its first slots, barriers
// behind both; and no fewer CTAs on an SM for it.
TEST(LaunchSpec, SharedMemoryHoldsTheSumsOfAPassBesideTheSlotsOfTheNext) {
  const DeviceProfile h200 = FindDeviceProfile("h200").value();
  const Problem p = MakeProblem(5376, 4096, 128);
  int several = 0;
  for (const KernelConfig& config : WholeConfigSpace(p.signature, h200)) {
    if (config.passes == 1 && !config.tails) continue;
    ++several;
    SCOPED_TRACE(ConfigName(config));
    KernelConfig single = config;
    single.passes = 1;
    single.tails = false;
    const std::string text = WgmmaFamily().GeneratedSource(config, p.signature);
    const size_t at = text.find("kSlotsAhead = ");
    ASSERT_NE(at, std::string::npos);
    const int ahead = std::stoi(text.substr(at + 14));
    ASSERT_GE(ahead, 1);
    ASSERT_LE(ahead, config.stages);
    const int bytes = MakeLaunchSpec({config, 1, Reduction::kNone}, p, 1024).dynamic_smem_bytes;
    const int alone = MakeLaunchSpec({single, 1, Reduction::kNone}, p, 1024).dynamic_smem_bytes;
    // Activations; codes and scales of int4, group 128, in multiples of 128 bytes; the whole of 1024.
    const int slot = (config.blocks_per_stage * config.tile_m() * 128 +
                      config.tile_n() / 16 * (config.blocks_per_stage * 512 + 32) + 1023) /
                     1024 * 1024;
    const int sums = config.warps_k * config.tile_m() * (config.tile_n() + 4) * 4;
    EXPECT_GE(bytes, std::max(ahead * slot + sums, config.stages * slot) + config.stages * 16 + 8);
    EXPECT_LE(bytes + 16, h200.max_smem_per_block);
    EXPECT_EQ(h200.max_smem_per_sm / (bytes + 1024), h200.max_smem_per_sm / (alone + 1024));
  }
  EXPECT_GT(several, 10);
}

TEST(LaunchSpec, OnlyTheLastBucketIsOpenEnded) {
  const Candidate candidate{ParseConfig("mma_t8_r2_w4x1_s4_b1_staged_pre").value(), 1, Reduction::kNone};
  EXPECT_EQ(MakeLaunchSpec(candidate, MakeProblem(64, 128, 128), 2048).max_m, 2048);
  EXPECT_EQ(MakeLaunchSpec(candidate, MakeProblem(64, 128, 128), 4096).max_m, 0);
}

}  // namespace
}  // namespace qgemm
