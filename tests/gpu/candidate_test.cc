// Every config of the space, verified: on the shape of a tuning against the GPU reference, and a sample of
// them on awkward shapes against fp64 on the CPU. QGEMM_GPU_SMALL=1: one shape per bucket, few configs.
// QGEMM_TEST_OUT=folder: figures as JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
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
      const auto verdict = VerifyCandidate(device(), support(), data, spec, ToleranceFor(signature.act), [&] {
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

std::string SignatureParamName(const testing::TestParamInfo<int>& info) {
  std::string name = SignatureName(Signatures()[info.param]);
  for (char& c : name) {
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Signatures, TunedShape, testing::Range(0, 9), SignatureParamName);

// Awkward shapes with their own data, made and packed on the CPU: nothing of the support kernels is involved.
// Rows of X and Y are further apart than they need be, and what lies between must neither be read into a
// result (it is NaN) nor be written.
struct Shape {
  int64_t n, k;
  int group;
};

class AwkwardShape : public CandidateTest, public testing::WithParamInterface<int> {
 protected:
  static constexpr uint16_t kPoison = 0xffff;  // NaN in both types
  static constexpr int64_t kGuard = 512;       // 16-bit elements before and after Y

  struct Data {
    Problem problem;
    int64_t max_m = 0;
    int64_t ldx = 0, ldy = 0;
    std::vector<double> expected;  // [max_m][n]
    std::unique_ptr<DeviceMemory> x, weights, scales, zeros, bias, y, workspace;
  };

  Data MakeData(const Shape& shape, const KernelSignature& signature, int64_t max_m) {
    Data data;
    data.problem = {shape.n, shape.k, signature};
    data.max_m = max_m;
    data.ldx = shape.k + 8;
    data.ldy = (shape.n + 7) / 8 * 8 + 8;
    std::mt19937 random(static_cast<unsigned>(shape.n * 7919 + shape.k));
    const auto normal = [&](double sigma) {
      std::normal_distribution<double> distribution(0, sigma);
      return ScalarFromDouble(distribution(random), signature.act);
    };
    CanonicalWeights canonical;
    canonical.n = shape.n;
    canonical.k = shape.k;
    canonical.format = signature.format;
    canonical.codes.resize(shape.n * shape.k);
    for (uint8_t& code : canonical.codes) code = random() % 16;
    canonical.scales.resize(shape.n * (shape.k / shape.group));
    std::uniform_real_distribution<double> uniform(0.002, 0.022);
    for (uint16_t& scale : canonical.scales) {
      scale = ScalarFromDouble(uniform(random), signature.format.scale_type);
    }
    if (signature.format.zero_point == ZeroPoint::kInteger) {
      canonical.zeros.resize(canonical.scales.size());
      for (uint8_t& zero : canonical.zeros) zero = random() % 16;
    }
    std::vector<uint16_t> bias;
    if (signature.epilogue.bias) {
      for (int64_t i = 0; i < shape.n; ++i) bias.push_back(normal(1));
    }
    std::vector<uint16_t> x(max_m * shape.k);
    for (uint16_t& value : x) value = normal(1);
    data.expected = ReferenceGemm(canonical, x, max_m, signature.act, bias);

    std::vector<uint16_t> strided(max_m * data.ldx, kPoison);
    for (int64_t i = 0; i < max_m * shape.k; ++i) strided[i / shape.k * data.ldx + i % shape.k] = x[i];
    const auto packed = Pack(canonical);
    EXPECT_TRUE(packed.ok()) << packed.status();
    data.x = Upload(strided);
    data.weights = Upload(packed->weights);
    data.scales = Upload(packed->scales);
    if (!packed->zeros.empty()) data.zeros = Upload(packed->zeros);
    if (!bias.empty()) data.bias = Upload(bias);
    data.y = device().Allocate((max_m * data.ldy + 2 * kGuard) * 2).value();
    data.workspace = device().Allocate(kMaxWorkspaceBytes).value();
    return data;
  }

  // Runs the candidate once into a poisoned output and returns all of it, guards included.
  absl::StatusOr<std::vector<uint16_t>> RunOnce(Data& data, DeviceModule& module, const LaunchSpec& spec,
                                                int64_t m) {
    LaunchOperands operands;
    operands.m = m;
    operands.ldx = data.ldx;
    operands.ldy = data.ldy;
    operands.x = data.x->address();
    operands.weights = data.weights->address();
    operands.scales = data.scales->address();
    operands.zeros = data.zeros != nullptr ? data.zeros->address() : 0;
    operands.bias = data.bias != nullptr ? data.bias->address() : 0;
    operands.y = data.y->address() + kGuard * 2;
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
    std::vector<uint16_t> output((m * data.ldy) + 2 * kGuard);
    QGEMM_RETURN_IF_ERROR(device().ReadBack(
        data.y->address(), absl::MakeSpan(reinterpret_cast<std::byte*>(output.data()), output.size() * 2)));
    return output;
  }

  // The error of the outputs; a sentence when something else than outputs was written.
  double Judge(const Data& data, const std::vector<uint16_t>& output, int64_t m, std::string* violation) {
    std::vector<double> actual;
    for (int64_t i = 0; i < static_cast<int64_t>(output.size()); ++i) {
      const int64_t at = i - kGuard;
      const int64_t row = at / data.ldy;
      const int64_t column = at % data.ldy;
      if (at >= 0 && row < m && column < data.problem.n) {
        actual.push_back(ScalarToDouble(output[i], data.problem.signature.out));
      } else if (output[i] != kPoison) {
        *violation = absl::StrCat("wrote element ", at, " (row ", row, ", column ", column, ")");
      }
    }
    return RelativeError(actual, absl::MakeSpan(data.expected).subspan(0, actual.size()));
  }
};

TEST_P(AwkwardShape, AgreesWithFp64AndKeepsItsBounds) {
  const KernelSignature signature = Signatures()[GetParam()];
  const int group = signature.format.group_size;
  std::vector<Shape> shapes = {{17,
                                group == 128  ? 256
                                : group == 64 ? 192
                                              : 96,
                                group},
                               {257, group == 128 ? 384 : 192, group},
                               {80, 6656, group}};
  std::vector<int64_t> rows = {1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 128, 257};
  if (SmallMode()) {
    shapes.resize(2);
    rows = {1, 3, 9, 17, 33, 65, 128};
  }
  const size_t per_bucket = SmallMode() ? 1 : 6;
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
      const int bucket = BucketFor(m);
      for (const KernelConfig& config : Spread(ConfigSpace(signature, bucket, profile()), per_bucket)) {
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
    Data data = MakeData(shapes[s], signature, rows.back());
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
      const double error = Judge(data, *first, run.m, &violation);
      const bool right = error <= ToleranceFor(signature.act) && violation.empty() && *first == *second;
      if (!right) ++tally.failed;
      if (std::isfinite(error)) tally.worst_error = std::max(tally.worst_error, error);
      if (right || tally.failed > kMostToldOf) continue;
      EXPECT_LE(error, ToleranceFor(signature.act)) << name;
      EXPECT_EQ(violation, "") << name;
      EXPECT_TRUE(*first == *second) << name << " is not repeatable";
    }
  }
  tally.seconds = stopwatch.seconds();
  tally.Print("awkward-shapes." + SignatureName(signature));
  EXPECT_EQ(tally.failed, 0);
}

INSTANTIATE_TEST_SUITE_P(Signatures, AwkwardShape, testing::Range(0, 9), SignatureParamName);

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
      const auto verdict = VerifyCandidate(device(), support(), data, spec, ToleranceFor(signature.act), [&] {
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
