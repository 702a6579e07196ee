#include "tests/fakes/simulated_profiler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/packing.h"
#include "kernels/reference_gemm.h"
#include "server/launch_spec_proto.h"
#include "server/proto_convert.h"
#include "server/runner/frame_server.h"

namespace qgemm {
namespace {

constexpr const char* kBehaviours[] = {"CRASH",          "STICKY",        "HANG", "WRONG",
                                       "NOT_REPEATABLE", "OUT_OF_BOUNDS", "LOAD"};

std::string Setting(const std::string& name) {
  const char* value = std::getenv(("QGEMM_SIMULATED_" + name).c_str());
  return value != nullptr ? value : "";
}

// In [0, 1), the same for the same text everywhere.
double UnitHash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  hash ^= hash >> 29;
  return static_cast<double>(hash % 1000003) / 1000003.0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SimulatedProfiler>> SimulatedProfiler::FromEnvironment() {
  const std::string name = Setting("DEVICE");
  QGEMM_ASSIGN_OR_RETURN(DeviceProfile device, FindDeviceProfile(name.empty() ? "h200" : name));
  std::unique_ptr<SimulatedProfiler> profiler(new SimulatedProfiler(std::move(device)));
  profiler->no_gpu_ = Setting("NO_GPU");
  if (const std::string file = Setting("DRIVER_FILE"); !file.empty()) {
    std::ifstream stream(file);
    std::getline(stream, profiler->driver_);
  }
  const std::string screen_ms = Setting("SCREEN_MS");
  if (!screen_ms.empty() && !absl::SimpleAtoi(screen_ms, &profiler->screen_ms_)) {
    return absl::InvalidArgumentError(absl::StrCat("QGEMM_SIMULATED_SCREEN_MS is '", screen_ms, "'"));
  }
  for (const char* behaviour : kBehaviours) {
    const std::string expression = Setting(behaviour);
    if (expression.empty()) continue;
    try {
      profiler->behaviours_.emplace(behaviour, std::regex(expression));
    } catch (const std::regex_error& error) {
      return absl::InvalidArgumentError(
          absl::StrCat("QGEMM_SIMULATED_", behaviour, " is '", expression, "': ", error.what()));
    }
  }
  return profiler;
}

bool SimulatedProfiler::Matches(const std::string& behaviour, const std::string& name) const {
  const auto found = behaviours_.find(behaviour);
  return found != behaviours_.end() && std::regex_search(name, found->second);
}

internal::RunnerHello SimulatedProfiler::Hello() {
  internal::RunnerHello hello;
  hello.set_protocol_version(kRunnerProtocolVersion);
  hello.set_error(no_gpu_);
  if (!no_gpu_.empty()) return hello;
  v1::DeviceClass* device = hello.mutable_device();
  device->set_product_name(device_.product_name);
  device->set_compute_major(device_.compute_major);
  device->set_compute_minor(device_.compute_minor);
  device->set_sm_count(device_.sm_count);
  device->set_l2_bytes(device_.l2_bytes);
  device->set_memory_gib(device_.memory_gib);
  hello.set_uuid("GPU-51300000-0000-4000-8000-000000000001");
  hello.set_driver_version(driver_);
  hello.set_memory_total_bytes(int64_t{device_.memory_gib} << 30);
  hello.set_memory_free_bytes(int64_t{device_.memory_gib} << 30);
  hello.set_max_dynamic_smem_bytes(device_.max_smem_per_block);
  return hello;
}

absl::StatusOr<internal::PrepareReply> SimulatedProfiler::Prepare(const internal::PrepareRequest& request) {
  QGEMM_ASSIGN_OR_RETURN(problem_, ProblemFromProto(request.problem()));
  if (!request.support_cubin().empty()) has_support_kernels_ = true;
  if (!has_support_kernels_) return absl::FailedPreconditionError("the support kernels were not sent");
  m_ = request.m();
  QGEMM_RETURN_IF_ERROR(ValidateRows(m_));
  prepared_ = true;
  internal::PrepareReply reply;
  reply.set_reference_norm(std::sqrt(static_cast<double>(m_ * problem_.n)));
  return reply;
}

absl::Status SimulatedProfiler::CheckLoaded(const internal::Candidate& candidate) {
  if (!prepared_) return absl::FailedPreconditionError("no problem was prepared");
  if (!candidate.cubin().empty()) {
    if (Sha256Hex(candidate.cubin()) != candidate.kernel_sha256()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the bytes of kernel ", candidate.kernel_sha256(), " have another SHA-256"));
    }
    loaded_[candidate.kernel_sha256()] = true;
  }
  if (!loaded_.contains(candidate.kernel_sha256())) {
    return absl::FailedPreconditionError(
        absl::StrCat("kernel ", candidate.kernel_sha256(), " was not sent to this process"));
  }
  return absl::OkStatus();
}

absl::StatusOr<internal::Timing> SimulatedProfiler::TimingOf(const internal::Candidate& candidate) const {
  QGEMM_ASSIGN_OR_RETURN(const LaunchSpec spec, LaunchSpecFromProto(candidate.launch()));
  const Dim3 grid = spec.Grid(m_);
  const double blocks = static_cast<double>(grid.x * grid.y * grid.z);
  const int by_smem = device_.max_smem_per_sm / (spec.dynamic_smem_bytes + 1024);
  const int by_threads = device_.max_threads_per_sm / spec.block_threads;
  const double resident = std::max(1, std::min(by_smem, by_threads)) * static_cast<double>(device_.sm_count);
  const double waves = blocks / resident;
  const double k = static_cast<double>(problem_.k);
  const PackedSizes packed = PackedSizesFor(problem_.n, problem_.k, problem_.signature.format);
  const double weight_bytes =
      static_cast<double>(packed.weight_bytes + packed.scale_bytes + packed.zero_bytes + packed.step_bytes);
  const double memory_us = weight_bytes / (device_.dram_gb_per_s * 1e3);
  const double rows = static_cast<double>(grid.x * spec.tile_m);
  const double mma_us = 2 * rows * static_cast<double>(problem_.n) * k / (device_.mma_tflops * 1e6);
  // Too few threads in flight do not use the memory system.
  const double in_flight =
      std::min(1.0, std::min(waves, 1.0) * resident * spec.block_threads / (512.0 * device_.sm_count));
  const double tail = waves > 1 ? std::ceil(waves) / waves : 1;
  const double reduction_us =
      grid.z > 1 ? 1.5 + static_cast<double>(grid.z) * 8e-6 * static_cast<double>(m_ * problem_.n) : 0;
  const double config_noise = 1 + 0.04 * UnitHash(candidate.name());

  internal::Timing timing;
  timing.set_median_us((2.5 + std::max(memory_us, mma_us) / std::max(in_flight, 0.05) * tail + reduction_us) *
                       config_noise);
  timing.set_spread_us(timing.median_us() * 0.004);
  timing.set_samples(20);
  return timing;
}

absl::StatusOr<internal::ScreenReply> SimulatedProfiler::Screen(const internal::ScreenRequest& request) {
  const internal::Candidate& candidate = request.candidate();
  QGEMM_RETURN_IF_ERROR(CheckLoaded(candidate));
  const std::string& name = candidate.name();
  if (screen_ms_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(screen_ms_));
  if (Matches("CRASH", name)) std::abort();
  if (Matches("STICKY", name)) return absl::AbortedError("simulated CUDA_ERROR_ILLEGAL_ADDRESS");
  if (Matches("HANG", name)) std::fprintf(stderr, "simulated hang of %s\n", name.c_str());
  while (Matches("HANG", name)) pause();

  internal::ScreenReply reply;
  const auto fail = [&](internal::CandidateFailure failure, const char* reason) {
    reply.set_failure(failure);
    reply.set_reason(reason);
    return reply;
  };
  if (Matches("LOAD", name)) {
    return fail(internal::CANDIDATE_FAILURE_LOAD, "simulated CUDA_ERROR_INVALID_IMAGE");
  }
  if (Matches("WRONG", name)) {
    reply.set_relative_error(0.5);
    return fail(internal::CANDIDATE_FAILURE_WRONG, "simulated wrong result: relative error 0.5");
  }
  if (Matches("NOT_REPEATABLE", name)) {
    return fail(internal::CANDIDATE_FAILURE_NOT_REPEATABLE, "simulated: a second run differed");
  }
  if (Matches("OUT_OF_BOUNDS", name)) {
    return fail(internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS, "simulated: a guard was touched");
  }
  reply.set_relative_error(ToleranceFor(problem_.signature) * (0.5 + 0.2 * UnitHash("error " + name)));
  if (request.time_budget_ms() > 0) {
    QGEMM_ASSIGN_OR_RETURN(*reply.mutable_timing(), TimingOf(candidate));
  }
  return reply;
}

absl::StatusOr<internal::FinalsReply> SimulatedProfiler::Finals(const internal::FinalsRequest& request) {
  internal::FinalsReply reply;
  for (const internal::Candidate& candidate : request.candidates()) {
    QGEMM_RETURN_IF_ERROR(CheckLoaded(candidate));
    QGEMM_ASSIGN_OR_RETURN(internal::Timing timing, TimingOf(candidate));
    timing.set_samples(60);
    *reply.add_timings() = timing;
  }
  reply.set_rounds(20);
  return reply;
}

absl::StatusOr<internal::StatusReply> SimulatedProfiler::Status() {
  internal::StatusReply reply;
  reply.set_memory_total_bytes(int64_t{device_.memory_gib} << 30);
  reply.set_memory_free_bytes(int64_t{device_.memory_gib} << 30);
  return reply;
}

}  // namespace qgemm
