// Every config of the space, verified: on the shape of a tuning against the GPU reference, and a sample of
// them on awkward shapes against fp64 on the CPU. QGEMM_GPU_SMALL=1: one shape per bucket, few configs.
// QGEMM_TEST_OUT=folder: figures as JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "kernels/cuda/launch.h"
#include "kernels/legality.h"
#include "kernels/packing.h"
#include "kernels/reference_gemm.h"
#include "kernels/search_space.h"
#include "server/runner/problem_data.h"
#include "server/runner/verifier.h"
#include "tests/gpu/gpu_test.h"
#include "tests/kernel_cases/kernel_case.h"

namespace qgemm {
namespace {

// Failures described one by one; the rest is counted.
constexpr int kMostToldOf = 20;

KernelSignature Signature(ScalarType type, int group, ZeroPoint zero, bool bias) {
  KernelSignature signature;
  signature.act = signature.out = type;
  signature.format = {4, group, type, zero};
  signature.epilogue.bias = bias;
  return signature;
}

// Each format, type, zero point and epilogue at least once.
std::vector<KernelSignature> Signatures() {
  return {
      Signature(ScalarType::kBf16, 128, ZeroPoint::kNone, false),
      Signature(ScalarType::kFp16, 128, ZeroPoint::kInteger, true),
      Signature(ScalarType::kBf16, 64, ZeroPoint::kInteger, false),
      Signature(ScalarType::kFp16, 64, ZeroPoint::kNone, true),
      Signature(ScalarType::kBf16, 32, ZeroPoint::kNone, true),
      Signature(ScalarType::kFp16, 32, ZeroPoint::kInteger, false),
      Signature(ScalarType::kBf16, 128, ZeroPoint::kInteger, true),
      Signature(ScalarType::kFp16, 32, ZeroPoint::kNone, false),
      Signature(ScalarType::kFp16, 128, ZeroPoint::kNone, false),
  };
}

// What was seen of one test, for people and for RESULTS.
struct Tally {
  int configs = 0;
  int candidates = 0;
  int failed = 0;
  double worst_error = 0;
  double seconds = 0;

  void Print(const std::string& name) const {
    std::printf("%s: %d configs, %d candidates, %d failed, largest error %.2e, %.1f s\n", name.c_str(),
                configs, candidates, failed, worst_error, seconds);
    WriteResult(absl::StrCat("candidate_test.", name, ".json"),
                absl::StrCat("{\"test\":\"", name, "\",\"configs\":", configs, ",\"candidates\":", candidates,
                             ",\"failed\":", failed, ",\"worst_error\":", worst_error,
                             ",\"seconds\":", seconds, "}"));
  }
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(RealClock().Now() - begin_).count(); }

 private:
  TimePoint begin_ = RealClock().Now();
};

// `count` elements spread over the list, the first and the last among them.
template <typename T>
std::vector<T> Spread(const std::vector<T>& all, size_t count) {
  if (all.size() <= count) return all;
  std::vector<T> some;
  for (size_t i = 0; i < count; ++i) some.push_back(all[count == 1 ? 0 : i * (all.size() - 1) / (count - 1)]);
  return some;
}

class CandidateTest : public GpuTest {
 protected:
  // Modules of the configs for a signature, compiled together.
  std::map<KernelConfig, std::unique_ptr<DeviceModule>> Compile(const std::set<KernelConfig>& configs,
                                                                const KernelSignature& signature) {
    std::vector<KernelSource> sources;
    for (const KernelConfig& config : configs) sources.push_back(RenderKernelSource(config, signature));
    const std::vector<std::string> cubins = CompileAll(sources, arch());
    std::map<KernelConfig, std::unique_ptr<DeviceModule>> modules;
    size_t i = 0;
    for (const KernelConfig& config : configs) {
      if (const std::string& cubin = cubins[i++]; !cubin.empty()) {
        auto module = device().Load(cubin);
        EXPECT_TRUE(module.ok()) << ConfigName(config) << ": " << module.status();
        if (module.ok()) modules[config] = *std::move(module);
      }
    }
    return modules;
  }

  absl::Status EncodeTensorMaps(ArgumentBlock& arguments) {
    return FillTensorMaps(arguments, [this](const TensorMapShape& shape, absl::Span<std::byte> out) {
      return device().EncodeTensorMap(shape, out);
    });
  }
};

// On the data and by the judge of a real tuning. 2064 is no multiple of any tile but 16.
class TunedShape : public CandidateTest, public testing::WithParamInterface<int> {};

TEST_P(TunedShape, CandidatesAreRightAndRepeatBitwise) {
  const int index = GetParam();
  const KernelSignature signature = Signatures()[index];
  // All candidates of the first signature; of the others every third config, a different third each, with one
  // split.
  const bool all = index == 0 && !SmallMode();
  const Stopwatch stopwatch;
  Problem problem;
  problem.n = 2064;
  problem.k = 4096;
  problem.signature = signature;

  std::map<int, std::vector<Candidate>> by_bucket;
  std::set<KernelConfig> configs;
  int turn = index;
  for (const int bucket : BucketLadder()) {
    const std::vector<Candidate> legal = LegalCandidates(problem, bucket, profile());
    EXPECT_FALSE(legal.empty()) << "bucket " << bucket;
    std::vector<Candidate> chosen;
    if (all) {
      chosen = legal;
    } else if (SmallMode()) {
      chosen = Spread(legal, 2);
    } else {
      std::map<KernelConfig, std::vector<Candidate>> splits;
      for (const Candidate& candidate : legal) splits[candidate.config].push_back(candidate);
      for (const auto& [config, candidates] : splits) {
        if (turn++ % 3 == 0) chosen.push_back(candidates[turn / 3 % candidates.size()]);
      }
    }
    for (const Candidate& candidate : chosen) configs.insert(candidate.config);
    by_bucket[bucket] = chosen;
  }
  const auto modules = Compile(configs, signature);
  const double compile_seconds = stopwatch.seconds();
  std::printf("compiled %zu configs in %.1f s\n", configs.size(), compile_seconds);

  Tally tally;
  tally.configs = static_cast<int>(configs.size());
  ProblemData data(&device());
  for (const auto& [bucket, candidates] : by_bucket) {
    ASSERT_TRUE(data.Prepare(support(), problem, bucket, 1).ok());
    for (const Candidate& candidate : candidates) {
      const auto module = modules.find(candidate.config);
      if (module == modules.end()) continue;
      const std::string name = absl::StrCat(CandidateName(candidate), " M ", bucket);
      const LaunchSpec spec = MakeLaunchSpec(candidate, problem, bucket);
      auto kernel = module->second->Find(spec.entry, spec.dynamic_smem_bytes);
      ASSERT_TRUE(kernel.ok()) << name << ": " << kernel.status();
      LaunchOperands operands = data.Operands();
      if (const int64_t bytes = spec.WorkspaceBytes(bucket); bytes > 0) {
        ASSERT_TRUE(data.ReserveWorkspace(bytes).ok());
        operands.workspace = data.workspace().address();
      }
      auto arguments = MarshalArguments(spec, operands);
      ASSERT_TRUE(arguments.ok()) << name << ": " << arguments.status();
      ASSERT_TRUE(EncodeTensorMaps(*arguments).ok()) << name;
      const std::vector<void*> params = arguments->Params();
      const Dim3 grid = spec.Grid(bucket);
      const auto verdict = VerifyCandidate(device(), support(), data, spec, ToleranceFor(signature), [&] {
        return device().Launch(**kernel, grid, spec.block_threads, spec.dynamic_smem_bytes, params,
                               spec.cluster_z);
      });
      ++tally.candidates;
      // After a sticky error nothing works any more.
      ASSERT_TRUE(verdict.ok()) << name << ": " << verdict.status();
      tally.worst_error = std::max(tally.worst_error, verdict->relative_error);
      if (verdict->ok()) continue;
      if (++tally.failed <= kMostToldOf) ADD_FAILURE() << name << ": " << verdict->reason;
    }
  }
  tally.seconds = stopwatch.seconds();
  tally.Print("tuned-shape." + SignatureName(signature));
  EXPECT_GT(tally.candidates, 0);
  EXPECT_EQ(tally.failed, 0);
}

std::string ParamName(const KernelSignature& signature) {
  std::string name = SignatureName(signature);
  for (char& c : name) {
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

std::string SignatureParamName(const testing::TestParamInfo<int>& info) {
  return ParamName(Signatures()[info.param]);
}

INSTANTIATE_TEST_SUITE_P(Signatures, TunedShape, testing::Range(0, 9), SignatureParamName);

// Awkward shapes with their own data, made and packed on the CPU: nothing of the support kernels is involved.
// Rows of X and Y are further apart than they need be, and what lies between must neither be read into a
// result (it is NaN) nor be written.
class AwkwardShape : public CandidateTest, public testing::WithParamInterface<int> {
 protected:
  static constexpr int64_t kGuard = 512;  // elements before and after Y

  struct Data : KernelCase {
    std::unique_ptr<DeviceMemory> x, weights, scales, zeros, steps, bias, residual, y, workspace;
  };

  // `inputs`, [max_m][k], replaces the normal X.
  Data MakeData(const KernelShape& shape, const KernelSignature& signature, int64_t max_m,
                const std::vector<double>* inputs = nullptr) {
    Data data{MakeKernelCase(shape, signature, max_m, inputs)};
    data.x = Upload(data.x_numbers);
    data.weights = Upload(data.packed.weights);
    data.scales = Upload(data.packed.scales);
    if (!data.packed.zeros.empty()) data.zeros = Upload(data.packed.zeros);
    if (!data.packed.steps.empty()) data.steps = Upload(data.packed.steps);
    if (!data.bias_numbers.empty()) data.bias = Upload(data.bias_numbers);
    if (!data.residual_numbers.empty()) data.residual = Upload(data.residual_numbers);
    data.y = device().Allocate((max_m * data.ldy + 2 * kGuard) * ScalarBytes(signature.out)).value();
    data.workspace = device().Allocate(kMaxWorkspaceBytes).value();
    return data;
  }

  // Runs the candidate once into an output of bytes 0xff, NaN in every type, and returns all of it, guards
  // included.
  absl::StatusOr<std::vector<uint8_t>> RunOnce(Data& data, DeviceModule& module, const LaunchSpec& spec,
                                               int64_t m) {
    const auto address = [](const std::unique_ptr<DeviceMemory>& memory) {
      return memory != nullptr ? memory->address() : uint64_t{0};
    };
    const int element = ScalarBytes(data.problem.signature.out);
    LaunchOperands operands;
    operands.m = m;
    operands.ldx = data.ldx;
    operands.ldy = data.ldy;
    operands.ldr = data.residual != nullptr ? data.ldr : 0;
    operands.x = address(data.x);
    operands.weights = address(data.weights);
    operands.scales = address(data.scales);
    operands.zeros = address(data.zeros);
    operands.steps = address(data.steps);
    operands.bias = address(data.bias);
    operands.residual = address(data.residual);
    operands.y = address(data.y) + kGuard * element;
    operands.workspace = spec.WorkspaceBytes(m) > 0 ? data.workspace->address() : 0;
    QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceKernel> kernel,
                           module.Find(spec.entry, spec.dynamic_smem_bytes));
    QGEMM_ASSIGN_OR_RETURN(ArgumentBlock arguments, MarshalArguments(spec, operands));
    QGEMM_RETURN_IF_ERROR(EncodeTensorMaps(arguments));
    QGEMM_RETURN_IF_ERROR(device().SetBytes(data.y->address(), 0xff, data.y->bytes()));
    if (const int64_t bytes = spec.WorkspaceBytes(m); bytes > 0) {
      const int64_t tickets = spec.TicketBytes(m);
      QGEMM_RETURN_IF_ERROR(device().SetBytes(data.workspace->address() + tickets, 0xff, bytes - tickets));
    }
    QGEMM_RETURN_IF_ERROR(device().Launch(*kernel, spec.Grid(m), spec.block_threads, spec.dynamic_smem_bytes,
                                          arguments.Params(), spec.cluster_z));
    std::vector<uint8_t> output((m * data.ldy + 2 * kGuard) * element);
    QGEMM_RETURN_IF_ERROR(device().ReadBack(
        data.y->address(), absl::MakeSpan(reinterpret_cast<std::byte*>(output.data()), output.size())));
    return output;
  }
};

TEST_P(AwkwardShape, AgreesWithFp64AndKeepsItsBounds) {
  const KernelSignature signature = FormatSignatures()[GetParam()];
  const int group = signature.format.group_size;
  // Odd N where an epilogue allows it; K that ends within a block of 64, or within 256 k of a two-level
  // scale.
  const int64_t short_k = group == 0 ? 200 : group < 64 ? 3 * group : group == 256 ? 512 : 3 * group;
  const int64_t odd = signature.epilogue.gated ? 0 : 1;
  std::vector<KernelShape> shapes = {
      {16 + odd, short_k}, {256 + odd, 2 * short_k + std::max(8, group)}, {80, 6656}};
  const std::vector<int64_t> all_rows = {1, 2, 3, 7, 8, 9, 16, 17, 33, 63, 64, 65, 128, 257, 2001};
  std::vector<int64_t> rows = all_rows;
  if (SmallMode()) {
    shapes.resize(2);
    rows = {1, 3, 9, 17, 33, 65, 128};
  }
  const size_t per_bucket = SmallMode() ? 1 : GetParam() == 0 ? 12 : 3;
  const Stopwatch stopwatch;

  // Which candidates on which rows; then one compile of all their configs.
  struct Run {
    size_t shape;
    int64_t m;
    Candidate candidate;
  };
  std::vector<Run> runs;
  std::set<KernelConfig> configs;
  for (size_t s = 0; s < shapes.size(); ++s) {
    const Problem problem = {shapes[s].n, shapes[s].k, signature};
    for (const int64_t m : rows) {
      if (m > 257 && s != 1) continue;  // the reference takes its time
      const int bucket = BucketFor(m);
      const std::vector<KernelConfig> space = ConfigSpace(signature, bucket, profile());
      std::vector<KernelConfig> chosen = Spread(space, per_bucket);
      const auto tails =
          std::find_if(space.begin(), space.end(), [](const KernelConfig& c) { return c.tails; });
      if (tails != space.end()) chosen.push_back(*tails);  // few, and of short K never tuned
      for (const KernelConfig& config : chosen) {
        for (const int split : {1, 2, 3, 5}) {
          for (const Reduction reduction : {Reduction::kNone, Reduction::kWorkspace, Reduction::kCluster}) {
            const Candidate candidate = {config, split, reduction};
            if (!IsLegal(candidate, problem, bucket, profile()).ok()) continue;
            if (SmallMode() && split > 2) continue;
            runs.push_back({s, m, candidate});
            configs.insert(config);
          }
        }
      }
    }
  }
  ASSERT_FALSE(runs.empty());
  const auto modules = Compile(configs, signature);
  std::printf("compiled %zu configs in %.1f s\n", configs.size(), stopwatch.seconds());

  Tally tally;
  tally.configs = static_cast<int>(configs.size());
  for (size_t s = 0; s < shapes.size(); ++s) {
    const int64_t most_rows = s == 1 ? rows.back() : std::min<int64_t>(257, rows.back());
    Data data = MakeData(shapes[s], signature, most_rows);
    for (const Run& run : runs) {
      if (run.shape != s || !modules.contains(run.candidate.config)) continue;
      const std::string name =
          absl::StrCat(ProblemName(data.problem), " ", CandidateName(run.candidate), " M ", run.m);
      const LaunchSpec spec = MakeLaunchSpec(run.candidate, data.problem, BucketFor(run.m));
      DeviceModule& module = *modules.at(run.candidate.config);
      if (const int64_t tickets = spec.TicketBytes(run.m); tickets > 0) {
        ASSERT_TRUE(device().SetBytes(data.workspace->address(), 0, tickets).ok());
      }
      const auto first = RunOnce(data, module, spec, run.m);
      ASSERT_TRUE(first.ok()) << name << ": " << first.status();
      const auto second = RunOnce(data, module, spec, run.m);
      ASSERT_TRUE(second.ok()) << name << ": " << second.status();
      ++tally.candidates;
      std::string violation;
      const double error = JudgeOutput(data, *first, kGuard, run.m, &violation);
      const bool right = error <= ToleranceFor(signature) && violation.empty() && *first == *second;
      if (!right) ++tally.failed;
      if (std::isfinite(error)) tally.worst_error = std::max(tally.worst_error, error);
      if (right || tally.failed > kMostToldOf) continue;
      EXPECT_LE(error, ToleranceFor(signature)) << name;
      EXPECT_EQ(violation, "") << name;
      EXPECT_TRUE(*first == *second) << name << " is not repeatable";
    }
  }
  tally.seconds = stopwatch.seconds();
  tally.Print("awkward-shapes." + SignatureName(signature));
  EXPECT_EQ(tally.failed, 0);
}

std::string FormatParamName(const testing::TestParamInfo<int>& info) {
  return ParamName(FormatSignatures()[info.param]);
}

INSTANTIATE_TEST_SUITE_P(Formats, AwkwardShape,
                         testing::Range(0, static_cast<int>(FormatSignatures().size())), FormatParamName);

// Y of weights rounded to the activations' type, as kernels of mode pre multiply them.
std::vector<double> OfRoundedWeights(const KernelCase& data) {
  const auto& [n, k, signature] = data.problem;
  std::vector<double> y(data.max_m * n);
  for (int64_t column = 0; column < n; ++column) {
    std::vector<double> row = DequantizedRow(data.canonical, column);
    for (double& w : row) w = ScalarToDouble(ScalarFromDouble(w, signature.act), signature.act);
    for (int64_t m = 0; m < data.max_m; ++m) {
      const uint16_t* const x = &data.x_numbers[m * data.ldx];
      double& sum = y[m * n + column];
      for (int64_t i = 0; i < k; ++i) sum += row[i] * ScalarToDouble(x[i], signature.act);
    }
  }
  return y;
}

// Sums far beyond one, sums whose terms cancel, and sums whose roundings all go the same way: the error stays
// small beside the terms, whatever is left of them.
TEST_F(AwkwardShape, HugeAndCancellingInputsAreRight) {
  constexpr int64_t kM = 33;
  const KernelShape shape = {257, 1152};
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 1);
  Tally tally;
  const Stopwatch stopwatch;
  for (KernelSignature signature : FormatSignatures()) {
    if (signature.format.group_size != 128 && !signature.format.channel_wise()) continue;
    signature.epilogue = {};
    signature.out = ScalarType::kFp32;
    for (const std::string kind : {"huge", "cancelling", "of one sign"}) {
      std::vector<double> x(kM * shape.k);
      for (size_t i = 0; i < x.size(); ++i) {
        // fp16 ends at 65504. Every second one takes back nearly what the one before gave.
        const double size = signature.act == ScalarType::kBf16 ? 1e15 : 3e3;
        x[i] = normal(random) * size;
        if (kind == "cancelling" && i % 2 == 1) x[i] = -x[i - 1] * (1 + normal(random) / 256);
        if (kind == "of one sign") x[i] = std::fabs(x[i]);
      }
      Data data = MakeData(shape, signature, kM, &x);
      // A row has few different weights, with offsets of any size. With inputs of one sign what they are
      // rounded by once does not average out: it is no error of a kernel, and all else must stay small beside
      // it.
      const std::vector<double> exact = data.expected;
      std::vector<double> rounded;
      if (kind == "of one sign") rounded = OfRoundedWeights(data);
      const std::vector<KernelConfig> configs = Spread(ConfigSpace(signature, BucketFor(kM), profile()), 5);
      const auto modules = Compile({configs.begin(), configs.end()}, signature);
      for (const auto& [config, module] : modules) {
        const Candidate candidate = {config, 1, Reduction::kNone};
        if (!IsLegal(candidate, data.problem, kM, profile()).ok()) continue;
        const LaunchSpec spec = MakeLaunchSpec(candidate, data.problem, BucketFor(kM));
        const auto output = RunOnce(data, *module, spec, kM);
        ASSERT_TRUE(output.ok()) << output.status();
        const bool rounds =
            config.scale == ScaleMode::kPre &&
            (!signature.format.channel_wise() || signature.format.zero_point == ZeroPoint::kFloat);
        data.expected = rounds && !rounded.empty() ? rounded : exact;
        std::string violation;
        double norm = 0;
        for (const double value : data.expected) norm += value * value;
        const double error =
            JudgeOutput(data, *output, kGuard, kM, &violation) * std::sqrt(norm) / data.root_sum_squares;
        ++tally.candidates;
        tally.worst_error = std::max(tally.worst_error, error);
        EXPECT_LE(error, ToleranceFor(signature))
            << SignatureName(signature) << " " << CandidateName(candidate) << " " << kind;
        EXPECT_EQ(violation, "");
      }
    }
  }
  tally.seconds = stopwatch.seconds();
  tally.Print("huge-and-cancelling");
  EXPECT_GT(tally.candidates, 0);
}

// One kernel serves every M of its bucket.
TEST_F(CandidateTest, AKernelOfABucketServesSmallerM) {
  const KernelSignature signature = Signatures()[0];
  Problem problem;
  problem.n = 512;
  problem.k = 1024;
  problem.signature = signature;
  const std::vector<Candidate> candidates = Spread(LegalCandidates(problem, 64, profile()), 3);
  std::set<KernelConfig> configs;
  for (const Candidate& candidate : candidates) configs.insert(candidate.config);
  const auto modules = Compile(configs, signature);
  ProblemData data(&device());
  for (const int64_t m : {1, 49, 63}) {
    ASSERT_TRUE(data.Prepare(support(), problem, m, 1).ok());
    for (const Candidate& candidate : candidates) {
      const LaunchSpec spec = MakeLaunchSpec(candidate, problem, 64);
      auto kernel = modules.at(candidate.config)->Find(spec.entry, spec.dynamic_smem_bytes);
      ASSERT_TRUE(kernel.ok()) << kernel.status();
      LaunchOperands operands = data.Operands();
      if (const int64_t bytes = spec.WorkspaceBytes(m); bytes > 0) {
        ASSERT_TRUE(data.ReserveWorkspace(bytes).ok());
        operands.workspace = data.workspace().address();
      }
      auto arguments = MarshalArguments(spec, operands);
      ASSERT_TRUE(arguments.ok()) << arguments.status();
      ASSERT_TRUE(EncodeTensorMaps(*arguments).ok()) << CandidateName(candidate);
      const auto verdict = VerifyCandidate(device(), support(), data, spec, ToleranceFor(signature), [&] {
        return device().Launch(**kernel, spec.Grid(m), spec.block_threads, spec.dynamic_smem_bytes,
                               arguments->Params(), spec.cluster_z);
      });
      ASSERT_TRUE(verdict.ok()) << verdict.status();
      EXPECT_TRUE(verdict->ok()) << CandidateName(candidate) << " M " << m << ": " << verdict->reason;
    }
  }
}

}  // namespace
}  // namespace qgemm
