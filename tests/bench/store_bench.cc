// What the store costs: synced writes and checked reads on the disk that holds the temporary directory.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "cache/rocksdb_store.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

// An open store in a directory of its own.
struct Store {
  Store() {
    auto opened = RocksDbStore::Open(directory.store());
    if (opened.ok()) store = *std::move(opened);
  }
  // Ends the benchmark with an error instead of timing failures.
  bool Usable(benchmark::State& state) const {
    if (store == nullptr) state.SkipWithError("the store cannot be opened");
    return store != nullptr;
  }

  TemporaryDirectory directory;
  std::unique_ptr<RocksDbStore> store;
};

void Check(benchmark::State& state, bool ok) {
  if (!ok) state.SkipWithError("the store failed");
}

void PutKernel(benchmark::State& state) {
  Store store;
  if (!store.Usable(state)) return;
  int64_t i = 0;
  for (auto _ : state) {
    state.PauseTiming();
    const internal::KernelRecord kernel = Kernel(absl::StrCat(i), Noise(state.range(0), i));
    ++i;
    state.ResumeTiming();
    Check(state, store.store->PutKernel(kernel).ok());
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(PutKernel)->Arg(2'000)->Arg(50'000)->Arg(300'000)->UseRealTime()->Unit(benchmark::kMicrosecond);

void GetKernel(benchmark::State& state) {
  Store store;
  if (!store.Usable(state)) return;
  constexpr int kKernels = 64;
  std::vector<std::string> keys;
  for (int i = 0; i < kKernels; ++i) {
    keys.push_back(Key(absl::StrCat(i)));
    Check(state, store.store->PutKernel(Kernel(absl::StrCat(i), Noise(state.range(0), i))).ok());
  }
  size_t i = 0;
  for (auto _ : state) Check(state, store.store->GetKernel(keys[i++ % kKernels]).ok());
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(GetKernel)->Arg(50'000)->Arg(300'000)->Unit(benchmark::kMicrosecond);

// One pick with the timings of its candidates.
void PutPick(benchmark::State& state) {
  Store store;
  if (!store.Usable(state)) return;
  int64_t i = 0;
  for (auto _ : state) {
    state.PauseTiming();
    std::vector<internal::TimingRecord> timings;
    for (int64_t j = 0; j < state.range(0); ++j) timings.push_back(TimingOf(absl::StrCat(i, ".", j), 1.0));
    const internal::PickRecord pick = PickOf(absl::StrCat(i), "k");
    ++i;
    state.ResumeTiming();
    Check(state, store.store->PutPick(pick, timings).ok());
  }
}
BENCHMARK(PutPick)->Arg(0)->Arg(300)->UseRealTime()->Unit(benchmark::kMicrosecond);

void GetPick(benchmark::State& state) {
  Store store;
  if (!store.Usable(state)) return;
  constexpr int kPicks = 1000;
  std::vector<std::string> keys;
  for (int i = 0; i < kPicks; ++i) {
    keys.push_back(Key(absl::StrCat(i)));
    Check(state, store.store->PutPick(PickOf(absl::StrCat(i), "k"), {}).ok());
  }
  size_t i = 0;
  for (auto _ : state) Check(state, store.store->GetPick(keys[i++ % kPicks]).ok());
}
BENCHMARK(GetPick)->Unit(benchmark::kMicrosecond);

// What `cache ls` reads: all kernels' metadata, no blob.
void VisitKernels(benchmark::State& state) {
  Store store;
  if (!store.Usable(state)) return;
  for (int64_t i = 0; i < state.range(0); ++i) {
    Check(state, store.store->PutKernel(Kernel(absl::StrCat(i), Noise(5'000, i))).ok());
  }
  for (auto _ : state) {
    int64_t bytes = 0;
    Check(state, store.store
                     ->VisitKernels([&](const v1::KernelInfo& info) {
                       bytes += info.cubin_bytes();
                       return true;
                     })
                     .ok());
    benchmark::DoNotOptimize(bytes);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(VisitKernels)->Arg(10'000)->Iterations(10)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace qgemm

BENCHMARK_MAIN();
