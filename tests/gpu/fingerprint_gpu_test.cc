// Fingerprints of the GPU beside those of the CPU, one-bit changes among a GiB, and speed beside reading.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/fingerprint.h"
#include "tests/gpu/gpu_test.h"

namespace qgemm {
namespace {

constexpr int kCtasPerSm = 8;

class FingerprintGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto module = device().Load(CompileHere(FingerprintKernelSource(), arch()));
    ASSERT_TRUE(module.ok()) << module.status();
    module_ = *std::move(module);
    kernel_ = module_->Find(kFingerprintEntry, 0).value();
    table_ = Upload(FingerprintTable(FingerprintKey::Standard()));
    sums_ = Upload(std::vector<uint64_t>(4));
  }

  // Puts the kernel on the stream; `bytes` a multiple of 16.
  void Launch(uint64_t address, int64_t bytes) {
    int64_t units = bytes / 16;
    uint64_t table = table_->address();
    uint64_t sums = sums_->address();
    uint64_t radix0 = FingerprintKey::Standard().radix(0);
    uint64_t radix1 = FingerprintKey::Standard().radix(1);
    void* params[] = {&address, &units, &table, &radix0, &radix1, &sums};
    ASSERT_TRUE(device().SetBytes(sums, 0, 32).ok());
    const Dim3 grid{device().sm_count() * kCtasPerSm, 1, 1};
    const absl::Status launched = device().Launch(*kernel_, grid, kFingerprintThreads, 0, params, 1);
    ASSERT_TRUE(launched.ok()) << launched;
  }
  std::array<uint64_t, 2> Hash(uint64_t address, int64_t bytes) {
    Launch(address, bytes);
    const std::vector<uint64_t> sums = Download<uint64_t>(sums_->address(), 4);
    return HashFromSums({sums[0], sums[1], sums[2], sums[3]});
  }

  std::unique_ptr<DeviceModule> module_;
  std::unique_ptr<DeviceKernel> kernel_;
  std::unique_ptr<DeviceMemory> table_, sums_;
};

std::vector<uint64_t> RandomWords(int64_t count) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> words(count);
  for (uint64_t& word : words) word = random();
  return words;
}

TEST_F(FingerprintGpuTest, IsThatOfTheCpu) {
  for (int64_t bytes : {16, 4096, 4112, 1 << 20, (5 << 20) + 48, 300 << 20}) {
    if (SmallMode() && bytes > 1 << 23) continue;
    const std::vector<uint64_t> words = RandomWords(bytes / 8);
    const auto memory = Upload(words);
    const auto on_cpu = FingerprintOf({reinterpret_cast<const uint8_t*>(words.data()), words.size() * 8}, 8);
    EXPECT_EQ(Hash(memory->address(), bytes), on_cpu.hash) << bytes;
  }
}

TEST_F(FingerprintGpuTest, CatchesOneBitAndPairsOfSignBitsInAGibibyte) {
  const int64_t bytes = SmallMode() ? 1 << 20 : 1 << 30;
  const int trials = SmallMode() ? 10 : 1000;
  const std::vector<uint64_t> words = RandomWords(bytes / 8);
  const auto memory = Upload(words);
  const auto before = Hash(memory->address(), bytes);
  std::mt19937_64 random(2);
  int caught_bits = 0;
  int caught_pairs = 0;
  const auto write = [&](size_t index, uint64_t value) {
    const std::vector<uint64_t> one = {value};
    ASSERT_TRUE(device().Write(memory->address() + index * 8, AsBytes(one)).ok());
  };
  for (int trial = 0; trial < trials; ++trial) {
    const size_t a = random() % words.size();
    write(a, words[a] ^ uint64_t{1} << random() % 64);
    caught_bits += Hash(memory->address(), bytes) != before ? 1 : 0;
    const size_t b = (a + 1 + random() % (words.size() - 1)) % words.size();
    write(a, words[a] ^ uint64_t{1} << 63);
    write(b, words[b] ^ uint64_t{1} << 63);
    caught_pairs += Hash(memory->address(), bytes) != before ? 1 : 0;
    write(a, words[a]);
    write(b, words[b]);
  }
  std::printf("caught: %d of %d single bits, %d of %d pairs of sign bits, in %lld bytes\n", caught_bits,
              trials, caught_pairs, trials, static_cast<long long>(bytes));
  EXPECT_EQ(caught_bits, trials);
  EXPECT_EQ(caught_pairs, trials);
  EXPECT_EQ(Hash(memory->address(), bytes), before);
}

TEST_F(FingerprintGpuTest, RunsAtAQuarterOfTheMemoryBandwidth) {
  if (SmallMode()) GTEST_SKIP() << "speed is not measured under a sanitizer";
  const int64_t bytes = int64_t{4} << 30;  // far above any L2
  auto memory = device().Allocate(bytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE(device().SetBytes((*memory)->address(), 0x5a, bytes).ok());
  double fastest_us = 0;
  for (int trial = 0; trial < 6; ++trial) {  // the first ones ramp the clocks up
    ASSERT_TRUE(device().RecordEvent(0).ok());
    Launch((*memory)->address(), bytes);
    ASSERT_TRUE(device().RecordEvent(1).ok());
    ASSERT_TRUE(device().Synchronize().ok());
    const auto elapsed = device().ElapsedMicroseconds(0, 1);
    ASSERT_TRUE(elapsed.ok()) << elapsed.status();
    if (trial == 0 || *elapsed < fastest_us) fastest_us = *elapsed;
  }
  const double gb_per_s = bytes / fastest_us / 1e3;
  const std::string line = absl::StrCat("fingerprint of 4 GiB: ", fastest_us, " us, ", gb_per_s,
                                        " GB/s, memory ", profile().dram_gb_per_s, " GB/s\n");
  std::fputs(line.c_str(), stdout);
  WriteResult("fingerprint.txt", line);
  EXPECT_GT(gb_per_s, 0.25 * profile().dram_gb_per_s);
}

}  // namespace
}  // namespace qgemm
