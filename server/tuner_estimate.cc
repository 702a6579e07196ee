// Tuner::Estimate: what a request would cost.
#include <algorithm>
#include <set>

#include "base/status_macros.h"
#include "server/proto_convert.h"
#include "server/tuner.h"

namespace qgemm {
namespace {

// What one candidate costs beside its launches: the way to the GPU process, verification, the graph.
constexpr double kCandidateMs = 0.6;
constexpr double kFlushUs = 35;
constexpr double kPrepareMs = 5;
constexpr double kScreenSamples = 20;  // on average: hopeless ones get fewer
constexpr double kDefaultCompileMs = 250;
constexpr double kDefaultKernelBytes = 60e3;

struct KernelMeans {
  double compile_ms = kDefaultCompileMs;
  double bytes = kDefaultKernelBytes;
};

absl::StatusOr<KernelMeans> MeansOf(CacheStore& store) {
  double count = 0;
  double compile_ms = 0;
  double bytes = 0;
  QGEMM_RETURN_IF_ERROR(store.VisitKernels([&](const v1::KernelInfo& info) {
    ++count;
    compile_ms += info.compile_ms();
    bytes += static_cast<double>(info.cubin_bytes());
    return true;
  }));
  if (count == 0) return KernelMeans();
  return KernelMeans{compile_ms / count, bytes / count};
}

}  // namespace

absl::StatusOr<v1::TuneEstimate> Tuner::Estimate(const v1::TuneRequest& request) {
  QGEMM_ASSIGN_OR_RETURN(const std::vector<TuneUnit> units, ParseUnits(request));
  QGEMM_ASSIGN_OR_RETURN(const v1::Effort effort, CanonicalEffort(request.effort()));
  QGEMM_ASSIGN_OR_RETURN(const SearchLimits limits, SearchLimitsFromProto(request));
  QGEMM_ASSIGN_OR_RETURN(const TuningTarget lookup_target, targets_.Resolve(request.target()));
  TuningTarget target = lookup_target;
  if (effort == v1::EFFORT_MODEL_ONLY) target.measured = false;
  QGEMM_ASSIGN_OR_RETURN(const std::string toolchain, Toolchain());
  QGEMM_RETURN_IF_ERROR(compiler_.SupportsArch(target.profile.arch));

  v1::TuneEstimate estimate;
  std::set<std::string> kernels;
  double timing_ms = 0;
  for (const TuneUnit& unit : units) {
    estimate.set_results(estimate.results() + 1);
    if (!request.retune() && !limits.any()) {
      QGEMM_ASSIGN_OR_RETURN(const std::optional<v1::TuneResult> stored,
                             FindStored(unit.problem, unit.m_bucket, lookup_target, effort, toolchain));
      if (stored.has_value()) {
        estimate.set_stored(estimate.stored() + 1);
        continue;
      }
    }
    PickJob job;
    job.problem = unit.problem;
    job.m_bucket = unit.m_bucket;
    job.effort = effort;
    job.retune = request.retune();
    job.limits = limits;
    job.target = target;
    job.toolchain = toolchain;
    QGEMM_RETURN_IF_ERROR(PlanCandidates(job));
    int configs = 0;
    for (const CandidateState& state : job.candidates) {
      if (state.verdict.has_value()) continue;
      const std::string key =
          supply_.CurrentKey(state.candidate.config, job.problem.signature, target.profile.arch, toolchain);
      const bool is_new = kernels.count(key) == 0;
      if (!target.measured) {
        if (is_new && job.plan.configs_at_once > 0 && configs == job.plan.configs_at_once) break;
        configs += is_new ? 1 : 0;
      } else {
        estimate.set_candidates(estimate.candidates() + 1);
        timing_ms += kCandidateMs + kScreenSamples * (state.predicted_us + kFlushUs) / 1e3;
      }
      kernels.insert(key);
    }
    for (const KernelConfig& config : job.plan.also_compile) {
      kernels.insert(supply_.CurrentKey(config, job.problem.signature, target.profile.arch, toolchain));
    }
    if (target.measured) {
      timing_ms += kPrepareMs + job.plan.race_share * absl::ToDoubleMilliseconds(options_.budgets.finals);
    }
  }
  QGEMM_ASSIGN_OR_RETURN(const KernelMeans means, MeansOf(store_));
  for (const std::string& key : kernels) {
    const absl::Status stored = store_.GetKernel(key).status();
    if (absl::IsNotFound(stored)) {
      estimate.set_compiles(estimate.compiles() + 1);
    } else if (!stored.ok()) {
      return stored;
    }
  }
  const auto compiles = static_cast<double>(estimate.compiles());
  estimate.set_kernels(static_cast<int64_t>(kernels.size()));
  estimate.set_compile_cpu_s(compiles * means.compile_ms / 1e3);
  estimate.set_timing_s(timing_ms / 1e3);
  estimate.set_store_bytes(static_cast<int64_t>(compiles * means.bytes));
  const double workers = std::max(1, compiler_.num_workers());
  const double compile_wall_s =
      compiles == 0 ? 0 : std::max(means.compile_ms / 1e3, estimate.compile_cpu_s() / workers);
  estimate.set_wall_s(std::max(compile_wall_s, estimate.timing_s()));
  return estimate;
}

}  // namespace qgemm
