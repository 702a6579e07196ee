#include "server/tuner.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "server/kernel_key.h"
#include "server/proto_convert.h"
#include "server/strategy/strategy.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

// Planning reads the store; it must keep ahead of the compilers.
constexpr int kPlanners = 2;

absl::Status Prefixed(const absl::Status& status, absl::string_view prefix) {
  return absl::Status(status.code(), absl::StrCat(prefix, std::string(status.message())));
}

// A verdict that still says what a new run would say. Spills are read off the kernel anyway; whether a source
// compiles is the toolchain's to say, whatever the driver.
bool Reusable(const internal::TimingRecord& record, const TuningTarget& target) {
  if (record.failure() == internal::CANDIDATE_FAILURE_COMPILE) return true;
  return record.driver_version() == target.driver_version &&
         record.failure() != internal::CANDIDATE_FAILURE_SPILLS;
}

bool Rejected(const CandidateState& state) {
  return state.verdict.has_value() && state.verdict->failure() != internal::CANDIDATE_FAILURE_NONE;
}

constexpr size_t kSeeds = 6;  // winners of near shapes that a search begins with

}  // namespace

Tuner::Tuner(CacheStore& store, Compiler& compiler, Gpu* gpu, Clock& clock, TargetResolver targets,
             TunerOptions options)
    : store_(store),
      compiler_(compiler),
      clock_(clock),
      targets_(std::move(targets)),
      options_(std::move(options)),
      board_(clock),
      supply_(store, compiler, clock, [this] { board_.Notify(); }),
      lookup_(store, supply_),
      batch_lookup_(lookup_, store, clock),
      similar_(store, clock),
      model_(store, board_, clock, [this](PickJob& job) { RequestKernels(job); }),
      job_executor_(std::make_unique<ThreadPoolExecutor>("jobs", 1)),
      background_(std::make_unique<ThreadPoolExecutor>("background", 1)) {
  jobs_ = std::make_unique<Jobs>(
      store_, board_, clock_, *job_executor_,
      Jobs::Work{[this](const v1::TuneRequest& request) { return Prepare(request); },
                 [this](const PreparedTune& prepared, const v1::TuneRequest& request, const TuneUnit& unit,
                        PickWaiter waiter) { return Join(prepared, request, unit, std::move(waiter)); },
                 options_.note},
      options_.jobs, options_.progress_interval);
  if (gpu != nullptr) {
    measured_ = std::make_unique<MeasuredTuning>(
        *gpu, store_, board_, clock_, options_.budgets,
        [this](PickJob& job, const CandidateState* state) { return RebuildKernel(job, state); });
    stale_picks_ = std::make_unique<StalePicks>(
        store_, board_,
        [this](const internal::PickRecord& record) { return IsOfAnotherDriver(record.pick()); },
        [this](const StalePicks::Pick& pick, PickWaiter waiter) {
          return JoinStale(pick, std::move(waiter));
        });
    runners_.emplace_back([this] { measured_->Loop(); });
  }
  runners_.emplace_back([this] { model_.Loop(); });
  // A store that cannot be read now says so to those who ask it for something.
  AdoptToolchain(store_.AdoptedToolchain().value_or(""));
  for (int i = 0; i < kPlanners; ++i) runners_.emplace_back([this] { PlanLoop(); });
}

Tuner::~Tuner() {
  Stop();
  for (std::thread& runner : runners_) runner.join();
}

void Tuner::Tick() {
  jobs_->Tick();
  if (measured_ == nullptr || looking_.exchange(true)) return;
  background_->Schedule([this] {
    if (gpu_lost()) measured_->Probe();
    // Without a worker nothing would come of it, and without a toolchain nothing is known to be stale.
    if (!gpu_lost() && !known_toolchain().empty()) {
      FindStalePicks();
      stale_picks_->Advance();
    }
    looking_ = false;
  });
}

void Tuner::FindStalePicks() {
  const std::string driver = targets_.driver_version();
  const JobBoard::Counts counts = board_.counts();
  const bool idle = counts.waiting + counts.running == 0;
  if (driver == stale_for_driver_ && !(idle && find_stale_again_)) return;
  const absl::Status found = stale_picks_->Find();
  if (!found.ok()) spdlog::warn("stale picks cannot be found: {}", found.ToString());
  // What was planned under the old driver is stored as its pick, whenever it is timed: looked for again when
  // all of that has come.
  find_stale_again_ = driver != stale_for_driver_ && !idle;
  stale_for_driver_ = driver;
}

void Tuner::Stop() {
  board_.Stop();
  if (stale_picks_ != nullptr) stale_picks_->Stop();
  jobs_->Stop();
}

std::string Tuner::known_toolchain() {
  MutexLock lock(toolchain_mu_);
  return toolchain_.empty() ? adopted_toolchain_ : toolchain_;
}

void Tuner::AdoptToolchain(const std::string& toolchain) {
  MutexLock lock(toolchain_mu_);
  adopted_toolchain_ = toolchain;
}

absl::StatusOr<std::string> Tuner::Toolchain() {
  absl::StatusOr<std::string> toolchain = compiler_.Toolchain();
  if (toolchain.ok()) {
    MutexLock lock(toolchain_mu_);
    toolchain_ = *toolchain;
  }
  return toolchain;
}

absl::StatusOr<std::vector<TuneUnit>> Tuner::ParseUnits(const v1::TuneRequest& request) {
  if (request.problems().empty() || request.problems_size() > kMaxProblems) {
    return absl::InvalidArgumentError(
        absl::StrCat("problems has ", request.problems_size(), " entries; allowed: 1 .. ", kMaxProblems));
  }
  if (request.m().empty()) return absl::InvalidArgumentError("m is empty; allowed: one or more row counts");
  std::set<int> buckets;
  for (const int64_t m : request.m()) {
    QGEMM_RETURN_IF_ERROR(ValidateRows(m));
    buckets.insert(BucketFor(m));
  }
  const size_t results = buckets.size() * static_cast<size_t>(request.problems_size());
  if (results > kMaxResults) {
    return absl::InvalidArgumentError(absl::StrCat(
        "problems and m make ", results, " (problem, bucket) pairs; allowed: at most ", kMaxResults));
  }
  std::vector<TuneUnit> units;
  for (int i = 0; i < request.problems_size(); ++i) {
    const absl::StatusOr<Problem> problem = ProblemFromProto(request.problems(i));
    if (!problem.ok()) {
      return request.problems_size() == 1 ? problem.status()
                                          : Prefixed(problem.status(), absl::StrCat("problems[", i, "]: "));
    }
    for (const int bucket : buckets) units.push_back({i, *problem, bucket});
  }
  return units;
}

absl::StatusOr<PreparedTune> Tuner::Prepare(const v1::TuneRequest& request) {
  QGEMM_ASSIGN_OR_RETURN(const std::vector<TuneUnit> units, ParseUnits(request));
  PreparedTune prepared;
  QGEMM_ASSIGN_OR_RETURN(prepared.effort, CanonicalEffort(request.effort()));
  QGEMM_ASSIGN_OR_RETURN(prepared.lookup_target, targets_.Resolve(request.target()));
  QGEMM_ASSIGN_OR_RETURN(prepared.limits, SearchLimitsFromProto(request));
  prepared.target = prepared.lookup_target;
  if (prepared.effort == v1::EFFORT_MODEL_ONLY) prepared.target.measured = false;
  const absl::StatusOr<std::string> toolchain = Toolchain();
  // Without a worker, what the last imported pack was compiled with tells which picks are of today.
  prepared.toolchain = toolchain.ok() ? *toolchain : known_toolchain();
  for (const TuneUnit& unit : units) {
    if (!request.retune() && prepared.limits.only.empty()) {
      QGEMM_ASSIGN_OR_RETURN(std::optional<v1::TuneResult> stored,
                             FindStored(unit.problem, unit.m_bucket, prepared.lookup_target, prepared.effort,
                                        prepared.toolchain));
      if (stored.has_value()) {
        ++hits_;
        stored->set_problem_index(unit.problem_index);
        prepared.stored.push_back(*std::move(stored));
        continue;
      }
    }
    ++misses_;
    prepared.missing.push_back(unit);
  }
  if (!prepared.missing.empty()) {
    // Kernels of an imported pack need no compiler; a job that misses one ends with the reason.
    const bool from_pack = absl::IsUnavailable(toolchain.status()) && !prepared.toolchain.empty();
    if (!from_pack) {
      QGEMM_RETURN_IF_ERROR(toolchain.status());
      QGEMM_RETURN_IF_ERROR(compiler_.SupportsArch(prepared.target.profile.arch));
    }
  }
  return prepared;
}

JobBoard::Joined Tuner::Join(const PreparedTune& prepared, const v1::TuneRequest& request,
                             const TuneUnit& unit, PickWaiter waiter) {
  const std::string pick_key =
      PickLookup::KeyFor(unit.problem, unit.m_bucket, prepared.target, prepared.effort);
  const auto make = [&] {
    auto job = std::make_shared<PickJob>();
    job->problem = unit.problem;
    job->m_bucket = unit.m_bucket;
    job->effort = prepared.effort;
    job->retune = request.retune();
    job->limits = prepared.limits;
    job->target = prepared.target;
    job->lookup_target = prepared.lookup_target;
    job->toolchain = prepared.toolchain;
    job->pick_key = pick_key;
    return job;
  };
  return board_.Join(absl::StrCat(pick_key, request.retune() ? "!" : "", prepared.limits.Key()), make,
                     std::move(waiter));
}

absl::StatusOr<JobBoard::Joined> Tuner::JoinStale(const StalePicks::Pick& pick, PickWaiter waiter) {
  PreparedTune prepared;
  prepared.effort = pick.effort;
  QGEMM_ASSIGN_OR_RETURN(prepared.target, targets_.Resolve(""));
  prepared.lookup_target = prepared.target;
  QGEMM_ASSIGN_OR_RETURN(prepared.toolchain, Toolchain());
  v1::TuneRequest request;
  request.set_retune(true);
  return Join(prepared, request, {0, pick.problem, pick.m_bucket}, std::move(waiter));
}

void Tuner::PlanLoop() {
  while (const std::shared_ptr<PickJob> job = board_.NextToPlan()) PlanAndQueue(job);
}

absl::StatusOr<std::optional<v1::TuneResult>> Tuner::FindStored(const Problem& problem, int m_bucket,
                                                                const TuningTarget& target, v1::Effort effort,
                                                                absl::string_view toolchain) {
  QGEMM_ASSIGN_OR_RETURN(std::optional<StoredPick> found,
                         lookup_.Find(problem, m_bucket, target, effort, toolchain));
  // A pick whose kernel would be compiled otherwise today is evidence about another kernel: tuned again.
  if (!found.has_value() || found->kernel_outdated) return std::optional<v1::TuneResult>();
  const absl::Status kernel = store_.GetKernel(found->record.kernel_key()).status();
  if (absl::IsNotFound(kernel)) return std::optional<v1::TuneResult>();  // it was corrupt
  QGEMM_RETURN_IF_ERROR(kernel);
  v1::TuneResult result;
  result.set_m_bucket(m_bucket);
  *result.mutable_pick() = std::move(*found->record.mutable_pick());
  result.set_cached(true);
  result.set_stale(found->stale());
  return std::optional<v1::TuneResult>(std::move(result));
}

void Tuner::PlanAndQueue(const std::shared_ptr<PickJob>& job) {
  if (!job->retune && job->limits.only.empty()) {
    // Another request may have finished the same job between this one's lookup and its joining.
    absl::StatusOr<std::optional<v1::TuneResult>> stored =
        FindStored(job->problem, job->m_bucket, job->lookup_target, job->effort, job->toolchain);
    if (!stored.ok() || stored->has_value()) {
      board_.Finish(job, stored.status(), stored.ok() ? **std::move(stored) : v1::TuneResult());
      return;
    }
  }
  const absl::Status planned = PlanCandidates(*job);
  if (!planned.ok()) {
    board_.Finish(job, planned, {});
    return;
  }
  RequestKernels(*job);
  board_.Queue(job);
}

absl::Status Tuner::PlanCandidates(PickJob& job) {
  PlanHints hints;
  hints.allowed = job.limits.Filter();
  hints.max_candidates = job.limits.max_candidates;
  if (job.target.measured && job.effort != v1::EFFORT_EXHAUSTIVE) {
    QGEMM_ASSIGN_OR_RETURN(hints.seeds, similar_.Seeds(job.problem, job.m_bucket, job.target, kSeeds));
  }
  job.plan = StrategyFor(job.effort)
                 .MakePlan(job.problem, job.m_bucket, job.target.profile, job.target.measured, hints);
  job.partial = job.plan.restricted;
  for (const PlannedCandidate& planned : job.plan.candidates) {
    CandidateState state;
    state.candidate = planned.candidate;
    state.predicted_us = planned.predicted_us;
    job.candidates.push_back(std::move(state));
  }
  return job.target.measured ? PlanMeasured(job) : absl::OkStatus();
}

std::string Tuner::TimingKeyFor(const Problem& problem, int m_bucket, const TuningTarget& target,
                                const Candidate& candidate, const std::string& kernel_key) {
  TimingKeyInput input;
  input.problem = ProblemName(problem);
  input.m_bucket = m_bucket;
  input.device = target.device;
  input.kernel_key = kernel_key;
  input.split_k = candidate.split_k;
  input.reduction = candidate.reduction;
  return TimingKey(input);
}

absl::Status Tuner::PlanMeasured(PickJob& job) {
  std::vector<std::string> timing_keys;
  std::vector<std::string> quarantine_keys;
  for (CandidateState& state : job.candidates) {
    const std::string kernel_key = supply_.CurrentKey(state.candidate.config, job.problem.signature,
                                                      job.target.profile.arch, job.toolchain);
    state.timing_key = TimingKeyFor(job.problem, job.m_bucket, job.target, state.candidate, kernel_key);
    timing_keys.push_back(state.timing_key);
    quarantine_keys.push_back(QuarantineKey(kernel_key));
  }
  if (!job.retune) {
    QGEMM_ASSIGN_OR_RETURN(std::vector<std::optional<internal::TimingRecord>> stored,
                           store_.GetTimings(timing_keys));
    for (size_t i = 0; i < stored.size(); ++i) {
      if (!stored[i].has_value() || !Reusable(*stored[i], job.target)) continue;
      job.candidates[i].verdict = std::move(stored[i]);
      job.candidates[i].from_store = true;
    }
    // What took the GPU process down for one shape, or does not compile, is not tried for another.
    QGEMM_ASSIGN_OR_RETURN(const auto quarantined, store_.GetTimings(quarantine_keys));
    for (size_t i = 0; i < quarantined.size(); ++i) {
      CandidateState& state = job.candidates[i];
      if (!quarantined[i].has_value() || state.verdict.has_value()) continue;
      state.verdict = quarantined[i];
      state.verdict->set_reason(absl::StrCat("quarantined: ", quarantined[i]->reason()));
      state.from_store = true;
    }
  }
  const int wanted =
      static_cast<int>(std::count_if(job.candidates.begin(), job.candidates.end(),
                                     [](const CandidateState& state) { return !state.verdict.has_value(); }));
  board_.Update(job, [&](PickJob::Shared& shared) { shared.candidates_wanted = wanted; });
  return absl::OkStatus();
}

std::shared_ptr<Kernel> Tuner::RebuildKernel(PickJob& job, const CandidateState* state) {
  std::vector<Flow> flows = board_.Flows(job);
  if (flows.empty()) flows.emplace_back();
  const std::string& arch = job.target.profile.arch;
  KernelSupply::Requested again =
      state == nullptr ? supply_.RequestSupport(arch, job.toolchain, flows.front(), job.support.get())
                       : supply_.Rebuild(*state->kernel, state->candidate.config, job.problem.signature, arch,
                                         job.toolchain, flows.front());
  for (size_t i = 1; i < flows.size(); ++i) again.kernel->AlsoFor(flows[i]);
  board_.Update(job, [&](PickJob::Shared& shared) {
    shared.kernels.push_back(again.kernel->progress());
    if (again.created) shared.own_kernels.push_back(again.kernel->progress());
    if (!again.kernel->ready()) shared.compiling.push_back(again.kernel);
  });
  return again.kernel;
}

void Tuner::RequestKernels(PickJob& job) {
  std::vector<KernelSupply::Requested> requested;
  std::vector<Flow> flows = board_.Flows(job);
  if (flows.empty()) flows.emplace_back();  // nobody waits any more: what is asked for here is let go of soon
  // Nothing can be timed without the support kernels: each client's go before its others.
  for (Flow& flow : flows) flow.priority *= 2;
  Flow support_flow = flows[0];
  ++support_flow.priority;
  const auto request = [&](const KernelConfig& config) {
    requested.push_back(
        supply_.Request(config, job.problem.signature, job.target.profile.arch, job.toolchain, flows[0]));
    return requested.back().kernel;
  };
  if (job.target.measured && job.support == nullptr) {
    requested.push_back(supply_.RequestSupport(job.target.profile.arch, job.toolchain, support_flow));
    job.support = requested.back().kernel;
  }
  std::map<KernelConfig, std::shared_ptr<Kernel>> by_config;
  for (size_t i = 0; i < job.requested_candidates; ++i) {
    by_config.emplace(job.candidates[i].candidate.config, job.candidates[i].kernel);
  }
  int configs = 0;
  for (size_t i = job.requested_candidates; i < job.candidates.size(); ++i) {
    CandidateState& state = job.candidates[i];
    if (job.target.measured && Rejected(state)) continue;
    std::shared_ptr<Kernel>& kernel = by_config[state.candidate.config];
    if (kernel == nullptr) {
      if (job.plan.configs_at_once > 0 && configs == job.plan.configs_at_once) break;
      ++configs;
      kernel = request(state.candidate.config);
    }
    state.kernel = kernel;
    job.requested_candidates = i + 1;
  }
  for (const KernelConfig& config : job.plan.also_compile) job.also_compile.push_back(request(config));
  job.plan.also_compile.clear();
  for (const KernelSupply::Requested& one : requested) {
    for (size_t i = 1; i < flows.size(); ++i) one.kernel->AlsoFor(flows[i]);
  }
  board_.Update(job, [&](PickJob::Shared& shared) {
    for (const KernelSupply::Requested& one : requested) {
      if (!one.kernel->ready()) shared.compiling.push_back(one.kernel);
      shared.kernels.push_back(one.kernel->progress());
      if (one.created) shared.own_kernels.push_back(one.kernel->progress());
    }
  });
}

absl::StatusOr<std::string> Tuner::LookupBytes(const v1::LookupRequest& request) {
  if (request.keys().empty() || request.keys_size() > kMaxProblems) {
    return absl::InvalidArgumentError(
        absl::StrCat("keys has ", request.keys_size(), " entries; allowed: 1 .. ", kMaxProblems));
  }
  QGEMM_ASSIGN_OR_RETURN(const TuningTarget target, targets_.Resolve(request.target()));
  QGEMM_RETURN_IF_ERROR(ParseShapeDistance(request.distance()).status());
  std::string bytes;
  LookupCounts counts;
  const absl::Status answered = batch_lookup_.Run(request, target, known_toolchain(), bytes, counts);
  hits_ += counts.hits;
  misses_ += counts.misses;
  QGEMM_RETURN_IF_ERROR(answered);
  if (!request.allow_similar() || counts.misses == 0) return bytes;
  v1::LookupResponse response;
  QGEMM_CHECK(response.ParseFromString(bytes));
  QGEMM_RETURN_IF_ERROR(AnswerSimilar(request, target, &response));
  return response.SerializeAsString();
}

absl::StatusOr<v1::LookupResponse> Tuner::Lookup(const v1::LookupRequest& request) {
  QGEMM_ASSIGN_OR_RETURN(const std::string bytes, LookupBytes(request));
  v1::LookupResponse response;
  QGEMM_CHECK(response.ParseFromString(bytes));
  return response;
}

absl::Status Tuner::AnswerSimilar(const v1::LookupRequest& request, const TuningTarget& target,
                                  v1::LookupResponse* response) {
  QGEMM_ASSIGN_OR_RETURN(const ShapeDistance distance, ParseShapeDistance(request.distance()));
  for (int i = 0; i < request.keys_size(); ++i) {
    v1::LookupAnswer& answer = *response->mutable_answers(i);
    if (answer.has_pick() || answer.has_brief()) continue;
    QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(request.keys(i).problem()));
    QGEMM_ASSIGN_OR_RETURN(std::optional<v1::Pick> similar,
                           similar_.Find(problem, request.keys(i).m(), target, distance));
    if (!similar.has_value()) {
      answer.set_miss_reason(
          absl::StrCat(answer.miss_reason(), ", and no tuned shape's pick is legal for it"));
      continue;
    }
    ++hits_;
    --misses_;
    answer.clear_miss_reason();
    if (request.brief()) {
      *answer.mutable_brief() = BriefOf(*similar);
    } else {
      *answer.mutable_pick() = *std::move(similar);
    }
  }
  return absl::OkStatus();
}

bool Tuner::IsStale(const internal::PickRecord& record) {
  const v1::Pick& pick = record.pick();
  const absl::StatusOr<Problem> problem = ProblemFromProto(pick.problem());
  const absl::StatusOr<KernelConfig> config = ParseConfig(pick.config());
  if (!problem.ok() || !config.ok()) return true;
  const std::string toolchain = known_toolchain();
  if (!toolchain.empty() && supply_.CurrentKey(*config, problem->signature, pick.kernel().arch(),
                                               toolchain) != record.kernel_key()) {
    return true;
  }
  return IsOfAnotherDriver(pick);
}

bool Tuner::IsOfAnotherDriver(const v1::Pick& pick) const {
  return pick.source() == v1::PICK_SOURCE_MEASURED && targets_.gpu().has_value() &&
         pick.device().SerializeAsString() == targets_.gpu()->device.SerializeAsString() &&
         pick.driver_version() != targets_.driver_version();
}

}  // namespace qgemm
