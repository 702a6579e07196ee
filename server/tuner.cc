#include "server/tuner.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "server/kernel_key.h"
#include "server/proto_convert.h"
#include "server/strategy/strategy.h"

namespace qgemm {
namespace {

constexpr Duration kCancellationPoll = std::chrono::milliseconds(50);
constexpr int kKernelPriority = 0;
constexpr int kSupportPriority = 1;  // nothing can be timed without the support kernels

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

// The part of a Tune call that follows its jobs: what to tell the client, and what to let go of at the end.
class Tuner::Request {
 public:
  Request(Tuner& tuner, TuneStream& stream, int results_wanted)
      : tuner_(tuner), stream_(stream), start_(tuner.clock_.Now()) {
    progress_.set_results_wanted(results_wanted);
  }
  ~Request() {
    for (const Pending& pending : pending_) {
      if (!pending.finished) tuner_.board_.Leave(pending.job);
    }
  }

  void SendResult(int problem_index, v1::TuneResult result) {
    result.set_problem_index(problem_index);
    if (result.cached()) ++cache_hits_;
    progress_.set_results_done(progress_.results_done() + 1);
    v1::TuneEvent event;
    *event.mutable_result() = std::move(result);
    stream_.Send(event);
  }

  void Add(Pending pending) { pending_.push_back(std::move(pending)); }

  // Streams results of jobs that are done. Fails with the first job's failure, or when nobody listens.
  absl::Status Collect() {
    if (stream_.Cancelled()) return absl::CancelledError("the client cancelled");
    // Before looking at jobs: stopping ends them too.
    if (tuner_.board_.stopped()) return absl::UnavailableError("the daemon is stopping; try again later");
    std::vector<Pending*> done;
    tuner_.board_.Read([&] {
      for (Pending& pending : pending_) {
        if (!pending.finished && pending.job->shared.done) done.push_back(&pending);
      }
    });
    for (Pending* pending : done) {
      // The shared part of a job that is done does not change any more.
      const absl::Status& status = pending->job->shared.status;
      if (!status.ok()) return status;
      pending->finished = true;
      SendResult(pending->problem_index, pending->job->shared.result);
      tuner_.board_.Leave(pending->job);
    }
    SendProgress();
    return absl::OkStatus();
  }

  absl::Status CollectAll() {
    while (true) {
      QGEMM_RETURN_IF_ERROR(Collect());
      const auto waiting = [](const Pending& pending) { return !pending.finished; };
      if (std::none_of(pending_.begin(), pending_.end(), waiting)) return absl::OkStatus();
      tuner_.board_.WaitUntil(tuner_.clock_.Now() + kCancellationPoll, [&] {
        return std::any_of(pending_.begin(), pending_.end(), [](const Pending& pending) {
          return !pending.finished && pending.job->shared.done;
        });
      });
    }
  }

  void SendSummary() {
    v1::TuneEvent event;
    v1::TuneSummary& summary = *event.mutable_summary();
    double compile_ms = 0;
    tuner_.board_.Read([&] {
      for (const Pending& pending : pending_) {
        if (!pending.created) continue;
        const PickJob::Shared& shared = pending.job->shared;
        summary.set_timings(summary.timings() + shared.timings);
        summary.set_gpu_busy_s(summary.gpu_busy_s() + shared.gpu_busy_s);
        for (const std::shared_ptr<KernelProgress>& kernel : shared.own_kernels) {
          if (kernel->wanted_compile() && kernel->decided()) summary.set_compiles(summary.compiles() + 1);
          compile_ms += kernel->compile_ms.load();
        }
      }
    });
    summary.set_compile_cpu_s(compile_ms / 1000);
    summary.set_cache_hits(cache_hits_);
    summary.set_wall_s(ElapsedSeconds());
    stream_.Send(event);
  }

 private:
  double ElapsedSeconds() const {
    return std::chrono::duration<double>(tuner_.clock_.Now() - start_).count();
  }

  // On change, and not more often than the interval allows.
  void SendProgress() {
    if (pending_.empty() || tuner_.clock_.Now() < next_progress_) return;
    v1::TuneProgress now = progress_;
    tuner_.board_.Read([&] {
      std::set<const KernelProgress*> seen;
      for (const Pending& pending : pending_) {
        const PickJob::Shared& shared = pending.job->shared;
        now.set_candidates_wanted(now.candidates_wanted() + shared.candidates_wanted);
        now.set_candidates_done(now.candidates_done() + shared.candidates_done);
        for (const std::shared_ptr<KernelProgress>& kernel : shared.kernels) {
          if (!kernel->wanted_compile() || !seen.insert(kernel.get()).second) continue;
          now.set_kernels_wanted(now.kernels_wanted() + 1);
          if (kernel->decided()) now.set_kernels_compiled(now.kernels_compiled() + 1);
        }
      }
    });
    const std::string bytes = now.SerializeAsString();
    if (bytes == last_progress_) return;
    last_progress_ = bytes;
    next_progress_ = tuner_.clock_.Now() + tuner_.options_.progress_interval;
    v1::TuneEvent event;
    *event.mutable_progress() = now;
    event.mutable_progress()->set_elapsed_s(ElapsedSeconds());
    stream_.Send(event);
  }

  Tuner& tuner_;
  TuneStream& stream_;
  const TimePoint start_;
  std::vector<Pending> pending_;
  v1::TuneProgress progress_;  // the results' part
  std::string last_progress_;
  TimePoint next_progress_ = TimePoint::min();
  int64_t cache_hits_ = 0;
};

Tuner::Tuner(CacheStore& store, Compiler& compiler, Gpu* gpu, Clock& clock, TargetResolver targets,
             TunerOptions options)
    : store_(store),
      compiler_(compiler),
      clock_(clock),
      targets_(std::move(targets)),
      options_(options),
      board_(clock),
      supply_(store, compiler, clock, [this] { board_.Notify(); }),
      lookup_(store, supply_),
      batch_lookup_(lookup_, store, clock),
      similar_(store, clock),
      model_(store, board_, clock, [this](PickJob& job) { RequestKernels(job); }) {
  if (gpu != nullptr) {
    measured_ = std::make_unique<MeasuredTuning>(*gpu, store_, board_, clock_, options_.budgets);
    runners_.emplace_back([this] { measured_->Loop(); });
  }
  runners_.emplace_back([this] { model_.Loop(); });
  // A store that cannot be read now says so to those who ask it for something.
  AdoptToolchain(store_.AdoptedToolchain().value_or(""));
}

Tuner::~Tuner() {
  Stop();
  for (std::thread& runner : runners_) runner.join();
}

void Tuner::Stop() { board_.Stop(); }

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

absl::StatusOr<std::vector<Tuner::Unit>> Tuner::ParseUnits(const v1::TuneRequest& request) {
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
  std::vector<Unit> units;
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

absl::Status Tuner::Tune(const v1::TuneRequest& request, TuneStream& stream) {
  QGEMM_ASSIGN_OR_RETURN(const std::vector<Unit> units, ParseUnits(request));
  QGEMM_ASSIGN_OR_RETURN(const v1::Effort effort, CanonicalEffort(request.effort()));
  QGEMM_ASSIGN_OR_RETURN(const SearchLimits limits, SearchLimitsFromProto(request));
  QGEMM_ASSIGN_OR_RETURN(const TuningTarget lookup_target, targets_.Resolve(request.target()));
  TuningTarget target = lookup_target;
  if (effort == v1::EFFORT_MODEL_ONLY) target.measured = false;
  const absl::StatusOr<std::string> toolchain = Toolchain();

  Request running(*this, stream, static_cast<int>(units.size()));
  std::vector<const Unit*> missing;
  for (const Unit& unit : units) {
    if (!request.retune() && limits.only.empty()) {
      QGEMM_ASSIGN_OR_RETURN(
          std::optional<v1::TuneResult> stored,
          FindStored(unit, lookup_target, effort, toolchain.ok() ? *toolchain : known_toolchain()));
      if (stored.has_value()) {
        ++hits_;
        running.SendResult(unit.problem_index, *std::move(stored));
        continue;
      }
    }
    ++misses_;
    missing.push_back(&unit);
  }
  if (!missing.empty()) {
    QGEMM_RETURN_IF_ERROR(toolchain.status());
    QGEMM_RETURN_IF_ERROR(compiler_.SupportsArch(target.profile.arch));
  }
  for (const Unit* unit : missing) {
    const std::string pick_key = PickLookup::KeyFor(unit->problem, unit->m_bucket, target, effort);
    const JobBoard::Joined joined =
        board_.Join(absl::StrCat(pick_key, request.retune() ? "!" : "", limits.Key()), [&] {
          auto job = std::make_shared<PickJob>();
          job->problem = unit->problem;
          job->m_bucket = unit->m_bucket;
          job->effort = effort;
          job->retune = request.retune();
          job->limits = limits;
          job->target = target;
          job->toolchain = *toolchain;
          job->pick_key = pick_key;
          return job;
        });
    running.Add({unit->problem_index, joined.job, joined.created, false});
    if (joined.created) PlanAndQueue(joined.job, *unit, lookup_target);
    QGEMM_RETURN_IF_ERROR(running.Collect());
  }
  QGEMM_RETURN_IF_ERROR(running.CollectAll());
  running.SendSummary();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::TuneResult>> Tuner::FindStored(const Unit& unit, const TuningTarget& target,
                                                                v1::Effort effort,
                                                                absl::string_view toolchain) {
  QGEMM_ASSIGN_OR_RETURN(std::optional<StoredPick> found,
                         lookup_.Find(unit.problem, unit.m_bucket, target, effort, toolchain));
  // A pick whose kernel would be compiled otherwise today is evidence about another kernel: tuned again.
  if (!found.has_value() || found->kernel_outdated) return std::optional<v1::TuneResult>();
  const absl::Status kernel = store_.GetKernel(found->record.kernel_key()).status();
  if (absl::IsNotFound(kernel)) return std::optional<v1::TuneResult>();  // it was corrupt
  QGEMM_RETURN_IF_ERROR(kernel);
  v1::TuneResult result;
  result.set_m_bucket(unit.m_bucket);
  *result.mutable_pick() = std::move(*found->record.mutable_pick());
  result.set_cached(true);
  result.set_stale(found->stale());
  return std::optional<v1::TuneResult>(std::move(result));
}

void Tuner::PlanAndQueue(const std::shared_ptr<PickJob>& job, const Unit& unit,
                         const TuningTarget& lookup_target) {
  if (!job->retune && job->limits.only.empty()) {
    // Another request may have finished the same job between this one's lookup and its joining.
    absl::StatusOr<std::optional<v1::TuneResult>> stored =
        FindStored(unit, lookup_target, job->effort, job->toolchain);
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

void Tuner::RequestKernels(PickJob& job) {
  std::vector<KernelSupply::Requested> requested;
  const auto request = [&](const KernelConfig& config) {
    requested.push_back(supply_.Request(config, job.problem.signature, job.target.profile.arch, job.toolchain,
                                        kKernelPriority));
    return requested.back().kernel;
  };
  if (job.target.measured && job.support == nullptr) {
    requested.push_back(supply_.RequestSupport(job.target.profile.arch, job.toolchain, kSupportPriority));
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
  board_.Update(job, [&](PickJob::Shared& shared) {
    for (const KernelSupply::Requested& one : requested) {
      shared.kernels.push_back(one.kernel->progress());
      if (one.created) shared.own_kernels.push_back(one.kernel->progress());
    }
  });
}

absl::StatusOr<v1::LookupResponse> Tuner::Lookup(const v1::LookupRequest& request) {
  if (request.keys().empty() || request.keys_size() > kMaxProblems) {
    return absl::InvalidArgumentError(
        absl::StrCat("keys has ", request.keys_size(), " entries; allowed: 1 .. ", kMaxProblems));
  }
  QGEMM_ASSIGN_OR_RETURN(const TuningTarget target, targets_.Resolve(request.target()));
  QGEMM_RETURN_IF_ERROR(ParseShapeDistance(request.distance()).status());
  v1::LookupResponse response;
  LookupCounts counts;
  const absl::Status answered = batch_lookup_.Run(request, target, known_toolchain(), response, counts);
  hits_ += counts.hits;
  misses_ += counts.misses;
  QGEMM_RETURN_IF_ERROR(answered);
  if (request.allow_similar()) QGEMM_RETURN_IF_ERROR(AnswerSimilar(request, target, &response));
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
  return pick.source() == v1::PICK_SOURCE_MEASURED && targets_.gpu().has_value() &&
         pick.device().SerializeAsString() == targets_.gpu()->device.SerializeAsString() &&
         pick.driver_version() != targets_.gpu()->driver_version;
}

}  // namespace qgemm
