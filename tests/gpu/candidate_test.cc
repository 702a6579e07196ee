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

// Every width with every zero point, group, scale and epilogue somewhere, the output types taking turns.
std::vector<KernelSignature> FormatSignatures() {
  struct Row {
    int bits, group;
    ZeroPoint zero;
    int levels;
  };
  constexpr ZeroPoint kNone = ZeroPoint::kNone;
  constexpr ZeroPoint kInt = ZeroPoint::kInteger;
  constexpr ZeroPoint kFloat = ZeroPoint::kFloat;
  const Row rows[] = {
      {4, 128, kNone, 1}, {4, 64, kFloat, 1}, {4, 32, kFloat, 2},  {4, 256, kInt, 1}, {4, 0, kNone, 1},
      {4, 16, kInt, 1},   {4, 0, kFloat, 1},  {4, 128, kNone, 2},  {5, 32, kNone, 1}, {5, 32, kFloat, 2},
      {5, 128, kInt, 1},  {5, 0, kInt, 1},    {5, 64, kFloat, 1},  {6, 16, kNone, 2}, {6, 128, kNone, 1},
      {6, 64, kInt, 1},   {6, 16, kFloat, 1}, {6, 256, kFloat, 1}, {6, 0, kNone, 1},  {8, 32, kNone, 1},
      {8, 128, kInt, 1},  {8, 64, kFloat, 1}, {8, 0, kNone, 1},    {8, 0, kInt, 1},   {8, 128, kNone, 2},
      {8, 16, kFloat, 2}, {8, 256, kNone, 1},
  };
  std::vector<KernelSignature> all;
  int turn = 0;
  for (const Row& row : rows) {
    for (const ScalarType act : {ScalarType::kBf16, ScalarType::kFp16}) {
      KernelSignature signature;
      signature.act = act;
      signature.out = turn % 5 == 2 ? ScalarType::kFp32 : act;
      const ScalarType other = act == ScalarType::kBf16 ? ScalarType::kFp16 : ScalarType::kBf16;
      const ScalarType scale = row.levels == 2 ? ScalarType::kFp16 : turn % 7 == 3 ? other : act;
      signature.format = {row.bits, row.group, scale, row.zero, row.levels};
      signature.epilogue.bias = turn % 2 == 1;
      signature.epilogue.activation = static_cast<Activation>(turn % 4);
      signature.epilogue.gated = turn % 4 != 0 && turn % 3 == 0;
      signature.epilogue.residual = turn % 6 < 2;
      all.push_back(signature);
      ++turn;
    }
  }
  return all;
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
struct Shape {
  int64_t n, k;
};

// Numbers as they lie in memory, of any type; what was written is what `values` then says.
std::vector<uint8_t> Store(std::vector<double>& values, ScalarType type) {
  std::vector<uint8_t> bytes(values.size() * ScalarBytes(type));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == ScalarType::kFp32) {
      const auto single = static_cast<float>(values[i]);
      std::memcpy(bytes.data() + 4 * i, &single, 4);
    } else {
      const uint16_t bits = ScalarFromDouble(values[i], type);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  values = ScalarsToDouble(bytes, type);
  return bytes;
}

CanonicalWeights RandomWeights(const Shape& shape, const WeightFormat& format, std::mt19937& random) {
  CanonicalWeights w;
  w.n = shape.n;
  w.k = shape.k;
  w.format = format;
  w.codes.resize(shape.n * shape.k);
  for (uint8_t& code : w.codes) code = random() % (1 << format.bits);
  // Weights of about the same size whatever the width.
  const double size = 8.0 / format.center();
  const auto fill = [&](std::vector<uint16_t>& values, int64_t count, double low, double high) {
    std::uniform_real_distribution<double> uniform(low, high);
    values.resize(count);
    for (uint16_t& value : values) value = ScalarFromDouble(uniform(random), format.scale_type);
  };
  const auto fill_codes = [&](std::vector<int8_t>& values, int low, int high) {
    values.resize(shape.n * w.groups());
    for (int8_t& value : values) value = static_cast<int8_t>(low + static_cast<int>(random() % (high - low)));
  };
  const bool offsets = format.zero_point == ZeroPoint::kFloat;
  if (format.two_level()) {
    fill(w.scales, shape.n * w.steps(), 0.0001 * size, 0.0003 * size);
    fill_codes(w.scale_codes, offsets ? 1 : -127, 128);
    if (offsets) {
      fill(w.offsets, shape.n * w.steps(), -0.003, -0.001);
      fill_codes(w.offset_codes, 0, 64);
    }
    return w;
  }
  fill(w.scales, shape.n * w.groups(), 0.002 * size, 0.022 * size);
  if (offsets) fill(w.offsets, shape.n * w.groups(), -0.16, -0.02);
  if (format.zero_point == ZeroPoint::kInteger) {
    w.zeros.resize(w.scales.size());
    for (uint8_t& zero : w.zeros) zero = random() % (1 << format.bits);
  }
  return w;
}

class AwkwardShape : public CandidateTest, public testing::WithParamInterface<int> {
 protected:
  static constexpr int64_t kGuard = 512;  // elements before and after Y

  struct Data {
    Problem problem;
    int64_t max_m = 0;
    int64_t ldx = 0, ldy = 0, ldr = 0;
    std::vector<double> expected;  // [max_m][columns of Y]
    double root_sum_squares = 0;   // of all products w * x
    std::unique_ptr<DeviceMemory> x, weights, scales, zeros, steps, bias, residual, y, workspace;
  };

  // `inputs`, [max_m][k], replaces the normal X.
  Data MakeData(const Shape& shape, const KernelSignature& signature, int64_t max_m,
                const std::vector<double>* inputs = nullptr) {
    Data data;
    data.problem = {shape.n, shape.k, signature};
    const int64_t columns = data.problem.y_columns();
    data.max_m = max_m;
    data.ldx = (shape.k + 7) / 8 * 8 + 8;
    data.ldy = (columns + 7) / 8 * 8 + 8;
    data.ldr = columns + 3;
    std::mt19937 random(static_cast<unsigned>(shape.n * 7919 + shape.k));
    std::normal_distribution<double> normal(0, 1);
    const CanonicalWeights canonical = RandomWeights(shape, signature.format, random);
    std::vector<double> bias, residual;
    std::vector<uint8_t> bias_bytes, residual_bytes;
    if (signature.epilogue.bias) {
      for (int64_t i = 0; i < shape.n; ++i) bias.push_back(normal(random));
      bias_bytes = Store(bias, signature.out);
    }
    if (signature.epilogue.residual) {
      std::vector<double> strided;
      for (int64_t i = 0; i < max_m * data.ldr; ++i) strided.push_back(normal(random));
      residual_bytes = Store(strided, signature.out);
      for (int64_t i = 0; i < max_m * columns; ++i) {
        residual.push_back(strided[i / columns * data.ldr + i % columns]);
      }
    }
    std::vector<uint16_t> x(max_m * shape.k);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = ScalarFromDouble(inputs != nullptr ? (*inputs)[i] : normal(random), signature.act);
    }
    data.root_sum_squares = 0;
    for (int64_t row = 0; row < shape.n; ++row) {
      const std::vector<double> w = DequantizedRow(canonical, row);
      for (int64_t i = 0; i < max_m * shape.k; ++i) {
        const double term = w[i % shape.k] * ScalarToDouble(x[i], signature.act);
        data.root_sum_squares += term * term;
      }
    }
    data.root_sum_squares = std::sqrt(data.root_sum_squares);
    data.expected = ReferenceGemm(canonical, x, max_m, signature.act, signature.epilogue, bias, residual);

    std::vector<uint16_t> strided(max_m * data.ldx, 0xffff);  // NaN in both types
    for (int64_t i = 0; i < max_m * shape.k; ++i) strided[i / shape.k * data.ldx + i % shape.k] = x[i];
    const auto packed = Pack(canonical);
    EXPECT_TRUE(packed.ok()) << packed.status();
    data.x = Upload(strided);
    data.weights = Upload(packed->weights);
    data.scales = Upload(packed->scales);
    if (!packed->zeros.empty()) data.zeros = Upload(packed->zeros);
    if (!packed->steps.empty()) data.steps = Upload(packed->steps);
    if (!bias_bytes.empty()) data.bias = Upload(bias_bytes);
    if (!residual_bytes.empty()) data.residual = Upload(residual_bytes);
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

  // The error of the outputs; a sentence when something else than outputs was written.
  double Judge(const Data& data, const std::vector<uint8_t>& output, int64_t m, std::string* violation) {
    const ScalarType type = data.problem.signature.out;
    const int element = ScalarBytes(type);
    const int64_t columns = data.problem.y_columns();
    std::vector<uint8_t> results;
    for (int64_t i = 0; i < static_cast<int64_t>(output.size()) / element; ++i) {
      const int64_t at = i - kGuard;
      const int64_t row = at / data.ldy;
      const int64_t column = at % data.ldy;
      const auto bytes = output.begin() + i * element;
      if (at >= 0 && row < m && column < columns) {
        results.insert(results.end(), bytes, bytes + element);
      } else if (!std::all_of(bytes, bytes + element, [](uint8_t byte) { return byte == 0xff; })) {
        *violation = absl::StrCat("wrote element ", at, " (row ", row, ", column ", column, ")");
      }
    }
    const std::vector<double> actual = ScalarsToDouble(results, type);
    return RelativeError(actual, absl::MakeSpan(data.expected).subspan(0, actual.size()));
  }
};

TEST_P(AwkwardShape, AgreesWithFp64AndKeepsItsBounds) {
  const KernelSignature signature = FormatSignatures()[GetParam()];
  const int group = signature.format.group_size;
  // Odd N where an epilogue allows it; K that ends within a block of 64, or within 256 k of a two-level
  // scale.
  const int64_t short_k = group == 0 ? 200 : group < 64 ? 3 * group : group == 256 ? 512 : 3 * group;
  const int64_t odd = signature.epilogue.gated ? 0 : 1;
  std::vector<Shape> shapes = {
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
      const double error = Judge(data, *first, run.m, &violation);
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

// Sums far beyond one and sums whose terms cancel: the error stays small beside the terms, whatever is left
// of them.
TEST_F(AwkwardShape, HugeAndCancellingInputsAreRight) {
  constexpr int64_t kM = 33;
  const Shape shape = {257, 1152};
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 1);
  Tally tally;
  const Stopwatch stopwatch;
  for (KernelSignature signature : FormatSignatures()) {
    if (signature.format.group_size != 128 && !signature.format.channel_wise()) continue;
    signature.epilogue = {};
    signature.out = ScalarType::kFp32;
    for (const bool cancelling : {false, true}) {
      std::vector<double> x(kM * shape.k);
      for (size_t i = 0; i < x.size(); ++i) {
        // fp16 ends at 65504. Every second half of the terms takes back nearly what the first gave.
        x[i] = normal(random) * (signature.act == ScalarType::kBf16 ? 1e15 : 3e3);
        if (cancelling && i % 2 == 1) x[i] = -x[i - 1] * (1 + normal(random) / 256);
      }
      Data data = MakeData(shape, signature, kM, &x);
      const std::vector<KernelConfig> configs = Spread(ConfigSpace(signature, BucketFor(kM), profile()), 5);
      const auto modules = Compile({configs.begin(), configs.end()}, signature);
      for (const auto& [config, module] : modules) {
        const Candidate candidate = {config, 1, Reduction::kNone};
        if (!IsLegal(candidate, data.problem, kM, profile()).ok()) continue;
        const LaunchSpec spec = MakeLaunchSpec(candidate, data.problem, BucketFor(kM));
        const auto output = RunOnce(data, *module, spec, kM);
        ASSERT_TRUE(output.ok()) << output.status();
        std::string violation;
        double norm = 0;
        for (const double value : data.expected) norm += value * value;
        const double error = Judge(data, *output, kM, &violation) * std::sqrt(norm) / data.root_sum_squares;
        ++tally.candidates;
        tally.worst_error = std::max(tally.worst_error, error);
        EXPECT_LE(error, ToleranceFor(signature))
            << SignatureName(signature) << " " << CandidateName(candidate)
            << (cancelling ? " cancelling" : " huge");
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
