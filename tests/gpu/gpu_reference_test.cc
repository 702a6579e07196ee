// The GPU-side support kernels against the CPU's: canonical data, packing, reference GEMM, comparison and
// guards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "kernels/cuda/launch.h"
#include "kernels/reference_gemm.h"
#include "server/runner/problem_data.h"
#include "server/runner/verifier.h"
#include "tests/gpu/gpu_test.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

Problem MakeProblem(int64_t n, int64_t k, int group, ScalarType type, ZeroPoint zero, bool bias) {
  Problem problem;
  problem.n = n;
  problem.k = k;
  problem.signature.act = problem.signature.out = type;
  problem.signature.format = {4, group, type, zero};
  problem.signature.epilogue.bias = bias;
  return problem;
}

std::vector<Problem> Problems() {
  std::vector<Problem> problems;
  for (const ScalarType type : {ScalarType::kBf16, ScalarType::kFp16}) {
    for (const ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger}) {
      const bool bias = zero == ZeroPoint::kInteger;
      problems.push_back(MakeProblem(17, 96, 32, type, zero, bias));
      problems.push_back(MakeProblem(257, 192, 64, type, zero, !bias));
      if (!SmallMode()) problems.push_back(MakeProblem(144, 6656, 128, type, zero, bias));
    }
  }
  return problems;
}

class GpuReference : public GpuTest {
 protected:
  // Canonical weights of a problem on the device, and their copy on the host.
  struct Weights {
    std::unique_ptr<DeviceMemory> codes, scales, zeros, bias;
    CanonicalAddresses addresses;
    CanonicalWeights canonical;
    std::vector<uint16_t> host_bias;
  };
  Weights Fill(const Problem& problem) {
    const WeightFormat& format = problem.signature.format;
    const int64_t groups = problem.n * (problem.k / format.group_size);
    const bool has_zeros = format.zero_point == ZeroPoint::kInteger;
    const bool has_bias = problem.signature.epilogue.bias;
    Weights weights;
    weights.codes = device().Allocate(problem.n * problem.k).value();
    weights.scales = device().Allocate(groups * 2).value();
    weights.addresses = {weights.codes->address(), weights.scales->address(), 0, 0};
    if (has_zeros) {
      weights.zeros = device().Allocate(groups).value();
      weights.addresses.zeros = weights.zeros->address();
    }
    if (has_bias) {
      weights.bias = device().Allocate(problem.n * 2).value();
      weights.addresses.bias = weights.bias->address();
    }
    EXPECT_TRUE(support().FillWeights(problem, weights.addresses, 7).ok());
    weights.canonical.n = problem.n;
    weights.canonical.k = problem.k;
    weights.canonical.format = format;
    weights.canonical.codes = Download<uint8_t>(weights.addresses.codes, problem.n * problem.k);
    weights.canonical.scales = Download<uint16_t>(weights.addresses.scales, groups);
    if (has_zeros) weights.canonical.zeros = Download<uint8_t>(weights.addresses.zeros, groups);
    if (has_bias) weights.host_bias = Download<uint16_t>(weights.addresses.bias, problem.n);
    return weights;
  }
};

TEST_F(GpuReference, FilledDataHasTheDistributionsItShould) {
  const Problem problem = MakeProblem(512, 4096, 128, ScalarType::kBf16, ZeroPoint::kInteger, true);
  const Weights weights = Fill(problem);
  std::vector<int64_t> histogram(16);
  for (uint8_t code : weights.canonical.codes) {
    ASSERT_LT(code, 16);
    ++histogram[code];
  }
  for (int64_t count : histogram) EXPECT_NEAR(static_cast<double>(count), 512 * 4096 / 16.0, 2000);
  for (uint16_t scale : weights.canonical.scales) {
    const double value = ScalarToDouble(scale, ScalarType::kBf16);
    EXPECT_GE(value, 0.0019);
    EXPECT_LE(value, 0.0221);
  }
  const int64_t count = 1 << 20;
  auto x = device().Allocate(count * 2).value();
  ASSERT_TRUE(support().FillActivations(x->address(), count, ScalarType::kBf16, 7).ok());
  double sum = 0, squares = 0;
  for (uint16_t bits : Download<uint16_t>(x->address(), count)) {
    const double value = ScalarToDouble(bits, ScalarType::kBf16);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(squares / count, 1, 0.01);
}

TEST_F(GpuReference, PacksBitIdenticallyToTheCpu) {
  for (const Problem& problem : Problems()) {
    SCOPED_TRACE(ProblemName(problem));
    const Weights weights = Fill(problem);
    const auto expected = Pack(weights.canonical);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const PackedSizes& sizes = expected->sizes;
    auto packed = device().Allocate(sizes.weight_bytes).value();
    auto scales = device().Allocate(sizes.scale_bytes).value();
    auto zeros = device().Allocate(std::max<int64_t>(256, sizes.zero_bytes)).value();
    ASSERT_TRUE(
        support()
            .Pack(problem, weights.addresses, {packed->address(), scales->address(), zeros->address()})
            .ok());
    EXPECT_EQ(Download<uint8_t>(packed->address(), sizes.weight_bytes), expected->weights);
    EXPECT_EQ(Download<uint8_t>(scales->address(), sizes.scale_bytes), expected->scales);
    if (sizes.zero_bytes > 0) {
      EXPECT_EQ(Download<uint8_t>(zeros->address(), sizes.zero_bytes), expected->zeros);
    }
  }
}

TEST_F(GpuReference, AgreesWithFp64OnTheCpu) {
  double worst = 0;
  for (const Problem& problem : Problems()) {
    for (const int64_t m : {1, 5, 65}) {
      SCOPED_TRACE(ProblemName(problem) + " M " + std::to_string(m));
      const Weights weights = Fill(problem);
      const ScalarType type = problem.signature.act;
      auto x = device().Allocate(m * problem.k * 2).value();
      auto reference = device().Allocate(m * problem.n * 4).value();
      ASSERT_TRUE(support().FillActivations(x->address(), m * problem.k, type, 7).ok());
      ASSERT_TRUE(
          support()
              .ReferenceGemm(problem, weights.addresses, x->address(), m, problem.k, reference->address())
              .ok());
      const std::vector<float> actual = Download<float>(reference->address(), m * problem.n);
      const std::vector<double> expected = ReferenceGemm(
          weights.canonical, Download<uint16_t>(x->address(), m * problem.k), m, type, weights.host_bias);
      const double error = RelativeError(std::vector<double>(actual.begin(), actual.end()), expected);
      worst = std::max(worst, error);
      EXPECT_LT(error, 1e-6);
    }
  }
  std::printf("largest relative error of the GPU reference: %.2e\n", worst);
}

TEST_F(GpuReference, LargeProblemsTakeLittleTime) {
  if (SmallMode()) GTEST_SKIP() << "QGEMM_GPU_SMALL is set";
  const Problem problem = MakeProblem(5376, 4096, 128, ScalarType::kBf16, ZeroPoint::kNone, false);
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
    Problem problem = MakeProblem(64, 128, 128, ScalarType::kBf16, ZeroPoint::kNone, false);
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
