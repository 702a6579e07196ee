#include "server/service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/device_profile.h"
#include "server/client_identity.h"
#include "server/grpc_status.h"
#include "server/retry_delay.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr size_t kChunkBytes = 256 << 10;
constexpr int kMaxKernelsPerCall = 1024;
// For the candidate that runs when the GPU is paused; a hang is killed soon after.
constexpr Duration kPausePatience = std::chrono::seconds(5);

class GrpcTuneStream : public TuneStream {
 public:
  GrpcTuneStream(grpc::ServerContext& context, grpc::ServerWriter<v1::TuneEvent>& writer)
      : context_(context), writer_(writer) {}

  void Send(const v1::TuneEvent& event) override { broken_ = broken_ || !writer_.Write(event); }
  bool Cancelled() override { return broken_ || context_.IsCancelled(); }

 private:
  grpc::ServerContext& context_;
  grpc::ServerWriter<v1::TuneEvent>& writer_;
  bool broken_ = false;
};

absl::Status WriteKernel(const internal::KernelRecord& record, bool ptx,
                         grpc::ServerWriter<v1::KernelChunk>& writer) {
  const std::string& bytes = ptx ? record.ptx() : record.cubin();
  if (ptx && bytes.empty()) {
    return absl::NotFoundError(absl::StrCat("kernel ", record.info().sha256(), " was stored without PTX"));
  }
  for (size_t offset = 0; offset == 0 || offset < bytes.size(); offset += kChunkBytes) {
    v1::KernelChunk chunk;
    chunk.set_sha256(record.info().sha256());
    if (offset == 0) {
      *chunk.mutable_info() = record.info();
      chunk.set_total_bytes(static_cast<int64_t>(bytes.size()));
    }
    chunk.set_offset(static_cast<int64_t>(offset));
    chunk.set_data(bytes.substr(offset, kChunkBytes));
    if (!writer.Write(chunk)) return absl::CancelledError("the client is gone");
  }
  return absl::OkStatus();
}

// For clients that retry by themselves: gRPC's own metadata for a server's wish.
void AddRetryDelay(const absl::Status& status, grpc::ServerContext& context) {
  const std::optional<Duration> delay = RetryDelayOf(status);
  if (!delay.has_value()) return;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*delay).count();
  context.AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(ms));
}

}  // namespace

grpc::Status TunerService::Tune(grpc::ServerContext* context, const v1::TuneRequest* request,
                                grpc::ServerWriter<v1::TuneEvent>* writer) {
  const absl::StatusOr<Caller> caller = AdmitWriter(access_, *context, "tune");
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  GrpcTuneStream stream(*context, *writer);
  const absl::Status status = tuner_.Tune(*request, caller->name, stream);
  grpc::Status result = ToGrpcStatus(status);
  if (!status.ok()) {
    spdlog::info("tune from {} ({}) failed: {}: {}", caller->name, context->peer(),
                 absl::StatusCodeToString(status.code()), result.error_message());
  }
  AddRetryDelay(status, *context);
  return result;
}

grpc::Status TunerService::ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                                    v1::ListJobsResponse* response) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  for (v1::Job& job : tuner_.jobs().List(*request)) *response->add_jobs() = std::move(job);
  return grpc::Status::OK;
}

grpc::Status TunerService::WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                                    grpc::ServerWriter<v1::TuneEvent>* writer) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  GrpcTuneStream stream(*context, *writer);
  const absl::Status status = tuner_.jobs().Watch(request->job_id(), caller->name, stream);
  AddRetryDelay(status, *context);
  return ToGrpcStatus(status);
}

grpc::Status TunerService::CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request,
                                     v1::CancelJobResponse* response) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  absl::StatusOr<v1::Job> job = tuner_.jobs().Cancel(request->job_id(), [&](const v1::Job& known) {
    return MayCancel(*caller, known.job_id(), known.client());
  });
  if (absl::IsPermissionDenied(job.status())) {
    spdlog::info("refused to {}: {}", context->peer(), std::string(job.status().message()));
  }
  if (!job.ok()) return ToGrpcStatus(job.status());
  if (job->state() == v1::JOB_STATE_CANCELLED) {
    spdlog::info("job {} is cancelled, says {}", request->job_id(), caller->name);
  }
  *response->mutable_job() = *std::move(job);
  return grpc::Status::OK;
}

grpc::Status TunerService::Lookup(grpc::ServerContext* context, const v1::LookupRequest* request,
                                  v1::LookupResponse* response) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const absl::StatusOr<std::string> bytes = tuner_.LookupBytes(*request);
  if (!bytes.ok()) return ToGrpcStatus(bytes.status());
  // What is serialized already goes into the reply as it is: protobuf does so with fields that it does not
  // know.
  v1::LookupResponse::GetReflection()->MutableUnknownFields(response)->ParseFromString(*bytes);
  return grpc::Status::OK;
}

grpc::Status TunerService::Estimate(grpc::ServerContext* context, const v1::TuneRequest* request,
                                    v1::TuneEstimate* response) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  absl::StatusOr<v1::TuneEstimate> estimate = tuner_.Estimate(*request);
  if (!estimate.ok()) return ToGrpcStatus(estimate.status());
  *response = *std::move(estimate);
  return grpc::Status::OK;
}

grpc::Status TunerService::Warm(grpc::ServerContext* context, const v1::WarmRequest* request,
                                grpc::ServerWriter<v1::WarmEvent>* writer) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  return ToGrpcStatus(tuner_.Warm(
      *request, [&](const v1::WarmEvent& event) { return !context->IsCancelled() && writer->Write(event); }));
}

grpc::Status TunerService::GetKernels(grpc::ServerContext* context, const v1::GetKernelsRequest* request,
                                      grpc::ServerWriter<v1::KernelChunk>* writer) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  if (request->sha256().empty() || request->sha256_size() > kMaxKernelsPerCall) {
    return ToGrpcStatus(absl::InvalidArgumentError(
        absl::StrCat("sha256 has ", request->sha256_size(), " entries; allowed: 1 .. ", kMaxKernelsPerCall)));
  }
  for (const std::string& sha256 : request->sha256()) {
    const bool hex = std::all_of(sha256.begin(), sha256.end(),
                                 [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
    if (sha256.size() != 64 || !hex) {
      return ToGrpcStatus(absl::InvalidArgumentError(
          absl::StrCat("sha256 is \"", sha256, "\"; allowed: 64 lower-case hexadecimal digits")));
    }
  }
  for (const std::string& sha256 : request->sha256()) {
    const absl::StatusOr<internal::KernelRecord> record = store_.GetKernelBySha256(sha256);
    if (absl::IsNotFound(record.status())) {
      return ToGrpcStatus(absl::NotFoundError(absl::StrCat("kernel ", sha256, " is not in the store")));
    }
    const absl::Status written =
        record.ok() ? WriteKernel(*record, request->ptx(), *writer) : record.status();
    if (!written.ok()) return ToGrpcStatus(written);
  }
  return grpc::Status::OK;
}

grpc::Status DeviceService::Describe(grpc::ServerContext* context, const v1::DescribeRequest* /*request*/,
                                     v1::DescribeResponse* response) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const std::optional<GpuInfo>& gpu = tuner_.targets().gpu();
  response->set_has_gpu(gpu.has_value());
  response->set_state(!gpu.has_value()                    ? "no GPU"
                      : gpu_ != nullptr && gpu_->paused() ? "paused"
                      : tuner_.gpu_lost()                 ? "lost"
                      : gpu_ != nullptr && !gpu_->held()  ? "released"
                                                          : "ready");
  if (gpu.has_value()) {
    *response->mutable_device() = gpu->device;
    response->set_uuid(gpu->uuid);
    response->set_driver_version(tuner_.targets().driver_version());
    response->set_gpu_memory_total_bytes(gpu->memory_total_bytes);
    response->set_gpu_memory_free_bytes(gpu->memory_free_bytes);
  }
  const absl::StatusOr<TuningTarget> target = tuner_.targets().Resolve("");
  if (!target.ok()) return ToGrpcStatus(target.status());
  response->set_target(target->name);
  response->set_arch(target->profile.arch);
  response->set_toolchain(tuner_.known_toolchain());
  response->set_compile_workers(compiler_.num_workers());
  for (const DeviceProfile& profile : DeviceProfiles()) response->add_known_targets(profile.name);
  response->set_server_version(server_version_);
  return grpc::Status::OK;
}

grpc::Status DeviceService::Pause(grpc::ServerContext* context, const v1::PauseRequest* /*request*/,
                                  v1::PauseResponse* /*response*/) {
  const absl::StatusOr<Caller> caller = AdmitAdmin(access_, *context, "device pause");
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  if (gpu_ == nullptr) return ToGrpcStatus(absl::FailedPreconditionError("this daemon has no GPU"));
  spdlog::info("the GPU is to be paused, says {}", caller->name);
  return ToGrpcStatus(gpu_->Pause(kPausePatience));
}

grpc::Status DeviceService::Resume(grpc::ServerContext* context, const v1::ResumeRequest* /*request*/,
                                   v1::ResumeResponse* /*response*/) {
  const absl::StatusOr<Caller> caller = AdmitAdmin(access_, *context, "device resume");
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  if (gpu_ == nullptr) return ToGrpcStatus(absl::FailedPreconditionError("this daemon has no GPU"));
  spdlog::info("the GPU is to be resumed, says {}", caller->name);
  return ToGrpcStatus(gpu_->Resume());
}

}  // namespace qgemm
