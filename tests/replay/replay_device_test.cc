#include "tests/replay/replay_device.h"

#include <gtest/gtest.h>

namespace qgemm {
namespace {

// The medians of a true 10 us kernel scatter as the noise says, around its own bias.
TEST(ReplayDevice, SamplesScatterAroundTheTruth) {
  NoiseModel noise;
  noise.slow_drift = noise.fast_drift = 0;
  SimulatedClock clock;
  ReplayDevice device(noise, 1, &clock);
  const auto samples = SampleCold(device, device.Flush(), device.Kernel(10, 1.01), 1e9);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_NEAR(CenterOf(samples->us).us, 10.1, 0.06);
  EXPECT_GT(Summarize(samples->us).spread, 0.03);
  EXPECT_GT(device.busy_us(), 50 * 40);
}

}  // namespace
}  // namespace qgemm
