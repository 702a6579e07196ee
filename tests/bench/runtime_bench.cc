// What a launch through the runtime costs on the CPU beyond the driver's own: selection, arguments, tensor
// maps, against a device that does nothing. And a repeated access report.
#include <benchmark/benchmark.h>

#include "base/check.h"
#include "base/digest.h"
#include "client/runtime/bundle_runtime.h"
#include "client/runtime/prepared_kernel.h"
#include "kernels/access_memo.h"
#include "kernels/bucket.h"
#include "tests/unit/client/sample_bundle.h"

namespace qgemm {
namespace {

class NoDevice final : public LaunchDevice {
 public:
  const std::string& arch() const override { return arch_; }
  const DeviceProfile& profile() const override { return profile_; }
  absl::StatusOr<LaunchFunction> LoadKernel(absl::string_view, const std::string&, int) override {
    return this;
  }
  absl::StatusOr<uint64_t> Allocate(int64_t) override { return 0x100000; }
  absl::StatusOr<uint64_t> AllocateForGraph(int64_t, void*) override { return 0x100000; }
  void Free(uint64_t) override {}
  absl::Status CopyIn(uint64_t, absl::string_view) override { return absl::OkStatus(); }
  absl::Status CopyOut(uint64_t, absl::Span<char>) override { return absl::OkStatus(); }
  absl::Status EncodeTensorMap(const TensorMapShape& shape, absl::Span<std::byte> out) override {
    out[0] = static_cast<std::byte>(shape.rows);
    return absl::OkStatus();
  }
  absl::Status Launch(const LaunchCall& call) override {
    benchmark::DoNotOptimize(call.params);
    return absl::OkStatus();
  }

 private:
  const std::string arch_ = "sm_90a";
  const DeviceProfile profile_ = FindDeviceProfile("h200").value();
};

void Select(benchmark::State& state) {
  const std::vector<int> buckets(BucketLadder().begin(), BucketLadder().end());
  int64_t m = 1;
  for (auto _ : state) {
    benchmark::DoNotOptimize(SelectBucket(buckets, m));
    m = m * 5 % 8191;  // 1 to 8190 in no order
  }
}
BENCHMARK(Select);

// A runtime's whole selection. `tuned`: every how many buckets of the ladder the layer has a pick for; the
// others are those of three more layers.
void SelectInRuntime(benchmark::State& state, size_t tuned) {
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b");
  BundleMethod method;
  method.name = "some";
  method.layers = {{"q", SampleProblem(), "", {}}};
  for (const int64_t n : {192, 256, 1024}) {
    method.layers.push_back({absl::StrCat("n", n), {n, 256, {}}, "", {}});
  }
  for (size_t i = 0; i < BucketLadder().size(); ++i) {
    const int bucket = BucketLadder()[i];
    for (BundleLayer& layer : method.layers) {
      if (tuned > 1 && (i % tuned == tuned - 1) != (layer.name == "q")) continue;
      layer.picks.push_back(
          SamplePick(bucket, bucket <= 8 ? kMmaConfig : kWgmmaConfig, bucket <= 8 ? 2 : 1, layer.problem));
    }
  }
  const auto runtime = LoadRuntime(Bundle::Open(folder / "b").value(), method, std::make_unique<NoDevice>());
  QGEMM_CHECK_OK(runtime.status());
  int64_t m = 1;
  int64_t similar = 0;
  for (auto _ : state) {
    const auto selected = (*runtime)->Select(0, m);
    similar += selected->is_similar ? 1 : 0;
    m = m * 5 % 8191;
  }
  state.counters["similar"] = static_cast<double>(similar) / static_cast<double>(state.iterations());
}
BENCHMARK_CAPTURE(SelectInRuntime, by_bucket, 1);
BENCHMARK_CAPTURE(SelectInRuntime, by_similarity, 4);

void Launch(benchmark::State& state, const char* config, int split_k) {
  NoDevice device;
  const auto parsed = ParseConfig(config);
  QGEMM_CHECK_OK(parsed.status());
  const Problem problem{5376, 4096, {}};
  const Candidate candidate{*parsed, split_k, split_k > 1 ? Reduction::kWorkspace : Reduction::kNone};
  const auto kernel = PreparedKernel::Create(MakeLaunchSpec(candidate, problem, 16), &device, device);
  QGEMM_CHECK_OK(kernel.status());
  LaunchOperands operands;
  operands.ldx = 4096;
  operands.ldy = 5376;
  operands.x = 0x1000;
  operands.weights = 0x2000;
  operands.scales = 0x3000;
  operands.y = 0x4000;
  operands.workspace = 0x5000;
  int64_t m = 1;
  for (auto _ : state) {
    operands.m = 1 + (m++ & 7);
    benchmark::DoNotOptimize((*kernel)->Launch(operands, nullptr, false));
  }
}
BENCHMARK_CAPTURE(Launch, pointers, "mma_t1_r1_w3x4_s4_b2_slice_post", 2);
BENCHMARK_CAPTURE(Launch, tensor_maps, "wgmma_t2_r1_w3x1_s8_b2_staged_pre", 2);

void RepeatedAccessReport(benchmark::State& state) {
  AccessMemo memo;
  const std::string kernel = Sha256Hex("kernel");
  std::vector<CallArgument> call;
  for (int i = 0; i < 7; ++i) call.push_back(CallArgument::Pointer(1, 0x1000));
  for (int i = 0; i < 7; ++i) call.push_back(CallArgument::Scalar(3, 4096 + i));
  for (auto _ : state) {
    benchmark::DoNotOptimize(memo.Get(kernel, call, [] { return AccessReport(); }));
  }
}
BENCHMARK(RepeatedAccessReport);

}  // namespace
}  // namespace qgemm

BENCHMARK_MAIN();
