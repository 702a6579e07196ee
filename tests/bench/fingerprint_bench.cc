// Fingerprinting speed on the CPU beside reading and copying the same bytes.
#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/fingerprint.h"

namespace qgemm {
namespace {

constexpr int64_t kBytes = int64_t{256} << 20;  // larger than any cache

std::vector<uint8_t> Bytes() {
  std::vector<uint8_t> bytes(kBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 131 + (i >> 12));
  return bytes;
}

void FingerprintBytes(benchmark::State& state) {
  const std::vector<uint8_t> bytes = Bytes();
  for (auto _ : state) benchmark::DoNotOptimize(FingerprintOf(bytes, static_cast<int>(state.range(0))));
  state.SetBytesProcessed(state.iterations() * kBytes);
}

// Sum of 8-byte words: what one thread can read.
void ReadBytes(benchmark::State& state) {
  const std::vector<uint8_t> bytes = Bytes();
  const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
  for (auto _ : state) benchmark::DoNotOptimize(std::accumulate(words, words + kBytes / 8, uint64_t{0}));
  state.SetBytesProcessed(state.iterations() * kBytes);
}

BENCHMARK(FingerprintBytes)->Arg(1)->Arg(2)->Arg(8)->UseRealTime();
BENCHMARK(ReadBytes)->UseRealTime();

}  // namespace
}  // namespace qgemm

BENCHMARK_MAIN();
