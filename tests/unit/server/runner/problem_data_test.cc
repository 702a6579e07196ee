#include "server/runner/problem_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "kernels/packing.h"
#include "kernels/support_kernels.h"
#include "server/runner/verifier.h"
#include "tests/fakes/fake_device.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

class ProblemDataTest : public testing::Test {
 protected:
  static Problem MakeProblem(const WeightFormat& format, const Epilogue& epilogue = {},
                             ScalarType out = ScalarType::kFp16) {
    Problem problem;
    problem.n = 66;
    problem.k = 320;
    problem.signature = {format, ScalarType::kFp16, out, epilogue};
    return problem;
  }
  LaunchOperands Prepare(const Problem& problem, int64_t m = 3) {
    const absl::Status status = data_.Prepare(*support_, problem, m, 1);
    EXPECT_TRUE(status.ok()) << status;
    return data_.Operands();
  }
  int64_t Runs(const std::string& entry) const {
    return std::count(device_.log.begin(), device_.log.end(), entry);
  }

  FakeDevice device_;
  std::unique_ptr<SupportLibrary> support_ = SupportLibrary::Load(&device_, "support").value();
  ProblemData data_{&device_};
};

TEST_F(ProblemDataTest, PlanesAreThoseOfTheFormat) {
  const ScalarType fp16 = ScalarType::kFp16;
  LaunchOperands operands = Prepare(MakeProblem({4, 32, fp16}));
  EXPECT_NE(operands.weights, 0);
  EXPECT_NE(operands.scales, 0);
  EXPECT_EQ(operands.zeros, 0);
  EXPECT_EQ(operands.steps, 0);
  operands = Prepare(MakeProblem({5, 32, fp16, ZeroPoint::kInteger}));
  EXPECT_NE(operands.zeros, 0);
  EXPECT_EQ(operands.steps, 0);
  operands = Prepare(MakeProblem({6, 32, fp16, ZeroPoint::kFloat, 2}));
  EXPECT_NE(operands.zeros, 0);
  EXPECT_NE(operands.steps, 0);
  operands = Prepare(MakeProblem({6, 16, fp16, ZeroPoint::kNone, 2}));
  EXPECT_EQ(operands.zeros, 0);
  EXPECT_NE(operands.steps, 0);
  operands = Prepare(MakeProblem({8, 0, fp16, ZeroPoint::kFloat}));
  EXPECT_NE(operands.zeros, 0);
  EXPECT_EQ(operands.steps, 0);
}

TEST_F(ProblemDataTest, EpilogueOperandsAreThoseOfTheProblem) {
  const WeightFormat format{4, 32, ScalarType::kFp16};
  LaunchOperands operands = Prepare(MakeProblem(format));
  EXPECT_EQ(operands.bias, 0);
  EXPECT_EQ(operands.residual, 0);
  EXPECT_EQ(operands.ldr, 0);
  EXPECT_EQ(operands.ldy, 66);
  operands = Prepare(MakeProblem(format, {.bias = true, .residual = true}, ScalarType::kFp32));
  EXPECT_NE(operands.bias, 0);
  EXPECT_NE(operands.residual, 0);
  EXPECT_EQ(operands.ldr, 66);
  operands = Prepare(MakeProblem(format, {.activation = Activation::kSilu, .gated = true, .residual = true}));
  EXPECT_EQ(operands.bias, 0);
  EXPECT_EQ(operands.ldy, 33);
  EXPECT_EQ(operands.ldr, 33);
}

TEST_F(ProblemDataTest, OutputsHaveTheSizeOfTheirTypeAndColumns) {
  const WeightFormat format{4, 32, ScalarType::kFp16};
  Prepare(MakeProblem(format));
  EXPECT_EQ(data_.output().bytes(), 3 * 66 * 2);
  Prepare(MakeProblem(format, {}, ScalarType::kFp32));
  EXPECT_EQ(data_.output().bytes(), 3 * 66 * 4);
  Prepare(MakeProblem(format, {.activation = Activation::kRelu, .gated = true}));
  EXPECT_EQ(data_.output().bytes(), 3 * 33 * 2);
}

TEST_F(ProblemDataTest, FillsEveryArrayOfTheFormat) {
  device_.log.clear();
  Prepare(MakeProblem({5, 32, ScalarType::kFp16, ZeroPoint::kFloat, 2}, {.bias = true, .residual = true}));
  EXPECT_EQ(Runs(support::kFillCodes), 2);  // codes, scale codes
  EXPECT_EQ(Runs(support::kFillUniform), 1);
  EXPECT_EQ(Runs(support::kFillProducts), 1);
  EXPECT_EQ(Runs(support::kFillOpposites), 1);
  EXPECT_EQ(Runs(support::kFillNormal), 3);  // bias, X, residual
  EXPECT_EQ(Runs(support::kPackWeights), 1);
  EXPECT_EQ(Runs(support::kPackBytes), 2);
  EXPECT_EQ(Runs(support::kPackNumbers), 2);
  device_.log.clear();
  Prepare(MakeProblem({8, 0, ScalarType::kFp16, ZeroPoint::kInteger}));
  EXPECT_EQ(Runs(support::kFillCodes), 2);  // codes, zero points
  EXPECT_EQ(Runs(support::kFillProducts), 0);
  EXPECT_EQ(Runs(support::kFillNormal), 1);
}

TEST_F(ProblemDataTest, OperandsLieInSeveralPlacesWithTheSameContents) {
  const Problem problem = MakeProblem({4, 32, ScalarType::kFp16}, {.residual = true});
  const LaunchOperands original = Prepare(problem);
  ASSERT_GT(data_.placements(), 2);
  EXPECT_LE(data_.placements(), ProblemData::kMaxPlacements);
  const size_t weight_bytes = PackedSizesFor(problem.n, problem.k, problem.signature.format).weight_bytes;
  const auto same = [](uint64_t a, uint64_t b, size_t bytes) {
    return std::memcmp(reinterpret_cast<const void*>(a), reinterpret_cast<const void*>(b), bytes) == 0;
  };
  std::set<uint64_t> addresses;
  for (int placement = 0; placement < data_.placements(); ++placement) {
    const LaunchOperands operands = data_.Operands(placement);
    addresses.insert({operands.x, operands.weights, operands.scales, operands.residual, operands.y});
    EXPECT_EQ(operands.m, original.m);
    EXPECT_EQ(operands.ldy, original.ldy);
    EXPECT_EQ(operands.zeros, 0);
    EXPECT_TRUE(same(operands.weights, original.weights, weight_bytes));
    EXPECT_TRUE(same(operands.x, original.x, 3 * 320 * 2));
    EXPECT_TRUE(same(operands.residual, original.residual, 3 * 66 * 2));
  }
  EXPECT_EQ(addresses.size(), 5 * data_.placements());
}

TEST_F(ProblemDataTest, OnePlaceIsEnoughWhereThereIsNoRoomForMore) {
  ProblemData data(&device_);
  data.LimitPlacements(1);
  ASSERT_TRUE(data.Prepare(*support_, MakeProblem({4, 32, ScalarType::kFp16}), 3, 1).ok());
  EXPECT_EQ(data.placements(), 1);
  // Weights so large that an eighth of the free memory holds no copy of them.
  Problem large = MakeProblem({8, 32, ScalarType::kFp16});
  large.n = 9 << 10;
  large.k = 1 << 10;
  ASSERT_TRUE(data_.Prepare(*support_, large, 1, 1).ok());
  EXPECT_EQ(data_.placements(), 1);
}

TEST_F(ProblemDataTest, AFailureLeavesNothingPrepared) {
  const Problem problem = MakeProblem({5, 32, ScalarType::kFp16, ZeroPoint::kFloat, 2}, {.residual = true});
  Prepare(problem);
  for (int call = 0;; ++call) {
    device_.FailAt(call, absl::ResourceExhaustedError("no memory"));
    ProblemData data(&device_);
    const absl::Status status = data.Prepare(*support_, problem, 3, 1);
    device_.FailNever();
    if (status.ok()) {
      EXPECT_GT(call, 20);
      break;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_FALSE(data.prepared());
    // The next attempt fills the weights anew.
    EXPECT_TRUE(data.Prepare(*support_, problem, 3, 1).ok());
    EXPECT_TRUE(data.prepared());
  }
}

// The verifier on outputs of 4 bytes and half as many columns; the fake's reference is 1 everywhere.
TEST_F(ProblemDataTest, GatedFp32OutputsAreVerified) {
  Prepare(MakeProblem({4, 32, ScalarType::kFp16}, {.activation = Activation::kSilu, .gated = true},
                      ScalarType::kFp32));
  auto* y = reinterpret_cast<float*>(data_.output().address());
  const auto verify = [&](int64_t written) {
    const auto verdict = VerifyCandidate(device_, *support_, data_, LaunchSpec(), 1e-3, [&] {
      std::fill(y, y + written, 1.0f);
      return absl::OkStatus();
    });
    EXPECT_TRUE(verdict.ok()) << verdict.status();
    return verdict.ok() ? *verdict : Verdict();
  };
  EXPECT_TRUE(verify(3 * 33).ok());
  EXPECT_THAT(verify(3 * 33 - 1).reason, HasSubstr("1 outputs were not written"));
  EXPECT_EQ(verify(3 * 33 + 1).failure, internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS);
}

}  // namespace
}  // namespace qgemm
