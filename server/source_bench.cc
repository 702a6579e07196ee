#include "server/source_bench.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "kernels/cost_model.h"
#include "kernels/family/family.h"
#include "kernels/kernel_source.h"
#include "kernels/launch_spec.h"
#include "kernels/legality.h"
#include "kernels/reference_gemm.h"
#include "server/kernel_supply.h"
#include "server/pick_choice.h"
#include "server/pick_lookup.h"
#include "server/proto_convert.h"
#include "server/strategy/strategy.h"

namespace qgemm {
namespace {

constexpr Duration kCancellationPoll = std::chrono::milliseconds(50);
// Its compiles take turns with the tuner's clients; nothing can be timed without the support kernels.
Flow BenchFlow(int priority = 0) { return {"bench", WorkClass::kInteractive, priority}; }

struct Unit {
  int problem_index = 0;
  Problem problem;
  int m_bucket = 0;
};

absl::StatusOr<std::vector<Unit>> ParseUnits(const v1::CompareSourceRequest& request) {
  if (request.problems().empty() || request.problems_size() > SourceBench::kMaxProblems) {
    return absl::InvalidArgumentError(absl::StrCat("problems has ", request.problems_size(),
                                                   " entries; allowed: 1 .. ", SourceBench::kMaxProblems));
  }
  std::set<int> buckets;
  for (const int64_t m : request.m()) {
    QGEMM_RETURN_IF_ERROR(ValidateRows(m));
    buckets.insert(BucketFor(m));
  }
  if (buckets.empty()) return absl::InvalidArgumentError("m is empty; allowed: one or more row counts");
  std::vector<Unit> units;
  for (int i = 0; i < request.problems_size(); ++i) {
    QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(request.problems(i)));
    for (const int bucket : buckets) units.push_back({i, problem, bucket});
  }
  return units;
}

// What a worker's frame can carry and NVRTC, which takes a C string, reads whole.
bool IsText(absl::string_view bytes) {
  constexpr uint32_t kLeast[] = {1, 0x80, 0x800, 0x10000};
  for (size_t i = 0; i < bytes.size();) {
    const uint32_t first = static_cast<unsigned char>(bytes[i++]);
    if (first >= 0x80 && (first < 0xc2 || first > 0xf4)) return false;
    const size_t more = (first >= 0xc2 ? 1 : 0) + (first >= 0xe0 ? 1 : 0) + (first >= 0xf0 ? 1 : 0);
    if (more > bytes.size() - i) return false;
    uint32_t point = more == 0 ? first : first & (0x3fu >> more);
    for (const size_t end = i + more; i < end; ++i) {
      if ((bytes[i] & 0xc0) != 0x80) return false;
      point = point << 6 | (static_cast<uint32_t>(bytes[i]) & 0x3f);
    }
    if (point < kLeast[more] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
  }
  return true;
}

absl::Status CheckSource(const v1::CompareSourceRequest& request) {
  const std::vector<std::string> names = FamilySourceNames();
  if (std::find(names.begin(), names.end(), request.source_name()) == names.end()) {
    return absl::InvalidArgumentError(absl::StrCat("source_name is \"", request.source_name(),
                                                   "\"; allowed: ", absl::StrJoin(names, ", ")));
  }
  if (request.source().empty() || request.source().size() > SourceBench::kMaxSourceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("source has ", request.source().size(),
                                                   " bytes; allowed: 1 .. ", SourceBench::kMaxSourceBytes));
  }
  if (!IsText(request.source())) {
    return absl::InvalidArgumentError("source is not text; allowed: UTF-8 without NUL bytes");
  }
  if (request.max_candidates() < 0 || request.max_candidates() > SourceBench::kMaxCandidates) {
    return absl::InvalidArgumentError(absl::StrCat("max_candidates is ", request.max_candidates(),
                                                   "; allowed: 0 .. ", SourceBench::kMaxCandidates));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::regex>> ParseExpression(const std::string& text) {
  if (text.empty()) return std::optional<std::regex>();
  if (text.size() > SourceBench::kMaxExpressionBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("only has ", text.size(), " bytes; allowed: 0 .. ", SourceBench::kMaxExpressionBytes));
  }
  try {
    return std::optional<std::regex>(std::regex(text));
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("only is \"", text, "\", which is no regular expression: ", error.what()));
  }
}

// A candidate of a unit, and its two kernels.
struct Compared {
  PlannedCandidate planned;
  bool is_pick = false;
  std::shared_ptr<Kernel> current;
  std::shared_ptr<Kernel> changed;  // null: its family does not use the source

  bool ready() const { return current->ready() && (changed == nullptr || changed->ready()); }
};

}  // namespace

// One call's state: what it compiles, and what it tells its client.
class SourceBench::Comparison {
 public:
  Comparison(SourceBench& bench, const v1::CompareSourceRequest& request, CompareSourceStream& stream)
      : bench_(bench),
        request_(request),
        stream_(stream),
        start_(bench.clock_.Now()),
        overrides_{{request.source_name(), request.source()}},
        supply_(bench.store_, bench.compiler_, bench.clock_, [this] {
          MutexLock lock(mu_);
          changed_.NotifyAll();
        }) {}
  ~Comparison() {
    // The next call's units may stand where this one's stood.
    MutexLock lock(bench_.gpu_mu_);
    bench_.prepared_ = nullptr;
    if (bench_.gpu_ != nullptr) bench_.gpu_->SetWithdrawn(nullptr);
  }

  absl::Status Run() {
    QGEMM_ASSIGN_OR_RETURN(const std::vector<Unit> units, ParseUnits(request_));
    QGEMM_RETURN_IF_ERROR(CheckSource(request_));
    QGEMM_ASSIGN_OR_RETURN(only_, ParseExpression(request_.only()));
    QGEMM_ASSIGN_OR_RETURN(target_, bench_.targets_.Resolve(""));
    QGEMM_ASSIGN_OR_RETURN(toolchain_, bench_.compiler_.Toolchain());
    QGEMM_RETURN_IF_ERROR(bench_.compiler_.SupportsArch(target_.profile.arch));
    const bool timed = bench_.gpu_ != nullptr;

    std::vector<std::vector<Compared>> planned;
    for (const Unit& unit : units) {
      QGEMM_ASSIGN_OR_RETURN(std::vector<Compared> candidates, Plan(unit));
      progress_.set_candidates_wanted(progress_.candidates_wanted() + static_cast<int>(candidates.size()));
      planned.push_back(std::move(candidates));
    }
    if (timed) {
      support_ = Wanted(supply_.RequestSupport(target_.profile.arch, toolchain_, BenchFlow(/*priority=*/1)));
    }
    for (size_t i = 0; i < units.size(); ++i) RequestKernels(units[i], planned[i]);
    for (size_t i = 0; i < units.size(); ++i) {
      for (Compared& compared : planned[i]) {
        QGEMM_RETURN_IF_ERROR(WaitFor([&] { return compared.ready(); }));
        v1::CompareSourceEvent event;
        QGEMM_ASSIGN_OR_RETURN(*event.mutable_candidate(), Try(units[i], compared, timed));
        progress_.set_candidates_done(progress_.candidates_done() + 1);
        stream_.Send(event);
        SendProgress();
      }
    }
    v1::CompareSourceEvent event;
    v1::CompareSourceSummary& summary = *event.mutable_summary();
    summary.set_compiles(CountKernels().second);
    summary.set_timed(timed);
    summary.set_wall_s(std::chrono::duration<double>(bench_.clock_.Now() - start_).count());
    summary.set_source_sha256(Sha256Hex(request_.source()));
    stream_.Send(event);
    return absl::OkStatus();
  }

 private:
  bool Uses(const KernelConfig& config) const {
    return UsesDeviceSource(config.family, request_.source_name());
  }

  // What is compared: the pick first, then by prediction.
  absl::StatusOr<std::vector<Compared>> Plan(const Unit& unit) {
    std::vector<Compared> chosen;
    QGEMM_ASSIGN_OR_RETURN(const std::optional<Candidate> pick, CurrentPick(unit));
    if (pick.has_value() && (!only_.has_value() || std::regex_search(CandidateName(*pick), *only_))) {
      const double predicted = PredictCost(*pick, unit.problem, unit.m_bucket, target_.profile).total_us;
      chosen.push_back({.planned = {*pick, predicted}, .is_pick = true});
    }
    const int limit = request_.max_candidates() > 0 ? request_.max_candidates() : kDefaultCandidates;
    const size_t enough = chosen.size() + limit;
    std::set<KernelConfig> seen;
    const std::vector<PlannedCandidate> legal =
        LegalByPrediction(unit.problem, unit.m_bucket, target_.profile);
    for (const PlannedCandidate& planned : legal) {
      if (chosen.size() == enough) break;
      if (!Uses(planned.candidate.config) || (pick.has_value() && planned.candidate == *pick)) continue;
      if (only_.has_value() ? !std::regex_search(CandidateName(planned.candidate), *only_)
                            : !seen.insert(planned.candidate.config).second) {
        continue;
      }
      chosen.push_back({.planned = planned});
    }
    const auto uses = [this](const Compared& compared) { return Uses(compared.planned.candidate.config); };
    if (std::any_of(chosen.begin(), chosen.end(), uses)) return chosen;
    const std::string what = absl::StrCat(ProblemName(unit.problem), " at bucket ", unit.m_bucket);
    if (legal.empty()) {
      const absl::Status served = SupportsSignature(unit.problem.signature);
      return absl::FailedPreconditionError(
          absl::StrCat("no candidate of ", what, " can run on ", target_.name,
                       served.ok() ? std::string() : absl::StrCat(": ", std::string(served.message()))));
    }
    if (only_.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat("none of the ", legal.size(), " candidates of ", what,
                                                        " is of a family that uses ", request_.source_name(),
                                                        " and matches \"", request_.only(), "\""));
    }
    return absl::FailedPreconditionError(
        absl::StrCat("no candidate of ", what, " is of a family that uses ", request_.source_name()));
  }

  absl::StatusOr<std::optional<Candidate>> CurrentPick(const Unit& unit) {
    const v1::Effort least = target_.measured ? v1::EFFORT_BALANCED : v1::EFFORT_MODEL_ONLY;
    QGEMM_ASSIGN_OR_RETURN(
        const std::optional<StoredPick> stored,
        PickLookup(bench_.store_, supply_).Find(unit.problem, unit.m_bucket, target_, least, toolchain_));
    if (!stored.has_value()) return std::optional<Candidate>();
    const v1::Pick& pick = stored->record.pick();
    const absl::StatusOr<KernelConfig> config = ParseConfig(pick.config());
    if (!config.ok()) return std::optional<Candidate>();  // of another version of qgemm
    for (const Reduction reduction : {Reduction::kNone, Reduction::kWorkspace, Reduction::kCluster}) {
      const Candidate candidate = {*config, pick.split_k(), reduction};
      if (ReductionToProto(reduction) == pick.reduction() &&
          IsLegal(candidate, unit.problem, unit.m_bucket, target_.profile).ok()) {
        return std::optional<Candidate>(candidate);
      }
    }
    return std::optional<Candidate>();
  }

  std::shared_ptr<Kernel> Wanted(KernelSupply::Requested requested) {
    kernels_.insert(requested.kernel->progress());
    return std::move(requested.kernel);
  }

  void RequestKernels(const Unit& unit, std::vector<Compared>& candidates) {
    for (Compared& compared : candidates) {
      const KernelConfig& config = compared.planned.candidate.config;
      const auto request = [&](const SourceOverrides& overrides) {
        return Wanted(supply_.Request(config, unit.problem.signature, target_.profile.arch, toolchain_,
                                      BenchFlow(), overrides));
      };
      compared.current = request({});
      if (Uses(config)) compared.changed = request(overrides_);
    }
  }

  // Blocks until `condition` holds. Cancelled, Unavailable.
  absl::Status WaitFor(const std::function<bool()>& condition) {
    while (true) {
      if (stream_.Cancelled()) return absl::CancelledError("the client cancelled");
      if (bench_.stopped_) return absl::UnavailableError("the daemon is stopping; try again later");
      SendProgress();
      const TimePoint deadline = bench_.clock_.Now() + kCancellationPoll;
      MutexLock lock(mu_);
      while (!condition()) {
        if (!bench_.clock_.WaitUntil(mu_, changed_, deadline)) break;
      }
      if (condition()) return absl::OkStatus();
    }
  }

  // Kernels beyond the store, and how many of them are compiled.
  std::pair<int, int> CountKernels() const {
    int wanted = 0;
    int compiled = 0;
    for (const std::shared_ptr<KernelProgress>& kernel : kernels_) {
      if (!kernel->wanted_compile()) continue;
      ++wanted;
      compiled += kernel->decided() ? 1 : 0;
    }
    return {wanted, compiled};
  }

  void SendProgress() {
    const auto [wanted, compiled] = CountKernels();
    progress_.set_kernels_wanted(wanted);
    progress_.set_kernels_compiled(compiled);
    const std::string bytes = progress_.SerializeAsString();
    if (bytes == last_progress_) return;
    last_progress_ = bytes;
    v1::CompareSourceEvent event;
    *event.mutable_progress() = progress_;
    stream_.Send(event);
  }

  // Fills in what the compiler says. False: the kernel cannot be run. Unavailable and the like: not its
  // fault.
  absl::StatusOr<bool> Compiled(const Kernel& kernel, v1::KernelTrial& trial) {
    if (!kernel.status().ok()) {
      if (kernel.is_system_failure()) return kernel.status();
      trial.set_failure(std::string(kernel.status().message()));
      return false;
    }
    *trial.mutable_kernel() = kernel.record().info();
    return true;
  }

  absl::StatusOr<v1::ComparedCandidate> Try(const Unit& unit, const Compared& compared, bool timed) {
    const Candidate& candidate = compared.planned.candidate;
    v1::ComparedCandidate row;
    row.set_problem_index(unit.problem_index);
    row.set_m_bucket(unit.m_bucket);
    row.set_config(ConfigName(candidate.config));
    row.set_split_k(candidate.split_k);
    row.set_reduction(ReductionToProto(candidate.reduction));
    row.set_predicted_us(compared.planned.predicted_us);
    row.set_is_pick(compared.is_pick);

    struct Side {
      const Kernel* kernel;
      v1::KernelTrial* trial;
    };
    std::vector<Side> sides = {{compared.current.get(), row.mutable_current()}};
    if (compared.changed != nullptr) sides.push_back({compared.changed.get(), row.mutable_changed()});
    std::vector<Side> runnable;
    for (const Side& side : sides) {
      QGEMM_ASSIGN_OR_RETURN(const bool compiled, Compiled(*side.kernel, *side.trial));
      if (compiled) runnable.push_back(side);
    }
    if (!timed || runnable.empty()) return row;

    QGEMM_RETURN_IF_ERROR(WaitFor([&] { return support_->ready(); }));
    MutexLock lock(bench_.gpu_mu_);
    bench_.gpu_->SetWithdrawn([this] { return stream_.Cancelled() || bench_.stopped_; });
    QGEMM_RETURN_IF_ERROR(Prepare(unit));
    const LaunchSpec launch = MakeLaunchSpec(candidate, unit.problem, unit.m_bucket);
    std::vector<Side> right;
    std::vector<GpuCandidate> right_candidates;
    for (const Side& side : runnable) {
      GpuCandidate on_gpu;
      on_gpu.name = absl::StrCat(CandidateName(candidate), side.trial == &row.current() ? "" : " changed");
      on_gpu.kernel_sha256 = side.kernel->record().info().sha256();
      on_gpu.cubin = &side.kernel->record().cubin();
      on_gpu.launch = launch;
      QGEMM_ASSIGN_OR_RETURN(
          const internal::ScreenReply reply,
          bench_.gpu_->Screen(on_gpu, ToleranceFor(unit.problem.signature), bench_.options_.screen));
      if (reply.relative_error() > 0) side.trial->set_relative_error(reply.relative_error());
      if (reply.failure() != internal::CANDIDATE_FAILURE_NONE) {
        side.trial->set_failure(
            absl::StrCat(FailureText(reply.failure()), reply.reason().empty() ? "" : ": ", reply.reason()));
        continue;
      }
      right.push_back(side);
      right_candidates.push_back(std::move(on_gpu));
    }
    if (right.empty()) return row;
    // No tie ends the rounds early: the ratio is what is asked for.
    QGEMM_ASSIGN_OR_RETURN(const std::vector<internal::Timing> timings,
                           bench_.gpu_->Finals(right_candidates, bench_.options_.pair, /*tie_band=*/0));
    if (timings.size() != right.size()) {
      return absl::InternalError(
          absl::StrCat("the GPU process timed ", timings.size(), " of ", right.size(), " kernels"));
    }
    for (size_t i = 0; i < right.size(); ++i) {
      v1::KernelTrial& trial = *right[i].trial;
      trial.set_time_us(ComparedUs(timings[i]));
      trial.set_spread_us(timings[i].spread_us());
      trial.set_confidence(timings[i].low_confidence() ? v1::CONFIDENCE_LOW : v1::CONFIDENCE_HIGH);
    }
    return row;
  }

  absl::Status Prepare(const Unit& unit) QGEMM_REQUIRES(bench_.gpu_mu_) {
    if (bench_.prepared_ == &unit) return absl::OkStatus();
    bench_.prepared_ = nullptr;
    if (!support_->status().ok()) {
      return absl::Status(
          support_->is_system_failure() ? support_->status().code() : absl::StatusCode::kInternal,
          absl::StrCat("the support kernels cannot be had: ", std::string(support_->status().message())));
    }
    bench_.gpu_->SetSupportKernels(support_->record().cubin());
    QGEMM_RETURN_IF_ERROR(bench_.gpu_->Prepare(unit.problem, unit.m_bucket));
    bench_.prepared_ = &unit;
    return absl::OkStatus();
  }

  SourceBench& bench_;
  const v1::CompareSourceRequest& request_;
  CompareSourceStream& stream_;
  const TimePoint start_;
  const SourceOverrides overrides_;

  std::optional<std::regex> only_;
  TuningTarget target_;
  std::string toolchain_;
  v1::CompareSourceProgress progress_;
  std::string last_progress_;
  std::set<std::shared_ptr<KernelProgress>> kernels_;

  Mutex mu_;
  CondVar changed_;
  // Of this call alone: what a developer's source was refused for is forgotten with it. After mu_ and
  // changed_, which its callbacks use, and before its kernels.
  KernelSupply supply_;
  std::shared_ptr<Kernel> support_;
};

absl::Status SourceBench::Compare(const v1::CompareSourceRequest& request, CompareSourceStream& stream) {
  if (stopped_) return absl::UnavailableError("the daemon is stopping; try again later");
  return Comparison(*this, request, stream).Run();
}

}  // namespace qgemm
