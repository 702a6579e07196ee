// What a request can ask of its searches, and what the store's knowledge does to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache/memory_store.h"
#include "kernels/legality.h"
#include "kernels/search_space.h"
#include "server/proto_convert.h"
#include "server/tuner.h"
#include "tests/fakes/collecting_stream.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/fakes/fake_gpu.h"
#include "tests/fakes/int4_problem.h"

namespace qgemm {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::TuneRequest RequestFor(int64_t n, int64_t k, int64_t m, v1::Effort effort = v1::EFFORT_BALANCED) {
  v1::TuneRequest request;
  *request.add_problems() = Int4Problem(n, k);
  request.add_m(m);
  request.set_effort(effort);
  return request;
}

// The real clock, moved forward at will.
class RealTimeClock : public Clock {
 public:
  TimePoint Now() const override { return RealClock().Now() + skipped_.load(); }
  int64_t WallUnixMs() const override { return RealClock().WallUnixMs(); }
  bool WaitUntil(Mutex& mu, CondVar& cv, TimePoint deadline) override QGEMM_REQUIRES(mu) {
    return RealClock().WaitUntil(mu, cv, deadline - skipped_.load());
  }
  void Skip(Duration duration) { skipped_ = skipped_.load() + duration; }

 private:
  std::atomic<Duration> skipped_{Duration::zero()};
};

class TunerSearchTest : public ::testing::Test {
 protected:
  TunerSearchTest() { Restart(); }
  void Restart(bool with_gpu = true) {
    tuner_.reset();
    std::optional<GpuInfo> info;
    if (with_gpu) info = FakeGpu::H200();
    absl::StatusOr<TargetResolver> targets = TargetResolver::Create("h200", "", info);
    tuner_ = std::make_unique<Tuner>(store_, compiler_, with_gpu ? &gpu_ : nullptr, clock_,
                                     *std::move(targets), TunerOptions());
  }
  CollectingStream Tune(const v1::TuneRequest& request) {
    CollectingStream stream;
    const absl::Status status = tuner_->Tune(request, "test", stream);
    EXPECT_TRUE(status.ok()) << status;
    return stream;
  }
  v1::LookupAnswer Lookup(int64_t n, int64_t k, int64_t m, bool allow_similar, const std::string& distance) {
    v1::LookupRequest request;
    *request.add_keys()->mutable_problem() = Int4Problem(n, k);
    request.mutable_keys(0)->set_m(m);
    request.set_allow_similar(allow_similar);
    request.set_distance(distance);
    const absl::StatusOr<v1::LookupResponse> response = tuner_->Lookup(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->answers(0) : v1::LookupAnswer();
  }
  v1::ExplainResponse Explain(int64_t n, int64_t k, int64_t m) {
    v1::ExplainRequest request;
    *request.mutable_problem() = Int4Problem(n, k);
    request.set_m(m);
    absl::StatusOr<v1::ExplainResponse> response = tuner_->Explain(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : v1::ExplainResponse();
  }
  std::vector<std::string> Screened() const {
    std::vector<std::string> names;
    for (const auto& [name, count] : gpu_.screens_by_name()) names.push_back(name);
    return names;
  }

  RealTimeClock clock_;
  MemoryStore store_;
  FakeCompiler compiler_;
  FakeGpu gpu_;
  std::unique_ptr<Tuner> tuner_;
};

TEST_F(TunerSearchTest, QuickTimesFewAndAnswersNoHigherEffort) {
  const CollectingStream quick = Tune(RequestFor(5376, 4096, 16, v1::EFFORT_QUICK));
  EXPECT_EQ(quick.result.pick().effort(), v1::EFFORT_QUICK);
  EXPECT_LE(quick.summary.timings(), 12);
  EXPECT_TRUE(Tune(RequestFor(5376, 4096, 16, v1::EFFORT_QUICK)).result.cached());
  EXPECT_FALSE(Tune(RequestFor(5376, 4096, 16, v1::EFFORT_BALANCED)).result.cached());
  // And a better pick answers for QUICK from now on.
  const CollectingStream again = Tune(RequestFor(5376, 4096, 16, v1::EFFORT_QUICK));
  EXPECT_TRUE(again.result.cached());
  EXPECT_EQ(again.result.pick().effort(), v1::EFFORT_BALANCED);
}

TEST_F(TunerSearchTest, ALookupIsAnsweredByAQuickPick) {
  Tune(RequestFor(5376, 4096, 16, v1::EFFORT_QUICK));
  EXPECT_EQ(Lookup(5376, 4096, 16, false, "").pick().effort(), v1::EFFORT_QUICK);
}

TEST_F(TunerSearchTest, OnlyMatchingCandidatesAreTriedAndThePickIsNotKept) {
  v1::TuneRequest request = RequestFor(5376, 4096, 16);
  request.set_only("^wgmma_.*/k[24]/cluster$");
  const CollectingStream stream = Tune(request);
  EXPECT_THAT(stream.result.pick().config(), StartsWith("wgmma_"));
  EXPECT_EQ(stream.result.pick().reduction(), v1::REDUCTION_CLUSTER);
  EXPECT_TRUE(stream.result.pick().partial());
  EXPECT_THAT(Screened(), Each(testing::MatchesRegex("wgmma_.*/k[24]/cluster")));
  EXPECT_FALSE(Lookup(5376, 4096, 16, false, "").has_pick());
  // What was measured stays measured.
  const int screens = gpu_.screens();
  Tune(request);
  EXPECT_EQ(gpu_.screens(), screens);
}

TEST_F(TunerSearchTest, AnExpressionThatMatchesNothingIsSaidToBeSo) {
  v1::TuneRequest request = RequestFor(5376, 4096, 16);
  request.set_only("no such config");
  EXPECT_THAT(Tune(request).result.error(),
              AllOf(HasSubstr("no legal candidate"), HasSubstr("matches only = \"no such config\"")));
}

TEST_F(TunerSearchTest, TheCountBudgetHoldsAndItsPickIsNotKept) {
  v1::TuneRequest request = RequestFor(5376, 4096, 16, v1::EFFORT_EXHAUSTIVE);
  request.set_max_candidates(7);
  const CollectingStream stream = Tune(request);
  EXPECT_EQ(stream.summary.timings(), 7);
  EXPECT_TRUE(stream.result.pick().partial());
  EXPECT_FALSE(Lookup(5376, 4096, 16, false, "").has_pick());
  // A limit that keeps nothing out changes nothing.
  request.set_max_candidates(100000);
  EXPECT_FALSE(Tune(request).result.pick().partial());
  EXPECT_TRUE(Lookup(5376, 4096, 16, false, "").has_pick());
}

TEST_F(TunerSearchTest, TheTimeBudgetEndsWithTheBestSoFar) {
  int screened = 0;
  gpu_.SetBehaviour([&](const GpuCandidate& candidate) -> absl::StatusOr<internal::ScreenReply> {
    clock_.Skip(std::chrono::milliseconds(100));
    return FakeGpu::Right(10.0 - 0.1 * ++screened);
  });
  v1::TuneRequest request = RequestFor(5376, 4096, 16, v1::EFFORT_EXHAUSTIVE);
  request.set_budget_s(1);
  const CollectingStream stream = Tune(request);
  EXPECT_EQ(stream.summary.timings(), 10);
  ASSERT_TRUE(stream.result.has_pick()) << stream.result.error();
  EXPECT_TRUE(stream.result.pick().partial());
  EXPECT_EQ(stream.result.pick().source(), v1::PICK_SOURCE_MEASURED);
  EXPECT_EQ(stream.result.pick().timed(), 10);
  EXPECT_FALSE(Lookup(5376, 4096, 16, false, "").has_pick());
  // The next one goes on where this one stopped.
  Tune(request);
  EXPECT_EQ(gpu_.screens(), 20);
}

// The compiles took all of it: the pick is what MODEL_ONLY says, its kernel the first that can be used.
TEST_F(TunerSearchTest, ABudgetThatEndsBeforeAnythingIsTimedAnswersWithThePrediction) {
  const Plan plan = StrategyFor(v1::EFFORT_BALANCED)
                        .MakePlan(*ProblemFromProto(Int4Problem(5376, 4096)), 16,
                                  tuner_->targets().Resolve("")->profile, /*timed=*/true);
  const std::string best = ConfigName(plan.candidates[0].candidate.config);
  compiler_.SetBehaviour([best](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    return FakeCompiler::Reply(task, absl::StrContains(task.source.name, best) ? 16 : 0);
  });
  v1::TuneRequest request = RequestFor(5376, 4096, 16);
  request.set_budget_s(1e-6);
  compiler_.Hold();
  CollectingStream stream;
  std::future<absl::Status> tuned =
      std::async(std::launch::async, [&] { return tuner_->Tune(request, "test", stream); });
  compiler_.AwaitHeld(1);
  compiler_.Release();
  ASSERT_TRUE(tuned.get().ok());
  ASSERT_TRUE(stream.result.has_pick()) << stream.result.error();
  const v1::Pick& pick = stream.result.pick();
  EXPECT_EQ(pick.source(), v1::PICK_SOURCE_MODEL);
  EXPECT_EQ(pick.confidence(), v1::CONFIDENCE_LOW);
  EXPECT_EQ(pick.effort(), v1::EFFORT_BALANCED);
  EXPECT_TRUE(pick.partial());
  EXPECT_FALSE(pick.has_time_us());
  EXPECT_FALSE(pick.has_device());
  EXPECT_GT(pick.predicted_us(), 0);
  EXPECT_EQ(pick.timed(), 0);
  EXPECT_EQ(gpu_.screens(), 0);
  EXPECT_GT(stream.result.rejections_size(), 0);  // the best prediction spills
  EXPECT_FALSE(Lookup(5376, 4096, 16, false, "").has_pick());

  const v1::Pick predicted = Tune(RequestFor(5376, 4096, 16, v1::EFFORT_MODEL_ONLY)).result.pick();
  EXPECT_EQ(pick.config(), predicted.config());
  EXPECT_EQ(pick.split_k(), predicted.split_k());
  EXPECT_EQ(pick.reduction(), predicted.reduction());
  EXPECT_EQ(pick.predicted_us(), predicted.predicted_us());
  EXPECT_EQ(pick.kernel().sha256(), predicted.kernel().sha256());
}

// What was tried and is wrong is not what is predicted.
TEST_F(TunerSearchTest, ABudgetInWhichEverythingTriedWasWrongAnswersWithAPredictionOfTheRest) {
  std::string tried;
  gpu_.SetBehaviour([&](const GpuCandidate& candidate) -> absl::StatusOr<internal::ScreenReply> {
    tried = candidate.name;
    clock_.Skip(std::chrono::seconds(2));
    return FakeGpu::Failed(internal::CANDIDATE_FAILURE_WRONG, "17 outputs differ");
  });
  v1::TuneRequest request = RequestFor(5376, 4096, 16, v1::EFFORT_EXHAUSTIVE);
  request.set_budget_s(1);
  const CollectingStream stream = Tune(request);
  ASSERT_TRUE(stream.result.has_pick()) << stream.result.error();
  const v1::Pick& pick = stream.result.pick();
  EXPECT_EQ(pick.source(), v1::PICK_SOURCE_MODEL);
  EXPECT_TRUE(pick.partial());
  EXPECT_EQ(pick.rejected(), 1);
  EXPECT_EQ(gpu_.screens(), 1);
  const Plan plan = StrategyFor(v1::EFFORT_EXHAUSTIVE)
                        .MakePlan(*ProblemFromProto(Int4Problem(5376, 4096)), 16,
                                  tuner_->targets().Resolve("")->profile, /*timed=*/true);
  const Candidate& expected = CandidateName(plan.candidates[0].candidate) == tried
                                  ? plan.candidates[1].candidate
                                  : plan.candidates[0].candidate;
  EXPECT_EQ(pick.config(), ConfigName(expected.config));
  EXPECT_EQ(pick.split_k(), expected.split_k);
  ASSERT_EQ(stream.result.rejections_size(), 1);
  EXPECT_THAT(stream.result.rejections(0).example(), StartsWith(tried));
}

TEST_F(TunerSearchTest, ABudgetThatEndsWhereNothingCompilesSaysSo) {
  compiler_.SetBehaviour([](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    if (task.source.name == "support kernels") return FakeCompiler::Reply(task);
    return absl::InvalidArgumentError("error: identifier \"x\" is undefined");
  });
  v1::TuneRequest request = RequestFor(5376, 4096, 16);
  request.set_budget_s(1e-6);
  EXPECT_THAT(Tune(request).result.error(), HasSubstr("does not compile"));
}

TEST_F(TunerSearchTest, APredictedPickUnderLimitsIsNotKeptEither) {
  Restart(/*with_gpu=*/false);
  v1::TuneRequest request = RequestFor(5376, 4096, 16);
  request.set_only("/k4/");
  const v1::Pick pick = Tune(request).result.pick();
  EXPECT_EQ(pick.split_k(), 4);
  EXPECT_TRUE(pick.partial());
  EXPECT_FALSE(Lookup(5376, 4096, 16, false, "").has_pick());
  request.set_only("/k");  // keeps nothing out
  EXPECT_FALSE(Tune(request).result.pick().partial());
  EXPECT_TRUE(Lookup(5376, 4096, 16, false, "").has_pick());
}

TEST_F(TunerSearchTest, InvalidLimitsAreRefusedByName) {
  v1::TuneRequest request = RequestFor(5376, 4096, 16);
  request.set_only("(");
  CollectingStream stream;
  EXPECT_EQ(tuner_->Tune(request, "test", stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tuner_->Estimate(request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TunerSearchTest, AnEstimateIsWhatTheTuningThenDoes) {
  const v1::TuneRequest request = RequestFor(5376, 4096, 16, v1::EFFORT_EXHAUSTIVE);
  const absl::StatusOr<v1::TuneEstimate> estimate = tuner_->Estimate(request);
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  EXPECT_EQ(compiler_.compiles(), 0);
  EXPECT_EQ(gpu_.screens(), 0);
  EXPECT_GT(estimate->wall_s(), 0);
  const CollectingStream stream = Tune(request);
  EXPECT_EQ(stream.summary.timings(), estimate->candidates());
  EXPECT_EQ(stream.summary.compiles(), estimate->compiles() + 1);  // and the support kernels
  const absl::StatusOr<v1::TuneEstimate> again = tuner_->Estimate(request);
  EXPECT_EQ(again->stored(), 1);
  EXPECT_EQ(again->candidates(), 0);
  EXPECT_EQ(again->compiles(), 0);
}

TEST_F(TunerSearchTest, WithoutAGpuAnEstimateHasNoTimings) {
  Restart(/*with_gpu=*/false);
  const absl::StatusOr<v1::TuneEstimate> estimate = tuner_->Estimate(RequestFor(5376, 4096, 16));
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  EXPECT_EQ(estimate->candidates(), 0);
  EXPECT_EQ(estimate->timing_s(), 0);
  const CollectingStream stream = Tune(RequestFor(5376, 4096, 16));
  EXPECT_EQ(stream.summary.compiles(), estimate->compiles());
}

TEST_F(TunerSearchTest, AnUntunedShapeIsAnsweredByANearOneOnlyWhenAllowed) {
  Tune(RequestFor(5376, 4096, 16));
  Tune(RequestFor(256, 6656, 16));
  EXPECT_FALSE(Lookup(5248, 4096, 13, false, "").has_pick());
  for (const char* distance : {"", "log2-l1", "log2-l2", "weighted", "cost"}) {
    const v1::LookupAnswer answer = Lookup(5248, 4096, 13, true, distance);
    ASSERT_TRUE(answer.has_pick()) << distance;
    const v1::Pick& pick = answer.pick();
    EXPECT_EQ(pick.source(), v1::PICK_SOURCE_SIMILAR);
    EXPECT_EQ(pick.confidence(), v1::CONFIDENCE_LOW);
    EXPECT_FALSE(pick.has_time_us());
    EXPECT_EQ(pick.problem().n(), 5248);
    EXPECT_GT(pick.predicted_us(), 0);
    EXPECT_GT(pick.similar_to().time_us(), 0);
    EXPECT_TRUE(store_.GetKernelBySha256(pick.kernel().sha256()).ok());
    // The launch is the real shape's.
    EXPECT_GE(int64_t{pick.launch().grid_n()} * pick.launch().tile_n(), 5248);
  }
  EXPECT_EQ(Lookup(5248, 4096, 13, true, "log2-l1").pick().similar_to().n(), 5376);
}

TEST_F(TunerSearchTest, ATunedShapeIsAnsweredByItsOwnPickAlsoWhenSimilarOnesAreAllowed) {
  Tune(RequestFor(5376, 4096, 16));
  EXPECT_EQ(Lookup(5376, 4096, 16, true, "").pick().source(), v1::PICK_SOURCE_MEASURED);
}

TEST_F(TunerSearchTest, NoNearShapeIsAMissThatSaysSo) {
  Tune(RequestFor(5376, 4096, 16));
  EXPECT_THAT(Lookup(5376, 4096, 17, true, "").miss_reason(), HasSubstr("no tuned shape's pick"));
  v1::LookupRequest request;
  *request.add_keys()->mutable_problem() = Int4Problem(64, 128);
  request.mutable_keys(0)->set_m(1);
  request.set_distance("far");
  EXPECT_EQ(tuner_->Lookup(request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TunerSearchTest, WinnersOfNearShapesAreTriedFirstOfAll) {
  // The winner of the first shape is a candidate that BALANCED would not try for the second.
  Tune(RequestFor(5376, 4096, 16, v1::EFFORT_EXHAUSTIVE));
  const v1::Pick winner = Lookup(5376, 4096, 16, false, "").pick();
  const Plan without =
      StrategyFor(v1::EFFORT_BALANCED)
          .MakePlan(*ProblemFromProto(Int4Problem(5376, 4224)), 16, tuner_->targets().Resolve("")->profile,
                    /*timed=*/true);
  bool planned = false;
  for (const PlannedCandidate& one : without.candidates) {
    planned = planned || (ConfigName(one.candidate.config) == winner.config() &&
                          one.candidate.split_k == winner.split_k() &&
                          ReductionToProto(one.candidate.reduction) == winner.reduction());
  }
  const CollectingStream second = Tune(RequestFor(5376, 4224, 16));
  // Planned or not, it is among what was timed now.
  const v1::ExplainResponse explained = Explain(5376, 4224, 16);
  bool timed = false;
  for (const v1::ExplainedCandidate& candidate : explained.candidates()) {
    if (!candidate.has_time_us()) continue;
    timed = timed || absl::StartsWith(candidate.candidate(),
                                      absl::StrCat(winner.config(), "/k", winner.split_k(), "/"));
  }
  EXPECT_TRUE(timed);
  EXPECT_EQ(second.summary.timings(), static_cast<int64_t>(without.candidates.size()) + (planned ? 0 : 1));
}

// The class that is tuned first: none or int8 activations.
class ActivationClassTest : public TunerSearchTest, public ::testing::WithParamInterface<bool> {
 protected:
  static v1::Problem Asked(int64_t n, bool int8) {
    v1::Problem problem = Int4Problem(n, 4096);
    if (int8) problem.set_act_quantization(v1::ACTIVATION_QUANTIZATION_INT8);
    return problem;
  }
  v1::TuneResult TuneClass(int64_t n, bool int8) {
    v1::TuneRequest request = RequestFor(n, 4096, 16);
    *request.mutable_problems(0) = Asked(n, int8);
    return Tune(request).result;
  }
  v1::LookupAnswer LookupNear(int64_t n, bool int8, bool brief = false) {
    v1::LookupRequest request;
    *request.add_keys()->mutable_problem() = Asked(n, int8);
    request.mutable_keys(0)->set_m(16);
    request.set_allow_similar(true);
    request.set_brief(brief);
    clock_.Skip(std::chrono::hours(1));  // past what is remembered
    const absl::StatusOr<v1::LookupResponse> response = tuner_->Lookup(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->answers(0) : v1::LookupAnswer();
  }
};

TEST_P(ActivationClassTest, NeverAnswersForTheOther) {
  const bool first = GetParam();
  const bool second = !first;
  const v1::Pick tuned = TuneClass(5376, first).pick();
  EXPECT_EQ(tuned.problem().act_quantization(),
            first ? v1::ACTIVATION_QUANTIZATION_INT8 : v1::ACTIVATION_QUANTIZATION_NONE);
  EXPECT_EQ(LookupNear(5376, first).pick().source(), v1::PICK_SOURCE_MEASURED);
  const v1::Pick near = LookupNear(5504, first).pick();
  EXPECT_EQ(near.source(), v1::PICK_SOURCE_SIMILAR);
  EXPECT_EQ(near.problem().act_quantization(), tuned.problem().act_quantization());
  EXPECT_EQ(near.kernel().sha256(), tuned.kernel().sha256());

  // Neither the shape's own pick nor a near one's, in full or brief.
  for (const int64_t n : {5376, 5504}) {
    EXPECT_FALSE(LookupNear(n, second).has_pick()) << n;
    EXPECT_FALSE(LookupNear(n, second, /*brief=*/true).has_brief()) << n;
  }
  const v1::TuneResult other = TuneClass(5376, second);
  EXPECT_FALSE(other.cached());
  EXPECT_NE(other.pick().kernel().sha256(), tuned.kernel().sha256());
  // Both are there now, and each answers for itself.
  for (const bool int8 : {false, true}) {
    const v1::Pick expected = int8 == first ? tuned : other.pick();
    EXPECT_TRUE(TuneClass(5376, int8).cached());
    for (const int64_t n : {5376, 5504}) {
      const v1::Pick pick = LookupNear(n, int8).pick();
      EXPECT_EQ(pick.kernel().sha256(), expected.kernel().sha256()) << n;
      EXPECT_EQ(pick.problem().act_quantization(), expected.problem().act_quantization()) << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TunedFirst, ActivationClassTest, ::testing::Bool());

TEST_F(TunerSearchTest, ExplainTellsWhichFieldMadeAMiss) {
  EXPECT_THAT(Explain(5376, 4096, 16).answer(), HasSubstr("holds no pick"));
  Tune(RequestFor(5376, 4096, 16));
  const v1::ExplainResponse hit = Explain(5376, 4096, 16);
  EXPECT_EQ(hit.answer(), "hit");
  EXPECT_EQ(hit.differences_size(), 0);
  const v1::ExplainResponse bucket = Explain(5376, 4096, 17);
  ASSERT_EQ(bucket.differences_size(), 1) << bucket.answer();
  EXPECT_EQ(bucket.differences(0).field(), "m_bucket");
  EXPECT_EQ(bucket.differences(0).wanted(), "24");
  EXPECT_EQ(bucket.differences(0).stored(), "16");
  const v1::ExplainResponse shape = Explain(5376, 4224, 16);
  ASSERT_EQ(shape.differences_size(), 1) << shape.answer();
  EXPECT_EQ(shape.differences(0).field(), "k");
  v1::ExplainRequest other;
  *other.mutable_problem() = Int4Problem(5376, 4096);
  other.mutable_problem()->mutable_format()->set_group_size(64);
  other.mutable_problem()->mutable_epilogue()->set_bias(true);
  other.set_m(16);
  other.mutable_problem()->set_act_quantization(v1::ACTIVATION_QUANTIZATION_INT8);
  std::vector<std::string> fields;
  const v1::ExplainResponse response = *tuner_->Explain(other);
  for (const v1::KeyDifference& difference : response.differences()) {
    fields.push_back(difference.field());
  }
  EXPECT_THAT(fields, testing::ElementsAre("format", "act_quantization", "epilogue"));
}

TEST_F(TunerSearchTest, ExplainComparesWithTheNearestOfSeveralShapes) {
  Tune(RequestFor(1024, 4096, 16));
  Tune(RequestFor(5376, 4096, 16));
  for (const auto& [n, stored] : {std::pair<int64_t, const char*>{1040, "1024"}, {5400, "5376"}}) {
    const v1::ExplainResponse explained = Explain(n, 4096, 16);
    ASSERT_EQ(explained.differences_size(), 1) << explained.answer();
    EXPECT_EQ(explained.differences(0).stored(), stored);
  }
}

TEST_F(TunerSearchTest, ExplainTellsWhatMadeAPickStale) {
  Tune(RequestFor(5376, 4096, 16));
  compiler_.SetToolchain("nvrtc 13.1");
  Restart();
  ASSERT_TRUE(tuner_->Toolchain().ok());
  const v1::ExplainResponse response = Explain(5376, 4096, 16);
  EXPECT_TRUE(response.stale());
  ASSERT_EQ(response.differences_size(), 1);
  EXPECT_EQ(response.differences(0).field(), "toolchain");
  EXPECT_EQ(response.differences(0).stored(), "nvrtc 13.0");
}

TEST_F(TunerSearchTest, ExplainListsEveryCandidatesFate) {
  gpu_.SetBehaviour([](const GpuCandidate& candidate) -> absl::StatusOr<internal::ScreenReply> {
    if (absl::StrContains(candidate.name, "/k2/")) {
      return FakeGpu::Failed(internal::CANDIDATE_FAILURE_WRONG, "relative error 0.5");
    }
    return FakeGpu::Right(FakeGpu::MedianOf(candidate.name));
  });
  const v1::Pick pick = Tune(RequestFor(5376, 4096, 16)).result.pick();
  const v1::ExplainResponse response = Explain(5376, 4096, 16);
  EXPECT_EQ(response.candidates_size(), pick.candidates());
  int timed = 0;
  int rejected = 0;
  int picked = 0;
  double before = 0;
  for (const v1::ExplainedCandidate& candidate : response.candidates()) {
    if (candidate.has_center_us()) {
      ++timed;
      EXPECT_GE(candidate.center_us(), before);
      before = candidate.center_us();
    }
    rejected += candidate.rejected().empty() ? 0 : 1;
    if (!candidate.rejected().empty()) {
      EXPECT_THAT(candidate.rejected(), HasSubstr("relative error 0.5"));
    }
    picked += candidate.picked() ? 1 : 0;
  }
  EXPECT_EQ(timed, pick.timed());
  EXPECT_EQ(rejected, pick.rejected());
  EXPECT_GT(rejected, 0);
  EXPECT_EQ(picked, 1);
  EXPECT_EQ(response.quarantined_size(), 0);
}

// One kernel hangs: it costs one candidate of one shape, not one of every shape.
TEST_F(TunerSearchTest, WhatTookTheGpuProcessDownIsQuarantinedForEveryShape) {
  Tune(RequestFor(5376, 4096, 16));
  const std::string culprit = Lookup(5376, 4096, 16, false, "").pick().config();
  gpu_.SetBehaviour([&](const GpuCandidate& candidate) -> absl::StatusOr<internal::ScreenReply> {
    if (!absl::StartsWith(candidate.name, culprit + "/")) {
      return FakeGpu::Right(FakeGpu::MedianOf(candidate.name));
    }
    internal::ScreenReply reply =
        FakeGpu::Failed(internal::CANDIDATE_FAILURE_HANG, "did not end before its deadline");
    reply.set_process_lost(true);
    return reply;
  });
  const auto runs = [&] {
    int count = 0;
    for (const auto& [name, screens] : gpu_.screens_by_name()) {
      if (absl::StartsWith(name, culprit + "/")) count += screens;
    }
    return count;
  };
  v1::TuneRequest request = RequestFor(5376, 4224, 16);
  request.set_only(culprit);
  Tune(request);
  const int after_first = runs();
  const CollectingStream other = Tune(RequestFor(5376, 4352, 16));
  EXPECT_EQ(runs(), after_first);
  EXPECT_THAT(other.result.pick().config(), Not(culprit));
  const v1::ExplainResponse response = Explain(5376, 4352, 16);
  ASSERT_EQ(response.quarantined_size(), 1);
  EXPECT_EQ(response.quarantined(0).config(), culprit);
  EXPECT_THAT(response.quarantined(0).reason(), HasSubstr("did not end"));
  // A new toolchain makes another kernel of it, and so a new try.
  compiler_.SetToolchain("nvrtc 13.1");
  Restart();
  Tune(RequestFor(5376, 4352, 16));
  EXPECT_GT(runs(), after_first);
}

TEST_F(TunerSearchTest, AKernelThatDoesNotCompileIsQuarantinedAcrossRestarts) {
  Tune(RequestFor(5376, 4096, 16));
  const std::string culprit = Lookup(5376, 4096, 16, false, "").pick().config();
  MemoryStore empty;
  FakeCompiler compiler;
  compiler.SetBehaviour([&](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    if (!absl::StrContains(task.source.name, culprit)) return FakeCompiler::Reply(task);
    internal::CompileReply reply;
    reply.set_error("out of registers");
    return reply;
  });
  const auto tries = [&] {
    int count = 0;
    for (const auto& [name, compiles] : compiler.compiles_by_name()) {
      if (absl::StrContains(name, culprit)) count += compiles;
    }
    return count;
  };
  for (int start = 0; start < 3; ++start) {
    Tuner tuner(empty, compiler, &gpu_, clock_, *TargetResolver::Create("h200", "", FakeGpu::H200()),
                TunerOptions());
    CollectingStream stream;
    ASSERT_TRUE(tuner.Tune(RequestFor(5376, 4096 + 128 * start, 16), "test", stream).ok());
    EXPECT_TRUE(stream.result.has_pick());
    EXPECT_EQ(tries(), 1) << "start " << start;
  }
}

TEST_F(TunerSearchTest, WarmCompilesAFormatSoThatNoTuningOfItCompiles) {
  Restart(/*with_gpu=*/false);
  v1::WarmRequest request;
  *request.mutable_problem() = Int4Problem(0, 0);
  v1::WarmEvent end;
  const absl::Status status = tuner_->Warm(request, [&](const v1::WarmEvent& event) {
    end = event;
    return true;
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(end.done());
  EXPECT_EQ(end.ready(), end.kernels());
  EXPECT_EQ(end.compiled(), end.kernels());
  EXPECT_EQ(end.failed(), 0);
  EXPECT_GT(end.bytes(), 0);
  EXPECT_EQ(end.arch(), "sm_90a");
  const int compiles = compiler_.compiles();
  Restart();
  EXPECT_EQ(Tune(RequestFor(5376, 4096, 16, v1::EFFORT_EXHAUSTIVE)).summary.compiles(), 0);
  EXPECT_EQ(Tune(RequestFor(256, 6656, 1000)).summary.compiles(), 0);
  EXPECT_EQ(compiler_.compiles(), compiles);
  // Again: everything is there.
  ASSERT_TRUE(tuner_
                  ->Warm(request,
                         [&](const v1::WarmEvent& event) {
                           end = event;
                           return true;
                         })
                  .ok());
  EXPECT_EQ(end.compiled(), 0);
  EXPECT_EQ(end.ready(), end.kernels());
}

TEST_F(TunerSearchTest, WarmOfABucketIsASmallerSpaceAndEndsWhenNobodyListens) {
  v1::WarmRequest request;
  *request.mutable_problem() = Int4Problem(0, 0);
  request.add_m(1);
  int kernels = 0;
  EXPECT_TRUE(absl::IsCancelled(tuner_->Warm(request, [&](const v1::WarmEvent& event) {
    kernels = event.kernels();
    return false;
  })));
  const DeviceProfile device = tuner_->targets().Resolve("")->profile;
  EXPECT_EQ(kernels, static_cast<int>(ConfigSpace({}, 1, device).size()) + 1);
  request.set_target("h800");
  EXPECT_EQ(tuner_->Warm(request, [](const v1::WarmEvent&) { return true; }).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace qgemm
