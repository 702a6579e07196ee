#include "server/source_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "cache/memory_store.h"
#include "kernels/kernel_source.h"
#include "server/pick_lookup.h"
#include "server/proto_convert.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/fakes/fake_gpu.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class RecordingStream : public CompareSourceStream {
 public:
  void Send(const v1::CompareSourceEvent& event) override {
    if (event.has_candidate()) rows.push_back(event.candidate());
    if (event.has_progress()) progress.push_back(event.progress());
    if (event.has_summary()) summary = event.summary();
  }
  bool Cancelled() override { return cancelled.load(); }

  std::vector<v1::ComparedCandidate> rows;
  std::vector<v1::CompareSourceProgress> progress;
  std::optional<v1::CompareSourceSummary> summary;
  std::atomic<bool> cancelled{false};
};

bool IsChanged(const GpuCandidate& candidate) { return absl::EndsWith(candidate.name, " changed"); }
bool IsChanged(const CompileTask& task) { return absl::StrContains(task.source.name, "changed"); }

class SourceBenchTest : public ::testing::Test {
 protected:
  explicit SourceBenchTest(bool with_gpu = true) {
    std::optional<GpuInfo> info;
    if (with_gpu) info = FakeGpu::H200();
    targets_ = TargetResolver::Create("h200", "", info).value();
    bench_.emplace(store_, compiler_, with_gpu ? &gpu_ : nullptr, RealClock(), *targets_);
    request_.set_source_name("mma.cuh");
    request_.set_source("int changed;");
    v1::Problem& problem = *request_.add_problems();
    problem.set_n(5376);
    problem.set_k(4096);
    problem.mutable_format()->set_bits(4);
    problem.mutable_format()->set_group_size(128);
    problem.set_act(v1::SCALAR_TYPE_BF16);
    request_.add_m(16);
  }

  absl::Status Compare() { return bench_->Compare(request_, stream_); }
  std::string Refusal() {
    const absl::Status status = Compare();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  // As if a tuning had picked this.
  void StorePick(const std::string& config, int split_k, Reduction reduction) {
    const Problem problem = ProblemFromProto(request_.problems(0)).value();
    const TuningTarget target = targets_->Resolve("").value();
    internal::PickRecord record;
    record.set_pick_key(PickLookup::KeyFor(problem, 16, target, v1::EFFORT_BALANCED));
    record.set_kernel_key(Sha256("a kernel"));
    *record.mutable_pick()->mutable_problem() = ProblemToProto(problem);
    record.mutable_pick()->set_m_bucket(16);
    record.mutable_pick()->set_config(config);
    record.mutable_pick()->set_split_k(split_k);
    record.mutable_pick()->set_reduction(ReductionToProto(reduction));
    ASSERT_TRUE(store_.PutPick(record, {}).ok());
  }

  MemoryStore store_;
  FakeCompiler compiler_;
  FakeGpu gpu_;
  std::optional<TargetResolver> targets_;
  std::optional<SourceBench> bench_;
  v1::CompareSourceRequest request_;
  RecordingStream stream_;
};

TEST_F(SourceBenchTest, ComparesTheBestPredictedConfigsTwiceEach) {
  gpu_.SetBehaviour([](const GpuCandidate& candidate) -> absl::StatusOr<internal::ScreenReply> {
    return FakeGpu::Right(IsChanged(candidate) ? 9 : 10);
  });
  ASSERT_TRUE(Compare().ok());
  ASSERT_EQ(stream_.rows.size(), 8u);
  std::set<std::string> configs;
  double last = 0;
  for (const v1::ComparedCandidate& row : stream_.rows) {
    EXPECT_TRUE(configs.insert(row.config()).second) << row.config();
    EXPECT_TRUE(absl::StartsWith(row.config(), "mma_"));
    EXPECT_GE(row.predicted_us(), last);
    last = row.predicted_us();
    EXPECT_FALSE(row.is_pick());
    EXPECT_EQ(row.current().time_us(), 10);
    EXPECT_EQ(row.changed().time_us(), 9);
    EXPECT_EQ(row.changed().confidence(), v1::CONFIDENCE_HIGH);
    EXPECT_NE(row.current().kernel().sha256(), row.changed().kernel().sha256());
  }
  EXPECT_EQ(gpu_.finals(), 8);    // current and changed of one candidate in turn
  EXPECT_EQ(gpu_.prepares(), 1);  // one problem, one bucket
  ASSERT_TRUE(stream_.summary.has_value());
  EXPECT_EQ(stream_.summary->compiles(), 17);  // and the support kernels
  EXPECT_TRUE(stream_.summary->timed());
  EXPECT_EQ(stream_.progress.back().candidates_done(), 8);
  EXPECT_EQ(stream_.progress.back().kernels_compiled(), 17);
}

TEST_F(SourceBenchTest, StoresNoPickAndNoTiming) {
  ASSERT_TRUE(Compare().ok());
  const CacheStats stats = store_.Stats().value();
  EXPECT_EQ(stats.picks, 0);
  EXPECT_EQ(stats.timings, 0);
  // The kernels can be fetched for a closer look: the changed ones under names of their own.
  EXPECT_EQ(stats.kernels, 17);
  const std::string digest = DeviceSourceDigest(Family::kMma, {{"mma.cuh", "int changed;"}});
  for (const v1::ComparedCandidate& row : stream_.rows) {
    EXPECT_EQ(row.current().kernel().config(), row.config());
    EXPECT_EQ(row.changed().kernel().config(), absl::StrCat(row.config(), "+", digest.substr(0, 8)));
    EXPECT_TRUE(store_.GetKernelBySha256(row.changed().kernel().sha256()).ok());
  }
}

TEST_F(SourceBenchTest, ThePickComesFirst) {
  ASSERT_TRUE(Compare().ok());
  const v1::ComparedCandidate some = stream_.rows[5];
  Reduction reduction = Reduction::kNone;
  for (const Reduction one : {Reduction::kNone, Reduction::kWorkspace, Reduction::kCluster}) {
    if (ReductionToProto(one) == some.reduction()) reduction = one;
  }
  StorePick(some.config(), some.split_k(), reduction);
  stream_.rows.clear();
  ASSERT_TRUE(Compare().ok());
  ASSERT_GE(stream_.rows.size(), 8u);
  EXPECT_TRUE(stream_.rows[0].is_pick());
  EXPECT_EQ(stream_.rows[0].config(), some.config());
  EXPECT_EQ(stream_.rows[0].split_k(), some.split_k());
  EXPECT_TRUE(stream_.rows[0].has_changed());
  EXPECT_FALSE(stream_.rows[1].is_pick());
}

TEST_F(SourceBenchTest, APickOfAnotherFamilyIsWhatTheChangeHasToBeat) {
  request_.set_source_name("wgmma.cuh");
  ASSERT_TRUE(Compare().ok());
  const v1::ComparedCandidate wgmma = stream_.rows[0];
  ASSERT_TRUE(absl::StartsWith(wgmma.config(), "wgmma_"));
  Reduction reduction = Reduction::kNone;
  for (const Reduction one : {Reduction::kNone, Reduction::kWorkspace, Reduction::kCluster}) {
    if (ReductionToProto(one) == wgmma.reduction()) reduction = one;
  }
  StorePick(wgmma.config(), wgmma.split_k(), reduction);
  request_.set_source_name("mma.cuh");
  stream_.rows.clear();
  ASSERT_TRUE(Compare().ok());
  EXPECT_TRUE(stream_.rows[0].is_pick());
  EXPECT_EQ(stream_.rows[0].config(), wgmma.config());
  EXPECT_TRUE(stream_.rows[0].current().has_time_us());
  EXPECT_FALSE(stream_.rows[0].has_changed());
  EXPECT_TRUE(stream_.rows[1].has_changed());
}

TEST_F(SourceBenchTest, ASourceThatDoesNotCompileIsARowsFailure) {
  compiler_.SetBehaviour([](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    if (IsChanged(task)) return absl::InvalidArgumentError("mma.cuh(7): error: expected a \";\"");
    return FakeCompiler::Reply(task);
  });
  ASSERT_TRUE(Compare().ok());
  ASSERT_EQ(stream_.rows.size(), 8u);
  for (const v1::ComparedCandidate& row : stream_.rows) {
    EXPECT_EQ(row.changed().failure(), "mma.cuh(7): error: expected a \";\"");
    EXPECT_FALSE(row.changed().has_kernel());
    EXPECT_FALSE(row.changed().has_time_us());
    EXPECT_TRUE(row.current().has_time_us());
  }
}

TEST_F(SourceBenchTest, AWrongResultIsARowsFailureAndIsNotTimed) {
  gpu_.SetBehaviour([](const GpuCandidate& candidate) -> absl::StatusOr<internal::ScreenReply> {
    if (!IsChanged(candidate)) return FakeGpu::Right(10);
    internal::ScreenReply reply =
        FakeGpu::Failed(internal::CANDIDATE_FAILURE_WRONG, "relative error 0.5 is above 0.003");
    reply.set_relative_error(0.5);
    return reply;
  });
  ASSERT_TRUE(Compare().ok());
  const v1::KernelTrial& changed = stream_.rows[0].changed();
  EXPECT_EQ(changed.failure(), "wrong result: relative error 0.5 is above 0.003");
  EXPECT_EQ(changed.relative_error(), 0.5);
  EXPECT_TRUE(changed.has_kernel());
  EXPECT_FALSE(changed.has_time_us());
  EXPECT_EQ(stream_.rows[0].current().time_us(), 10);
}

TEST_F(SourceBenchTest, SpillsAreShown) {
  compiler_.SetBehaviour([](const CompileTask& task) -> absl::StatusOr<internal::CompileReply> {
    return FakeCompiler::Reply(task, IsChanged(task) ? 64 : 0);
  });
  ASSERT_TRUE(Compare().ok());
  EXPECT_EQ(stream_.rows[0].changed().kernel().spill_store_bytes(), 64);
  EXPECT_TRUE(stream_.rows[0].changed().has_time_us());
}

TEST_F(SourceBenchTest, OnlyChoosesByName) {
  request_.set_only("^mma_t2_r1_.*/k4/");
  request_.set_max_candidates(3);
  ASSERT_TRUE(Compare().ok());
  ASSERT_EQ(stream_.rows.size(), 3u);
  for (const v1::ComparedCandidate& row : stream_.rows) {
    EXPECT_TRUE(absl::StartsWith(row.config(), "mma_t2_r1_"));
    EXPECT_EQ(row.split_k(), 4);
  }
  request_.set_only("no such config");
  const absl::Status none = Compare();
  EXPECT_TRUE(absl::IsFailedPrecondition(none)) << none;
  EXPECT_THAT(std::string(none.message()), AllOf(HasSubstr("none of the "), HasSubstr("\"no such config\"")));
}

TEST_F(SourceBenchTest, EveryProblemAndBucketIsCompared) {
  *request_.add_problems() = request_.problems(0);
  request_.mutable_problems(1)->set_n(1024);
  request_.add_m(1);
  request_.add_m(15);  // the bucket of 16
  request_.set_max_candidates(1);
  ASSERT_TRUE(Compare().ok());
  std::vector<std::string> cells;
  for (const v1::ComparedCandidate& row : stream_.rows) {
    cells.push_back(absl::StrCat(row.problem_index(), " ", row.m_bucket()));
  }
  EXPECT_THAT(cells, ::testing::ElementsAre("0 1", "0 16", "1 1", "1 16"));
  EXPECT_EQ(gpu_.prepares(), 4);
}

TEST_F(SourceBenchTest, TakesTextOfAnyLanguage) {
  request_.set_source("// caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n" + request_.source());
  EXPECT_TRUE(Compare().ok());
}

TEST_F(SourceBenchTest, RefusesWhatItCannotCompare) {
  const v1::CompareSourceRequest good = request_;
  request_.set_source_name("support.cuh");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("source_name is \"support.cuh\"; allowed: "), HasSubstr("mma.cuh")));
  request_ = good;
  request_.clear_source();
  EXPECT_EQ(Refusal(), "source has 0 bytes; allowed: 1 .. 1048576");
  request_.set_source(std::string((1 << 20) + 1, ' '));
  EXPECT_EQ(Refusal(), "source has 1048577 bytes; allowed: 1 .. 1048576");
  for (const std::string& bytes :
       {std::string("// caf\xe9\n"), std::string("int a;\0int b;", 13), std::string("\xc0\x80"),
        std::string("\xed\xa0\x80"), std::string("\xe2\x82"), std::string("\xf5\x80\x80\x80")}) {
    request_.set_source(bytes);
    EXPECT_EQ(Refusal(), "source is not text; allowed: UTF-8 without NUL bytes");
  }
  request_ = good;
  request_.set_max_candidates(65);
  EXPECT_EQ(Refusal(), "max_candidates is 65; allowed: 0 .. 64");
  request_ = good;
  request_.set_only("(");
  EXPECT_THAT(Refusal(), HasSubstr("only is \"(\", which is no regular expression"));
  request_.set_only(std::string(257, 'a'));
  EXPECT_EQ(Refusal(), "only has 257 bytes; allowed: 0 .. 256");
  request_ = good;
  request_.clear_m();
  EXPECT_THAT(Refusal(), HasSubstr("m is empty"));
  request_ = good;
  request_.clear_problems();
  EXPECT_EQ(Refusal(), "problems has 0 entries; allowed: 1 .. 16");
  request_ = good;
  request_.mutable_problems(0)->mutable_format()->set_bits(7);
  EXPECT_EQ(Refusal(), "bits 7 is not allowed: use 4, 5, 6 or 8");
  EXPECT_TRUE(stream_.rows.empty());
}

TEST_F(SourceBenchTest, ACancelledCallWithdrawsItsCompiles) {
  compiler_.Hold();
  std::future<absl::Status> compared = std::async(std::launch::async, [this] { return Compare(); });
  compiler_.AwaitHeld(17);
  stream_.cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(compared.get()));
  compiler_.AwaitNoneHeld();
  EXPECT_EQ(compiler_.compiles(), 0);
}

TEST_F(SourceBenchTest, StopEndsCalls) {
  compiler_.Hold();
  std::future<absl::Status> compared = std::async(std::launch::async, [this] { return Compare(); });
  compiler_.AwaitHeld(17);
  bench_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(compared.get()));
  EXPECT_TRUE(absl::IsUnavailable(Compare()));
}

TEST_F(SourceBenchTest, WithoutCompileWorkersItIsUnavailable) {
  compiler_.SetUnavailable(absl::UnavailableError("no worker"));
  EXPECT_TRUE(absl::IsUnavailable(Compare()));
}

TEST_F(SourceBenchTest, ALostGpuIsUnavailable) {
  gpu_.SetLost(absl::UnavailableError("the GPU is lost"));
  EXPECT_TRUE(absl::IsUnavailable(Compare()));
}

class SourceBenchWithoutGpuTest : public SourceBenchTest {
 protected:
  SourceBenchWithoutGpuTest() : SourceBenchTest(/*with_gpu=*/false) {}
};

TEST_F(SourceBenchWithoutGpuTest, CompilesAndTimesNothing) {
  ASSERT_TRUE(Compare().ok());
  ASSERT_EQ(stream_.rows.size(), 8u);
  EXPECT_TRUE(stream_.rows[0].changed().has_kernel());
  EXPECT_FALSE(stream_.rows[0].changed().has_time_us());
  EXPECT_FALSE(stream_.summary->timed());
  EXPECT_EQ(stream_.summary->compiles(), 16);
}

}  // namespace
}  // namespace qgemm
