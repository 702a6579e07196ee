// Packing speed beside memcpy of the same bytes: GB/s count the canonical bytes read and the packed bytes
// written. CPU is that of all threads.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <string>

#include "kernels/packing.h"

namespace qgemm {
namespace {

CanonicalWeights RandomWeights(int64_t n, int64_t k, const WeightFormat& format) {
  std::mt19937 random(1);
  CanonicalWeights weights;
  weights.n = n;
  weights.k = k;
  weights.format = format;
  weights.codes.resize(n * k);
  for (uint8_t& code : weights.codes) code = random() % (1 << format.bits);
  const int64_t per_group = n * weights.groups();
  const int64_t numbers = format.two_level() ? n * weights.steps() : per_group;
  weights.scales.assign(numbers, 0x3c00);
  if (format.zero_point == ZeroPoint::kInteger) weights.zeros.assign(per_group, 3);
  if (format.zero_point == ZeroPoint::kFloat) weights.offsets.assign(numbers, 0x3c00);
  if (!format.two_level()) return weights;
  weights.scale_codes.assign(per_group, 5);
  if (format.zero_point == ZeroPoint::kFloat) weights.offset_codes.assign(per_group, 7);
  return weights;
}

// Read and written.
int64_t BytesMoved(const CanonicalWeights& weights) {
  const PackedSizes sizes = PackedSizesFor(weights.n, weights.k, weights.format);
  const int64_t rest = sizes.scale_bytes + sizes.zero_bytes + sizes.step_bytes;
  return weights.n * weights.k + sizes.weight_bytes + 2 * rest;
}

void PackWeights(benchmark::State& state, const WeightFormat& format) {
  const CanonicalWeights weights = RandomWeights(state.range(0), state.range(1), format);
  for (auto _ : state) {
    auto packed = Pack(weights);
    benchmark::DoNotOptimize(packed);
  }
  state.SetBytesProcessed(state.iterations() * BytesMoved(weights));
}

// One thread, into memory that is new each time, as Pack's result is.
void CopyOfTheSameBytes(benchmark::State& state, const WeightFormat& format) {
  const CanonicalWeights weights = RandomWeights(state.range(0), state.range(1), format);
  const size_t bytes = BytesMoved(weights) / 2;
  const std::vector<uint8_t> source(bytes, 1);
  for (auto _ : state) {
    std::vector<uint8_t> copy(bytes);
    std::memcpy(copy.data(), source.data(), bytes);
    benchmark::DoNotOptimize(copy.data());
  }
  state.SetBytesProcessed(state.iterations() * bytes * 2);
}

void Register() {
  const ScalarType fp16 = ScalarType::kFp16;
  const WeightFormat formats[] = {
      {4, 128, ScalarType::kBf16, ZeroPoint::kNone},
      {4, 32, fp16, ZeroPoint::kFloat, 2},
      {5, 32, fp16, ZeroPoint::kFloat, 2},
      {6, 16, fp16, ZeroPoint::kNone, 2},
      {6, 16, ScalarType::kBf16, ZeroPoint::kInteger},
      {8, 32, fp16, ZeroPoint::kNone},
      {8, 0, ScalarType::kBf16, ZeroPoint::kNone},
  };
  for (const WeightFormat& format : formats) {
    const std::string name = WeightFormatName(format);
    for (auto* bench : {benchmark::RegisterBenchmark(("Pack/" + name).c_str(), PackWeights, format),
                        benchmark::RegisterBenchmark(("Copy/" + name).c_str(), CopyOfTheSameBytes, format)}) {
      bench->Args({5376, 4096})->Args({6656, 19968})->MeasureProcessCPUTime()->UseRealTime();
    }
  }
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) {
  qgemm::Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
