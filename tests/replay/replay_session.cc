#include "tests/replay/replay_session.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "server/proto_convert.h"
#include "spdlog/spdlog.h"
#include "tests/fakes/collecting_stream.h"
#include "tests/replay/replay_gpu.h"

namespace qgemm {

ReplaySession::ReplaySession(const RecordedTimings& timings, const NoiseModel& noise, uint64_t seed)
    : timings_(timings), gpu_(MakeReplayGpu(timings, noise, seed)) {
  // A line per tuning and per candidate that was not recorded would hide what is printed of thousands.
  spdlog::set_level(spdlog::level::err);
  absl::StatusOr<TargetResolver> targets = TargetResolver::Create("h200", "", *gpu_->Describe());
  QGEMM_CHECK(targets.ok());
  tuner_ = std::make_unique<Tuner>(store_, compiler_, gpu_.get(), RealClock(), *std::move(targets),
                                   TunerOptions());
}

absl::StatusOr<ReplayOutcome> ReplaySession::Tune(const Cell& cell, v1::Effort effort) {
  v1::TuneRequest request;
  *request.add_problems() = ProblemToProto(Problem{cell.n, cell.k, {}});
  request.add_m(cell.m);
  request.set_effort(effort);
  CollectingStream stream;
  QGEMM_RETURN_IF_ERROR(tuner_->Tune(request, "replay", stream));
  if (!stream.result.has_pick()) return absl::InternalError(stream.result.error());
  ReplayOutcome outcome;
  outcome.pick = stream.result.pick();
  outcome.gpu_s = stream.summary.gpu_busy_s();
  outcome.timings = stream.summary.timings();
  const auto& candidates = timings_.at(cell);
  double best = std::numeric_limits<double>::infinity();
  for (const auto& [candidate, us] : candidates) {
    best = std::min(best, us);
    if (ConfigName(candidate.config) == outcome.pick.config() &&
        candidate.split_k == outcome.pick.split_k() &&
        ReductionToProto(candidate.reduction) == outcome.pick.reduction()) {
      outcome.true_us = us;
      outcome.candidate = CandidateName(candidate);
    }
  }
  outcome.regret = outcome.true_us / best;
  return outcome;
}

}  // namespace qgemm
