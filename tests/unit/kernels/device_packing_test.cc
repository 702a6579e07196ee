#include "kernels/device_packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "kernels/packing.h"
#include "kernels/support_kernels.h"

namespace qgemm {
namespace {

using ::testing::ElementsAre;

constexpr CanonicalAddresses kFrom = {0x1001, 0x2002, 0x3003, 0x4004, 0x5005, 0x6006};
constexpr PackedAddresses kTo = {0x10000, 0x20000, 0x30000, 0x40000};

std::vector<std::string> Entries(const WeightFormat& format) {
  std::vector<std::string> entries;
  const auto launches = PackLaunches(60, 320, format, kFrom, kTo, 4);
  EXPECT_TRUE(launches.ok()) << launches.status();
  if (!launches.ok()) return entries;
  for (const SupportLaunch& launch : *launches) entries.emplace_back(launch.entry);
  return entries;
}

TEST(DevicePacking, LaunchesOneKernelPerPlaneAndTwoForPairsOfSteps) {
  const ScalarType fp16 = ScalarType::kFp16;
  using support::kPackBytes;
  using support::kPackNumbers;
  using support::kPackWeights;
  EXPECT_THAT(Entries({4, 32, fp16}), ElementsAre(kPackWeights, kPackNumbers));
  EXPECT_THAT(Entries({5, 32, fp16, ZeroPoint::kInteger}),
              ElementsAre(kPackWeights, kPackBytes, kPackNumbers));
  EXPECT_THAT(Entries({6, 32, fp16, ZeroPoint::kFloat}),
              ElementsAre(kPackWeights, kPackNumbers, kPackNumbers));
  EXPECT_THAT(Entries({8, 32, fp16, ZeroPoint::kNone, 2}),
              ElementsAre(kPackWeights, kPackBytes, kPackNumbers));
  EXPECT_THAT(Entries({4, 32, fp16, ZeroPoint::kFloat, 2}),
              ElementsAre(kPackWeights, kPackBytes, kPackNumbers, kPackBytes, kPackNumbers));
}

TEST(DevicePacking, ParametersAreTheEntrysAndPointAtTheirValues) {
  const WeightFormat format{5, 32, ScalarType::kFp16, ZeroPoint::kFloat, 2};
  auto launches = PackLaunches(60, 320, format, kFrom, kTo, 4);
  ASSERT_TRUE(launches.ok()) << launches.status();
  for (SupportLaunch& launch : *launches) {
    for (const support::Entry& entry : support::kEntries) {
      if (std::string(entry.name) == launch.entry) {
        EXPECT_EQ(launch.values.size(), std::strlen(entry.parameter_bytes)) << entry.name;
      }
    }
    const std::vector<void*> params = launch.Params();
    for (size_t i = 0; i < params.size(); ++i) EXPECT_EQ(params[i], &launch.values[i]);
    EXPECT_EQ(launch.threads, support::kThreads);
    EXPECT_LE(launch.grid.x, 4 * 8);
  }
  EXPECT_THAT((*launches)[0].values, ElementsAre(0x1001, 0x10000, 60, 320, 64, 320, 5));
  EXPECT_THAT((*launches)[1].values, ElementsAre(0x5005, 0x20000, 60, 10, 64, 10, 0));
  EXPECT_THAT((*launches)[2].values, ElementsAre(0x2002, 0x40000, 60, 2, 64, 2, 32));
  EXPECT_THAT((*launches)[3].values, ElementsAre(0x6006, 0x30000, 60, 10, 64, 10, 0));
  EXPECT_THAT((*launches)[4].values, ElementsAre(0x4004, 0x40020, 60, 2, 64, 2, 32));
}

TEST(DevicePacking, PaddingOfZeroPointsIsTheCentre) {
  const auto launches = PackLaunches(60, 320, {6, 0, ScalarType::kBf16, ZeroPoint::kInteger}, kFrom, kTo, 4);
  ASSERT_TRUE(launches.ok()) << launches.status();
  EXPECT_THAT((*launches)[1].values, ElementsAre(0x3003, 0x30000, 60, 1, 64, 1, 32));
}

TEST(DevicePacking, NamesWhatIsMissingOrMisplaced) {
  const WeightFormat format{4, 32, ScalarType::kFp16, ZeroPoint::kFloat, 2};
  const auto refusal = [&](const std::function<void(CanonicalAddresses&, PackedAddresses&)>& change) {
    CanonicalAddresses from = kFrom;
    PackedAddresses to = kTo;
    change(from, to);
    const auto launches = PackLaunches(60, 320, format, from, to, 4);
    EXPECT_EQ(launches.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(launches.status().message());
  };
  EXPECT_EQ(refusal([](auto& from, auto&) { from.codes = 0; }), "codes is null: this format has it");
  EXPECT_EQ(refusal([](auto& from, auto&) { from.offset_codes = 0; }),
            "offset_codes is null: this format has it");
  EXPECT_EQ(refusal([](auto& from, auto&) { from.scales = 0x2001; }),
            "scales is at address 8193, which is not a multiple of 2");
  EXPECT_EQ(refusal([](auto&, auto& to) { to.weights = 0x10008; }),
            "packed weights is at address 65544, which is not a multiple of 16");
  EXPECT_EQ(refusal([](auto&, auto& to) { to.steps = 0; }), "packed steps is null: this format has it");
  EXPECT_EQ(PackLaunches(60, 100, format, kFrom, kTo, 4).status().message(),
            "k 100 is not a multiple of group_size 32");
}

}  // namespace
}  // namespace qgemm
