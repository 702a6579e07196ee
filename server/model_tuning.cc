#include "server/model_tuning.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/pick_choice.h"
#include "spdlog/spdlog.h"

namespace qgemm {

void ModelTuning::Loop() {
  while (std::shared_ptr<PickJob> job = board_.NextPredicted()) Run(job);
}

void ModelTuning::Run(const std::shared_ptr<PickJob>& job) {
  if (board_.Abandoned(*job)) {
    board_.Finish(job, absl::CancelledError("nobody waits for this pick any more"), {});
    return;
  }
  const absl::StatusOr<const CandidateState*> winner = Choose(*job);
  if (!winner.ok()) {
    board_.Finish(job, winner.status(), {});
    return;
  }
  if (*winner == nullptr && job->requested_candidates < job->candidates.size()) {
    request_more_(*job);
    board_.Queue(job);
    return;
  }
  if (*winner == nullptr) {
    v1::TuneResult result;
    result.set_m_bucket(job->m_bucket);
    const std::vector<v1::Rejection> rejections = CountRejections(job->candidates);
    *result.mutable_rejections() = {rejections.begin(), rejections.end()};
    result.set_error(NoCandidateSentence(*job, rejections));
    spdlog::warn("{}", result.error());
    board_.Finish(job, absl::OkStatus(), std::move(result));
    return;
  }
  absl::StatusOr<v1::TuneResult> result = Store(*job, **winner);
  if (!result.ok()) {
    board_.Finish(job, result.status(), {});
    return;
  }
  spdlog::info("{} bucket {} predicted for {}: {} split {} {:.3f} us", ProblemName(job->problem),
               job->m_bucket, job->target.name, result->pick().config(), result->pick().split_k(),
               result->pick().predicted_us());
  board_.Finish(job, absl::OkStatus(), *std::move(result));
}

absl::StatusOr<const CandidateState*> ModelTuning::Choose(PickJob& job) {
  const CandidateState* winner = nullptr;
  for (size_t i = 0; i < job.requested_candidates; ++i) {
    CandidateState& state = job.candidates[i];
    const Kernel& kernel = *state.kernel;
    if (winner != nullptr && !kernel.ready()) continue;  // the job was hurried
    if (!kernel.status().ok() && kernel.is_system_failure()) return kernel.status();
    if (kernel.usable()) {
      if (winner == nullptr) winner = &state;  // candidates are in the order of their predictions
      continue;
    }
    internal::TimingRecord& verdict = state.verdict.emplace();
    verdict.set_candidate(CandidateName(state.candidate));
    if (kernel.status().ok()) {
      verdict.set_failure(internal::CANDIDATE_FAILURE_SPILLS);
      verdict.set_reason(absl::StrCat("spills ", kernel.record().info().spill_store_bytes(),
                                      " bytes stored and ", kernel.record().info().spill_load_bytes(),
                                      " bytes loaded per thread"));
    } else {
      verdict.set_failure(internal::CANDIDATE_FAILURE_COMPILE);
      verdict.set_reason(std::string(kernel.status().message()));
    }
  }
  return winner;
}

absl::StatusOr<v1::TuneResult> ModelTuning::Store(PickJob& job, const CandidateState& winner) {
  internal::PickRecord record;
  record.set_pick_key(job.pick_key);
  record.set_kernel_key(winner.kernel->key());
  *record.mutable_pick() = MakePick(job, winner, clock_.WallUnixMs());
  record.mutable_pick()->set_partial(job.partial);
  // A pick under the request's own limits is not what its effort would have picked.
  if (!job.partial) QGEMM_RETURN_IF_ERROR(store_.PutPick(record, {}));
  v1::TuneResult result;
  result.set_m_bucket(job.m_bucket);
  *result.mutable_pick() = record.pick();
  const std::vector<v1::Rejection> rejections = CountRejections(job.candidates);
  *result.mutable_rejections() = {rejections.begin(), rejections.end()};
  return result;
}

}  // namespace qgemm
