// The GPU-side support kernels against the CPU's: canonical data, packing, reference GEMM, comparison and
// guards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/cuda/gpu_packer.h"
#include "kernels/cuda/launch.h"
#include "kernels/reference_gemm.h"
#include "server/runner/problem_data.h"
#include "server/runner/verifier.h"
#include "tests/gpu/gpu_test.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

Problem MakeProblem(int64_t n, int64_t k, const WeightFormat& format, ScalarType act = ScalarType::kBf16,
                    const Epilogue& epilogue = {}) {
  Problem problem;
  problem.n = n;
  problem.k = k;
  problem.signature.act = problem.signature.out = act;
  problem.signature.format = format;
  problem.signature.epilogue = epilogue;
  return problem;
}

// Every kind of plane in every width, with rows and columns that do not fill their blocks.
std::vector<Problem> PackingProblems() {
  std::vector<Problem> problems;
  for (const int bits : {4, 5, 6, 8}) {
    for (const int group_size : {0, 16, 32, 64, 128, 256}) {
      for (const ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
        for (const int levels : {1, 2}) {
          const WeightFormat format{bits, group_size, ScalarType::kFp16, zero, levels};
          if (!ValidateWeightFormat(format).ok()) continue;
          const int64_t unit = format.channel_wise() ? 40 : group_size;
          problems.push_back(MakeProblem(17, 3 * unit, format));
          if (!SmallMode()) problems.push_back(MakeProblem(257, 6656, format));
        }
      }
    }
  }
  return problems;
}

// Every format, type, activation and operand at least once; not every combination.
std::vector<Problem> Problems() {
  const Epilogue epilogues[] = {
      {},
      {.bias = true},
      {.bias = true, .activation = Activation::kSilu, .gated = true, .residual = true},
      {.activation = Activation::kGeluTanh, .residual = true},
      {.activation = Activation::kRelu},
      {.activation = Activation::kGeluTanh, .gated = true},
  };
  std::vector<Problem> problems;
  size_t turn = 0;
  for (const int bits : {4, 5, 6, 8}) {
    for (const ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
      for (const ScalarType type : {ScalarType::kBf16, ScalarType::kFp16}) {
        for (const int levels : {1, 2}) {
          constexpr int kGroups[] = {0, 16, 32, 64, 128, 256};
          const WeightFormat format{bits, levels == 1 ? kGroups[turn % 6] : 16 << turn % 3, type, zero,
                                    levels};
          if (!ValidateWeightFormat(format).ok()) continue;
          const Epilogue& epilogue = epilogues[turn % 6];
          const int64_t n = epilogue.gated ? 258 : 17 + 128 * static_cast<int64_t>(turn % 2);
          Problem problem = MakeProblem(n, format.channel_wise() ? 200 : 768, format, type, epilogue);
          if (turn % 3 == 1) problem.signature.out = ScalarType::kFp32;
          if (turn % 4 == 3) problem.signature.quantization = ActivationQuantization::kInt8;
          if (!ValidateProblem(problem).ok()) problem.signature.quantization = ActivationQuantization::kNone;
          problems.push_back(problem);
          ++turn;
        }
      }
    }
  }
  if (SmallMode()) problems.resize(12);
  if (!SmallMode()) problems.push_back(MakeProblem(144, 6656, {4, 128, ScalarType::kBf16}));
  return problems;
}

class GpuReference : public GpuTest {
 protected:
  // Canonical weights of a problem on the device, and their copy on the host.
  struct Weights {
    std::vector<std::unique_ptr<DeviceMemory>> memory;
    CanonicalAddresses addresses;
    CanonicalWeights canonical;
  };
  uint64_t Allocate(std::vector<std::unique_ptr<DeviceMemory>>& memory, int64_t bytes) {
    memory.push_back(device().Allocate(std::max<int64_t>(256, bytes)).value());
    return memory.back()->address();
  }
  Weights Fill(const Problem& problem) {
    const WeightFormat& format = problem.signature.format;
    Weights weights;
    CanonicalWeights& host = weights.canonical;
    host.n = problem.n;
    host.k = problem.k;
    host.format = format;
    const bool floats = format.zero_point == ZeroPoint::kFloat;
    const int64_t groups = problem.n * host.groups();
    const int64_t numbers = format.two_level() ? problem.n * host.steps() : groups;
    CanonicalAddresses& on_device = weights.addresses;
    on_device.codes = Allocate(weights.memory, problem.n * problem.k);
    on_device.scales = Allocate(weights.memory, numbers * 2);
    if (format.zero_point == ZeroPoint::kInteger) on_device.zeros = Allocate(weights.memory, groups);
    if (floats) on_device.offsets = Allocate(weights.memory, numbers * 2);
    if (format.two_level()) on_device.scale_codes = Allocate(weights.memory, groups);
    if (format.two_level() && floats) on_device.offset_codes = Allocate(weights.memory, groups);
    EXPECT_TRUE(support().FillWeights(problem, on_device, 7).ok());
    host.codes = Download<uint8_t>(on_device.codes, problem.n * problem.k);
    host.scales = Download<uint16_t>(on_device.scales, numbers);
    if (on_device.zeros != 0) host.zeros = Download<uint8_t>(on_device.zeros, groups);
    if (on_device.offsets != 0) host.offsets = Download<uint16_t>(on_device.offsets, numbers);
    if (on_device.scale_codes != 0) host.scale_codes = Download<int8_t>(on_device.scale_codes, groups);
    if (on_device.offset_codes != 0) host.offset_codes = Download<int8_t>(on_device.offset_codes, groups);
    EXPECT_TRUE(CheckPlanes(host).ok());
    return weights;
  }
  // `count` normal numbers on the device and in fp64.
  struct Numbers {
    std::unique_ptr<DeviceMemory> memory;
    std::vector<double> values;
  };
  Numbers FillNormal(SupportLibrary::Normal kind, int64_t count, ScalarType type) {
    Numbers numbers;
    const int64_t bytes = count * ScalarBytes(type);
    numbers.memory = device().Allocate(std::max<int64_t>(256, bytes)).value();
    EXPECT_TRUE(support().FillNormal(kind, numbers.memory->address(), count, type, 7).ok());
    numbers.values = ScalarsToDouble(Download<uint8_t>(numbers.memory->address(), bytes), type);
    return numbers;
  }
};

TEST_F(GpuReference, FilledDataHasTheDistributionsItShould) {
  for (const int bits : {4, 5, 6, 8}) {
    const Problem problem = MakeProblem(512, 4096, {bits, 128, ScalarType::kBf16, ZeroPoint::kInteger});
    const Weights weights = Fill(problem);
    std::vector<int64_t> histogram(1 << bits);
    for (uint8_t code : weights.canonical.codes) {
      ASSERT_LT(code, histogram.size());
      ++histogram[code];
    }
    const double expected = 512.0 * 4096 / (1 << bits);
    for (int64_t count : histogram) {
      EXPECT_NEAR(static_cast<double>(count), expected, 6 * std::sqrt(expected));
    }
    for (uint16_t scale : weights.canonical.scales) {
      const double value = ScalarToDouble(scale, ScalarType::kBf16) * (1 << bits) / 16;
      EXPECT_GE(value, 0.0019);
      EXPECT_LE(value, 0.0221);
    }
  }
  const std::vector<double> x =
      FillNormal(SupportLibrary::Normal::kActivations, 1 << 20, ScalarType::kBf16).values;
  double sum = 0, squares = 0;
  for (const double value : x) {
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / static_cast<double>(x.size()), 0, 0.01);
  EXPECT_NEAR(squares / static_cast<double>(x.size()), 1, 0.01);
}

// Float zero points put the weights on both sides of 0, and two-level scales have both signs.
TEST_F(GpuReference, FilledWeightsAreCentred) {
  for (const Problem& problem : Problems()) {
    SCOPED_TRACE(ProblemName(problem));
    const WeightFormat& format = problem.signature.format;
    const Weights weights = Fill(problem);
    double sum = 0, squares = 0;
    for (int64_t row = 0; row < problem.n; ++row) {
      for (const double w : DequantizedRow(weights.canonical, row)) {
        sum += w;
        squares += w * w;
      }
    }
    const auto count = static_cast<double>(problem.n * problem.k);
    const double deviation = std::sqrt(squares / count);
    EXPECT_GT(deviation, 0.02);
    EXPECT_LT(deviation, 0.3);
    if (format.zero_point != ZeroPoint::kInteger) {
      EXPECT_LT(std::fabs(sum / count), 0.5 * deviation);
    }
    if (!format.two_level()) continue;
    const auto& codes = weights.canonical.scale_codes;
    EXPECT_LT(*std::min_element(codes.begin(), codes.end()), -100);
    EXPECT_GT(*std::max_element(codes.begin(), codes.end()), 100);
  }
}

TEST_F(GpuReference, PacksBitIdenticallyToTheCpu) {
  for (const Problem& problem : PackingProblems()) {
    SCOPED_TRACE(ProblemName(problem));
    const Weights weights = Fill(problem);
    const auto expected = Pack(weights.canonical);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const PackedSizes& sizes = expected->sizes;
    std::vector<std::unique_ptr<DeviceMemory>> memory;
    PackedAddresses packed;
    packed.weights = Allocate(memory, sizes.weight_bytes);
    packed.scales = Allocate(memory, sizes.scale_bytes);
    packed.zeros = Allocate(memory, sizes.zero_bytes);
    packed.steps = Allocate(memory, sizes.step_bytes);
    const absl::Status status = support().Pack(problem, weights.addresses, packed);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(Download<uint8_t>(packed.weights, sizes.weight_bytes) == expected->weights);
    EXPECT_TRUE(Download<uint8_t>(packed.scales, sizes.scale_bytes) == expected->scales);
    EXPECT_TRUE(Download<uint8_t>(packed.zeros, sizes.zero_bytes) == expected->zeros);
    EXPECT_TRUE(Download<uint8_t>(packed.steps, sizes.step_bytes) == expected->steps);
  }
}

TEST_F(GpuReference, TheGpuPackerOfTheLibraryPacksToo) {
  const Driver* driver = Driver::Load().value();
  const Context context = Context::Open(*driver, device().properties().ordinal).value();
  const auto packer = GpuPacker::Create(context);
  ASSERT_TRUE(packer.ok()) << packer.status();
  const Problem problem = MakeProblem(257, 6656, {6, 16, ScalarType::kFp16, ZeroPoint::kFloat, 2});
  const Weights weights = Fill(problem);
  const auto expected = Pack(weights.canonical);
  ASSERT_TRUE(expected.ok()) << expected.status();
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  PackedAddresses packed;
  packed.weights = Allocate(memory, expected->sizes.weight_bytes);
  packed.scales = Allocate(memory, expected->sizes.scale_bytes);
  packed.zeros = Allocate(memory, expected->sizes.zero_bytes);
  packed.steps = Allocate(memory, expected->sizes.step_bytes);
  const WeightFormat& format = problem.signature.format;
  const absl::Status status = packer->Pack(problem.n, problem.k, format, weights.addresses, packed);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Download<uint8_t>(packed.weights, expected->sizes.weight_bytes) == expected->weights);
  EXPECT_TRUE(Download<uint8_t>(packed.scales, expected->sizes.scale_bytes) == expected->scales);
  EXPECT_TRUE(Download<uint8_t>(packed.zeros, expected->sizes.zero_bytes) == expected->zeros);
  EXPECT_TRUE(Download<uint8_t>(packed.steps, expected->sizes.step_bytes) == expected->steps);
  packed.steps = 0;
  EXPECT_EQ(packer->Pack(problem.n, problem.k, format, weights.addresses, packed).message(),
            "packed steps is null: this format has it");
}

TEST_F(GpuReference, AgreesWithFp64OnTheCpu) {
  double worst = 0;
  for (const Problem& problem : Problems()) {
    const Weights weights = Fill(problem);
    const KernelSignature& signature = problem.signature;
    const Epilogue& epilogue = signature.epilogue;
    for (const int64_t m : {1, 5, 65}) {
      SCOPED_TRACE(ProblemName(problem) + " M " + std::to_string(m));
      const int64_t outputs = m * problem.y_columns();
      const Numbers x = FillNormal(SupportLibrary::Normal::kActivations, m * problem.k, signature.act);
      Numbers bias, residual;
      EpilogueAddresses operands;
      if (epilogue.bias) {
        bias = FillNormal(SupportLibrary::Normal::kBias, problem.n, signature.out);
        operands.bias = bias.memory->address();
      }
      if (epilogue.residual) {
        residual = FillNormal(SupportLibrary::Normal::kResidual, outputs, signature.out);
        operands.residual = residual.memory->address();
        operands.ldr = problem.y_columns();
      }
      auto reference = device().Allocate(std::max<int64_t>(256, outputs * 4)).value();
      ASSERT_TRUE(support()
                      .ReferenceGemm(problem, weights.addresses, operands, x.memory->address(), m, problem.k,
                                     reference->address())
                      .ok());
      const std::vector<float> actual = Download<float>(reference->address(), outputs);
      const std::vector<double> expected =
          ReferenceGemm(weights.canonical, Download<uint16_t>(x.memory->address(), m * problem.k), m,
                        signature.act, epilogue, bias.values, residual.values, signature.quantization);
      const double error = RelativeError(std::vector<double>(actual.begin(), actual.end()), expected);
      worst = std::max(worst, error);
      EXPECT_LT(error, 1e-6);
    }
  }
  std::printf("largest relative error of the GPU reference: %.2e\n", worst);
}

TEST_F(GpuReference, LargeProblemsTakeLittleTime) {
  if (SmallMode()) GTEST_SKIP() << "QGEMM_GPU_SMALL is set";
  const Problem problem = MakeProblem(5376, 4096, {4, 128, ScalarType::kBf16});
  ProblemData data(&device());
  for (int attempt = 0; attempt < 2; ++attempt) {
    const TimePoint begin = RealClock().Now();
    ASSERT_TRUE(data.Prepare(support(), problem, 4096, 1 + attempt).ok());
    const double ms = std::chrono::duration<double, std::milli>(RealClock().Now() - begin).count();
    std::printf("preparing 5376x4096 with M 4096: %.1f ms%s\n", ms, attempt == 0 ? " (allocating)" : "");
    EXPECT_LT(ms, 1000);
  }
}

TEST_F(GpuReference, ComparisonCountsWhatIsWrong) {
  for (const ScalarType type : {ScalarType::kBf16, ScalarType::kFp16}) {
    const int64_t m = 7, n = 257, ldy = 264;
    std::vector<float> reference(m * n);
    std::vector<uint16_t> y(m * ldy, 0xffff);  // the gaps keep the poison and must not be counted
    for (int64_t i = 0; i < m * n; ++i) {
      reference[i] = 0.5f + static_cast<float>(i % 97) / 32;
      y[i / n * ldy + i % n] = ScalarFromDouble(reference[i], type);
    }
    auto reference_memory = Upload(reference);
    const auto compare = [&](const std::vector<uint16_t>& output) {
      auto memory = Upload(output);
      EXPECT_TRUE(support().ClearResults().ok());
      EXPECT_TRUE(support().Compare(memory->address(), reference_memory->address(), m, n, ldy, type).ok());
      return support().ReadResults()->comparison;
    };
    const Comparison right = compare(y);
    EXPECT_EQ(right.not_finite, 0);
    EXPECT_EQ(right.unwritten, 0);
    EXPECT_LT(right.relative_error, ToleranceFor(type));
    double norm = 0;
    for (float value : reference) norm += static_cast<double>(value) * value;
    EXPECT_NEAR(right.reference_norm, std::sqrt(norm), 1e-6 * std::sqrt(norm));

    std::vector<uint16_t> wrong = y;
    wrong[3 * ldy + 5] = ScalarFromDouble(100, type);
    EXPECT_GT(compare(wrong).relative_error, 0.1);
    wrong = y;
    wrong[6 * ldy + 256] = 0xffff;
    wrong[0] = type == ScalarType::kBf16 ? 0x7f80 : 0x7c00;
    EXPECT_EQ(compare(wrong).unwritten, 1);
    EXPECT_EQ(compare(wrong).not_finite, 2);
  }
}

TEST_F(GpuReference, ComparisonReadsFp32Outputs) {
  const int64_t m = 3, n = 70, ldy = 80;
  std::vector<float> reference(m * n, 2.0f);
  std::vector<float> y(m * ldy, std::nanf(""));
  for (int64_t i = 0; i < m * n; ++i) y[i / n * ldy + i % n] = 2.0f;
  auto reference_memory = Upload(reference);
  const auto compare = [&](const std::vector<float>& output) {
    auto memory = Upload(output);
    EXPECT_TRUE(support().ClearResults().ok());
    EXPECT_TRUE(
        support().Compare(memory->address(), reference_memory->address(), m, n, ldy, ScalarType::kFp32).ok());
    return support().ReadResults()->comparison;
  };
  EXPECT_EQ(compare(y).relative_error, 0);
  EXPECT_EQ(compare(y).not_finite, 0);
  std::vector<float> wrong = y;
  const uint32_t poison = 0xffffffff;
  std::memcpy(&wrong[2 * ldy + 69], &poison, sizeof(poison));
  wrong[1] = INFINITY;
  wrong[ldy] = 2.5f;
  const Comparison comparison = compare(wrong);
  EXPECT_EQ(comparison.unwritten, 1);
  EXPECT_EQ(comparison.not_finite, 2);
  EXPECT_NEAR(comparison.relative_error, 0.25 / std::sqrt(210.0), 1e-6);
}

TEST_F(GpuReference, ByteChecksFindTheFirstDifference) {
  std::vector<uint8_t> bytes(100'003, 0xa5);
  auto clean = Upload(bytes);
  bytes[77] = 0;
  bytes[100'002] = 1;
  auto dirty = Upload(bytes);
  ASSERT_TRUE(support().ClearResults().ok());
  ASSERT_TRUE(support().CheckBytes(0, clean->address(), 100'003, 0xa5).ok());
  ASSERT_TRUE(support().CheckBytes(1, dirty->address(), 100'003, 0xa5).ok());
  ASSERT_TRUE(support().CheckSame(2, clean->address(), dirty->address(), 100'003).ok());
  const auto results = support().ReadResults();
  ASSERT_TRUE(results.ok());
  EXPECT_EQ(results->checks[0].unequal, 0);
  EXPECT_EQ(results->checks[1].unequal, 2);
  EXPECT_EQ(results->checks[1].first, 77);
  EXPECT_EQ(results->checks[2].unequal, 2);
  EXPECT_EQ(results->checks[2].first, 77);
}

// Deliberately bad kernels, seen through the verifier on real data.
class GpuVerifier : public GpuTest {
 protected:
  // The body sees u16* y, unsigned char* workspace, int m, long long ldy, n = 64, and thread 0 runs it.
  Verdict VerifyBody(const std::string& body, int split = 1) {
    KernelSource source;
    source.name = source.entry = "bad_kernel";
    source.text =
        "extern \"C\" __global__ void bad_kernel(const float* reference, unsigned short* y, unsigned char* "
        "workspace,"
        " int m, long long ldy) { const int n = 64; if (threadIdx.x != 0) return;"
        " auto bf16 = [](float v) { unsigned b = __float_as_uint(v); return (unsigned short)((b + 0x7fff + "
        "((b >> 16) & 1)) >> 16); };"
        " auto right = [&] { for (int i = 0; i < m; ++i) for (int j = 0; j < n; ++j) y[i * ldy + j] = "
        "bf16(reference[i * n + j]); };" +
        body + "}";
    source.options = {"--std=c++17"};
    Problem problem = MakeProblem(64, 128, {4, 128, ScalarType::kBf16});
    ProblemData data(&device());
    EXPECT_TRUE(data.Prepare(support(), problem, 3, 1).ok());
    LaunchSpec spec;
    spec.entry = "bad_kernel";
    spec.split_k = split;
    if (split > 1) {
      spec.ticket_bytes_per_m_tile = 64;
      spec.partial_bytes_per_m_tile = 1024;
    }
    EXPECT_TRUE(data.ReserveWorkspace(std::max<int64_t>(256, spec.WorkspaceBytes(3))).ok());
    auto module = device().Load(CompileHere(source, arch()));
    EXPECT_TRUE(module.ok()) << module.status();
    auto kernel = (*module)->Find("bad_kernel", 0);
    EXPECT_TRUE(kernel.ok()) << kernel.status();
    const auto launch = [&] {
      uint64_t reference = data.reference();
      uint64_t y = data.output().address();
      uint64_t workspace = data.workspace().address();
      int m = 3;
      int64_t ldy = data.ldy();
      void* params[] = {&reference, &y, &workspace, &m, &ldy};
      return device().Launch(**kernel, {1, 1, 1}, 32, 0, params, 1);
    };
    const auto verdict = VerifyCandidate(device(), support(), data, spec, 3e-3, launch);
    EXPECT_TRUE(verdict.ok()) << verdict.status();
    return verdict.ok() ? *verdict : Verdict();
  }
};

TEST_F(GpuVerifier, AcceptsARightKernel) {
  const Verdict verdict = VerifyBody("right();");
  EXPECT_TRUE(verdict.ok()) << verdict.reason;
  EXPECT_GT(verdict.relative_error, 0);
  EXPECT_LT(verdict.relative_error, 3e-3);
}

TEST_F(GpuVerifier, CatchesAWrongResult) {
  EXPECT_EQ(VerifyBody("right(); y[10] = bf16(1e4f);").failure, internal::CANDIDATE_FAILURE_WRONG);
}

TEST_F(GpuVerifier, CatchesAnUnwrittenOutput) {
  const Verdict verdict =
      VerifyBody("unsigned short last = y[2 * ldy + 63]; right(); y[2 * ldy + 63] = last;");
  EXPECT_EQ(verdict.failure, internal::CANDIDATE_FAILURE_WRONG);
  EXPECT_THAT(verdict.reason, HasSubstr("1 outputs were not written"));
}

TEST_F(GpuVerifier, CatchesWritesAroundTheOutput) {
  EXPECT_EQ(VerifyBody("right(); y[m * ldy] = 0;").failure, internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS);
  EXPECT_EQ(VerifyBody("right(); y[-1] = 0;").failure, internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS);
}

TEST_F(GpuVerifier, CatchesWritesAroundTheWorkspace) {
  EXPECT_EQ(VerifyBody("right(); workspace[256 + 1024] = 0;", 2).failure,
            internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS);
  EXPECT_EQ(VerifyBody("right(); workspace[-1] = 0;", 2).failure, internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS);
}

TEST_F(GpuVerifier, CatchesTicketsThatAreNotResetAndRunsThatDiffer) {
  EXPECT_EQ(VerifyBody("right(); workspace[0] = 1;", 2).failure, internal::CANDIDATE_FAILURE_NOT_REPEATABLE);
  EXPECT_EQ(VerifyBody("right(); y[5] ^= workspace[4096 + 7]++ & 1;").failure,
            internal::CANDIDATE_FAILURE_NOT_REPEATABLE);
}

}  // namespace
}  // namespace qgemm
