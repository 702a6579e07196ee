#include "server/measured_tuning.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/reference_gemm.h"
#include "server/kernel_key.h"
#include "server/pick_choice.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr int kLeastFinalists = 4;
constexpr double kRaceRounds = 16;  // that a race has at least
constexpr double kShortKernelUs = 10;
constexpr double kShortKernelShare = 2;  // of the time of other races: some per cent are nanoseconds there
constexpr double kFlushUs = 40;          // between two kernels of a round

bool Undecided(const CandidateState& state) { return !state.verdict.has_value(); }

// Verdicts of this tuning, for the store.
std::vector<internal::TimingRecord> FreshVerdicts(const PickJob& job) {
  std::vector<internal::TimingRecord> fresh;
  for (const CandidateState& state : job.candidates) {
    if (state.verdict.has_value() && !state.from_store) fresh.push_back(*state.verdict);
  }
  return fresh;
}

internal::TimingRecord VerdictFor(const PickJob& job, const CandidateState& state, int64_t now_unix_ms) {
  internal::TimingRecord verdict;
  verdict.set_timing_key(state.timing_key);
  verdict.set_candidate(CandidateName(state.candidate));
  verdict.set_driver_version(job.target.driver_version);
  verdict.set_unix_ms(now_unix_ms);
  return verdict;
}

}  // namespace

void MeasuredTuning::Loop() {
  while (std::shared_ptr<PickJob> job = board_.NextMeasured()) Run(job, /*may_yield=*/true);
}

void MeasuredTuning::Run(const std::shared_ptr<PickJob>& job, bool may_yield) {
  const TimePoint start = clock_.Now();
  gpu_.SetWithdrawn([this, job] { return board_.Abandoned(*job); });
  absl::StatusOr<v1::TuneResult> result = Tune(*job, may_yield);
  gpu_.SetWithdrawn(nullptr);
  if (prepared_ == job.get()) prepared_ = nullptr;
  const double seconds = std::chrono::duration<double>(clock_.Now() - start).count();
  if (!result.ok()) {
    // What was learnt before the failure stays: the next request does not repeat it.
    const absl::Status kept = store_.PutTimings(FreshVerdicts(*job));
    if (!kept.ok()) spdlog::error("timings were not stored: {}", kept.ToString());
    spdlog::warn("{} bucket {} was not tuned after {:.2f} s: {}", ProblemName(job->problem), job->m_bucket,
                 seconds, result.status().ToString());
    board_.Finish(job, result.status(), {});
    return;
  }
  if (result->has_pick() && result->pick().source() == v1::PICK_SOURCE_MODEL) {
    spdlog::warn(
        "{} bucket {}: its time ended after {:.2f} s, before any candidate was timed: predicted: {} "
        "split {} {:.3f} us",
        ProblemName(job->problem), job->m_bucket, seconds, result->pick().config(), result->pick().split_k(),
        result->pick().predicted_us());
  } else if (result->has_pick()) {
    spdlog::info("{} bucket {} tuned in {:.2f} s: {} split {} {:.3f} us", ProblemName(job->problem),
                 job->m_bucket, seconds, result->pick().config(), result->pick().split_k(),
                 result->pick().time_us());
  } else {
    spdlog::warn("{} bucket {}: {}", ProblemName(job->problem), job->m_bucket, result->error());
  }
  board_.Finish(job, absl::OkStatus(), *std::move(result));
}

absl::StatusOr<v1::TuneResult> MeasuredTuning::Tune(PickJob& job, bool may_yield) {
  v1::TuneResult result;
  result.set_m_bucket(job.m_bucket);
  const absl::Status screened = ScreenAll(job, may_yield);
  if (absl::IsFailedPrecondition(screened)) {
    result.set_error(std::string(screened.message()));
    return result;
  }
  QGEMM_RETURN_IF_ERROR(screened);
  if (job.partial && FastestUs(job.candidates) == std::numeric_limits<double>::infinity() &&
      std::any_of(job.candidates.begin(), job.candidates.end(), Undecided)) {
    return Predict(job, may_yield);
  }
  const std::vector<v1::Rejection> rejections = CountRejections(job.candidates);
  *result.mutable_rejections() = {rejections.begin(), rejections.end()};
  std::vector<size_t> finalists = ChooseFinalists(job.candidates, FinalistLimit(job));
  if (finalists.empty()) {
    result.set_error(NoCandidateSentence(job, rejections));
    QGEMM_RETURN_IF_ERROR(store_.PutTimings(FreshVerdicts(job)));
    return result;
  }
  // Stored timings of one earlier tuning need no second final; a new candidate among them does.
  const bool any_fresh = std::any_of(finalists.begin(), finalists.end(),
                                     [&](size_t i) { return !job.candidates[i].from_store; });
  if (finalists.size() > 1 && any_fresh) QGEMM_RETURN_IF_ERROR(TimeFinalists(job, finalists));
  const size_t winner = ChooseMeasured(job.candidates, finalists, job.problem, job.m_bucket);

  const int64_t now = clock_.WallUnixMs();
  internal::PickRecord record;
  record.set_pick_key(job.pick_key);
  record.set_kernel_key(job.candidates[winner].kernel->key());
  *record.mutable_pick() = MakePick(job, job.candidates[winner], now);
  for (const CandidateState& state : job.candidates) {
    if (state.verdict.has_value()) record.add_timing_keys(state.timing_key);
  }
  record.mutable_pick()->set_partial(job.partial);
  // A pick under the request's own limits is not what its effort would have picked.
  QGEMM_RETURN_IF_ERROR(job.partial ? store_.PutTimings(FreshVerdicts(job))
                                    : store_.PutPick(record, FreshVerdicts(job)));
  *result.mutable_pick() = record.pick();
  return result;
}

absl::StatusOr<v1::TuneResult> MeasuredTuning::Predict(PickJob& job, bool may_yield) {
  const CandidateState* winner = nullptr;
  // In the order of their predictions.
  for (CandidateState& state : job.candidates) {
    if (!Undecided(state)) continue;
    while (!state.kernel->ready()) {
      if (board_.Abandoned(job)) return absl::CancelledError("nobody waits for this pick any more");
      Await(job, may_yield, [&] { return state.kernel->ready(); });
    }
    if (state.kernel->usable()) {
      winner = &state;
      break;
    }
    QGEMM_RETURN_IF_ERROR(Screen(job, state));  // which says what its kernel is refused for
  }
  v1::TuneResult result;
  result.set_m_bucket(job.m_bucket);
  const std::vector<v1::Rejection> rejections = CountRejections(job.candidates);
  *result.mutable_rejections() = {rejections.begin(), rejections.end()};
  if (winner != nullptr) {
    *result.mutable_pick() = MakePick(job, *winner, clock_.WallUnixMs());
    result.mutable_pick()->set_partial(true);
  } else {
    result.set_error(NoCandidateSentence(job, rejections));
  }
  QGEMM_RETURN_IF_ERROR(store_.PutTimings(FreshVerdicts(job)));
  return result;
}

void MeasuredTuning::Await(PickJob& job, bool may_yield, const std::function<bool()>& condition) {
  if (!may_yield) {
    board_.WaitUntil(clock_.Now() + std::chrono::milliseconds(100),
                     [&] { return condition() || job.shared.abandoned; });
    return;
  }
  if (std::shared_ptr<PickJob> other = board_.NextMeasuredReady()) {
    Run(other, /*may_yield=*/false);
    gpu_.SetWithdrawn([this, &job] { return board_.Abandoned(job); });
    return;
  }
  board_.WaitForKernels(job, condition);
}

absl::Status MeasuredTuning::GiveSupport(PickJob& job) {
  board_.WaitForKernels(job, [&] { return job.support->ready(); });
  // WaitForKernels also returns for other reasons; the support kernels are few and nothing can run without
  // them.
  while (!job.support->ready()) {
    if (board_.Abandoned(job)) return absl::CancelledError("nobody waits for this pick any more");
    board_.WaitUntil(clock_.Now() + std::chrono::milliseconds(100),
                     [&] { return job.support->ready() || job.shared.abandoned; });
  }
  if (!job.support->status().ok()) {
    if (job.support->is_system_failure()) {
      if (job.support_refusal.empty()) return job.support->status();
      return absl::Status(job.support->status().code(),
                          absl::StrCat(job.support_refusal, "; and they cannot be compiled again: ",
                                       std::string(job.support->status().message())));
    }
    return absl::InternalError(absl::StrCat("the support kernels do not compile for ",
                                            job.target.profile.arch, ": ",
                                            std::string(job.support->status().message())));
  }
  if (support_sha256_ != job.support->record().info().sha256()) {
    gpu_.SetSupportKernels(job.support->record().cubin());
    support_sha256_ = job.support->record().info().sha256();
  }
  return absl::OkStatus();
}

absl::Status MeasuredTuning::Prepare(PickJob& job) {
  if (prepared_ == &job) return absl::OkStatus();
  QGEMM_RETURN_IF_ERROR(GiveSupport(job));
  const double busy_before = gpu_.busy_seconds();
  const absl::Status prepared = Noted(gpu_.Prepare(job.problem, job.m_bucket));
  const double busy = gpu_.busy_seconds() - busy_before;
  board_.Update(job, [&](PickJob::Shared& shared) { shared.gpu_busy_s += busy; });
  const bool was_stored = job.support->progress()->phase.load() == KernelProgress::kStored;
  if (absl::IsDataLoss(prepared) && was_stored && job.support_refusal.empty()) {
    spdlog::warn("{}; stored as {}: they are compiled again", std::string(prepared.message()),
                 job.support->record().info().sha256());
    job.support_refusal = std::string(prepared.message());
    job.support = rebuild_(job, nullptr);
    return Prepare(job);
  }
  if (!prepared.ok() && !absl::IsUnavailable(prepared) && !absl::IsCancelled(prepared)) {
    return absl::FailedPreconditionError(
        absl::StrCat(ProblemName(job.problem), " at bucket ", job.m_bucket,
                     " cannot be prepared on the GPU: ", std::string(prepared.message())));
  }
  QGEMM_RETURN_IF_ERROR(prepared);
  prepared_ = &job;
  return absl::OkStatus();
}

absl::Status MeasuredTuning::ScreenAll(PickJob& job, bool may_yield) {
  // Its kernel is there and can be run, or is known to be none.
  const auto ready_undecided = [&](const CandidateState& state) {
    if (!Undecided(state) || !state.kernel->ready()) return false;
    return job.support->ready() || !state.kernel->usable();
  };
  while (std::any_of(job.candidates.begin(), job.candidates.end(), Undecided)) {
    if (board_.Abandoned(job)) return absl::CancelledError("nobody waits for this pick any more");
    if (BudgetSpent(job) || board_.Hurried(job)) {
      job.partial = true;
      return absl::OkStatus();
    }
    const auto next = std::find_if(job.candidates.begin(), job.candidates.end(), ready_undecided);
    if (next != job.candidates.end()) {
      QGEMM_RETURN_IF_ERROR(Screen(job, *next));
      continue;
    }
    Await(job, may_yield, [&] {
      return job.shared.hurried || std::any_of(job.candidates.begin(), job.candidates.end(), ready_undecided);
    });
  }
  return absl::OkStatus();
}

bool MeasuredTuning::BudgetSpent(PickJob& job) {
  if (job.limits.budget <= Duration::zero()) return false;
  if (!job.timing_start.has_value()) job.timing_start = clock_.Now();
  return clock_.Now() - *job.timing_start >= job.limits.budget;
}

absl::Status MeasuredTuning::Quarantine(const CandidateState& state, internal::TimingRecord verdict) {
  spdlog::warn("{} is quarantined: {}", ConfigName(state.candidate.config), verdict.reason());
  verdict.set_timing_key(QuarantineKey(state.kernel->key()));
  return store_.PutTimings({&verdict, 1});
}

absl::Status MeasuredTuning::Screen(PickJob& job, CandidateState& state) {
  internal::TimingRecord verdict = VerdictFor(job, state, clock_.WallUnixMs());
  bool timed = false;
  double busy = 0;
  const Kernel& kernel = *state.kernel;
  if (!kernel.status().ok() && kernel.is_system_failure() && !state.refusal.empty()) {
    // A store whose kernel cannot be used, and no worker to make it again: the others can still be picked.
    verdict.set_failure(internal::CANDIDATE_FAILURE_LOAD);
    verdict.set_reason(
        absl::StrCat("the driver refused what was stored: ", state.refusal,
                     "; and it cannot be compiled again: ", std::string(kernel.status().message())));
    state.from_store = true;  // not to be remembered beyond this tuning
  } else if (!kernel.status().ok()) {
    if (kernel.is_system_failure()) return kernel.status();
    verdict.set_failure(internal::CANDIDATE_FAILURE_COMPILE);
    verdict.set_reason(std::string(kernel.status().message()));
    QGEMM_RETURN_IF_ERROR(Quarantine(state, verdict));
  } else if (kernel.spills()) {
    verdict.set_failure(internal::CANDIDATE_FAILURE_SPILLS);
    verdict.set_reason(absl::StrCat("spills ", kernel.record().info().spill_store_bytes(),
                                    " bytes stored and ", kernel.record().info().spill_load_bytes(),
                                    " bytes loaded per thread"));
  } else {
    QGEMM_RETURN_IF_ERROR(Prepare(job));
    const double busy_before = gpu_.busy_seconds();
    GpuCandidate candidate = ForGpu(job, state);
    const double fastest_us = FastestUs(job.candidates);
    if (std::isfinite(fastest_us)) candidate.hopeless_us = fastest_us * (1 + kHopelessBand);
    absl::StatusOr<internal::ScreenReply> reply =
        gpu_.Screen(candidate, ToleranceFor(job.problem.signature), budgets_.screen);
    QGEMM_RETURN_IF_ERROR(Noted(reply.status()));
    busy = gpu_.busy_seconds() - busy_before;
    const bool was_stored = kernel.progress()->phase.load() == KernelProgress::kStored;
    if (reply->failure() == internal::CANDIDATE_FAILURE_LOAD && was_stored && state.refusal.empty()) {
      spdlog::warn("the driver refuses the stored kernel {} of {}: {}; it is compiled again",
                   kernel.record().info().sha256(), CandidateName(state.candidate), reply->reason());
      state.refusal = reply->reason();
      state.kernel = rebuild_(job, &state);
      return absl::OkStatus();
    }
    verdict.set_failure(reply->failure());
    verdict.set_reason(reply->reason());
    verdict.set_relative_error(reply->relative_error());
    if (reply->failure() == internal::CANDIDATE_FAILURE_NONE) {
      *verdict.mutable_timing() = reply->timing();
      timed = true;
    } else {
      spdlog::warn("{} {}: {}", ProblemName(job.problem), CandidateName(state.candidate), reply->reason());
      if (reply->process_lost()) QGEMM_RETURN_IF_ERROR(Quarantine(state, verdict));
    }
  }
  state.verdict = std::move(verdict);
  board_.Update(job, [&](PickJob::Shared& shared) {
    ++shared.candidates_done;
    shared.timings += timed ? 1 : 0;
    shared.gpu_busy_s += busy;
  });
  return absl::OkStatus();
}

absl::Status MeasuredTuning::TimeFinalists(PickJob& job, const std::vector<size_t>& finalists) {
  QGEMM_RETURN_IF_ERROR(Prepare(job));
  std::vector<GpuCandidate> candidates;
  candidates.reserve(finalists.size());
  for (const size_t i : finalists) candidates.push_back(ForGpu(job, job.candidates[i]));
  const double busy_before = gpu_.busy_seconds();
  absl::StatusOr<std::vector<internal::Timing>> timings = gpu_.Finals(candidates, RaceBudget(job), kTieBand);
  if (!Noted(timings.status()).ok()) {
    if (absl::IsUnavailable(timings.status()) || absl::IsCancelled(timings.status())) return timings.status();
    // The screened times stand: a pick of low confidence rather than none.
    spdlog::warn("{}: finalists not timed again: {}", ProblemName(job.problem), timings.status().ToString());
    for (const size_t i : finalists) {
      job.candidates[i].verdict->mutable_timing()->set_low_confidence(true);
      job.candidates[i].from_store = false;
    }
    return absl::OkStatus();
  }
  if (timings->size() != finalists.size()) {
    return absl::InternalError(
        absl::StrCat("the GPU process timed ", timings->size(), " of ", finalists.size(), " finalists"));
  }
  const int64_t now = clock_.WallUnixMs();
  for (size_t i = 0; i < finalists.size(); ++i) {
    CandidateState& state = job.candidates[finalists[i]];
    *state.verdict->mutable_timing() = (*timings)[i];
    state.verdict->set_unix_ms(now);
    state.from_store = false;
  }
  const double busy = gpu_.busy_seconds() - busy_before;
  board_.Update(job, [&](PickJob::Shared& shared) { shared.gpu_busy_s += busy; });
  return absl::OkStatus();
}

int MeasuredTuning::FinalistLimit(const PickJob& job) const {
  const double fastest_us = FastestUs(job.candidates);
  if (!std::isfinite(fastest_us)) return job.plan.finalists;
  // Long kernels: as many as the least number of rounds leaves time for.
  const double fit = absl::ToDoubleMicroseconds(RaceBudget(job)) / (kRaceRounds * (fastest_us + kFlushUs));
  return std::clamp(static_cast<int>(fit), kLeastFinalists, std::max(job.plan.finalists, kLeastFinalists));
}

absl::Duration MeasuredTuning::RaceBudget(const PickJob& job) const {
  absl::Duration budget = budgets_.finals * job.plan.race_share;
  if (FastestUs(job.candidates) < kShortKernelUs) budget *= kShortKernelShare;
  if (job.limits.budget > Duration::zero()) {
    // A race that is cut short is better than none.
    budget = std::min(budget, absl::FromChrono(job.limits.budget) / 4);
  }
  return budget;
}

GpuCandidate MeasuredTuning::ForGpu(const PickJob& job, const CandidateState& state) const {
  GpuCandidate candidate;
  candidate.name = CandidateName(state.candidate);
  candidate.kernel_sha256 = state.kernel->record().info().sha256();
  candidate.cubin = &state.kernel->record().cubin();
  candidate.launch = MakeLaunchSpec(state.candidate, job.problem, job.m_bucket);
  return candidate;
}

void MeasuredTuning::Probe() {
  if (gpu_.Describe().ok() && gpu_lost_.exchange(false)) spdlog::info("the GPU is back");
}

absl::Status MeasuredTuning::Noted(absl::Status status) {
  if (absl::IsUnavailable(status)) {
    if (!gpu_lost_.exchange(true)) spdlog::error("the GPU is lost: {}", status.ToString());
    prepared_ = nullptr;
  } else if (!absl::IsCancelled(status) && gpu_lost_.exchange(false)) {
    spdlog::info("the GPU is back");
  }
  return status;
}

}  // namespace qgemm
