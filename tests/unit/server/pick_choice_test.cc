#include "server/pick_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "cache/memory_store.h"
#include "kernels/search_space.h"
#include "tests/fakes/fake_compiler.h"

namespace qgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Real candidates of a real problem with made-up medians and predictions.
class PickChoiceTest : public ::testing::Test {
 protected:
  PickChoiceTest()
      : supply_(store_, compiler_, RealClock(), [this] {
          MutexLock lock(mu_);
          changed_.NotifyAll();
        }) {
    problem_.n = 5376;
    problem_.k = 4096;
    legal_ = LegalCandidates(problem_, 16, *FindDeviceProfile("h200"));
  }

  void Add(double median_us, double predicted_us) {
    CandidateState state;
    state.candidate = legal_[states_.size()];
    state.predicted_us = predicted_us;
    state.verdict.emplace();
    state.verdict->mutable_timing()->set_median_us(median_us);
    state.verdict->mutable_timing()->set_samples(100);
    state.kernel =
        supply_.Request(state.candidate.config, problem_.signature, "sm_90a", "nvrtc 13.0", Flow()).kernel;
    MutexLock lock(mu_);
    while (!state.kernel->ready()) changed_.Wait(mu_);
    states_.push_back(std::move(state));
  }
  void AddFailed(internal::CandidateFailure failure, const std::string& reason) {
    Add(0.001, 1);
    states_.back().verdict->set_failure(failure);
    states_.back().verdict->set_reason(reason);
  }
  size_t Choose() {
    std::vector<size_t> all(states_.size());
    std::iota(all.begin(), all.end(), size_t{0});
    return ChooseMeasured(states_, all, problem_, 16);
  }

  Mutex mu_;
  CondVar changed_;
  MemoryStore store_;
  FakeCompiler compiler_;
  KernelSupply supply_;
  Problem problem_;
  std::vector<Candidate> legal_;
  std::vector<CandidateState> states_;
};

TEST_F(PickChoiceTest, SmallestMedianWinsOutsideTheTieBand) {
  Add(10.04, 1.0);
  Add(10.00, 9.0);
  EXPECT_EQ(Choose(), 1u);
}

TEST_F(PickChoiceTest, SmallerPredictionWinsInsideTheTieBand) {
  Add(10.02, 1.0);
  Add(10.00, 9.0);
  EXPECT_EQ(Choose(), 0u);
}

TEST_F(PickChoiceTest, EqualPredictionsAreOrderedTheSameWayInAnyOrderOfArrival) {
  for (int i = 0; i < 5; ++i) Add(10.0, 2.0);
  const Candidate winner = states_[Choose()].candidate;
  std::reverse(states_.begin(), states_.end());
  EXPECT_EQ(states_[Choose()].candidate, winner);
}

TEST_F(PickChoiceTest, FinalistsAreFewAndWithinTheirBand) {
  Add(10.6, 1.0);
  Add(10.0, 2.0);
  Add(10.35, 3.0);
  Add(10.2, 4.0);
  EXPECT_THAT(ChooseFinalists(states_, 4), ElementsAre(1, 3, 2));
  EXPECT_THAT(ChooseFinalists(states_, 2), ElementsAre(1, 3));
}

TEST_F(PickChoiceTest, ANoisyCandidateThatMayBeFastIsAFinalist) {
  Add(10.0, 1.0);
  Add(10.6, 2.0);
  Add(10.6, 3.0);
  states_[1].verdict->mutable_timing()->set_error_us(0.2);
  EXPECT_THAT(ChooseFinalists(states_, 4), ElementsAre(0, 1));
}

// Two medians one step of the event clock apart, in the other order than what lies between the steps.
TEST_F(PickChoiceTest, TimesAreComparedByTheirCentres) {
  Add(5.024, 1.0);
  Add(5.056, 9.0);
  states_[0].verdict->mutable_timing()->set_center_us(5.052);
  states_[1].verdict->mutable_timing()->set_center_us(5.03);
  EXPECT_EQ(Choose(), 1u);
  EXPECT_THAT(ChooseFinalists(states_, 1), ElementsAre(1));
  EXPECT_DOUBLE_EQ(FastestUs(states_), 5.03);
}

TEST_F(PickChoiceTest, FailedCandidatesAreNoFinalists) {
  AddFailed(internal::CANDIDATE_FAILURE_WRONG, "error 0.5");
  EXPECT_THAT(ChooseFinalists(states_, 4), IsEmpty());
  Add(10.0, 1.0);
  EXPECT_THAT(ChooseFinalists(states_, 4), ElementsAre(1));
}

TEST_F(PickChoiceTest, RejectionsAreCountedByKindMostFrequentFirst) {
  AddFailed(internal::CANDIDATE_FAILURE_HANG, "killed after 10 s");
  AddFailed(internal::CANDIDATE_FAILURE_WRONG, "error 0.5");
  AddFailed(internal::CANDIDATE_FAILURE_WRONG, "error 0.6");
  Add(10.0, 1.0);
  const std::vector<v1::Rejection> rejections = CountRejections(states_);
  ASSERT_EQ(rejections.size(), 2u);
  EXPECT_EQ(rejections[0].candidates(), 2);
  EXPECT_EQ(rejections[0].reason(), "wrong result");
  EXPECT_THAT(rejections[0].example(), HasSubstr(CandidateName(states_[1].candidate)));
  EXPECT_THAT(rejections[0].example(), HasSubstr("error 0.5"));
  EXPECT_EQ(rejections[1].candidates(), 1);
}

}  // namespace
}  // namespace qgemm
