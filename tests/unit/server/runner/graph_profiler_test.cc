#include "server/runner/graph_profiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/str_split.h"
#include "base/digest.h"
#include "kernels/support_kernels.h"
#include "server/launch_spec_proto.h"
#include "server/proto_convert.h"
#include "server/runner/frame_server.h"
#include "tests/fakes/fake_device.h"

namespace qgemm {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kM = 3;
constexpr int64_t kN = 40;
constexpr uint16_t kOne = 0x3f80;  // 1.0 in bf16: what the fake device's reference is everywhere

class FixedMonitor : public DisturbanceMonitor {
 public:
  std::string Check() override {
    ++checks;
    return checks <= disturbed_checks ? "somebody else" : "";
  }
  int disturbed_checks = 0;
  int checks = 0;
};

// A candidate's parameters: (y, workspace, m, ldy). What it does is the test's choice.
class GraphProfilerTest : public testing::Test {
 protected:
  struct Operands {
    uint16_t* y;
    uint8_t* workspace;
    int64_t m;
    int64_t ldy;
  };
  using Behaviour = std::function<void(const Operands&)>;

  void SetUp() override {
    auto device = std::make_unique<FakeDevice>();
    device_ = device.get();
    auto monitor = std::make_unique<FixedMonitor>();
    monitor_ = monitor.get();
    Define("good", WriteOnes, [] { return 15.0; });
    profiler_ = std::make_unique<GraphProfiler>(internal::RunnerHello(), std::move(device),
                                                std::move(monitor), &clock_);
    ASSERT_TRUE(Prepare().ok());
  }

  static void WriteOnes(const Operands& operands) {
    for (int64_t i = 0; i < operands.m; ++i) {
      for (int64_t j = 0; j < kN; ++j) operands.y[i * operands.ldy + j] = kOne;
    }
  }
  void Define(
      const std::string& entry, Behaviour behaviour, std::function<double()> us = [] { return 15.0; }) {
    device_->Define(
        entry, "8848",
        [behaviour](Dim3, absl::Span<void* const> params) {
          Operands operands;
          int32_t m;
          std::memcpy(&operands.y, params[0], 8);
          std::memcpy(&operands.workspace, params[1], 8);
          std::memcpy(&m, params[2], 4);
          std::memcpy(&operands.ldy, params[3], 8);
          operands.m = m;
          behaviour(operands);
          return absl::OkStatus();
        },
        us);
  }
  absl::Status Prepare(bool with_support = true) {
    Problem problem;
    problem.n = kN;
    problem.k = 128;
    internal::PrepareRequest request;
    *request.mutable_problem() = ProblemToProto(problem);
    request.set_m(kM);
    request.set_seed(1);
    if (with_support) request.set_support_cubin("support");
    return profiler_->Prepare(request).status();
  }
  static internal::Candidate Named(const std::string& entry, int split = 1) {
    LaunchSpec spec;
    spec.entry = entry;
    spec.split_k = split;
    if (split > 1) {
      spec.ticket_bytes_per_m_tile = 16;
      spec.partial_bytes_per_m_tile = 1024;
    }
    spec.arguments = {{"y", PointerArgument{PointerRole::kY, false, true, 16}},
                      {"workspace", PointerArgument{PointerRole::kWorkspace, true, true, 16}},
                      {"m", IntegerArgument{32, Symbol::kM}},
                      {"ldy", IntegerArgument{64, Symbol::kLdy}}};
    internal::Candidate candidate;
    candidate.set_name(entry);
    candidate.set_kernel_sha256(Sha256Hex(entry));
    candidate.set_cubin(entry);
    *candidate.mutable_launch() = LaunchSpecToProto(spec);
    return candidate;
  }
  absl::StatusOr<internal::ScreenReply> Screen(const internal::Candidate& candidate, double budget_ms = 1) {
    internal::ScreenRequest request;
    *request.mutable_candidate() = candidate;
    request.set_tolerance(3e-3);
    request.set_time_budget_ms(budget_ms);
    return profiler_->Screen(request);
  }
  // Screens a candidate that must fail in the given way.
  void ExpectFailure(const internal::Candidate& candidate, internal::CandidateFailure failure,
                     const char* reason) {
    const auto reply = Screen(candidate);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->failure(), failure) << reply->reason();
    EXPECT_THAT(reply->reason(), HasSubstr(reason));
    EXPECT_FALSE(reply->has_timing());
  }

  SimulatedClock clock_;
  FakeDevice* device_;
  FixedMonitor* monitor_;
  std::unique_ptr<GraphProfiler> profiler_;
};

TEST_F(GraphProfilerTest, ACandidateGetsItsTensorMapsAndClusters) {
  Define("mapped", WriteOnes);
  internal::Candidate candidate = Named("mapped");
  candidate.mutable_launch()->set_cluster_z(4);
  auto* map =
      candidate.mutable_launch()->mutable_arguments(0)->mutable_tensor_map();  // in place of y's pointer
  map->set_role(v1::KernelArgument::POINTER_ROLE_Y);
  map->set_element(v1::KernelArgument::TensorMap::ELEMENT_BF16);
  map->set_columns(kN);
  map->set_row_pitch_bytes(128);
  map->set_box_columns(kN);
  map->set_box_rows(8);
  const auto reply = Screen(candidate);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->failure(), internal::CANDIDATE_FAILURE_NONE) << reply->reason();
  EXPECT_TRUE(reply->has_timing());
  EXPECT_THAT(device_->log, Contains("mapped in clusters of 4"));
  EXPECT_THAT(device_->log, Not(Contains("mapped")));
}

TEST_F(GraphProfilerTest, ARightCandidateIsTimed) {
  const auto reply = Screen(Named("good"));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->failure(), internal::CANDIDATE_FAILURE_NONE) << reply->reason();
  EXPECT_EQ(reply->relative_error(), 0);
  EXPECT_DOUBLE_EQ(reply->timing().median_us(), 15);
  EXPECT_GE(reply->timing().samples(), kMinScreenSamples);
  EXPECT_FALSE(reply->timing().low_confidence());
}

TEST_F(GraphProfilerTest, NoBudgetMeansVerifyOnly) {
  const auto reply = Screen(Named("good"), 0);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->failure(), internal::CANDIDATE_FAILURE_NONE);
  EXPECT_FALSE(reply->has_timing());
}

TEST_F(GraphProfilerTest, AWrongResultIsTold) {
  Define("wrong", [](const Operands& operands) {
    WriteOnes(operands);
    operands.y[5] = 0x4000;  // 2.0
  });
  ExpectFailure(Named("wrong"), internal::CANDIDATE_FAILURE_WRONG, "relative error");
}

TEST_F(GraphProfilerTest, AnOutputThatWasNotWrittenIsTold) {
  Define("lazy", [](const Operands& operands) {
    const uint16_t last = operands.y[kM * kN - 1];
    WriteOnes(operands);
    operands.y[kM * kN - 1] = last;
  });
  ExpectFailure(Named("lazy"), internal::CANDIDATE_FAILURE_WRONG, "1 outputs were not written");
}

TEST_F(GraphProfilerTest, ANonFiniteOutputIsTold) {
  Define("nan", [](const Operands& operands) {
    WriteOnes(operands);
    operands.y[7] = 0x7f80;
  });
  ExpectFailure(Named("nan"), internal::CANDIDATE_FAILURE_WRONG, "1 outputs are not finite");
}

TEST_F(GraphProfilerTest, WritingARowBeyondMIsOutOfBounds) {
  Define("beyond", [](const Operands& operands) {
    WriteOnes({operands.y, operands.workspace, operands.m + 1, operands.ldy});
  });
  ExpectFailure(Named("beyond"), internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS, "behind the output");
}

TEST_F(GraphProfilerTest, WritingBeforeTheOutputIsOutOfBounds) {
  Define("before", [](const Operands& operands) {
    WriteOnes(operands);
    operands.y[-1] = 0;
  });
  ExpectFailure(Named("before"), internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS, "before the output");
}

TEST_F(GraphProfilerTest, WritingBeyondTheWorkspaceIsOutOfBounds) {
  const int64_t workspace_bytes = LaunchSpecFromProto(Named("good", 2).launch())->WorkspaceBytes(kM);
  Define("greedy", [=](const Operands& operands) {
    WriteOnes(operands);
    operands.workspace[workspace_bytes] = 0;
  });
  ExpectFailure(Named("greedy", 2), internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS, "behind the workspace");
  Define("greedy", [=](const Operands& operands) {
    WriteOnes(operands);
    operands.workspace[-1] = 0;
  });
  ExpectFailure(Named("greedy", 2), internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS, "before the workspace");
}

TEST_F(GraphProfilerTest, ASecondRunThatDiffersIsNotRepeatable) {
  // Both are within the tolerance.
  auto runs = std::make_shared<int>(0);
  Define("moody", [runs](const Operands& operands) {
    WriteOnes(operands);
    operands.y[3] = kOne + ++*runs % 2;
  });
  ExpectFailure(Named("moody"), internal::CANDIDATE_FAILURE_NOT_REPEATABLE,
                "1 bytes of a second run's output");
}

TEST_F(GraphProfilerTest, TicketsLeftNonZeroAreNotRepeatable) {
  Define("untidy", [](const Operands& operands) {
    WriteOnes(operands);
    operands.workspace[0] = 1;
  });
  ExpectFailure(Named("untidy", 2), internal::CANDIDATE_FAILURE_NOT_REPEATABLE, "tickets");
}

TEST_F(GraphProfilerTest, TicketsStartAtZeroAndPartialsPoisoned) {
  bool clean = true;
  Define("reader", [&clean](const Operands& operands) {
    WriteOnes(operands);
    for (int i = 0; i < 256; ++i) clean = clean && operands.workspace[i] == 0;
    for (int i = 256; i < 256 + 1024; ++i) clean = clean && operands.workspace[i] == SupportLibrary::kPoison;
  });
  ASSERT_TRUE(Screen(Named("reader", 2), 0).ok());
  EXPECT_TRUE(clean);
}

TEST_F(GraphProfilerTest, AKernelTheDriverRefusesIsALoadFailure) {
  device_->FailAt(0, absl::FailedPreconditionError("CUDA_ERROR_INVALID_IMAGE"));
  ExpectFailure(Named("good"), internal::CANDIDATE_FAILURE_LOAD, "INVALID_IMAGE");
  ASSERT_TRUE(Screen(Named("good")).ok());
}

TEST_F(GraphProfilerTest, AKernelWithoutTheEntryIsALoadFailure) {
  internal::Candidate candidate = Named("good");
  candidate.mutable_launch()->set_entry("missing");
  ExpectFailure(candidate, internal::CANDIDATE_FAILURE_LOAD, "missing");
}

TEST_F(GraphProfilerTest, ALaunchThatIsRefusedIsTheCandidatesFailure) {
  ASSERT_TRUE(Screen(Named("good")).ok());
  // Find; results cleared, two guards and the output set; the launch.
  device_->FailAt(5, absl::FailedPreconditionError("CUDA_ERROR_INVALID_VALUE"));
  ExpectFailure(Named("good"), internal::CANDIDATE_FAILURE_LAUNCH, "INVALID_VALUE");
}

TEST_F(GraphProfilerTest, ALostContextIsAbortedAtEveryStep) {
  for (int step = 0;; ++step) {
    const int before = device_->calls();
    device_->FailAt(step, absl::AbortedError("CUDA_ERROR_ILLEGAL_ADDRESS"));
    const auto reply = Screen(Named("good", 2));
    if (device_->calls() - before <= step) break;
    EXPECT_TRUE(absl::IsAborted(reply.status())) << "step " << step;
    ASSERT_LT(step, 500);
  }
}

TEST_F(GraphProfilerTest, AnyOtherFailureLeavesItUsable) {
  for (int step = 0;; ++step) {
    const int before = device_->calls();
    device_->FailAt(step, absl::InternalError("step failed"));
    static_cast<void>(Screen(Named("good", 2)).status());
    const bool done = device_->calls() - before <= step;
    device_->FailNever();
    const auto next = Screen(Named("good", 2), 0);
    ASSERT_TRUE(next.ok()) << "step " << step << ": " << next.status();
    EXPECT_EQ(next->failure(), internal::CANDIDATE_FAILURE_NONE) << "step " << step;
    if (done) break;
    ASSERT_LT(step, 500);
  }
}

TEST_F(GraphProfilerTest, AKernelIsLoadedOnceAndKept) {
  const int before = device_->loads;
  ASSERT_TRUE(Screen(Named("good"), 0).ok());
  internal::Candidate without_bytes = Named("good");
  without_bytes.clear_cubin();
  ASSERT_TRUE(Screen(without_bytes, 0).ok());
  EXPECT_EQ(device_->loads, before + 1);
}

TEST_F(GraphProfilerTest, TheLeastRecentlyUsedKernelIsDropped) {
  ASSERT_TRUE(Screen(Named("good"), 0).ok());
  for (int i = 0; i < kRunnerModules; ++i) {
    internal::Candidate other = Named("good");
    other.set_cubin("good " + std::to_string(i));
    other.set_kernel_sha256(Sha256Hex(other.cubin()));
    ASSERT_TRUE(Screen(other, 0).ok());
  }
  internal::Candidate without_bytes = Named("good");
  without_bytes.clear_cubin();
  EXPECT_EQ(Screen(without_bytes, 0).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GraphProfilerTest, RefusesBytesWithAnotherDigest) {
  internal::Candidate candidate = Named("good");
  candidate.set_kernel_sha256(Sha256Hex("something else"));
  EXPECT_EQ(Screen(candidate).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GraphProfilerTest, ADisturbedScreeningIsRepeatedOnce) {
  monitor_->disturbed_checks = 1;
  EXPECT_FALSE(Screen(Named("good"))->timing().low_confidence());
  EXPECT_EQ(monitor_->checks, 2);
}

TEST_F(GraphProfilerTest, ALastingDisturbanceIsNotWaitedForAgainAndAgain) {
  monitor_->disturbed_checks = 3;
  EXPECT_TRUE(Screen(Named("good"))->timing().low_confidence());
  EXPECT_EQ(monitor_->checks, 2);
  EXPECT_TRUE(Screen(Named("good"))->timing().low_confidence());
  EXPECT_EQ(monitor_->checks, 3);
  EXPECT_FALSE(Screen(Named("good"))->timing().low_confidence());
}

TEST_F(GraphProfilerTest, FinalsTimeEachFinalistInOrder) {
  Define("slow", WriteOnes, [] { return 25.0; });
  internal::FinalsRequest request;
  *request.add_candidates() = Named("slow");
  *request.add_candidates() = Named("good");
  request.set_time_budget_ms(1000);
  request.set_tie_band(0.003);
  const auto reply = profiler_->Finals(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->timings_size(), 2);
  EXPECT_DOUBLE_EQ(reply->timings(0).median_us(), 25);
  EXPECT_DOUBLE_EQ(reply->timings(1).median_us(), 15);
  EXPECT_DOUBLE_EQ(reply->timings(0).center_us(), 25);
  EXPECT_DOUBLE_EQ(reply->timings(1).center_us(), 15);
  EXPECT_EQ(reply->rounds(), kMinRounds);
  EXPECT_EQ(reply->timings(0).samples(), kMinRounds);
  EXPECT_FALSE(reply->timings(0).low_confidence());
}

// What a kernel says of the GPU's clock's step.
class ClockStepTest : public GraphProfilerTest {
 protected:
  void GiveStep(uint64_t ns) {
    device_->Redefine(
        support::kClockStep,
        [ns](Dim3, absl::Span<void* const> params) {
          uint64_t* to;
          std::memcpy(&to, params[0], sizeof(to));
          *to = ns;
          return absl::OkStatus();
        },
        [] { return 1.0; });
    ASSERT_TRUE(Prepare().ok());
    device_->log.clear();
  }
  int64_t Marks() const { return std::count(device_->log.begin(), device_->log.end(), support::kMark); }
};

TEST_F(ClockStepTest, EventsAreMarkedByAKernelWhereTheClockIsFine) {
  GiveStep(32);
  const auto reply = Screen(Named("good"));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->failure(), internal::CANDIDATE_FAILURE_NONE) << reply->reason();
  // The second mark takes a microsecond on this device, and is the end.
  EXPECT_DOUBLE_EQ(reply->timing().median_us(), 16);
  EXPECT_GE(Marks(), 2 * reply->timing().samples());
  EXPECT_EQ(std::count(device_->log.begin(), device_->log.end(), "record 0"), 0);
  internal::FinalsRequest request;
  *request.add_candidates() = Named("good");
  EXPECT_DOUBLE_EQ(profiler_->Finals(request)->timings(0).median_us(), 16);
}

TEST_F(ClockStepTest, EventsAreTheDriversWhereTheClockIsCoarseOrStandsStill) {
  for (const uint64_t ns : {uint64_t{1024}, uint64_t{0}}) {
    GiveStep(ns);
    EXPECT_DOUBLE_EQ(Screen(Named("good"))->timing().median_us(), 15);
    EXPECT_EQ(Marks(), 0);
  }
}

// The kernel that marked events until now is gone with its library.
TEST_F(ClockStepTest, EventsAreTheDriversAgainWhenALaterLibraryDoesNotMarkThem) {
  GiveStep(32);
  EXPECT_DOUBLE_EQ(Screen(Named("good"))->timing().median_us(), 16);
  GiveStep(1024);
  EXPECT_DOUBLE_EQ(Screen(Named("good"))->timing().median_us(), 15);
  EXPECT_EQ(Marks(), 0);
  GiveStep(32);
  EXPECT_DOUBLE_EQ(Screen(Named("good"))->timing().median_us(), 16);
  profiler_->TimeFromTheHost();
  GiveStep(32);
  EXPECT_DOUBLE_EQ(Screen(Named("good"))->timing().median_us(), 15);
  EXPECT_EQ(Marks(), 0);
}

// A library that is refused half-way leaves all as it was.
TEST_F(ClockStepTest, AFailureAtAnyStepOfASecondLibraryLeavesTheFirst) {
  GiveStep(32);
  const auto times = [&] {
    const auto reply = Screen(Named("good"));
    return reply.ok() ? reply->timing().median_us() : -1;
  };
  for (int step = 0;; ++step) {
    const int before = device_->calls();
    device_->FailAt(step, absl::InternalError("step failed"));
    const bool prepared = Prepare().ok();
    const bool reached = device_->calls() - before > step;
    device_->FailNever();
    if (!prepared) {
      ASSERT_TRUE(Prepare(/*with_support=*/false).ok()) << "step " << step;
    }
    EXPECT_DOUBLE_EQ(times(), 16) << "step " << step;
    if (!reached) break;
    ASSERT_LT(step, 200);
  }
}

TEST_F(ClockStepTest, HostTimedKernelsHaveTheDriversEvents) {
  profiler_->TimeFromTheHost();
  GiveStep(32);
  EXPECT_DOUBLE_EQ(Screen(Named("good"))->timing().median_us(), 15);
  EXPECT_EQ(Marks(), 0);
}

// Capture fails, so the times come from events around single launches: used, and marked.
TEST_F(GraphProfilerTest, FailedCapturesGiveEventTimingsOfLowConfidence) {
  device_->FailEveryCapture(absl::FailedPreconditionError("capture is not supported"));
  const auto screened = Screen(Named("good"));
  ASSERT_TRUE(screened.ok()) << screened.status();
  EXPECT_EQ(screened->failure(), internal::CANDIDATE_FAILURE_NONE) << screened->reason();
  EXPECT_DOUBLE_EQ(screened->timing().median_us(), 15);
  EXPECT_TRUE(screened->timing().low_confidence());

  Define("slow", WriteOnes, [] { return 25.0; });
  internal::FinalsRequest request;
  *request.add_candidates() = Named("slow");
  *request.add_candidates() = Named("good");
  const auto raced = profiler_->Finals(request);
  ASSERT_TRUE(raced.ok()) << raced.status();
  EXPECT_DOUBLE_EQ(raced->timings(1).median_us(), 15);
  for (const internal::Timing& timing : raced->timings()) EXPECT_TRUE(timing.low_confidence());
}

TEST_F(GraphProfilerTest, EverySampleIsLoggedOnRequest) {
  std::ostringstream log;
  profiler_->LogSamplesTo(&log);
  const auto screened = Screen(Named("good"));
  ASSERT_TRUE(screened.ok());
  internal::FinalsRequest request;
  *request.add_candidates() = Named("good");
  ASSERT_TRUE(profiler_->Finals(request).ok());
  const std::vector<std::string> lines = absl::StrSplit(log.str(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2);
  EXPECT_THAT(
      lines[0],
      HasSubstr(R"({"candidate": "good", "n": 40, "k": 128, "m": 3, "phase": "screen", "us": [15.000, )"));
  EXPECT_EQ(std::count(lines[0].begin(), lines[0].end(), '.'), screened->timing().samples());
  EXPECT_THAT(lines[1], HasSubstr("\"final\""));
}

TEST_F(GraphProfilerTest, AWorkspaceThatDoesNotFitCostsItsCandidate) {
  internal::Candidate large = Named("good", 2);
  large.mutable_launch()->mutable_workspace()->set_partial_bytes_per_m_tile(1 << 20);
  device_->FailAt(0, absl::ResourceExhaustedError("no memory"));
  ExpectFailure(large, internal::CANDIDATE_FAILURE_LAUNCH, "workspace does not fit");
  ASSERT_TRUE(Screen(Named("good")).ok());
}

// Samples take turns with copies of the operands and of the output.
TEST_F(GraphProfilerTest, CandidatesAreTimedWithTheirOperandsInManyPlaces) {
  std::set<uint16_t*> outputs;
  Define("placed", [&outputs](const Operands& operands) {
    WriteOnes(operands);
    outputs.insert(operands.y);
  });
  ASSERT_TRUE(Screen(Named("placed")).ok());
  const size_t screened = outputs.size();
  EXPECT_GT(screened, 2);
  internal::FinalsRequest request;
  *request.add_candidates() = Named("placed");
  *request.add_candidates() = Named("good");
  ASSERT_TRUE(profiler_->Finals(request).ok());
  EXPECT_EQ(outputs.size(), screened);
}

TEST_F(GraphProfilerTest, FinalistsDoNotShareAWorkspace) {
  // Each counts its launches in a ticket, and fills its partials, of every workspace that it is given: with a
  // shared one it would find the other's.
  bool undisturbed = true;
  const auto counting = [&undisturbed](std::shared_ptr<std::map<uint8_t*, uint8_t>> launches) {
    return [&undisturbed, launches](const Operands& operands) {
      WriteOnes(operands);
      undisturbed = undisturbed && operands.workspace[0] == (*launches)[operands.workspace]++;
      ++operands.workspace[0];
      std::memset(operands.workspace + 256, 0xee, 1024);
    };
  };
  Define("first", counting(std::make_shared<std::map<uint8_t*, uint8_t>>()));
  Define("second", counting(std::make_shared<std::map<uint8_t*, uint8_t>>()));
  internal::FinalsRequest request;
  *request.add_candidates() = Named("first", 2);
  *request.add_candidates() = Named("second", 2);
  const auto reply = profiler_->Finals(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(undisturbed);
}

TEST_F(GraphProfilerTest, AMovingClockMakesFinalsLowConfidence) {
  double probe_us = 9;
  device_->Redefine(
      support::kClockProbe, [](Dim3, absl::Span<void* const>) { return absl::OkStatus(); },
      [&probe_us] { return probe_us *= 1.01; });
  internal::FinalsRequest request;
  *request.add_candidates() = Named("good");
  EXPECT_TRUE(profiler_->Finals(request)->timings(0).low_confidence());
}

TEST_F(GraphProfilerTest, NothingRunsBeforeItIsPrepared) {
  GraphProfiler fresh(internal::RunnerHello(), std::make_unique<FakeDevice>(), std::make_unique<NoMonitor>(),
                      &clock_);
  internal::ScreenRequest request;
  *request.mutable_candidate() = Named("good");
  EXPECT_EQ(fresh.Screen(request).status().code(), absl::StatusCode::kFailedPrecondition);
  internal::PrepareRequest prepare;
  EXPECT_THAT(std::string(fresh.Prepare(prepare).status().message()), HasSubstr("support kernels"));
}

// The daemon compiles them again for this code; a lost context is something else.
TEST_F(GraphProfilerTest, SupportKernelsThatCannotBeLoadedAreDataLoss) {
  internal::PrepareRequest request;
  Problem problem;
  problem.n = kN;
  problem.k = 128;
  *request.mutable_problem() = ProblemToProto(problem);
  request.set_m(kM);
  request.set_support_cubin("good");  // an image without them
  const absl::Status refused = profiler_->Prepare(request).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the driver refuses the support kernels"));
  request.set_support_cubin("support");
  device_->FailAt(0, absl::FailedPreconditionError("CUDA_ERROR_INVALID_IMAGE"));
  EXPECT_TRUE(absl::IsDataLoss(profiler_->Prepare(request).status()));
  device_->FailAt(0, absl::AbortedError("lost"));
  EXPECT_TRUE(absl::IsAborted(profiler_->Prepare(request).status()));
  EXPECT_TRUE(profiler_->Prepare(request).ok());
  EXPECT_TRUE(Screen(Named("good")).ok());
}

TEST_F(GraphProfilerTest, WeightsAreKeptWhenOnlyMChanges) {
  device_->log.clear();
  ASSERT_TRUE(Prepare(/*with_support=*/false).ok());
  EXPECT_THAT(device_->log, Contains(std::string(support::kReferenceGemm)));
  EXPECT_THAT(device_->log, testing::Not(Contains(std::string(support::kPackWeights))));
}

}  // namespace
}  // namespace qgemm
