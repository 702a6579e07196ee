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

// As many codes are held as the noise says; one that was pushed out costs again, the same each time.
TEST(ReplayDevice, CodeOfOthersPushesAKernelsCodeOut) {
  NoiseModel noise;
  noise.slow_drift = noise.fast_drift = noise.jitter = noise.jitter_us = noise.outliers = 0;
  noise.company_us = 1;
  noise.codes_held = 2;
  SimulatedClock clock;
  ReplayDevice device(noise, 1, &clock);
  const auto time_of = [&](const std::string& code) {
    const double before = device.busy_us();
    EXPECT_TRUE(device.Kernel(10, 1, code)().ok());
    return device.busy_us() - before;
  };
  const double cold = time_of("a");
  EXPECT_GT(cold, 10.4);
  EXPECT_LT(cold, 11.6);
  EXPECT_DOUBLE_EQ(time_of("a"), 10);
  time_of("b");
  EXPECT_DOUBLE_EQ(time_of("a"), 10);
  time_of("b");
  time_of("c");
  EXPECT_NEAR(time_of("a"), cold, 1e-9);
}

}  // namespace
}  // namespace qgemm
