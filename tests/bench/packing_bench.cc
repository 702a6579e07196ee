// Packing speed beside memcpy of the same bytes: GB/s count the canonical codes read and the packed codes
// written.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>

#include "kernels/packing.h"

namespace qgemm {
namespace {

CanonicalWeights RandomWeights(int64_t n, int64_t k) {
  std::mt19937 random(1);
  CanonicalWeights weights;
  weights.n = n;
  weights.k = k;
  weights.codes.resize(n * k);
  for (uint8_t& code : weights.codes) code = random() % 16;
  weights.scales.assign(n * (k / weights.format.group_size), 0x3c00);
  return weights;
}

void PackWeights(benchmark::State& state) {
  const CanonicalWeights weights = RandomWeights(state.range(0), state.range(1));
  for (auto _ : state) {
    auto packed = Pack(weights);
    benchmark::DoNotOptimize(packed);
  }
  state.SetBytesProcessed(state.iterations() * (weights.n * weights.k * 3 / 2));
}

// One thread, into memory that is new each time, as Pack's result is.
void CopyOfTheSameBytes(benchmark::State& state) {
  const CanonicalWeights weights = RandomWeights(state.range(0), state.range(1));
  const size_t bytes = weights.codes.size() * 3 / 4;
  for (auto _ : state) {
    std::vector<uint8_t> copy(bytes);
    std::memcpy(copy.data(), weights.codes.data(), bytes);
    benchmark::DoNotOptimize(copy.data());
  }
  state.SetBytesProcessed(state.iterations() * bytes * 2);
}

BENCHMARK(PackWeights)->Args({1024, 6656})->Args({5376, 4096})->Args({6656, 19968})->UseRealTime();
BENCHMARK(CopyOfTheSameBytes)->Args({1024, 6656})->Args({5376, 4096})->Args({6656, 19968})->UseRealTime();

}  // namespace
}  // namespace qgemm

BENCHMARK_MAIN();
