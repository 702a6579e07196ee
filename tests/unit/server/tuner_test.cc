#include "server/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/digest.h"
#include "base/host_name.h"
#include "cache/memory_store.h"
#include "kernels/search_space.h"
#include "server/proto_convert.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/fakes/fake_gpu.h"
#include "tests/fakes/int4_problem.h"

namespace qgemm {
namespace {

using ::testing::_;
using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Pair;

v1::TuneRequest RequestFor(std::vector<v1::Problem> problems, std::vector<int64_t> m,
                           v1::Effort effort = v1::EFFORT_EXHAUSTIVE) {
  v1::TuneRequest request;
  for (v1::Problem& problem : problems) *request.add_problems() = std::move(problem);
  for (const int64_t rows : m) request.add_m(rows);
  request.set_effort(effort);
  return request;
}

class RecordingStream : public TuneStream {
 public:
  void Send(const v1::TuneEvent& event) override {
    switch (event.event_case()) {
      case v1::TuneEvent::kResult:
        results.push_back(event.result());
        break;
      case v1::TuneEvent::kProgress:
        progress.push_back(event.progress());
        break;
      case v1::TuneEvent::kAccepted:
        job_id = event.accepted().job_id();
        break;
      default:
        summary = event.summary();
    }
  }
  bool Cancelled() override { return cancelled.load(); }

  std::vector<v1::TuneResult> results;
  std::vector<v1::TuneProgress> progress;
  std::optional<v1::TuneSummary> summary;
  std::string job_id;
  std::atomic<bool> cancelled{false};
};

// A tuner over fakes; the store survives Restart().
class TunerTest : public ::testing::Test {
 protected:
  explicit TunerTest(bool with_gpu = true) : with_gpu_(with_gpu) { Restart(); }

  void Restart(std::string driver_version = "580.95") {
    tuner_.reset();
    std::optional<GpuInfo> info;
    if (with_gpu_) {
      info = FakeGpu::H200();
      info->driver_version = driver_version;
    }
    absl::StatusOr<TargetResolver> targets = TargetResolver::Create("h200", "", info);
    ASSERT_TRUE(targets.ok()) << targets.status();
    tuner_ = std::make_unique<Tuner>(store_, compiler_, with_gpu_ ? &gpu_ : nullptr, RealClock(),
                                     *std::move(targets), TunerOptions());
  }

  RecordingStream& Tune(const v1::TuneRequest& request, absl::StatusCode expected = absl::StatusCode::kOk) {
    streams_.push_back(std::make_unique<RecordingStream>());
    status_ = tuner_->Tune(request, "test", *streams_.back());
    EXPECT_EQ(status_.code(), expected) << status_;
    return *streams_.back();
  }

  int LegalCount(const v1::Problem& problem, int bucket) {
    return static_cast<int>(
        LegalCandidates(*ProblemFromProto(problem), bucket, tuner_->targets().Resolve("")->profile).size());
  }

  const bool with_gpu_;
  MemoryStore store_;
  FakeCompiler compiler_;
  FakeGpu gpu_;
  std::unique_ptr<Tuner> tuner_;
  std::vector<std::unique_ptr<RecordingStream>> streams_;
  absl::Status status_;
};

class TunerWithoutGpuTest : public TunerTest {
 protected:
  TunerWithoutGpuTest() : TunerTest(/*with_gpu=*/false) {}
};

TEST_F(TunerTest, PicksTheFastestRightCandidateAndStoresIt) {
  const v1::Problem problem = Int4Problem(5376, 4096);
  const RecordingStream& cold = Tune(RequestFor({problem}, {16}));
  ASSERT_EQ(cold.results.size(), 1u);
  const v1::Pick& pick = cold.results[0].pick();
  EXPECT_EQ(pick.source(), v1::PICK_SOURCE_MEASURED);
  EXPECT_EQ(pick.m_bucket(), 16);
  EXPECT_EQ(pick.target(), "h200");
  EXPECT_EQ(pick.driver_version(), "580.95");
  EXPECT_EQ(pick.producer(), HostName());
  EXPECT_EQ(pick.device().sm_count(), 132);
  EXPECT_FALSE(cold.results[0].cached());
  const int legal = LegalCount(problem, 16);
  EXPECT_EQ(pick.candidates(), legal);
  EXPECT_EQ(pick.timed(), legal);
  EXPECT_EQ(cold.summary->timings(), legal);
  EXPECT_EQ(cold.summary->compiles(), compiler_.compiles());
  EXPECT_FALSE(gpu_.support_cubin().empty());

  double fastest = 1e9;
  for (const auto& [name, count] : gpu_.screens_by_name()) {
    fastest = std::min(fastest, FakeGpu::MedianOf(name));
  }
  EXPECT_LE(pick.time_us(), fastest * 1.003);
  EXPECT_TRUE(store_.GetKernelBySha256(pick.kernel().sha256()).ok());
  EXPECT_EQ(pick.launch().entry(), pick.kernel().entry());
}

TEST_F(TunerTest, CompilesEachKernelOnceForAllBucketsAndShapes) {
  Tune(RequestFor({Int4Problem(5376, 4096), Int4Problem(1024, 6656)}, {1, 4, 16}));
  EXPECT_THAT(compiler_.compiles_by_name(), Each(Pair(_, 1)));
  EXPECT_EQ(streams_.back()->results.size(), 6u);
  EXPECT_EQ(streams_.back()->summary->compiles(), compiler_.compiles());
}

TEST_F(TunerTest, CompilesAndTimesNothingWhenAskedAgain) {
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {1, 4, 16, 64, 256});
  Tune(request);
  const int compiles = compiler_.compiles();
  const int screens = gpu_.screens();
  Restart();
  const RecordingStream& warm = Tune(request);
  EXPECT_EQ(compiler_.compiles(), compiles);
  EXPECT_EQ(gpu_.screens(), screens);
  ASSERT_EQ(warm.results.size(), 5u);
  for (const v1::TuneResult& result : warm.results) EXPECT_TRUE(result.cached());
  EXPECT_EQ(warm.summary->compiles(), 0);
  EXPECT_EQ(warm.summary->timings(), 0);
  EXPECT_EQ(warm.summary->cache_hits(), 5);
}

TEST_F(TunerTest, CompilesNothingForANewShape) {
  Tune(RequestFor({Int4Problem(5376, 4096)}, {16}));
  const std::vector<KernelConfig> space = ConfigSpace(ProblemFromProto(Int4Problem(5376, 4096))->signature,
                                                      16, tuner_->targets().Resolve("")->profile);
  const int compiles = compiler_.compiles();
  const RecordingStream& other = Tune(RequestFor({Int4Problem(5376, 4224)}, {16}));
  // Only configs of the space that the first shape could not run at all would be new.
  EXPECT_LE(compiler_.compiles(), static_cast<int>(space.size()) + 1);
  EXPECT_EQ(other.summary->compiles(), compiler_.compiles() - compiles);
  EXPECT_EQ(other.summary->compiles(), 0);
  EXPECT_GT(other.summary->timings(), 0);
}

TEST_F(TunerTest, TwoClientsOfOneKeyShareOneTuning) {
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16});
  compiler_.Hold();
  RecordingStream first;
  RecordingStream second;
  std::future<absl::Status> a =
      std::async(std::launch::async, [&] { return tuner_->Tune(request, "test", first); });
  compiler_.AwaitHeld(2);
  std::future<absl::Status> b =
      std::async(std::launch::async, [&] { return tuner_->Tune(request, "test", second); });
  compiler_.Release();
  ASSERT_TRUE(a.get().ok());
  ASSERT_TRUE(b.get().ok());
  EXPECT_THAT(compiler_.compiles_by_name(), Each(Pair(_, 1)));
  EXPECT_THAT(gpu_.screens_by_name(), Each(Pair(_, 1)));
  ASSERT_EQ(first.results.size(), 1u);
  ASSERT_EQ(second.results.size(), 1u);
  EXPECT_EQ(first.results[0].pick().SerializeAsString(), second.results[0].pick().SerializeAsString());
  EXPECT_EQ(first.summary->timings() + second.summary->timings(), gpu_.screens());
  EXPECT_EQ(first.summary->compiles() + second.summary->compiles(), compiler_.compiles());
}

TEST_F(TunerTest, AddingACandidateTimesOnlyThatOne) {
  const v1::Problem problem = Int4Problem(5376, 4096);
  Tune(RequestFor({problem}, {16}, v1::EFFORT_BALANCED));
  const int balanced = gpu_.screens();
  EXPECT_LT(balanced, LegalCount(problem, 16));
  const RecordingStream& wider = Tune(RequestFor({problem}, {16}, v1::EFFORT_EXHAUSTIVE));
  EXPECT_EQ(wider.summary->timings(), LegalCount(problem, 16) - balanced);
  EXPECT_EQ(wider.results[0].pick().timed(), LegalCount(problem, 16));
  EXPECT_THAT(gpu_.screens_by_name(), Each(Pair(_, 1)));
}

TEST_F(TunerTest, LowerEffortsPickDoesNotSatisfyAHigherEffort) {
  const v1::Problem problem = Int4Problem(5376, 4096);
  Tune(RequestFor({problem}, {16}, v1::EFFORT_BALANCED));
  const RecordingStream& exhaustive = Tune(RequestFor({problem}, {16}, v1::EFFORT_EXHAUSTIVE));
  EXPECT_FALSE(exhaustive.results[0].cached());
  EXPECT_EQ(exhaustive.results[0].pick().effort(), v1::EFFORT_EXHAUSTIVE);
}

TEST_F(TunerTest, HigherEffortsPickSatisfiesALowerEffort) {
  const v1::Problem problem = Int4Problem(5376, 4096);
  Tune(RequestFor({problem}, {16}, v1::EFFORT_EXHAUSTIVE));
  for (const v1::Effort effort : {v1::EFFORT_BALANCED, v1::EFFORT_MODEL_ONLY, v1::EFFORT_UNSPECIFIED}) {
    const RecordingStream& lower = Tune(RequestFor({problem}, {16}, effort));
    EXPECT_TRUE(lower.results[0].cached());
    EXPECT_EQ(lower.results[0].pick().effort(), v1::EFFORT_EXHAUSTIVE);
  }
}

TEST_F(TunerTest, PredictedPickNeverStandsInAMeasuredOnesPlace) {
  const v1::Problem problem = Int4Problem(5376, 4096);
  const RecordingStream& predicted = Tune(RequestFor({problem}, {16}, v1::EFFORT_MODEL_ONLY));
  EXPECT_EQ(predicted.results[0].pick().source(), v1::PICK_SOURCE_MODEL);
  EXPECT_EQ(gpu_.screens(), 0);
  v1::LookupRequest lookup;
  *lookup.add_keys()->mutable_problem() = problem;
  lookup.mutable_keys(0)->set_m(16);
  const auto before = tuner_->Lookup(lookup);
  ASSERT_TRUE(before.ok());
  EXPECT_FALSE(before->answers(0).has_pick());
  EXPECT_THAT(before->answers(0).miss_reason(), HasSubstr("bucket 16"));
  const RecordingStream& measured = Tune(RequestFor({problem}, {16}, v1::EFFORT_BALANCED));
  EXPECT_FALSE(measured.results[0].cached());
  const auto after = tuner_->Lookup(lookup);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->answers(0).pick().source(), v1::PICK_SOURCE_MEASURED);
}

TEST_F(TunerTest, BadCandidatesLoseOnlyThemselves) {
  const v1::Problem problem = Int4Problem(5376, 4096);
  std::vector<Candidate> legal =
      LegalCandidates(*ProblemFromProto(problem), 16, tuner_->targets().Resolve("")->profile);
  const std::string wrong = CandidateName(legal[0]);
  const std::string hang = CandidateName(legal[1]);
  const std::string spilling = ConfigName(legal.back().config);
  gpu_.SetBehaviour([&](const GpuCandidate& candidate) {
    if (candidate.name == wrong) {
      internal::ScreenReply reply =
          FakeGpu::Failed(internal::CANDIDATE_FAILURE_WRONG, "error 0.5 above 0.003");
      reply.mutable_timing()->set_median_us(0.1);
      return reply;
    }
    if (candidate.name == hang) return FakeGpu::Failed(internal::CANDIDATE_FAILURE_HANG, "killed after 10 s");
    return FakeGpu::Right(FakeGpu::MedianOf(candidate.name));
  });
  compiler_.SetBehaviour([&](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    return FakeCompiler::Reply(task, absl::StartsWith(task.source.name, spilling + " ") ? 8 : 0);
  });
  const RecordingStream& stream = Tune(RequestFor({problem}, {16}));
  const auto spilled = std::count_if(legal.begin(), legal.end(), [&](const Candidate& candidate) {
    return ConfigName(candidate.config) == spilling;
  });
  const v1::TuneResult& result = stream.results[0];
  EXPECT_TRUE(result.has_pick());
  EXPECT_NE(result.pick().config(), spilling);
  EXPECT_GT(result.pick().time_us(), 1.0);
  EXPECT_EQ(result.pick().rejected(), spilled + 2);
  EXPECT_EQ(result.pick().timed(), static_cast<int>(legal.size()) - spilled - 2);
  ASSERT_EQ(result.rejections_size(), 3);
  EXPECT_EQ(result.rejections(0).candidates(), std::max<int>(spilled, 1));
}

TEST_F(TunerTest, FinalistsThatCannotBeTimedAgainKeepTheirScreenedTimes) {
  gpu_.SetFinalsStatus(absl::InternalError("cuLaunchKernel: CUDA_ERROR_INVALID_VALUE"));
  const RecordingStream& stream = Tune(RequestFor({Int4Problem(5376, 4096)}, {16}));
  ASSERT_EQ(stream.results.size(), 1u);
  EXPECT_GE(gpu_.finals(), 1);
  const v1::Pick& pick = stream.results[0].pick();
  EXPECT_EQ(pick.source(), v1::PICK_SOURCE_MEASURED);
  EXPECT_GT(pick.time_us(), 0);
  EXPECT_EQ(pick.confidence(), v1::CONFIDENCE_LOW);
}

TEST_F(TunerTest, AllCandidatesFailingIsAResultWithReasons) {
  gpu_.SetBehaviour([](const GpuCandidate&) {
    return FakeGpu::Failed(internal::CANDIDATE_FAILURE_NOT_REPEATABLE, "17 outputs differ");
  });
  const RecordingStream& stream = Tune(RequestFor({Int4Problem(5376, 4096)}, {16}));
  ASSERT_EQ(stream.results.size(), 1u);
  EXPECT_FALSE(stream.results[0].has_pick());
  EXPECT_EQ(stream.results[0].m_bucket(), 16);
  EXPECT_THAT(stream.results[0].error(), HasSubstr("not repeatable"));
  EXPECT_THAT(stream.results[0].error(), HasSubstr("17 outputs differ"));
}

TEST_F(TunerTest, CompileFailuresAreData) {
  compiler_.SetBehaviour([](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    if (task.source.name == "support kernels") return FakeCompiler::Reply(task);
    return absl::InvalidArgumentError("error: identifier \"x\" is undefined");
  });
  const RecordingStream& stream = Tune(RequestFor({Int4Problem(5376, 4096)}, {16}));
  EXPECT_THAT(stream.results[0].error(), HasSubstr("does not compile"));
  EXPECT_EQ(gpu_.screens(), 0);
}

// A stored kernel that is what it was when it was stored, and that this driver cannot load: imported from
// another machine, say.
class RefusedImageTest : public TunerTest {
 protected:
  static constexpr char kForeign[] = "an image of another machine";

  RefusedImageTest() {
    gpu_.SetBehaviour([](const GpuCandidate& candidate) {
      return *candidate.cubin == kForeign
                 ? FakeGpu::Failed(internal::CANDIDATE_FAILURE_LOAD, "CUDA_ERROR_NO_BINARY_FOR_GPU")
                 : FakeGpu::Right(FakeGpu::MedianOf(candidate.name));
    });
    pick_ = Tune(request_).results[0].pick();
    internal::KernelRecord record = store_.GetKernelBySha256(pick_.kernel().sha256()).value();
    record.set_cubin(kForeign);
    record.mutable_info()->set_sha256(Sha256Hex(kForeign));
    EXPECT_TRUE(store_.PutKernel(record).ok());
    request_.set_retune(true);
    Restart();
    compiles_ = compiler_.compiles();
  }

  v1::TuneRequest request_ = RequestFor({Int4Problem(5376, 4096)}, {16});
  v1::Pick pick_;
  int compiles_ = 0;
};

TEST_F(RefusedImageTest, IsCompiledAgainAndReplaced) {
  const RecordingStream& stream = Tune(request_);
  EXPECT_EQ(stream.results[0].pick().config(), pick_.config());
  EXPECT_EQ(stream.results[0].pick().kernel().sha256(), pick_.kernel().sha256());
  EXPECT_EQ(compiler_.compiles(), compiles_ + 1);
  EXPECT_TRUE(store_.GetKernelBySha256(pick_.kernel().sha256()).ok());
  EXPECT_TRUE(absl::IsNotFound(store_.GetKernelBySha256(Sha256Hex(kForeign)).status()));
}

TEST_F(RefusedImageTest, LosesOnlyItselfWhereNothingCanBeCompiled) {
  compiler_.SetUnavailable(absl::UnavailableError("libnvrtc.so.13 was not found"));
  ASSERT_TRUE(store_.AdoptToolchain("nvrtc 13.0").ok());
  Restart();
  const RecordingStream& stream = Tune(request_);
  ASSERT_TRUE(stream.results[0].has_pick()) << stream.results[0].error();
  EXPECT_NE(stream.results[0].pick().config(), pick_.config());
  ASSERT_EQ(stream.results[0].rejections_size(), 1);
  EXPECT_THAT(stream.results[0].rejections(0).example(), HasSubstr("NO_BINARY_FOR_GPU"));
  // When there is a compiler again, it is a candidate like the others.
  compiler_.SetUnavailable(absl::OkStatus());
  EXPECT_EQ(Tune(request_).results[0].pick().config(), pick_.config());
}

TEST_F(RefusedImageTest, ThatIsTheSameWhenItIsCompiledAgainIsCompiledOnce) {
  gpu_.SetBehaviour([this](const GpuCandidate& candidate) {
    return ConfigName(ParseConfig(pick_.config()).value()) ==
                   candidate.name.substr(0, candidate.name.find('/'))
               ? FakeGpu::Failed(internal::CANDIDATE_FAILURE_LOAD, "CUDA_ERROR_INVALID_IMAGE")
               : FakeGpu::Right(FakeGpu::MedianOf(candidate.name));
  });
  const RecordingStream& stream = Tune(request_);
  ASSERT_TRUE(stream.results[0].has_pick()) << stream.results[0].error();
  EXPECT_NE(stream.results[0].pick().config(), pick_.config());
  EXPECT_EQ(compiler_.compiles(), compiles_ + 1);
}

// The same with the support kernels, without which nothing is timed.
class RefusedSupportTest : public TunerTest {
 protected:
  static constexpr char kForeign[] = "support kernels of another machine";

  RefusedSupportTest() {
    Tune(RequestFor({Int4Problem(5376, 4096)}, {16}));
    good_cubin_ = gpu_.support_cubin();
    compiles_ = compiler_.compiles();
  }
  void StoreForeign() {
    internal::KernelRecord record = store_.GetKernelBySha256(Sha256Hex(good_cubin_)).value();
    record.set_cubin(kForeign);
    record.mutable_info()->set_sha256(Sha256Hex(kForeign));
    EXPECT_TRUE(store_.PutKernel(record).ok());
    gpu_.RefuseSupportKernels(kForeign);
    Restart();
  }

  v1::TuneRequest again_ = [] {
    v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16});
    request.set_retune(true);  // its kernels are stored
    return request;
  }();
  std::string good_cubin_;
  int compiles_ = 0;
};

TEST_F(RefusedSupportTest, AreCompiledAgainAndReplaced) {
  StoreForeign();
  const RecordingStream& stream = Tune(again_);
  EXPECT_TRUE(stream.results[0].has_pick()) << stream.results[0].error();
  EXPECT_EQ(compiler_.compiles(), compiles_ + 1);
  EXPECT_EQ(stream.summary->compiles(), 1);
  EXPECT_EQ(gpu_.support_cubin(), good_cubin_);
  EXPECT_TRUE(absl::IsNotFound(store_.GetKernelBySha256(Sha256Hex(kForeign)).status()));
  EXPECT_TRUE(Tune(again_).results[0].has_pick());
  EXPECT_EQ(compiler_.compiles(), compiles_ + 1);
}

// Picks that were planned with the refused ones share the compile.
TEST_F(RefusedSupportTest, AreCompiledOnceForManyPicks) {
  StoreForeign();
  again_.add_m(1);
  again_.add_m(64);
  *again_.add_problems() = Int4Problem(1024, 4096);
  const RecordingStream& stream = Tune(again_);
  ASSERT_EQ(stream.results.size(), 6);
  for (const v1::TuneResult& result : stream.results) EXPECT_TRUE(result.has_pick()) << result.error();
  EXPECT_EQ(compiler_.compiles_by_name().at("support kernels sm_90a"), 2);
}

TEST_F(RefusedSupportTest, ThatCannotBeCompiledAgainAreToldOfWithBothReasons) {
  compiler_.SetUnavailable(absl::UnavailableError("libnvrtc.so.13 was not found"));
  ASSERT_TRUE(store_.AdoptToolchain("nvrtc 13.0").ok());
  StoreForeign();
  Tune(again_, absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status_.message()),
              AllOf(HasSubstr("CUDA_ERROR_INVALID_IMAGE"), HasSubstr("libnvrtc.so.13 was not found")));
  // When there is a compiler again, all is well.
  compiler_.SetUnavailable(absl::OkStatus());
  EXPECT_TRUE(Tune(again_).results[0].has_pick());
}

TEST_F(RefusedSupportTest, ThatAreRefusedAfterTheirCompileAreCompiledOnceAPick) {
  gpu_.RefuseSupportKernels(good_cubin_);
  Restart();
  EXPECT_THAT(Tune(again_).results[0].error(), HasSubstr("CUDA_ERROR_INVALID_IMAGE"));
  EXPECT_EQ(compiler_.compiles(), compiles_ + 1);
}

TEST_F(TunerTest, LastClientsCancellationWithdrawsQueuedCompiles) {
  compiler_.Hold();
  RecordingStream stream;
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16});
  std::future<absl::Status> tune =
      std::async(std::launch::async, [&] { return tuner_->Tune(request, "test", stream); });
  compiler_.AwaitHeld(3);
  stream.cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(tune.get()));
  compiler_.AwaitNoneHeld();
  EXPECT_EQ(compiler_.compiles(), 0);
  compiler_.Release();
  // Nothing is left over that a later request would stumble over.
  Tune(request);
  EXPECT_TRUE(streams_.back()->results[0].has_pick());
  EXPECT_GT(compiler_.cancelled(), 0);
  EXPECT_THAT(compiler_.compiles_by_name(), Each(Pair(_, 1)));
}

TEST_F(TunerTest, OneClientsCancellationLeavesTheOthersWorkAlone) {
  gpu_.Hold();
  RecordingStream leaver;
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16});
  std::future<absl::Status> a =
      std::async(std::launch::async, [&] { return tuner_->Tune(request, "test", leaver); });
  gpu_.AwaitHeld();
  // The second client must have joined before the first leaves.
  std::promise<void> joined;
  class JoiningStream : public RecordingStream {
   public:
    explicit JoiningStream(std::promise<void>& joined) : joined_(joined) {}
    bool Cancelled() override {
      if (!told_) joined_.set_value();
      told_ = true;
      return false;
    }

   private:
    std::promise<void>& joined_;
    bool told_ = false;
  };
  JoiningStream joining(joined);
  std::future<absl::Status> b =
      std::async(std::launch::async, [&] { return tuner_->Tune(request, "test", joining); });
  joined.get_future().wait();
  leaver.cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(a.get()));
  gpu_.Release();
  EXPECT_TRUE(b.get().ok());
  ASSERT_EQ(joining.results.size(), 1u);
  EXPECT_TRUE(joining.results[0].has_pick());
  EXPECT_THAT(gpu_.screens_by_name(), Each(Pair(_, 1)));
}

TEST_F(TunerTest, CancelledTuningKeepsTheTimingsItHas) {
  gpu_.Hold();
  RecordingStream stream;
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16});
  std::future<absl::Status> tune =
      std::async(std::launch::async, [&] { return tuner_->Tune(request, "test", stream); });
  gpu_.AwaitHeld();
  stream.cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(tune.get()));
  gpu_.Release();
  // The GPU thread takes this one after it has put the first away.
  Tune(RequestFor({Int4Problem(5376, 4096)}, {64}));
  const int screens = gpu_.screens();
  const RecordingStream& again = Tune(request);
  EXPECT_TRUE(again.results[0].has_pick());
  EXPECT_EQ(again.summary->timings(), gpu_.screens() - screens);
  EXPECT_LT(again.summary->timings(), LegalCount(Int4Problem(5376, 4096), 16));
}

TEST_F(TunerTest, RetuneTimesEverythingAgainAndCompilesNothing) {
  v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16});
  Tune(request);
  const int compiles = compiler_.compiles();
  const int screens = gpu_.screens();
  request.set_retune(true);
  const RecordingStream& again = Tune(request);
  EXPECT_EQ(compiler_.compiles(), compiles);
  EXPECT_EQ(gpu_.screens(), 2 * screens);
  EXPECT_FALSE(again.results[0].cached());
}

TEST_F(TunerTest, NewDriverMakesPicksStaleButServed) {
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16});
  Tune(request);
  Restart("590.10");
  const RecordingStream& other = Tune(request);
  EXPECT_TRUE(other.results[0].cached());
  EXPECT_TRUE(other.results[0].stale());
  v1::TuneRequest retune = request;
  retune.set_retune(true);
  EXPECT_FALSE(Tune(retune).results[0].stale());
  EXPECT_FALSE(Tune(request).results[0].stale());
}

TEST_F(TunerTest, PicksOfAnotherDriverAreTimedAgainInTheBackground) {
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {1, 16, 64});
  Tune(request);
  const int screens = gpu_.screens();
  Restart("590.10");
  ASSERT_TRUE(tuner_->Toolchain().ok());
  // As the daemon does, until nothing is left to do.
  const auto stale = [&] {
    int stale = 0;
    for (const v1::TuneResult& result : Tune(request).results) stale += result.stale() ? 1 : 0;
    return stale;
  };
  EXPECT_EQ(stale(), 3);
  while (stale() > 0) tuner_->Tick();
  EXPECT_EQ(gpu_.screens(), 2 * screens);
  for (const v1::TuneResult& result : Tune(request).results) {
    EXPECT_EQ(result.pick().driver_version(), "590.10");
  }
}

TEST_F(TunerTest, ADriverUpgradedWhileItRunsMakesPicksStaleUntilTheyAreTimedAgain) {
  ASSERT_TRUE(tuner_->Toolchain().ok());
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16});
  Tune(request);
  // This one is planned under the old driver and timed under the new one: nobody knows which it was.
  gpu_.Hold();
  std::future<absl::Status> early = std::async(std::launch::async, [&] {
    RecordingStream stream;
    return tuner_->Tune(RequestFor({Int4Problem(1024, 4096)}, {16}), "other", stream);
  });
  gpu_.AwaitHeld();
  EXPECT_TRUE(tuner_->targets().SetDriverVersion("590.10"));
  EXPECT_FALSE(tuner_->targets().SetDriverVersion("590.10"));
  v1::LookupRequest lookup;
  *lookup.add_keys()->mutable_problem() = Int4Problem(5376, 4096);
  lookup.mutable_keys(0)->set_m(16);
  EXPECT_TRUE(tuner_->Lookup(lookup)->answers(0).stale());
  tuner_->Tick();
  gpu_.Release();
  EXPECT_TRUE(early.get().ok());
  const auto fresh = [&](int64_t n) {
    const RecordingStream& stream = Tune(RequestFor({Int4Problem(n, 4096)}, {16}));
    return !stream.results[0].stale() && stream.results[0].pick().driver_version() == "590.10";
  };
  while (!fresh(5376) || !fresh(1024)) tuner_->Tick();
  EXPECT_FALSE(tuner_->Lookup(lookup)->answers(0).stale());
}

TEST_F(TunerTest, LostGpuIsFoundAgainWithoutARequest) {
  gpu_.SetLost(absl::UnavailableError("the GPU fell off the bus"));
  Tune(RequestFor({Int4Problem(5376, 4096)}, {16}), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(tuner_->gpu_lost());
  gpu_.SetLost(absl::OkStatus());
  while (tuner_->gpu_lost()) tuner_->Tick();
  EXPECT_TRUE(Tune(RequestFor({Int4Problem(5376, 4096)}, {16})).results[0].has_pick());
}

TEST_F(TunerTest, NewToolchainTunesAgainAndLookupSaysStale) {
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16}, v1::EFFORT_BALANCED);
  Tune(request);
  const int compiles = compiler_.compiles();
  compiler_.SetToolchain("nvrtc 13.1");
  Restart();
  const RecordingStream& again = Tune(request);
  EXPECT_FALSE(again.results[0].cached());
  EXPECT_EQ(compiler_.compiles(), 2 * compiles);
}

TEST_F(TunerTest, TiesAreBrokenByPredictionTheSameWayEachTime) {
  gpu_.SetBehaviour([](const GpuCandidate& candidate) {
    // All within 0.1 %: the order of the medians is noise.
    return FakeGpu::Right(10.0 + FakeGpu::MedianOf(candidate.name) * 4e-4);
  });
  const v1::Problem problem = Int4Problem(5376, 4096);
  const v1::Pick first = Tune(RequestFor({problem}, {16})).results[0].pick();
  gpu_.SetBehaviour([](const GpuCandidate& candidate) {
    return FakeGpu::Right(10.0 - FakeGpu::MedianOf(candidate.name) * 4e-5);
  });
  v1::TuneRequest retune = RequestFor({problem}, {16});
  retune.set_retune(true);
  const v1::Pick second = Tune(retune).results[0].pick();
  EXPECT_EQ(first.config(), second.config());
  EXPECT_EQ(first.split_k(), second.split_k());
}

TEST_F(TunerTest, LostGpuIsUnavailableWhileLookupsAreServed) {
  Tune(RequestFor({Int4Problem(5376, 4096)}, {16}));
  gpu_.SetLost(absl::UnavailableError("the GPU fell off the bus"));
  Tune(RequestFor({Int4Problem(5376, 4096)}, {32}), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("fell off the bus"));
  EXPECT_TRUE(tuner_->gpu_lost());
  EXPECT_TRUE(Tune(RequestFor({Int4Problem(5376, 4096)}, {16})).results[0].cached());
  v1::LookupRequest lookup;
  *lookup.add_keys()->mutable_problem() = Int4Problem(5376, 4096);
  lookup.mutable_keys(0)->set_m(13);
  EXPECT_TRUE(tuner_->Lookup(lookup)->answers(0).has_pick());

  gpu_.SetLost(absl::OkStatus());
  EXPECT_TRUE(Tune(RequestFor({Int4Problem(5376, 4096)}, {32})).results[0].has_pick());
  EXPECT_FALSE(tuner_->gpu_lost());
}

TEST_F(TunerTest, WithoutWorkersServesTheCacheAndIsUnavailableForTheRest) {
  Tune(RequestFor({Int4Problem(5376, 4096)}, {16}));
  Restart();
  compiler_.SetUnavailable(absl::UnavailableError("libnvrtc.so.13 was not found"));
  EXPECT_TRUE(Tune(RequestFor({Int4Problem(5376, 4096)}, {16})).results[0].cached());
  Tune(RequestFor({Int4Problem(5376, 4096)}, {32}), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("libnvrtc"));
}

TEST_F(TunerTest, FullDiskFailsTheRequestAndLaterOnesWork) {
  store_.SetWriteError(absl::ResourceExhaustedError("the disk is full"));
  Tune(RequestFor({Int4Problem(5376, 4096)}, {16}), absl::StatusCode::kResourceExhausted);
  store_.SetWriteError(absl::OkStatus());
  EXPECT_TRUE(Tune(RequestFor({Int4Problem(5376, 4096)}, {16})).results[0].has_pick());
}

TEST_F(TunerTest, StopEndsRunningRequests) {
  compiler_.Hold();
  RecordingStream stream;
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16});
  std::future<absl::Status> tune =
      std::async(std::launch::async, [&] { return tuner_->Tune(request, "test", stream); });
  compiler_.AwaitHeld(1);
  tuner_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(tune.get()));
}

TEST_F(TunerTest, ProgressReachesTheEndOfItsCounts) {
  const RecordingStream& stream = Tune(RequestFor({Int4Problem(5376, 4096)}, {16}));
  ASSERT_FALSE(stream.progress.empty());
  for (const v1::TuneProgress& progress : stream.progress) {
    EXPECT_LE(progress.kernels_compiled(), progress.kernels_wanted());
    EXPECT_LE(progress.candidates_done(), progress.candidates_wanted());
    EXPECT_EQ(progress.results_wanted(), 1);
  }
}

TEST_F(TunerTest, RefusesBadRequestsBeforeAnyWork) {
  const v1::Problem good = Int4Problem(5376, 4096);
  v1::TuneRequest request = RequestFor({}, {1});
  Tune(request, absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("problems"));
  Tune(RequestFor({good}, {}), absl::StatusCode::kInvalidArgument);
  Tune(RequestFor({good}, {0}), absl::StatusCode::kInvalidArgument);
  Tune(RequestFor({good}, {int64_t{1} << 31}), absl::StatusCode::kInvalidArgument);
  Tune(RequestFor({good, Int4Problem(5376, 4100)}, {1}), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("problems[1]"));
  request = RequestFor({good}, {1});
  request.set_target("h900");
  Tune(request, absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("h900"));
  EXPECT_THAT(std::string(status_.message()), HasSubstr("h200"));
  EXPECT_EQ(compiler_.compiles(), 0);
}

TEST_F(TunerTest, NamedTargetOtherThanTheGpuIsPredicted) {
  v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16}, v1::EFFORT_BALANCED);
  request.set_target("a100");
  const RecordingStream& stream = Tune(request);
  EXPECT_EQ(stream.results[0].pick().source(), v1::PICK_SOURCE_MODEL);
  EXPECT_EQ(stream.results[0].pick().target(), "a100");
  EXPECT_EQ(stream.results[0].pick().kernel().arch(), "sm_80");
  EXPECT_EQ(gpu_.screens(), 0);
}

TEST_F(TunerTest, NamedTargetThatIsTheGpuIsMeasured) {
  v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096)}, {16}, v1::EFFORT_BALANCED);
  request.set_target("h200");
  EXPECT_EQ(Tune(request).results[0].pick().source(), v1::PICK_SOURCE_MEASURED);
}

TEST_F(TunerWithoutGpuTest, ExhaustiveCompilesTheWholeSpaceAndPredicts) {
  const RecordingStream& stream = Tune(RequestFor({Int4Problem(5376, 4096)}, {16}));
  const v1::Pick& pick = stream.results[0].pick();
  EXPECT_EQ(pick.source(), v1::PICK_SOURCE_MODEL);
  EXPECT_FALSE(pick.has_time_us());
  EXPECT_GT(pick.predicted_us(), 0);
  const size_t space = ConfigSpace(ProblemFromProto(Int4Problem(5376, 4096))->signature, 16,
                                   tuner_->targets().Resolve("")->profile)
                           .size();
  EXPECT_EQ(compiler_.compiles(), static_cast<int>(space));
  EXPECT_EQ(stream.summary->timings(), 0);
}

TEST_F(TunerWithoutGpuTest, ModelOnlyCompilesOnlyThePicksKernel) {
  Tune(RequestFor({Int4Problem(5376, 4096)}, {16}, v1::EFFORT_MODEL_ONLY));
  EXPECT_EQ(compiler_.compiles(), 1);
}

TEST_F(TunerWithoutGpuTest, ModelOnlyTakesTheNextCandidateWhenTheBestSpills) {
  std::atomic<int> calls{0};
  compiler_.SetBehaviour([&](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    return FakeCompiler::Reply(task, calls++ == 0 ? 16 : 0);
  });
  const RecordingStream& stream = Tune(RequestFor({Int4Problem(5376, 4096)}, {16}, v1::EFFORT_MODEL_ONLY));
  EXPECT_EQ(compiler_.compiles(), 2);
  EXPECT_TRUE(stream.results[0].has_pick());
  EXPECT_EQ(stream.results[0].pick().kernel().spill_store_bytes(), 0);
  EXPECT_EQ(stream.results[0].pick().rejected(), stream.results[0].rejections(0).candidates());
}

TEST_F(TunerWithoutGpuTest, AllSpillingIsAResultWithReasons) {
  compiler_.SetBehaviour([](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    return FakeCompiler::Reply(task, 4);
  });
  const RecordingStream& stream = Tune(RequestFor({Int4Problem(5376, 4096)}, {16}, v1::EFFORT_BALANCED));
  EXPECT_FALSE(stream.results[0].has_pick());
  EXPECT_THAT(stream.results[0].error(), HasSubstr("spills registers"));
}

TEST_F(TunerWithoutGpuTest, WarmRepeatCompilesNothing) {
  const v1::TuneRequest request = RequestFor({Int4Problem(5376, 4096), Int4Problem(1024, 6656)}, {1, 64});
  Tune(request);
  const int compiles = compiler_.compiles();
  Restart();
  EXPECT_EQ(Tune(request).summary->cache_hits(), 4);
  EXPECT_EQ(compiler_.compiles(), compiles);
}

}  // namespace
}  // namespace qgemm
