#include "tests/fuzz/requests_input.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/clock.h"
#include "cache/memory_store.h"
#include "cache/selection.h"
#include "kernels/bucket.h"
#include "server/launch_spec_proto.h"
#include "server/proto_convert.h"
#include "server/tuner.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/fakes/fake_gpu.h"
#include "tests/fakes/int4_problem.h"
#include "tests/fuzz/byte_source.h"

namespace qgemm {
namespace {

// So many (problem, row count) pairs of a request are planned; longer ones are only looked up.
constexpr int kMaxPlanned = 2;

// Whose client is gone from the start: a request is validated, journalled, accepted and withdrawn.
class GoneStream : public TuneStream {
 public:
  void Send(const v1::TuneEvent& /*event*/) override {}
  bool Cancelled() override { return true; }
};

class PatientStream : public TuneStream {
 public:
  void Send(const v1::TuneEvent& /*event*/) override {}
  bool Cancelled() override { return false; }
};

// One for all inputs: its threads take longer to start than most requests.
struct Server {
  MemoryStore store;
  FakeCompiler compiler;
  FakeGpu gpu;
  Tuner tuner;

  static TargetResolver Targets() {
    absl::StatusOr<TargetResolver> targets = TargetResolver::Create("h200", "", FakeGpu::H200());
    QGEMM_CHECK_OK(targets.status());
    return *std::move(targets);
  }
  // A short history: every input would otherwise add to what the next one lists.
  static TunerOptions Options() {
    TunerOptions options;
    options.jobs.history.count = 4;
    return options;
  }
  Server() : tuner(store, compiler, &gpu, RealClock(), Targets(), Options()) {
    v1::TuneRequest request;
    *request.add_problems() = Int4Problem(5376, 4096);
    *request.add_problems() = Int4Problem(1024, 6656);
    for (const int m : {1, 16, 4096}) request.add_m(m);
    request.set_effort(v1::EFFORT_QUICK);
    PatientStream stream;
    QGEMM_CHECK_OK(tuner.Tune(request, "fuzz", stream));
  }
};

v1::Problem SomeProblem(ByteSource& source) {
  constexpr int kBits[] = {4, 5, 6, 8};
  constexpr int kGroups[] = {0, 16, 32, 64, 128, 256};
  v1::Problem problem;
  const int group = kGroups[source.Below(6)];
  problem.set_n(source.Nearly(source.Rarely(2) ? 5376 : 1 + source.Byte()));
  problem.set_k(source.Nearly(source.Rarely(2) ? 4096 : (1 + source.Below(20)) * std::max(group, 8)));
  problem.mutable_format()->set_bits(static_cast<int>(source.Nearly(kBits[source.Below(4)])));
  problem.mutable_format()->set_group_size(static_cast<int>(source.Nearly(group)));
  problem.mutable_format()->set_scale_type(static_cast<v1::ScalarType>(source.Nearly(source.Below(3))));
  problem.mutable_format()->set_zero_point(static_cast<v1::ZeroPoint>(source.Nearly(source.Below(4))));
  problem.mutable_format()->set_scale_levels(static_cast<int>(source.Nearly(source.Below(3))));
  problem.set_act(static_cast<v1::ScalarType>(source.Nearly(1 + source.Below(2))));
  problem.set_out(static_cast<v1::ScalarType>(source.Nearly(source.Rarely(4) ? 3 : 0)));
  problem.set_act_quantization(static_cast<v1::ActivationQuantization>(source.Nearly(source.Below(3))));
  v1::Epilogue* epilogue = problem.mutable_epilogue();
  epilogue->set_bias(source.Rarely(2));
  epilogue->set_activation(static_cast<v1::Activation>(source.Nearly(source.Below(5))));
  epilogue->set_gated(source.Rarely(4));
  epilogue->set_residual(source.Rarely(2));
  return problem;
}

std::string SomeTarget(ByteSource& source) {
  constexpr const char* kTargets[] = {"", "h200", "a100", "rtx5090", "l40s", "b200"};
  return source.Rarely(16) ? source.Text(20) : kTargets[source.Below(6)];
}

v1::TuneRequest SomeTune(ByteSource& source) {
  v1::TuneRequest request;
  for (int64_t i = source.Below(3); i >= 0; --i) *request.add_problems() = SomeProblem(source);
  for (int64_t i = source.Below(3); i >= 0; --i) request.add_m(source.Nearly(source.Byte()));
  request.set_effort(static_cast<v1::Effort>(source.Nearly(source.Below(5))));
  request.set_target(SomeTarget(source));
  request.set_retune(source.Rarely(4));
  if (source.Rarely(2)) request.set_only(source.Text(255));
  request.set_max_candidates(static_cast<int>(source.Nearly(source.Below(20))));
  if (source.Rarely(8)) request.set_budget_s(source.Real());
  request.set_detach(source.Rarely(8));
  request.set_job_class(static_cast<v1::JobClass>(source.Nearly(source.Below(3))));
  request.set_priority(static_cast<int>(source.Nearly(source.Below(100))));
  if (source.Rarely(8)) request.set_queue_deadline_s(source.Real());
  if (source.Rarely(8)) request.set_execution_deadline_s(source.Real());
  return request;
}

v1::LookupRequest SomeLookup(ByteSource& source) {
  constexpr const char* kDistances[] = {"", "log2-l1", "log2-l2", "weighted", "cost"};
  v1::LookupRequest request;
  for (int64_t i = source.Below(4); i >= 0; --i) {
    *request.add_keys()->mutable_problem() = SomeProblem(source);
    request.mutable_keys(request.keys_size() - 1)->set_m(source.Nearly(source.Byte()));
  }
  request.set_target(SomeTarget(source));
  request.set_allow_similar(source.Rarely(2));
  request.set_distance(source.Rarely(16) ? source.Text(12) : kDistances[source.Below(5)]);
  request.set_brief(source.Rarely(2));
  return request;
}

v1::ExplainRequest SomeExplain(ByteSource& source) {
  v1::ExplainRequest request;
  *request.mutable_problem() = SomeProblem(source);
  request.set_m(source.Nearly(source.Byte()));
  request.set_target(SomeTarget(source));
  return request;
}

// Of two: the message on the wire, or one that is nearly right.
template <typename Message, typename Make>
Message WireOr(ByteSource& source, Make make) {
  if (!source.Rarely(2)) return make(source);
  Message message;
  message.ParseFromString(source.Rest());
  return message;
}

// A client's mistake says so, in a sentence.
bool Taken(const absl::Status& status) {
  if (status.ok()) return true;
  QGEMM_CHECK(!status.message().empty());
  QGEMM_CHECK(absl::IsInvalidArgument(status) || absl::IsNotFound(status));
  return false;
}

bool IsCheap(const v1::TuneRequest& request) {
  return request.problems_size() * request.m_size() <= kMaxPlanned;
}

bool TakeProblem(const v1::Problem& proto) {
  const absl::StatusOr<Problem> problem = ProblemFromProto(proto);
  if (!Taken(problem.status())) return false;
  QGEMM_CHECK(problem->n == proto.n() && problem->k == proto.k());
  QGEMM_CHECK(problem->signature.format.bits == proto.format().bits());
  QGEMM_CHECK(*ProblemFromProto(ProblemToProto(*problem)) == *problem);
  QGEMM_CHECK(!ProblemName(*problem).empty());
  return true;
}

bool TakeLaunch(const v1::LaunchSpec& proto) {
  const absl::StatusOr<LaunchSpec> launch = LaunchSpecFromProto(proto);
  if (!Taken(launch.status())) return false;
  for (const int64_t m : {int64_t{1}, int64_t{33}, (int64_t{1} << 31) - 1}) {
    const Dim3 grid = launch->Grid(m);
    QGEMM_CHECK(grid.x > 0 && grid.y > 0 && grid.z > 0);
    QGEMM_CHECK(launch->WorkspaceBytes(m) >= 0);
  }
  const absl::StatusOr<LaunchSpec> again = LaunchSpecFromProto(LaunchSpecToProto(*launch));
  QGEMM_CHECK_OK(again.status());
  QGEMM_CHECK(LaunchSpecToProto(*again).SerializeAsString() ==
              LaunchSpecToProto(*launch).SerializeAsString());
  return true;
}

bool Lookup(Tuner& tuner, const v1::LookupRequest& request) {
  const absl::StatusOr<v1::LookupResponse> response = tuner.Lookup(request);
  if (!Taken(response.status())) return false;
  QGEMM_CHECK(response->answers_size() == request.keys_size());
  for (const v1::LookupAnswer& answer : response->answers()) {
    QGEMM_CHECK((answer.has_pick() || answer.has_brief()) == answer.miss_reason().empty());
    if (answer.has_pick()) QGEMM_CHECK(TakeLaunch(answer.pick().launch()));
  }
  return true;
}

}  // namespace

bool SendArbitraryRequest(absl::Span<const uint8_t> input) {
  static Server server;  // its threads end before the logger does
  ByteSource source(input);
  switch (source.Below(8)) {
    case 0:
      return TakeProblem(WireOr<v1::Problem>(source, SomeProblem));
    case 1: {
      v1::LaunchSpec launch;
      launch.ParseFromString(source.Rest());
      launch.set_abi_version(kLaunchAbiVersion);
      return TakeLaunch(launch);
    }
    case 2: {
      v1::CacheSelection selection;
      selection.ParseFromString(source.Rest());
      return Taken(Select(server.store, selection, RealClock().WallUnixMs()).status());
    }
    case 3: {
      const auto request = WireOr<v1::ExplainRequest>(source, SomeExplain);
      return Taken(server.tuner.Explain(request).status());
    }
    case 4: {
      const auto request = WireOr<v1::TuneRequest>(source, SomeTune);
      return IsCheap(request) && Taken(server.tuner.Estimate(request).status());
    }
    case 5: {
      const auto request = WireOr<v1::TuneRequest>(source, SomeTune);
      if (!IsCheap(request)) return false;
      GoneStream gone;
      const absl::Status status = server.tuner.Tune(request, "fuzz", gone);
      // What the cache answers is not withdrawn; a detached job outlives its client.
      v1::ListJobsRequest unfinished;
      unfinished.set_unfinished_only(true);
      for (const v1::Job& job : server.tuner.jobs().List(unfinished)) {
        server.tuner.jobs()
            .Cancel(job.job_id(), [](const v1::Job&) { return absl::OkStatus(); })
            .IgnoreError();
      }
      return absl::IsCancelled(status) || Taken(status);
    }
    default:
      return Lookup(server.tuner, WireOr<v1::LookupRequest>(source, SomeLookup));
  }
}

}  // namespace qgemm
