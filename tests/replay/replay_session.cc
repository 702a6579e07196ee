#include "tests/replay/replay_session.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "server/pick_choice.h"
#include "server/proto_convert.h"
#include "spdlog/spdlog.h"
#include "tests/fakes/collecting_stream.h"
#include "tests/replay/replay_gpu.h"

namespace qgemm {

ReplaySession::ReplaySession(const RecordedTimings& timings, const NoiseModel& noise, uint64_t seed,
                             bool rewarm)
    : timings_(timings), gpu_(MakeReplayGpu(timings, noise, seed, rewarm)) {
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
  outcome.missed = WhyMissed(cell, request, outcome);
  return outcome;
}

Missed ReplaySession::WhyMissed(const Cell& cell, const v1::TuneRequest& request,
                                const ReplayOutcome& outcome) {
  constexpr double kNear = 1.01;
  if (outcome.regret <= kNear) return Missed::kNot;
  v1::ExplainRequest question;
  *question.mutable_problem() = request.problems(0);
  question.set_m(cell.m);
  const absl::StatusOr<v1::ExplainResponse> explained = tuner_->Explain(question);
  QGEMM_CHECK(explained.ok());
  std::map<std::string, double> seen_us;
  for (const v1::ExplainedCandidate& one : explained->candidates()) {
    if (one.has_center_us()) seen_us[one.candidate()] = one.center_us();
  }
  const double best = outcome.true_us / outcome.regret;
  Missed missed = Missed::kNotPlanned;
  for (const auto& [candidate, us] : timings_.at(cell)) {
    const auto seen = seen_us.find(CandidateName(candidate));
    if (us > kNear * best || seen == seen_us.end()) continue;
    if (seen->second <= seen_us.at(outcome.candidate) * (1 + kFinalistBand)) return Missed::kRace;
    missed = Missed::kScreening;
  }
  return missed;
}

}  // namespace qgemm
