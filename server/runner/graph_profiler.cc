#include "server/runner/graph_profiler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/cuda/launch.h"
#include "server/launch_spec_proto.h"
#include "server/proto_convert.h"
#include "server/runner/frame_server.h"
#include "server/runner/stopping_rule.h"
#include "server/runner/verifier.h"

namespace qgemm {
namespace {

// Between the first and the second half of the rounds; more than that and the clocks moved.
constexpr double kMaxProbeDrift = 0.02;
// Of all finalists' placements.
constexpr int64_t kMaxRaceWorkspaceBytes = int64_t{512} << 20;

bool ProbeDrifted(const std::vector<double>& probe_us) {
  const auto middle = probe_us.begin() + static_cast<int64_t>(probe_us.size() / 2);
  const double before = Summarize({probe_us.begin(), middle}).median;
  const double after = Summarize({middle, probe_us.end()}).median;
  return std::fabs(after - before) > kMaxProbeDrift * before;
}

}  // namespace

internal::Timing MakeTiming(const std::vector<double>& us, const Center& center, bool low_confidence) {
  const SampleSummary summary = Summarize(us);
  internal::Timing timing;
  timing.set_median_us(summary.median);
  timing.set_spread_us(summary.spread);
  timing.set_samples(static_cast<int>(us.size()));
  timing.set_low_confidence(low_confidence);
  timing.set_center_us(center.us);
  timing.set_error_us(center.error);
  return timing;
}

GraphProfiler::GraphProfiler(internal::RunnerHello hello, std::unique_ptr<Device> device,
                             std::unique_ptr<DisturbanceMonitor> monitor, Clock* clock)
    : hello_(std::move(hello)),
      device_(std::move(device)),
      monitor_(std::move(monitor)),
      clock_(clock),
      data_(device_.get()) {}

absl::StatusOr<internal::PrepareReply> GraphProfiler::Prepare(const internal::PrepareRequest& request) {
  if (!request.support_cubin().empty()) {
    QGEMM_ASSIGN_OR_RETURN(std::unique_ptr<SupportLibrary> loaded,
                           SupportLibrary::Load(device_.get(), request.support_cubin()));
    // Before the library goes whose kernel marked them until now.
    QGEMM_RETURN_IF_ERROR(host_timed_ ? device_->MarkEventsBy(nullptr) : loaded->MarkEvents());
    support_ = std::move(loaded);
  }
  if (support_ == nullptr) return absl::FailedPreconditionError("the support kernels were not sent");
  QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(request.problem()));
  QGEMM_RETURN_IF_ERROR(ValidateRows(request.m()));
  QGEMM_RETURN_IF_ERROR(data_.Prepare(*support_, problem, request.m(), request.seed()));

  // The reference compared with itself is not needed; its norm is, and an output of poison leaves it as it
  // is.
  QGEMM_RETURN_IF_ERROR(support_->ClearResults());
  QGEMM_RETURN_IF_ERROR(
      device_->SetBytes(data_.output().address(), SupportLibrary::kPoison, data_.output().bytes()));
  QGEMM_RETURN_IF_ERROR(support_->Compare(data_.output().address(), data_.reference(), data_.m(),
                                          problem.y_columns(), data_.ldy(), problem.signature.out));
  QGEMM_ASSIGN_OR_RETURN(const SupportLibrary::Results results, support_->ReadResults());
  internal::PrepareReply reply;
  reply.set_reference_norm(results.comparison.reference_norm);
  return reply;
}

absl::StatusOr<DeviceModule*> GraphProfiler::ModuleFor(const internal::Candidate& candidate,
                                                       absl::Status* load_error) {
  const std::string& sha256 = candidate.kernel_sha256();
  const auto loaded = std::find_if(modules_.begin(), modules_.end(),
                                   [&](const LoadedModule& module) { return module.sha256 == sha256; });
  if (loaded != modules_.end()) {
    modules_.splice(modules_.begin(), modules_, loaded);
    return modules_.front().module.get();
  }
  if (candidate.cubin().empty()) {
    return absl::FailedPreconditionError(absl::StrCat("kernel ", sha256, " was not sent to this process"));
  }
  if (Sha256Hex(candidate.cubin()) != sha256) {
    return absl::InvalidArgumentError(absl::StrCat("the bytes of kernel ", sha256, " have another SHA-256"));
  }
  absl::StatusOr<std::unique_ptr<DeviceModule>> module = device_->Load(candidate.cubin());
  if (!module.ok()) {
    *load_error = module.status();
    return module.status();
  }
  modules_.push_front({sha256, *std::move(module)});
  if (modules_.size() > kRunnerModules) modules_.pop_back();
  return modules_.front().module.get();
}

absl::StatusOr<std::unique_ptr<GraphProfiler::Ready>> GraphProfiler::MakeReady(
    const internal::Candidate& candidate, LaunchSpec spec, absl::Span<const uint64_t> workspaces,
    absl::Status* load_error) {
  auto ready = std::make_unique<Ready>();
  QGEMM_ASSIGN_OR_RETURN(DeviceModule* const module, ModuleFor(candidate, load_error));
  absl::StatusOr<std::unique_ptr<DeviceKernel>> kernel = module->Find(spec.entry, spec.dynamic_smem_bytes);
  if (!kernel.ok()) {
    *load_error = kernel.status();
    return kernel.status();
  }
  ready->kernel = *std::move(kernel);
  for (size_t placement = 0; placement < workspaces.size(); ++placement) {
    LaunchOperands operands = data_.Operands(static_cast<int>(placement));
    operands.workspace = workspaces[placement];
    QGEMM_ASSIGN_OR_RETURN(ArgumentBlock arguments, MarshalArguments(spec, operands));
    QGEMM_RETURN_IF_ERROR(
        FillTensorMaps(arguments, [this](const TensorMapShape& shape, absl::Span<std::byte> out) {
          return device_->EncodeTensorMap(shape, out);
        }));
    ready->arguments.push_back(std::move(arguments));
  }
  for (ArgumentBlock& arguments : ready->arguments) ready->params.push_back(arguments.Params());
  ready->spec = std::move(spec);
  return ready;
}

PlacedKernel GraphProfiler::Launcher(const Ready& ready) {
  return {static_cast<int>(ready.params.size()), [this, &ready](int placement) {
            return device_->Launch(*ready.kernel, ready.spec.Grid(data_.m()), ready.spec.block_threads,
                                   ready.spec.dynamic_smem_bytes, ready.params[placement],
                                   ready.spec.cluster_z);
          }};
}

Enqueue GraphProfiler::Flusher() {
  return [this]() -> absl::Status {
    QGEMM_RETURN_IF_ERROR(support_->Flush());
    // Waiting is refused inside a capture: no graph is made, and every launch is the host's.
    return host_timed_ ? device_->Synchronize() : absl::OkStatus();
  };
}

void GraphProfiler::LogSamples(const std::string& name, const char* phase, const std::vector<double>& us) {
  if (sample_log_ == nullptr) return;
  *sample_log_ << "{\"candidate\": \"" << name << "\", \"n\": " << data_.problem().n
               << ", \"k\": " << data_.problem().k << ", \"m\": " << data_.m() << ", \"phase\": \"" << phase
               << "\", \"us\": ["
               << absl::StrJoin(us, ", ",
                                [](std::string* out, double one) { absl::StrAppendFormat(out, "%.3f", one); })
               << "]}" << std::endl;
}

absl::StatusOr<internal::Timing> GraphProfiler::TimeScreened(const Ready& ready, const std::string& name,
                                                             double budget_ms, double hopeless_us) {
  const Enqueue flush = Flusher();
  ColdSamples samples;
  std::string disturbance;
  // Once more when something disturbed the first try, unless it is what disturbed the last candidate already.
  for (int attempt = 0; attempt < 2; ++attempt) {
    QGEMM_ASSIGN_OR_RETURN(samples,
                           SampleCold(*device_, flush, Launcher(ready), budget_ms * 1e3, hopeless_us));
    disturbance = monitor_->Check();
    if (disturbance.empty() || disturbed_) break;
  }
  disturbed_ = !disturbance.empty();
  LogSamples(name, "screen", samples.us);
  return MakeTiming(samples.us, CenterOf(samples.us), !samples.in_graph || !disturbance.empty());
}

absl::StatusOr<internal::ScreenReply> GraphProfiler::Screen(const internal::ScreenRequest& request) {
  if (!data_.prepared()) return absl::FailedPreconditionError("no problem was prepared");
  QGEMM_ASSIGN_OR_RETURN(LaunchSpec spec, LaunchSpecFromProto(request.candidate().launch()));
  const int64_t workspace_bytes = spec.WorkspaceBytes(data_.m());
  internal::ScreenReply reply;
  if (workspace_bytes > 0) {
    const absl::Status reserved = data_.ReserveWorkspace(workspace_bytes);
    if (absl::IsResourceExhausted(reserved)) {
      reply.set_failure(internal::CANDIDATE_FAILURE_LAUNCH);
      reply.set_reason(absl::StrCat("its workspace does not fit: ", std::string(reserved.message())));
      return reply;
    }
    QGEMM_RETURN_IF_ERROR(reserved);
  }

  // One after the other on one stream: placements share the workspace that the verifier watches.
  const std::vector<uint64_t> workspaces(std::min(data_.placements(), kScreenBatch),
                                         workspace_bytes > 0 ? data_.workspace().address() : 0);
  absl::Status load_error;
  const absl::StatusOr<std::unique_ptr<Ready>> ready =
      MakeReady(request.candidate(), std::move(spec), workspaces, &load_error);
  if (!ready.ok()) {
    if (load_error.ok() || absl::IsAborted(load_error)) return ready.status();
    reply.set_failure(internal::CANDIDATE_FAILURE_LOAD);
    reply.set_reason(std::string(load_error.message()));
    return reply;
  }
  const PlacedKernel launcher = Launcher(**ready);
  QGEMM_ASSIGN_OR_RETURN(const Verdict verdict,
                         VerifyCandidate(*device_, *support_, data_, (*ready)->spec, request.tolerance(),
                                         [&launcher] { return launcher.Put(0); }));
  reply.set_failure(verdict.failure);
  reply.set_reason(verdict.reason);
  reply.set_relative_error(verdict.relative_error);
  if (verdict.ok() && request.time_budget_ms() > 0) {
    const double hopeless_us =
        request.hopeless_us() > 0 ? request.hopeless_us() : std::numeric_limits<double>::infinity();
    QGEMM_ASSIGN_OR_RETURN(*reply.mutable_timing(), TimeScreened(**ready, request.candidate().name(),
                                                                 request.time_budget_ms(), hopeless_us));
  }
  return reply;
}

absl::StatusOr<internal::FinalsReply> GraphProfiler::Finals(const internal::FinalsRequest& request) {
  internal::FinalsReply reply;
  if (request.candidates().empty()) return reply;
  if (!data_.prepared()) return absl::FailedPreconditionError("no problem was prepared");
  // Each finalist has workspaces of its own: one's partials must not lie where the next one's tickets are.
  // Each of its placements has one too, unless that is too much memory.
  std::vector<LaunchSpec> specs;
  std::vector<int64_t> strides;
  int64_t one_placement = 0;
  for (const internal::Candidate& candidate : request.candidates()) {
    QGEMM_ASSIGN_OR_RETURN(LaunchSpec spec, LaunchSpecFromProto(candidate.launch()));
    strides.push_back((spec.WorkspaceBytes(data_.m()) + 255) / 256 * 256);
    one_placement += strides.back();
    specs.push_back(std::move(spec));
  }
  const int placements = data_.placements();
  const int copies = one_placement * placements <= kMaxRaceWorkspaceBytes ? placements : 1;
  if (one_placement > 0) QGEMM_RETURN_IF_ERROR(data_.ReserveWorkspace(one_placement * copies));
  std::vector<std::unique_ptr<Ready>> finalists;
  std::vector<PlacedKernel> kernels;
  int64_t offset = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    std::vector<uint64_t> workspaces(placements, 0);
    for (int copy = 0; copy < copies && strides[i] > 0; ++copy, offset += strides[i]) {
      workspaces[copy] = data_.workspace().address() + offset;
      QGEMM_RETURN_IF_ERROR(device_->SetBytes(workspaces[copy], 0, specs[i].TicketBytes(data_.m())));
    }
    if (copies == 1) std::fill(workspaces.begin(), workspaces.end(), workspaces[0]);
    absl::Status load_error;
    QGEMM_ASSIGN_OR_RETURN(std::unique_ptr<Ready> ready, MakeReady(request.candidates(static_cast<int>(i)),
                                                                   specs[i], workspaces, &load_error));
    finalists.push_back(std::move(ready));
    kernels.push_back(Launcher(*finalists.back()));
  }
  const Enqueue flush = Flusher();
  const Enqueue probe = [this] { return support_->Probe(); };
  RoundsOptions options;
  options.budget = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double, std::milli>(request.time_budget_ms()));
  options.tie_band = request.tie_band();
  options.rewarm = rewarm_ && !host_timed_;
  Rounds rounds;
  bool disturbed = false;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const bool before = !monitor_->Check().empty();
    QGEMM_ASSIGN_OR_RETURN(rounds, RunRounds(*device_, flush, kernels, probe, options, *clock_));
    disturbed = before || !monitor_->Check().empty() || ProbeDrifted(rounds.probe_us);
    if (!disturbed) break;
  }
  const std::vector<Center> centers = rounds.Centers();
  for (size_t i = 0; i < centers.size(); ++i) {
    LogSamples(request.candidates(static_cast<int>(i)).name(), "final", rounds.us[i]);
    *reply.add_timings() = MakeTiming(rounds.us[i], centers[i], disturbed || !rounds.in_graph);
  }
  reply.set_rounds(static_cast<int>(rounds.probe_us.size()));
  return reply;
}

absl::StatusOr<internal::StatusReply> GraphProfiler::Status() {
  QGEMM_ASSIGN_OR_RETURN(const Device::Memory memory, device_->MemoryInfo());
  internal::StatusReply reply;
  reply.set_memory_total_bytes(memory.total_bytes);
  reply.set_memory_free_bytes(memory.free_bytes);
  return reply;
}

}  // namespace qgemm
