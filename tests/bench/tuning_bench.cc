#include "tests/bench/tuning_bench.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "kernels/launch_spec.h"
#include "kernels/reference_gemm.h"
#include "server/cpu_budget.h"
#include "server/pick_choice.h"
#include "server/proto_convert.h"

namespace qgemm {
namespace {

constexpr double kShortKernelUs = 5;
constexpr double kShortKernelSlackUs = 0.15;
constexpr double kWarmUpShare = 0.25;  // 100 of 400 ms

class CollectingStream : public TuneStream {
 public:
  void Send(const v1::TuneEvent& event) override {
    if (event.has_result()) results.push_back(event.result());
    if (event.has_summary()) summary = event.summary();
  }
  bool Cancelled() override { return false; }
  std::vector<v1::TuneResult> results;
  v1::TuneSummary summary;
};

absl::Status CopyKernels(CacheStore& from, CacheStore& to) {
  std::vector<std::string> digests;
  QGEMM_RETURN_IF_ERROR(from.VisitKernels([&](const v1::KernelInfo& info) {
    digests.push_back(info.sha256());
    return true;
  }));
  for (const std::string& sha256 : digests) {
    QGEMM_ASSIGN_OR_RETURN(const internal::KernelRecord record, from.GetKernelBySha256(sha256));
    QGEMM_RETURN_IF_ERROR(to.PutKernel(record));
  }
  return absl::OkStatus();
}

absl::StatusOr<Candidate> ParseCandidate(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  Candidate candidate;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1].substr(1), &candidate.split_k)) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is not a candidate"));
  }
  for (const Reduction reduction : {Reduction::kNone, Reduction::kWorkspace, Reduction::kCluster}) {
    if (parts[2] == ReductionName(reduction)) candidate.reduction = reduction;
  }
  QGEMM_ASSIGN_OR_RETURN(candidate.config, ParseConfig(parts[0]));
  return candidate;
}

}  // namespace

absl::StatusOr<std::vector<BenchPair>> ReadPairs(const std::string& path) {
  std::ifstream file(path);
  const Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::vector<BenchPair> pairs;
  for (const Json& format : json["formats"]) {
    for (const std::string shape : format["shapes"]) {
      const std::vector<std::string> size = absl::StrSplit(shape, 'x');
      for (const int m : format["m"]) {
        BenchPair pair;
        pair.format = format["format"];
        pair.m = m;
        int64_t n = 0;
        int64_t k = 0;
        int bits = 0;
        if (size.size() != 2 || !absl::SimpleAtoi(size[0], &n) || !absl::SimpleAtoi(size[1], &k) ||
            !absl::SimpleAtoi(pair.format.substr(3), &bits)) {
          return absl::InvalidArgumentError(absl::StrCat(path, ": shape ", shape));
        }
        pair.problem.set_n(n);
        pair.problem.set_k(k);
        pair.problem.mutable_format()->set_bits(bits);
        pair.problem.mutable_format()->set_group_size(format["group_size"]);
        pair.problem.mutable_format()->set_zero_point(format["zero"] == "int" ? v1::ZERO_POINT_INTEGER
                                                                              : v1::ZERO_POINT_NONE);
        pair.problem.set_act(v1::SCALAR_TYPE_BF16);
        pair.name = absl::StrCat(pair.format, " ", shape, " M ", m);
        pairs.push_back(std::move(pair));
      }
    }
  }
  return pairs;
}

Candidate CandidateOf(const v1::Pick& pick) {
  Candidate candidate{*ParseConfig(pick.config()), pick.split_k(), Reduction::kNone};
  for (const Reduction reduction : {Reduction::kWorkspace, Reduction::kCluster}) {
    if (ReductionToProto(reduction) == pick.reduction()) candidate.reduction = reduction;
  }
  return candidate;
}

double RegretOf(double us, double best_us) {
  const double regret = us / best_us;
  const bool excused = best_us < kShortKernelUs && us - best_us <= kShortKernelSlackUs;
  return excused ? std::min(regret, 1.01) : regret;
}

double FastestOf(const Times& times) {
  double best = HUGE_VAL;
  for (const auto& [candidate, us] : times) best = std::min(best, us);
  return best;
}

void Regrets::Add(double regret, const std::string& what) {
  ++count_;
  sum_ += regret;
  log_sum_ += std::log(regret);
  if (regret > 1.01) ++over_1pct_;
  if (regret > 1.02) ++over_2pct_;
  if (regret > worst_) {
    worst_ = regret;
    worst_of_ = what;
  }
}

double Regrets::geomean() const { return count_ > 0 ? std::exp(log_sum_ / count_) : 0; }

double Regrets::within_1pct_share() const {
  return count_ > 0 ? 1 - static_cast<double>(over_1pct_) / count_ : 0;
}

Json Regrets::ToJson() const {
  return {{"pairs", count_},         {"mean", mean()},
          {"geomean", geomean()},    {"worst", worst_},
          {"worst_pair", worst_of_}, {"over_1pct", over_1pct_},
          {"over_2pct", over_2pct_}, {"within_1pct_share", within_1pct_share()}};
}

GpuProcessOptions TuningBench::GpuOptions() const {
  GpuProcessOptions gpu;
  gpu.device = device_name_;
  return gpu;
}

absl::StatusOr<std::unique_ptr<TuningBench>> TuningBench::Create(Spawner& spawner,
                                                                 const std::string& device) {
  std::unique_ptr<TuningBench> bench(new TuningBench(spawner, device));
  CompilePoolOptions pool;
  QGEMM_ASSIGN_OR_RETURN(const std::string folder, ProgramFolder());
  pool.worker = CompileWorkerProgram(folder + "/qgemm-compile");
  pool.num_workers = DefaultCompileWorkers(ReadCpuBudget(), /*gpu_pinned=*/true);
  bench->pool_ = std::make_unique<CompilePool>(&spawner, &RealClock(), pool);
  bench->supply_ = std::make_unique<KernelSupply>(bench->kernels_, *bench->pool_, RealClock(), [] {});

  GpuProcess gpu(&spawner, bench->GpuOptions(), &RealClock());
  QGEMM_ASSIGN_OR_RETURN(const GpuInfo info, gpu.Describe());
  QGEMM_ASSIGN_OR_RETURN(const TargetResolver targets, TargetResolver::Create("h200", "", info));
  QGEMM_ASSIGN_OR_RETURN(const TuningTarget target, targets.Resolve(""));
  bench->profile_ = target.profile;
  bench->device_ = info.device;
  return bench;
}

absl::StatusOr<Picked> TuningBench::Tune(const std::string& what, absl::Span<const BenchPair> pairs,
                                         const TuneOptions& options) {
  MemoryStore store;
  QGEMM_RETURN_IF_ERROR(CopyKernels(kernels_, store));
  GpuProcessOptions gpu_options = GpuOptions();
  gpu_options.rewarm = options.rewarm;
  TunerOptions tuner_options;
  if (options.host_timed) {
    gpu_options.host_timed = true;
    gpu_options.placements = 1;
    tuner_options.budgets.finals = absl::Milliseconds(1);
  }
  GpuProcess gpu(&spawner_, gpu_options, &RealClock());
  QGEMM_ASSIGN_OR_RETURN(const GpuInfo info, gpu.Describe());
  QGEMM_ASSIGN_OR_RETURN(TargetResolver targets, TargetResolver::Create("h200", "", info));
  Tuner tuner(store, *pool_, &gpu, RealClock(), std::move(targets), tuner_options);
  QGEMM_RETURN_IF_ERROR(tuner.Toolchain().status());
  Picked picked;
  const Stopwatch watch(options.limit_s);
  std::atomic<size_t> next{0};
  Mutex mu;
  absl::Status failed;
  const auto client = [&] {
    for (size_t i = next++; i < pairs.size() && watch.left() > 0; i = next++) {
      v1::TuneRequest request;
      *request.add_problems() = pairs[i].problem;
      request.add_m(pairs[i].m);
      request.set_effort(options.effort);
      request.set_only(options.only);
      CollectingStream stream;
      const absl::Status status = tuner.Tune(request, "bench", stream);
      const MutexLock lock(mu);
      failed.Update(status);
      if (!failed.ok()) return;
      picked.gpu_s += stream.summary.gpu_busy_s();
      picked.compiles += stream.summary.compiles();
      picked.timings += stream.summary.timings();
      for (const v1::TuneResult& result : stream.results) {
        if (!result.has_pick()) {
          if (options.only.empty()) {
            std::printf("  %s: no pick: %s\n", pairs[i].name.c_str(), result.error().c_str());
          }
          continue;
        }
        picked.by_pair[i] = CandidateOf(result.pick());
        if (result.pick().confidence() == v1::CONFIDENCE_LOW) picked.low_confidence.insert(i);
        picked.seen[i] = TimedBy(tuner, pairs[i]);
        if (options.tuned) options.tuned(i, tuner);
      }
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < options.clients; ++i) clients.emplace_back(client);
  for (std::thread& one : clients) one.join();
  QGEMM_RETURN_IF_ERROR(failed);
  picked.wall_s = watch.elapsed();
  std::printf("%-28s %zu of %zu picks, %lld compiles, %lld timings, %.1f s, GPU %.1f s, %zu low confidence\n",
              what.c_str(), picked.by_pair.size(), pairs.size(), static_cast<long long>(picked.compiles),
              static_cast<long long>(picked.timings), picked.wall_s, picked.gpu_s,
              picked.low_confidence.size());
  std::fflush(stdout);
  QGEMM_RETURN_IF_ERROR(CopyKernels(store, kernels_));
  return picked;
}

std::vector<Candidate> TuningBench::Fastest(Tuner& tuner, const BenchPair& pair, int count,
                                            const std::function<bool(const Candidate&)>& allowed) {
  v1::ExplainRequest request;
  *request.mutable_problem() = pair.problem;
  request.set_m(pair.m);
  std::vector<Candidate> fastest;
  const absl::StatusOr<v1::ExplainResponse> explained = tuner.Explain(request);
  if (!explained.ok()) return fastest;
  for (const v1::ExplainedCandidate& one : explained->candidates()) {
    if (static_cast<int>(fastest.size()) == count || !one.has_center_us()) break;
    const absl::StatusOr<Candidate> candidate = ParseCandidate(one.candidate());
    if (candidate.ok() && allowed(*candidate)) fastest.push_back(*candidate);
  }
  return fastest;
}

std::map<Candidate, SeenTime> TuningBench::TimedBy(Tuner& tuner, const BenchPair& pair) {
  v1::ExplainRequest request;
  *request.mutable_problem() = pair.problem;
  request.set_m(pair.m);
  std::map<Candidate, SeenTime> timed;
  const absl::StatusOr<v1::ExplainResponse> explained = tuner.Explain(request);
  if (!explained.ok()) return timed;
  for (const v1::ExplainedCandidate& one : explained->candidates()) {
    const absl::StatusOr<Candidate> candidate = ParseCandidate(one.candidate());
    if (candidate.ok() && one.has_center_us()) timed[*candidate] = {one.center_us(), one.samples()};
  }
  return timed;
}

absl::StatusOr<internal::KernelRecord> TuningBench::KernelFor(const Candidate& candidate,
                                                              const KernelSignature& signature) {
  const KernelSupply::Requested requested =
      supply_->Request(candidate.config, signature, profile_.arch, toolchain_, Flow{.client = "bench"});
  while (!requested.kernel->ready()) std::this_thread::yield();
  QGEMM_RETURN_IF_ERROR(requested.kernel->status());
  return requested.kernel->record();
}

TuningBench::Clockwork::Clockwork(TuningBench& bench, GpuProcessOptions options)
    : bench_(bench), gpu_(&bench.spawner_, std::move(options), &RealClock()) {}

absl::StatusOr<std::unique_ptr<TuningBench::Clockwork>> TuningBench::StartClockwork(int placements,
                                                                                    bool rewarm) {
  if (support_cubin_.empty()) {
    QGEMM_ASSIGN_OR_RETURN(toolchain_, pool_->Toolchain());
    const KernelSupply::Requested support =
        supply_->RequestSupport(profile_.arch, toolchain_, Flow{.client = "bench"});
    while (!support.kernel->ready()) std::this_thread::yield();
    QGEMM_RETURN_IF_ERROR(support.kernel->status());
    support_cubin_ = support.kernel->record().cubin();
  }
  GpuProcessOptions options = GpuOptions();
  options.placements = placements;
  options.rewarm = rewarm;
  std::unique_ptr<Clockwork> clockwork(new Clockwork(*this, std::move(options)));
  QGEMM_RETURN_IF_ERROR(clockwork->gpu_.Describe().status());
  clockwork->gpu_.SetSupportKernels(support_cubin_);
  return clockwork;
}

absl::StatusOr<GpuCandidate> TuningBench::Clockwork::ForGpu(const Candidate& candidate,
                                                            const Problem& problem, int m,
                                                            internal::KernelRecord& record) {
  QGEMM_ASSIGN_OR_RETURN(record, bench_.KernelFor(candidate, problem.signature));
  return GpuCandidate{CandidateName(candidate), record.info().sha256(), &record.cubin(),
                      MakeLaunchSpec(candidate, problem, m)};
}

absl::StatusOr<std::vector<GpuCandidate>> TuningBench::Clockwork::AllForGpu(
    const BenchPair& pair, const std::vector<Candidate>& all, std::vector<internal::KernelRecord>& records) {
  QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(pair.problem));
  QGEMM_RETURN_IF_ERROR(gpu_.Prepare(problem, pair.m));
  records.resize(all.size());
  std::vector<GpuCandidate> ready;
  for (size_t i = 0; i < all.size(); ++i) {
    QGEMM_ASSIGN_OR_RETURN(GpuCandidate one, ForGpu(all[i], problem, pair.m, records[i]));
    ready.push_back(std::move(one));
  }
  return ready;
}

absl::StatusOr<Times> TuningBench::Clockwork::Time(const BenchPair& pair,
                                                   const std::set<Candidate>& candidates, double window_s) {
  return TimeInOrder(pair, {candidates.begin(), candidates.end()}, window_s);
}

absl::StatusOr<Times> TuningBench::Clockwork::TimeInOrder(const BenchPair& pair,
                                                          const std::vector<Candidate>& order,
                                                          double window_s) {
  std::vector<internal::KernelRecord> records;
  QGEMM_ASSIGN_OR_RETURN(const std::vector<GpuCandidate> timed, AllForGpu(pair, order, records));
  const double all_s = window_s * static_cast<double>(timed.size());
  // A tie band of 0: nobody leaves, and the window is used up.
  QGEMM_RETURN_IF_ERROR(gpu_.Finals(timed, absl::Seconds(kWarmUpShare * all_s), 0).status());
  QGEMM_ASSIGN_OR_RETURN(const std::vector<internal::Timing> timings,
                         gpu_.Finals(timed, absl::Seconds((1 - kWarmUpShare) * all_s), 0));
  Times us;
  for (size_t i = 0; i < timings.size(); ++i) us[order[i]] = ComparedUs(timings[i]);
  return us;
}

absl::StatusOr<std::vector<std::string>> TuningBench::Clockwork::Verify(const BenchPair& pair,
                                                                        const std::set<Candidate>& of) {
  QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(pair.problem));
  QGEMM_RETURN_IF_ERROR(gpu_.Prepare(problem, pair.m));
  std::vector<std::string> failed;
  for (const Candidate& candidate : of) {
    internal::KernelRecord record;
    QGEMM_ASSIGN_OR_RETURN(const GpuCandidate one, ForGpu(candidate, problem, pair.m, record));
    QGEMM_ASSIGN_OR_RETURN(const internal::ScreenReply reply,
                           gpu_.Screen(one, ToleranceFor(problem.signature), absl::ZeroDuration()));
    if (reply.failure() != internal::CANDIDATE_FAILURE_NONE) {
      failed.push_back(absl::StrCat(pair.name, " ", one.name, ": ", reply.reason()));
    }
  }
  return failed;
}

absl::StatusOr<std::map<size_t, Times>> TuningBench::Reference(
    absl::Span<const BenchPair> pairs, const std::map<size_t, std::set<Candidate>>& unions, double window_s,
    int processes, std::vector<double>* disagreement) {
  std::map<size_t, std::vector<Times>> by_pair;
  for (int process = 0; process < processes; ++process) {
    QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<Clockwork> clockwork, StartClockwork());
    for (const auto& [i, candidates] : unions) {
      absl::StatusOr<Times> us = clockwork->Time(pairs[i], candidates, window_s / processes);
      if (us.ok()) {
        by_pair[i].push_back(*std::move(us));
      } else {
        std::printf("  %s: %s\n", pairs[i].name.c_str(), us.status().ToString().c_str());
      }
    }
  }
  std::map<size_t, Times> reference;
  for (const auto& [i, runs] : by_pair) {
    const auto count = static_cast<double>(runs.size());
    std::map<Candidate, std::pair<double, double>> range;  // of times relative to the run's mean
    for (const Times& run : runs) {
      double mean = 0;
      for (const auto& [candidate, us] : run) mean += us / static_cast<double>(run.size());
      for (const auto& [candidate, us] : run) {
        reference[i][candidate] += us / count;
        const auto [entry, inserted] = range.try_emplace(candidate, us / mean, us / mean);
        entry->second.first = std::min(entry->second.first, us / mean);
        entry->second.second = std::max(entry->second.second, us / mean);
      }
    }
    for (const auto& [candidate, ends] : range) disagreement->push_back(ends.second / ends.first);
  }
  return reference;
}

}  // namespace qgemm
