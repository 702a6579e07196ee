#include "server/pick_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/host_name.h"
#include "kernels/family/family.h"
#include "kernels/launch_spec.h"
#include "server/launch_spec_proto.h"
#include "server/proto_convert.h"

namespace qgemm {
namespace {

constexpr size_t kMaxRejectionKinds = 16;
constexpr char kExampleCandidate[] = "mma_t1_r2_w4x2_s4_b2_slice_post/k5/workspace";

bool Good(const CandidateState& state) {
  return state.verdict.has_value() && state.verdict->failure() == internal::CANDIDATE_FAILURE_NONE &&
         state.verdict->timing().samples() > 0;
}

}  // namespace

double ComparedUs(const internal::Timing& timing) {
  return timing.center_us() > 0 ? timing.center_us() : timing.median_us();
}

double FastestUs(absl::Span<const CandidateState> candidates) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const CandidateState& state : candidates) {
    if (Good(state)) fastest = std::min(fastest, ComparedUs(state.verdict->timing()));
  }
  return fastest;
}

std::vector<size_t> ChooseFinalists(absl::Span<const CandidateState> candidates, int limit) {
  const double slowest = FastestUs(candidates) * (1 + kFinalistBand);
  std::vector<size_t> finalists;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!Good(candidates[i])) continue;
    const internal::Timing& timing = candidates[i].verdict->timing();
    // Few samples of a noisy kernel tell little: what it may be counts.
    const double error = std::isfinite(timing.error_us()) ? timing.error_us() : 0;
    if (ComparedUs(timing) - 2 * error <= slowest) finalists.push_back(i);
  }
  // The order of times within the tie band is noise: when there are too many, the prediction decides there.
  const double tied = FastestUs(candidates) * (1 + kTieBand);
  const auto rank = [&](size_t i) {
    const double us = ComparedUs(candidates[i].verdict->timing());
    return std::make_tuple(us <= tied ? 0 : us, candidates[i].predicted_us, candidates[i].candidate);
  };
  std::sort(finalists.begin(), finalists.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  if (finalists.size() > static_cast<size_t>(limit)) finalists.resize(limit);
  return finalists;
}

size_t ChooseMeasured(absl::Span<const CandidateState> candidates, absl::Span<const size_t> of,
                      const Problem& problem, int m_bucket) {
  QGEMM_CHECK(!of.empty());
  const auto us_of = [&](size_t i) { return ComparedUs(candidates[i].verdict->timing()); };
  double fastest = us_of(of[0]);
  for (const size_t i : of) fastest = std::min(fastest, us_of(i));
  const auto rank = [&](const CandidateState& state) {
    const int registers = state.kernel->record().info().registers() * state.candidate.config.threads();
    const int smem = MakeLaunchSpec(state.candidate, problem, m_bucket).dynamic_smem_bytes;
    return std::make_tuple(state.predicted_us, registers, smem, state.candidate);
  };
  size_t best = candidates.size();
  for (const size_t i : of) {
    if (us_of(i) > fastest * (1 + kTieBand)) continue;
    if (best == candidates.size() || rank(candidates[i]) < rank(candidates[best])) best = i;
  }
  return best;
}

v1::Pick MakePick(const PickJob& job, const CandidateState& winner, int64_t now_unix_ms) {
  v1::Pick pick;
  *pick.mutable_problem() = ProblemToProto(job.problem);
  pick.set_m_bucket(job.m_bucket);
  pick.set_target(job.target.name);
  pick.set_effort(job.effort);
  pick.set_config(ConfigName(winner.candidate.config));
  pick.set_split_k(winner.candidate.split_k);
  pick.set_reduction(ReductionToProto(winner.candidate.reduction));
  pick.set_predicted_us(winner.predicted_us);
  *pick.mutable_kernel() = winner.kernel->record().info();
  *pick.mutable_launch() = LaunchSpecToProto(MakeLaunchSpec(winner.candidate, job.problem, job.m_bucket));
  pick.set_candidates(job.plan.legal);
  pick.set_tuned_at_unix_ms(now_unix_ms);
  pick.set_producer(HostName());
  pick.set_source(v1::PICK_SOURCE_MODEL);
  pick.set_confidence(v1::CONFIDENCE_LOW);
  int verified = 0;
  int timed = 0;
  int rejected = 0;
  for (const CandidateState& state : job.candidates) {
    if (!state.verdict.has_value()) continue;
    switch (state.verdict->failure()) {
      case internal::CANDIDATE_FAILURE_NONE:
        ++verified;
        if (state.verdict->timing().samples() > 0) ++timed;
        break;
      case internal::CANDIDATE_FAILURE_WRONG:
      case internal::CANDIDATE_FAILURE_NOT_REPEATABLE:
        ++verified;
        ++rejected;
        break;
      default:
        ++rejected;
    }
  }
  pick.set_verified(verified);
  pick.set_timed(timed);
  pick.set_rejected(rejected);
  if (job.target.measured && winner.verdict.has_value()) {
    const internal::TimingRecord& verdict = *winner.verdict;
    pick.set_source(v1::PICK_SOURCE_MEASURED);
    *pick.mutable_device() = job.target.device;
    pick.set_driver_version(job.target.driver_version);
    pick.set_time_us(verdict.timing().median_us());
    pick.set_spread_us(verdict.timing().spread_us());
    pick.set_samples(verdict.timing().samples());
    pick.set_relative_error(verdict.relative_error());
    pick.set_confidence(verdict.timing().low_confidence() ? v1::CONFIDENCE_LOW : v1::CONFIDENCE_HIGH);
  }
  return pick;
}

std::vector<v1::Rejection> CountRejections(absl::Span<const CandidateState> candidates) {
  std::map<internal::CandidateFailure, v1::Rejection> by_kind;
  for (const CandidateState& state : candidates) {
    if (!state.verdict.has_value() || state.verdict->failure() == internal::CANDIDATE_FAILURE_NONE) continue;
    v1::Rejection& rejection = by_kind[state.verdict->failure()];
    if (rejection.candidates() == 0) {
      rejection.set_reason(std::string(FailureText(state.verdict->failure())));
      rejection.set_example(absl::StrCat(CandidateName(state.candidate), ": ", state.verdict->reason()));
    }
    rejection.set_candidates(rejection.candidates() + 1);
  }
  std::vector<v1::Rejection> sorted;
  sorted.reserve(by_kind.size());
  for (auto& [kind, rejection] : by_kind) sorted.push_back(std::move(rejection));
  std::stable_sort(sorted.begin(), sorted.end(), [](const v1::Rejection& a, const v1::Rejection& b) {
    return a.candidates() > b.candidates();
  });
  if (sorted.size() > kMaxRejectionKinds) sorted.resize(kMaxRejectionKinds);
  return sorted;
}

std::string NoCandidateSentence(const PickJob& job, absl::Span<const v1::Rejection> rejections) {
  const std::string what =
      absl::StrCat(ProblemName(job.problem), " at bucket ", job.m_bucket, " on ", job.target.name);
  if (job.candidates.empty()) {
    if (!job.limits.only.empty() && job.plan.restricted) {
      return absl::StrCat("no legal candidate for ", what, " matches only = \"", job.limits.only,
                          "\": candidates are named such as ", kExampleCandidate);
    }
    const absl::Status served = SupportsSignature(job.problem.signature);
    return absl::StrCat("no candidate is legal for ", what,
                        served.ok() ? std::string() : absl::StrCat(": ", std::string(served.message())));
  }
  return absl::StrCat("no candidate of ", job.candidates.size(), " can be used for ", what, ": ",
                      absl::StrJoin(rejections, "; ", [](std::string* out, const v1::Rejection& rejection) {
                        absl::StrAppend(out, rejection.candidates(), " ", rejection.reason(), " (",
                                        rejection.example(), ")");
                      }));
}

}  // namespace qgemm
