#include "server/gpu_process.h"

#include <signal.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/launch_spec_proto.h"
#include "server/proto_convert.h"
#include "server/runner/frame_server.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

using internal::RunnerReply;
using internal::RunnerRequest;

// Half of what the process keeps: it never dropped one of these.
constexpr size_t kAssumedLoaded = kRunnerModules / 2;
constexpr uint64_t kDataSeed = 1;
// How long a process whose channel closed gets to end by itself, so that its exit status can be told.
constexpr Duration kExitPatience = std::chrono::seconds(5);

// How often a waiting call looks whether it is withdrawn.
constexpr Duration kWithdrawnPoll = std::chrono::milliseconds(50);

Duration ToChrono(absl::Duration duration) { return absl::ToChronoNanoseconds(duration); }

}  // namespace

GpuProcess::GpuProcess(Spawner* spawner, GpuProcessOptions options, Clock* clock)
    : spawner_(spawner), options_(std::move(options)), clock_(clock), backoff_(options_.first_backoff) {}

GpuProcess::~GpuProcess() { Stop(); }

int GpuProcess::pid() const { return child_ != nullptr ? child_->pid() : 0; }

void GpuProcess::Stop() {
  if (child_ == nullptr) return;
  channel_.reset();
  child_->KillGroup();
  // The GPU's memory is free only when the process is gone.
  static_cast<void>(child_->Wait(RealClock().Now() + kExitPatience));
  child_.reset();
  support_sent_ = false;
  prepared_sent_ = false;
  kernels_sent_.clear();
}

absl::Status GpuProcess::EnsureStarted() {
  if (child_ != nullptr) return absl::OkStatus();
  if (!start_error_.ok() && clock_->Now() < next_start_) return start_error_;
  start_error_ = Start();
  if (start_error_.ok()) {
    backoff_ = options_.first_backoff;
    return absl::OkStatus();
  }
  Stop();
  next_start_ = clock_->Now() + backoff_;
  backoff_ = std::min(backoff_ * 2, options_.max_backoff);
  start_error_ = absl::UnavailableError(absl::StrCat("the GPU cannot be used: ", start_error_.message()));
  spdlog::warn("{}", std::string(start_error_.message()));
  return start_error_;
}

absl::Status GpuProcess::Start() {
  SpawnOptions spawn;
  spawn.path = options_.program;
  if (spawn.path.empty()) {
    QGEMM_ASSIGN_OR_RETURN(const std::string folder, ProgramFolder());
    spawn.path = folder + "/qgemm-time";
  }
  if (!options_.device.empty()) spawn.args = {"--device", options_.device};
  if (options_.host_timed) spawn.args.push_back("--host-timed");
  if (!options_.rewarm) spawn.args.push_back("--no-rewarm");
  if (options_.placements > 0) {
    spawn.args.insert(spawn.args.end(), {"--placements", std::to_string(options_.placements)});
  }
  if (options_.memory_limit_bytes > 0) {
    spawn.args.insert(spawn.args.end(), {"--memory-limit", std::to_string(options_.memory_limit_bytes)});
  }
  if (!options_.sample_log.empty()) {
    spawn.args.insert(spawn.args.end(), {"--sample-log", options_.sample_log});
  }
  spawn.env = options_.env;
  spawn.cpus = options_.cpus;
  ++starts_;
  QGEMM_ASSIGN_OR_RETURN(child_, spawner_->Spawn(spawn));
  channel_ = std::make_unique<FramedStream>(child_->TakeChannel());
  internal::RunnerHello hello;
  const absl::Status received = channel_->Read(&hello, RealClock().Now() + options_.start_deadline);
  if (!received.ok()) {
    return absl::UnavailableError(absl::StrCat("qgemm-time said nothing: ", received.message()));
  }
  if (!hello.error().empty()) return absl::UnavailableError(hello.error());
  if (hello.protocol_version() != kRunnerProtocolVersion) {
    return absl::UnavailableError(absl::StrCat("qgemm-time speaks protocol ", hello.protocol_version(),
                                               "; this daemon needs ", kRunnerProtocolVersion));
  }
  info_.device = hello.device();
  info_.uuid = hello.uuid();
  info_.driver_version = hello.driver_version();
  info_.memory_total_bytes = hello.memory_total_bytes();
  info_.memory_free_bytes = hello.memory_free_bytes();
  info_.max_dynamic_smem_bytes = hello.max_dynamic_smem_bytes();
  spdlog::info("qgemm-time {} holds {} ({})", child_->pid(), info_.device.product_name(), info_.uuid);
  if (on_start_ != nullptr) on_start_(info_);
  return absl::OkStatus();
}

GpuProcess::Loss GpuProcess::EndAfter(const absl::Status& channel_error) {
  Loss loss;
  if (absl::IsDeadlineExceeded(channel_error)) {
    loss = {internal::CANDIDATE_FAILURE_HANG, "did not end before its deadline; its process was killed"};
  } else {
    const absl::StatusOr<ExitStatus> ended = child_->Wait(RealClock().Now() + kExitPatience);
    loss = {internal::CANDIDATE_FAILURE_LAUNCH,
            absl::StrCat("the GPU process ended: ",
                         ended.ok() ? ended->Describe() : std::string(ended.status().message()))};
    loss.killed_by_others =
        ended.ok() && ended->signaled && (ended->signal == SIGKILL || ended->signal == SIGTERM);
  }
  Stop();
  return loss;
}

absl::Status GpuProcess::Receive(RunnerReply* reply, TimePoint deadline) {
  if (withdrawn_ == nullptr) return channel_->Read(reply, deadline);
  std::optional<TimePoint> withdrawn_at;
  while (true) {
    const TimePoint next = std::min(deadline, RealClock().Now() + kWithdrawnPoll);
    absl::Status status = channel_->Read(reply, next);
    if (!absl::IsDeadlineExceeded(status) || next == deadline) return status;
    if (!withdrawn_()) continue;
    const TimePoint now = RealClock().Now();
    if (!withdrawn_at.has_value()) withdrawn_at = now;
    if (now - *withdrawn_at >= options_.withdrawn_grace) {
      return absl::CancelledError("nobody waits for this any more");
    }
  }
}

absl::StatusOr<RunnerReply> GpuProcess::Exchange(RunnerRequest request, Duration limit,
                                                 std::optional<Loss>* loss) {
  loss->reset();
  request.set_id(next_id_++);
  const TimePoint deadline = RealClock().Now() + limit;
  RunnerReply reply;
  absl::Status status = channel_->Write(request, deadline);
  if (absl::IsInvalidArgument(status)) return status;  // too large for a frame; nothing was sent
  if (status.ok()) status = Receive(&reply, deadline);
  if (absl::IsCancelled(status)) {
    Stop();
    spdlog::info("the GPU process was killed: nobody waits for what it ran");
    return status;
  }
  if (status.ok() && reply.id() != request.id()) {
    status =
        absl::DataLossError(absl::StrCat("a reply to request ", reply.id(), " instead of ", request.id()));
  }
  if (!status.ok()) {
    *loss = EndAfter(status);
    spdlog::warn("GPU process lost: {}", (*loss)->reason);
    return absl::UnavailableError((*loss)->reason);
  }
  busy_microseconds_ += static_cast<int64_t>(reply.gpu_busy_ms() * 1e3);
  if (reply.gpu_lost()) {
    *loss = Loss{internal::CANDIDATE_FAILURE_LAUNCH, reply.error()};
    spdlog::warn("GPU context lost: {}", reply.error());
    Stop();
    return absl::UnavailableError(reply.error());
  }
  if (!reply.error().empty()) {
    const auto code = static_cast<absl::StatusCode>(reply.code());
    return absl::Status(code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : code, reply.error());
  }
  return reply;
}

absl::StatusOr<GpuInfo> GpuProcess::Describe() {
  QGEMM_RETURN_IF_ERROR(EnsureStarted());
  RunnerRequest request;
  request.mutable_status();
  std::optional<Loss> loss;
  QGEMM_ASSIGN_OR_RETURN(const RunnerReply reply, Exchange(request, options_.run_deadline, &loss));
  info_.memory_free_bytes = reply.status().memory_free_bytes();
  return info_;
}

void GpuProcess::SetSupportKernels(std::string cubin) {
  if (cubin == support_cubin_) return;
  support_cubin_ = std::move(cubin);
  support_sent_ = false;
  prepared_sent_ = false;
}

absl::Status GpuProcess::Prepare(const Problem& problem, int64_t m) {
  prepared_ = Prepared{problem, m};
  prepared_sent_ = false;
  return EnsurePrepared();
}

absl::Status GpuProcess::EnsurePrepared() {
  if (!prepared_) return absl::FailedPreconditionError("no problem was prepared on the GPU");
  // A process can die between two requests; that is noticed here and costs one more start.
  for (int attempt = 0;; ++attempt) {
    QGEMM_RETURN_IF_ERROR(EnsureStarted());
    if (prepared_sent_) return absl::OkStatus();
    RunnerRequest request;
    *request.mutable_prepare()->mutable_problem() = ProblemToProto(prepared_->problem);
    request.mutable_prepare()->set_m(prepared_->m);
    request.mutable_prepare()->set_seed(kDataSeed);
    if (!support_sent_) request.mutable_prepare()->set_support_cubin(support_cubin_);
    std::optional<Loss> loss;
    const auto reply = Exchange(std::move(request), options_.prepare_deadline, &loss);
    if (reply.ok()) {
      support_sent_ = true;
      prepared_sent_ = true;
      return absl::OkStatus();
    }
    if (!loss || attempt == 1) return reply.status();
  }
}

internal::Candidate GpuProcess::ToProto(const GpuCandidate& candidate) {
  internal::Candidate proto;
  proto.set_name(candidate.name);
  proto.set_kernel_sha256(candidate.kernel_sha256);
  *proto.mutable_launch() = LaunchSpecToProto(candidate.launch);
  const auto sent = std::find(kernels_sent_.begin(), kernels_sent_.end(), candidate.kernel_sha256);
  if (sent != kernels_sent_.end()) {
    kernels_sent_.splice(kernels_sent_.begin(), kernels_sent_, sent);
    return proto;
  }
  proto.set_cubin(*candidate.cubin);
  kernels_sent_.push_front(candidate.kernel_sha256);
  if (kernels_sent_.size() > kAssumedLoaded) kernels_sent_.pop_back();
  return proto;
}

absl::StatusOr<internal::ScreenReply> GpuProcess::Screen(const GpuCandidate& candidate, double tolerance,
                                                         absl::Duration time_budget) {
  for (int attempt = 0;; ++attempt) {
    QGEMM_RETURN_IF_ERROR(EnsurePrepared());
    RunnerRequest request;
    *request.mutable_screen()->mutable_candidate() = ToProto(candidate);
    request.mutable_screen()->set_tolerance(tolerance);
    request.mutable_screen()->set_time_budget_ms(absl::ToDoubleMilliseconds(time_budget));
    request.mutable_screen()->set_hopeless_us(candidate.hopeless_us);
    std::optional<Loss> loss;
    auto reply = Exchange(std::move(request), options_.run_deadline + 2 * ToChrono(time_budget), &loss);
    if (reply.ok()) return std::move(*reply->mutable_screen());
    if (!loss) {
      // It may or may not have loaded the kernel: send it again next time.
      kernels_sent_.remove(candidate.kernel_sha256);
      return reply.status();
    }
    // Is it the GPU that is gone, or did this candidate take its process down?
    QGEMM_RETURN_IF_ERROR(EnsurePrepared());
    if (loss->killed_by_others && attempt == 0) continue;
    spdlog::warn("{} rejected: {}", candidate.name, loss->reason);
    internal::ScreenReply rejected;
    rejected.set_failure(loss->failure);
    rejected.set_reason(loss->reason);
    rejected.set_process_lost(true);
    return rejected;
  }
}

absl::StatusOr<std::vector<internal::Timing>> GpuProcess::Finals(const std::vector<GpuCandidate>& candidates,
                                                                 absl::Duration time_budget,
                                                                 double tie_band) {
  for (int attempt = 0;; ++attempt) {
    QGEMM_RETURN_IF_ERROR(EnsurePrepared());
    RunnerRequest request;
    for (const GpuCandidate& candidate : candidates) {
      *request.mutable_finals()->add_candidates() = ToProto(candidate);
    }
    request.mutable_finals()->set_time_budget_ms(absl::ToDoubleMilliseconds(time_budget));
    request.mutable_finals()->set_tie_band(tie_band);
    std::optional<Loss> loss;
    auto reply = Exchange(std::move(request), options_.run_deadline + 2 * ToChrono(time_budget), &loss);
    if (reply.ok()) {
      const auto& timings = reply->finals().timings();
      if (timings.size() != static_cast<int>(candidates.size())) {
        return absl::InternalError(absl::StrCat("qgemm-time answered ", timings.size(), " timings for ",
                                                candidates.size(), " finalists"));
      }
      return std::vector<internal::Timing>(timings.begin(), timings.end());
    }
    if (!loss) {
      kernels_sent_.clear();
      return reply.status();
    }
    if (attempt == 1) return reply.status();
  }
}

}  // namespace qgemm
