#include "client/qgemm/client.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/client_security.h"
#include "client/server_address.h"
#include "qgemm/v1/bench.grpc.pb.h"
#include "qgemm/v1/cache.grpc.pb.h"
#include "qgemm/v1/device.grpc.pb.h"
#include "qgemm/v1/tuner.grpc.pb.h"

namespace qgemm {
namespace {

// A lookup of 4096 keys answers with some 10 MB, more than gRPC's default of 4 MiB.
constexpr int kMaxReceiveBytes = 64 << 20;
// A cubin is some 100 KB; what announces more than this is no kernel.
constexpr int64_t kMaxKernelBytes = 256 << 20;

constexpr size_t kMaxClientIdBytes = 128;

// Longer than the daemon's shortest allowed interval (server/daemon.cc).
constexpr int kPingIntervalMs = 20'000;
constexpr int kPingTimeoutMs = 10'000;

// FailedPrecondition: the daemon does not know what the problem asks for, and left it out unsaid.
absl::Status CheckSameClass(const v1::Problem& asked, const v1::Pick& pick) {
  const auto is_int8 = [](const v1::Problem& problem) {
    return problem.act_quantization() == v1::ACTIVATION_QUANTIZATION_INT8;
  };
  if (is_int8(asked) == is_int8(pick.problem())) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the daemon answered ", asked.n(), "x", asked.k(), " with", is_int8(asked) ? "" : "out",
                   " int8 activations by a pick with", is_int8(asked) ? "out" : "",
                   ": it is of another version; `qgemmctl version` shows both"));
}

class GrpcClient final : public Client {
 public:
  // `parent`: null, or the client this one is derived from.
  GrpcClient(ClientOptions options, std::shared_ptr<grpc::Channel> channel, GrpcClient* parent)
      : options_(std::move(options)),
        parent_(parent),
        channel_(std::move(channel)),
        tuner_(v1::Tuner::NewStub(channel_)),
        cache_(v1::Cache::NewStub(channel_)),
        device_(v1::Device::NewStub(channel_)),
        bench_(v1::Bench::NewStub(channel_)) {
    if (parent_ == nullptr) return;
    MutexLock lock(parent_->mu_);
    parent_->derived_.insert(this);
    MutexLock own_lock(mu_);
    cancelled_ = parent_->cancelled_;
  }
  ~GrpcClient() override {
    if (parent_ == nullptr) return;
    MutexLock lock(parent_->mu_);
    parent_->derived_.erase(this);
  }

  const std::string& address() const override { return options_.server; }

  absl::StatusOr<v1::TuneSummary> Tune(const v1::TuneRequest& request,
                                       absl::FunctionRef<void(const v1::TuneEvent&)> on_event) override;
  absl::StatusOr<v1::TuneEstimate> Estimate(const v1::TuneRequest& request) override;
  absl::StatusOr<v1::WarmEvent> Warm(const v1::WarmRequest& request,
                                     absl::FunctionRef<void(const v1::WarmEvent&)> on_event) override;
  absl::StatusOr<v1::ExplainResponse> Explain(const v1::ExplainRequest& request) override;
  absl::StatusOr<std::string> TuneDetached(const v1::TuneRequest& request) override;
  absl::StatusOr<v1::TuneSummary> WatchJob(const std::string& job_id,
                                           absl::FunctionRef<void(const v1::TuneEvent&)> on_event) override;
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request) override;
  absl::StatusOr<v1::Job> CancelJob(const std::string& job_id) override;
  absl::StatusOr<v1::LookupResponse> Lookup(const v1::LookupRequest& request) override;
  absl::StatusOr<Kernel> GetKernel(const std::string& sha256) override;
  absl::StatusOr<std::string> GetPtx(const std::string& sha256) override;
  absl::StatusOr<v1::CacheStatsResponse> CacheStats() override;
  absl::Status CacheList(v1::CacheListRequest::What what,
                         absl::FunctionRef<void(const v1::CacheEntry&)> visit) override;
  absl::Status CacheList(const v1::CacheListRequest& request,
                         absl::FunctionRef<void(const v1::CacheEntry&)> visit) override;
  absl::StatusOr<v1::CacheDeleteResponse> CacheDelete(const v1::CacheSelection& selection) override;
  absl::StatusOr<v1::CachePinResponse> CachePin(const v1::CacheSelection& selection, bool unpin) override;
  absl::StatusOr<v1::CacheVerifyResponse> CacheVerify() override;
  absl::Status CacheExport(const v1::CacheSelection& selection,
                           absl::FunctionRef<absl::Status(absl::string_view)> write) override;
  absl::StatusOr<v1::CacheImportResponse> CacheImport(
      bool replace, absl::FunctionRef<absl::StatusOr<std::string>()> read) override;
  absl::StatusOr<v1::CacheBackupResponse> CacheBackup(const std::string& directory) override;
  absl::StatusOr<v1::DescribeResponse> Describe() override;
  absl::StatusOr<v1::CompareSourceSummary> CompareSource(
      const v1::CompareSourceRequest& request,
      absl::FunctionRef<void(const v1::CompareSourceEvent&)> on_event) override;
  absl::Status PauseDevice() override;
  absl::Status ResumeDevice() override;
  void Cancel() override;
  std::unique_ptr<Client> Derive(const ClientOptions& options) override;
  const ClientOptions& options() const override { return options_; }

 private:
  // One call: connects, and is among the cancellable calls while it lives.
  class Call {
   public:
    Call(GrpcClient& client, absl::Duration timeout) : Call(client, absl::Now() + timeout) {}
    Call(GrpcClient& client, absl::Time deadline) : client_(client) {
      if (deadline != absl::InfiniteFuture()) context_.set_deadline(absl::ToChronoTime(deadline));
      context_.AddMetadata("client_id", client_.options_.client_id);
      if (!client_.options_.token.empty()) {
        context_.AddMetadata("authorization", absl::StrCat("Bearer ", client_.options_.token));
      }
      MutexLock lock(client_.mu_);
      cancelled_ = client_.cancelled_;
      client_.running_.insert(&context_);
    }
    ~Call() {
      MutexLock lock(client_.mu_);
      client_.running_.erase(&context_);
    }

    absl::Status Start() {
      if (cancelled_) return absl::CancelledError("the client was cancelled");
      return client_.WaitForConnection(context_.deadline());
    }
    grpc::ClientContext* context() { return &context_; }

   private:
    GrpcClient& client_;
    grpc::ClientContext context_;
    bool cancelled_ = false;
  };

  template <typename Request, typename Response>
  absl::StatusOr<Response> LongCacheCall(grpc::Status (v1::Cache::Stub::*method)(grpc::ClientContext*,
                                                                                 const Request&, Response*),
                                         const Request& request);
  // Calls `attempt`, which answers a Status or a StatusOr, until it answers something else than Unavailable
  // or its time for retries is over.
  template <typename Attempt>
  auto Retry(absl::Duration timeout, const Attempt& attempt);
  // False when the client was cancelled meanwhile.
  bool Pause(absl::Duration duration);

  absl::Status WaitForConnection(std::chrono::system_clock::time_point deadline);
  // `error`: what gRPC says of it.
  absl::Status Unreachable(absl::string_view what, absl::string_view error) const;
  std::string ConnectionError();
  absl::Status FromGrpc(const grpc::Status& status) const;
  absl::StatusOr<v1::TuneSummary> ReadEvents(grpc::ClientReaderInterface<v1::TuneEvent>& reader,
                                             absl::FunctionRef<void(const v1::TuneEvent&)> on_event);
  // The streamed bytes of a kernel; they are complete, `info` is the kernel's.
  absl::StatusOr<std::string> ReadKernel(const std::string& sha256, bool ptx, v1::KernelInfo& info);
  // One attempt of each call.
  absl::StatusOr<v1::TuneSummary> TuneOnce(absl::Time deadline, const v1::TuneRequest& request,
                                           absl::FunctionRef<void(const v1::TuneEvent&)> on_event);
  absl::StatusOr<std::string> ReadKernelOnce(absl::Time deadline, const std::string& sha256, bool ptx,
                                             v1::KernelInfo& info);

  const ClientOptions options_;
  GrpcClient* const parent_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Tuner::Stub> tuner_;
  const std::unique_ptr<v1::Cache::Stub> cache_;
  const std::unique_ptr<v1::Device::Stub> device_;
  const std::unique_ptr<v1::Bench::Stub> bench_;

  Mutex mu_;  // taken after a parent's
  CondVar cancel_;
  std::set<GrpcClient*> derived_ QGEMM_GUARDED_BY(mu_);
  bool cancelled_ QGEMM_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> running_ QGEMM_GUARDED_BY(mu_);
};

absl::Status GrpcClient::Unreachable(absl::string_view what, absl::string_view error) const {
  const std::string hint = TlsHint(options_, error);
  return absl::UnavailableError(
      absl::StrCat(what, " qgemmd at ", options_.server,
                   hint.empty() ? ": start one with `qgemmd`, or set --server / QGEMM_SERVER" : hint));
}

// A channel does not tell why it cannot connect; a call over it does.
std::string GrpcClient::ConnectionError() {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  v1::DescribeResponse response;
  return device_->Describe(&context, v1::DescribeRequest(), &response).error_message();
}

// Tells a daemon that is not there (at once) and one that is wedged (after the connect timeout) from one that
// answers Unavailable, and leaves a call's own deadline to the call.
absl::Status GrpcClient::WaitForConnection(std::chrono::system_clock::time_point deadline) {
  constexpr auto kCancelLatency = std::chrono::milliseconds(50);
  const auto give_up = std::min(deadline, absl::ToChronoTime(absl::Now() + options_.connect_timeout));
  // A failure counts only once an attempt of this call was seen: the channel may still show an earlier one's.
  bool attempted = false;
  while (true) {
    const grpc_connectivity_state state = channel_->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && attempted) {
      return Unreachable("cannot reach", ConnectionError());
    }
    attempted |= state != GRPC_CHANNEL_TRANSIENT_FAILURE;
    const auto now = std::chrono::system_clock::now();
    if (now >= give_up) return Unreachable("no answer from", "");
    channel_->WaitForStateChange(state, std::min(give_up, now + kCancelLatency));
    MutexLock lock(mu_);
    if (cancelled_) return absl::CancelledError("the client was cancelled");
  }
}

absl::Status GrpcClient::FromGrpc(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  switch (code) {
    case absl::StatusCode::kUnavailable:
      // A daemon's own answer comes over a connection that stands.
      if (channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) {
        return Unreachable("lost the connection to", status.error_message());
      }
      break;
    case absl::StatusCode::kDeadlineExceeded:
      // gRPC's own words; a daemon says which of a job's deadlines is over.
      if (!absl::StartsWith(status.error_message(), "Deadline Exceeded")) break;
      return absl::DeadlineExceededError(absl::StrCat(
          "qgemmd at ", options_.server, " did not answer within the deadline: raise --timeout"));
    case absl::StatusCode::kUnimplemented:
      return absl::UnimplementedError(absl::StrCat("qgemmd at ", options_.server,
                                                   " does not know this call; client version ",
                                                   ClientVersion(), ": `qgemmctl version` shows both"));
    default:
      break;
  }
  return absl::Status(code, status.error_message());
}

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

bool GrpcClient::Pause(absl::Duration duration) {
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
  MutexLock lock(mu_);
  while (!cancelled_) {
    if (!cancel_.WaitUntil(mu_, until)) return !cancelled_;
  }
  return false;
}

template <typename Attempt>
auto GrpcClient::Retry(absl::Duration timeout, const Attempt& attempt) {
  constexpr absl::Duration kLongestBackoff = absl::Seconds(5);
  const absl::Time start = absl::Now();
  const absl::Time deadline = start + timeout;
  const absl::Time give_up = std::min(deadline, start + options_.retry_for);
  absl::Duration backoff = options_.retry_backoff;
  while (true) {
    auto result = attempt(deadline);
    if (!absl::IsUnavailable(StatusOf(result)) || absl::Now() + backoff >= give_up || !Pause(backoff)) {
      return result;
    }
    backoff = std::min(2 * backoff, kLongestBackoff);
  }
}

absl::StatusOr<v1::TuneSummary> GrpcClient::Tune(const v1::TuneRequest& request,
                                                 absl::FunctionRef<void(const v1::TuneEvent&)> on_event) {
  return Retry(options_.tune_timeout,
               [&](absl::Time deadline) { return TuneOnce(deadline, request, on_event); });
}

absl::StatusOr<v1::TuneSummary> GrpcClient::TuneOnce(absl::Time deadline, const v1::TuneRequest& request,
                                                     absl::FunctionRef<void(const v1::TuneEvent&)> on_event) {
  Call call(*this, deadline);
  QGEMM_RETURN_IF_ERROR(call.Start());
  absl::Status same_class;
  absl::StatusOr<v1::TuneSummary> summary =
      ReadEvents(*tuner_->Tune(call.context(), request), [&](const v1::TuneEvent& event) {
        const v1::TuneResult& result = event.result();
        if (result.has_pick() && result.problem_index() >= 0 &&
            result.problem_index() < request.problems_size()) {
          same_class.Update(CheckSameClass(request.problems(result.problem_index()), result.pick()));
        }
        if (same_class.ok()) on_event(event);
      });
  if (summary.ok() && !same_class.ok()) return same_class;
  return summary;
}

absl::StatusOr<v1::TuneSummary> GrpcClient::ReadEvents(
    grpc::ClientReaderInterface<v1::TuneEvent>& reader,
    absl::FunctionRef<void(const v1::TuneEvent&)> on_event) {
  bool has_summary = false;
  v1::TuneSummary summary;
  for (v1::TuneEvent event; reader.Read(&event);) {
    if (event.has_summary()) {
      has_summary = true;
      summary = event.summary();
    }
    on_event(event);
  }
  QGEMM_RETURN_IF_ERROR(FromGrpc(reader.Finish()));
  if (!has_summary) return absl::InternalError("the daemon ended the stream without a summary");
  return summary;
}

absl::StatusOr<v1::TuneEstimate> GrpcClient::Estimate(const v1::TuneRequest& request) {
  Call call(*this, options_.call_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::TuneEstimate estimate;
  QGEMM_RETURN_IF_ERROR(FromGrpc(tuner_->Estimate(call.context(), request, &estimate)));
  return estimate;
}

absl::StatusOr<v1::WarmEvent> GrpcClient::Warm(const v1::WarmRequest& request,
                                               absl::FunctionRef<void(const v1::WarmEvent&)> on_event) {
  Call call(*this, options_.tune_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  const auto reader = tuner_->Warm(call.context(), request);
  v1::WarmEvent last;
  for (v1::WarmEvent event; reader->Read(&event);) {
    on_event(event);
    last = event;
  }
  QGEMM_RETURN_IF_ERROR(FromGrpc(reader->Finish()));
  if (!last.done()) return absl::InternalError("the daemon ended Warm before it was done");
  return last;
}

absl::StatusOr<v1::ExplainResponse> GrpcClient::Explain(const v1::ExplainRequest& request) {
  Call call(*this, options_.call_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::ExplainResponse response;
  QGEMM_RETURN_IF_ERROR(FromGrpc(cache_->Explain(call.context(), request, &response)));
  return response;
}

absl::StatusOr<std::string> GrpcClient::TuneDetached(const v1::TuneRequest& request) {
  Call call(*this, options_.call_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::TuneRequest detached = request;
  detached.set_detach(true);
  const auto reader = tuner_->Tune(call.context(), detached);
  std::string job_id;
  for (v1::TuneEvent event; reader->Read(&event);) {
    if (event.has_accepted()) {
      job_id = event.accepted().job_id();
    } else {
      // An older daemon, which would tune for as long as this call stands.
      call.context()->TryCancel();
      return absl::UnimplementedError(
          absl::StrCat("qgemmd at ", options_.server, " does not know detached jobs: it is too old"));
    }
  }
  QGEMM_RETURN_IF_ERROR(FromGrpc(reader->Finish()));
  if (job_id.empty()) return absl::InternalError("the daemon accepted the request without naming a job");
  return job_id;
}

absl::StatusOr<v1::TuneSummary> GrpcClient::WatchJob(const std::string& job_id,
                                                     absl::FunctionRef<void(const v1::TuneEvent&)> on_event) {
  Call call(*this, options_.tune_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::WatchJobRequest request;
  request.set_job_id(job_id);
  return ReadEvents(*tuner_->WatchJob(call.context(), request), on_event);
}

absl::StatusOr<v1::ListJobsResponse> GrpcClient::ListJobs(const v1::ListJobsRequest& request) {
  Call call(*this, options_.call_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::ListJobsResponse response;
  QGEMM_RETURN_IF_ERROR(FromGrpc(tuner_->ListJobs(call.context(), request, &response)));
  return response;
}

absl::StatusOr<v1::Job> GrpcClient::CancelJob(const std::string& job_id) {
  Call call(*this, options_.call_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::CancelJobRequest request;
  request.set_job_id(job_id);
  v1::CancelJobResponse response;
  QGEMM_RETURN_IF_ERROR(FromGrpc(tuner_->CancelJob(call.context(), request, &response)));
  return response.job();
}

absl::StatusOr<v1::LookupResponse> GrpcClient::Lookup(const v1::LookupRequest& request) {
  v1::LookupResponse response;
  QGEMM_RETURN_IF_ERROR(Retry(options_.call_timeout, [&](absl::Time deadline) -> absl::Status {
    Call call(*this, deadline);
    QGEMM_RETURN_IF_ERROR(call.Start());
    return FromGrpc(tuner_->Lookup(call.context(), request, &response));
  }));
  if (response.answers_size() != request.keys_size()) {
    return absl::InternalError(
        absl::StrCat("the daemon answered ", response.answers_size(), " of ", request.keys_size(), " keys"));
  }
  for (int i = 0; i < response.answers_size(); ++i) {
    if (!response.answers(i).has_pick()) continue;
    QGEMM_RETURN_IF_ERROR(CheckSameClass(request.keys(i).problem(), response.answers(i).pick()));
  }
  return response;
}

absl::StatusOr<std::string> GrpcClient::ReadKernel(const std::string& sha256, bool ptx,
                                                   v1::KernelInfo& info) {
  return Retry(options_.call_timeout,
               [&](absl::Time deadline) { return ReadKernelOnce(deadline, sha256, ptx, info); });
}

absl::StatusOr<std::string> GrpcClient::ReadKernelOnce(absl::Time deadline, const std::string& sha256,
                                                       bool ptx, v1::KernelInfo& info) {
  Call call(*this, deadline);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::GetKernelsRequest request;
  request.add_sha256(sha256);
  request.set_ptx(ptx);
  const auto reader = tuner_->GetKernels(call.context(), request);
  std::string bytes;
  int64_t total = -1;
  bool misplaced = false;
  for (v1::KernelChunk chunk; reader->Read(&chunk);) {
    if (chunk.has_info()) {
      info = chunk.info();
      total = chunk.total_bytes();
    }
    misplaced |= chunk.sha256() != sha256 || chunk.offset() != static_cast<int64_t>(bytes.size()) ||
                 total < 0 || total > kMaxKernelBytes ||
                 chunk.offset() + static_cast<int64_t>(chunk.data().size()) > total;
    if (misplaced) {
      call.context()->TryCancel();
      break;
    }
    bytes.append(chunk.data());
  }
  const grpc::Status status = reader->Finish();
  if (misplaced) {
    return absl::DataLossError(absl::StrCat("the chunks of kernel ", sha256, " do not fit together"));
  }
  QGEMM_RETURN_IF_ERROR(FromGrpc(status));
  if (static_cast<int64_t>(bytes.size()) != total) {
    return absl::DataLossError(absl::StrCat("kernel ", sha256, " ended after ", bytes.size(), " of ",
                                            std::max<int64_t>(total, 0), " bytes"));
  }
  return bytes;
}

absl::StatusOr<Kernel> GrpcClient::GetKernel(const std::string& sha256) {
  Kernel kernel;
  QGEMM_ASSIGN_OR_RETURN(kernel.cubin, ReadKernel(sha256, /*ptx=*/false, kernel.info));
  const std::string actual = Sha256Hex(kernel.cubin);
  if (actual != sha256) {
    return absl::DataLossError(
        absl::StrCat("the bytes that arrived for kernel ", sha256, " have the SHA-256 ", actual));
  }
  return kernel;
}

absl::StatusOr<std::string> GrpcClient::GetPtx(const std::string& sha256) {
  v1::KernelInfo info;
  return ReadKernel(sha256, /*ptx=*/true, info);
}

absl::StatusOr<v1::CacheStatsResponse> GrpcClient::CacheStats() {
  v1::CacheStatsResponse response;
  QGEMM_RETURN_IF_ERROR(Retry(options_.call_timeout, [&](absl::Time deadline) -> absl::Status {
    Call call(*this, deadline);
    QGEMM_RETURN_IF_ERROR(call.Start());
    return FromGrpc(cache_->Stats(call.context(), v1::CacheStatsRequest(), &response));
  }));
  return response;
}

absl::Status GrpcClient::CacheList(v1::CacheListRequest::What what,
                                   absl::FunctionRef<void(const v1::CacheEntry&)> visit) {
  v1::CacheListRequest request;
  request.set_what(what);
  return CacheList(request, visit);
}

absl::Status GrpcClient::CacheList(const v1::CacheListRequest& request,
                                   absl::FunctionRef<void(const v1::CacheEntry&)> visit) {
  bool visited = false;  // what was visited is not visited again
  absl::Status broken_off;
  absl::Status status = Retry(options_.call_timeout, [&](absl::Time deadline) -> absl::Status {
    Call call(*this, deadline);
    QGEMM_RETURN_IF_ERROR(call.Start());
    const auto reader = cache_->List(call.context(), request);
    for (v1::CacheEntry entry; reader->Read(&entry);) {
      visited = true;
      visit(entry);
    }
    absl::Status end = FromGrpc(reader->Finish());
    if (!visited) return end;
    broken_off = std::move(end);
    return absl::OkStatus();
  });
  return visited ? broken_off : status;
}

template <typename Request, typename Response>
absl::StatusOr<Response> GrpcClient::LongCacheCall(
    grpc::Status (v1::Cache::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
    const Request& request) {
  Call call(*this, options_.tune_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  Response response;
  QGEMM_RETURN_IF_ERROR(FromGrpc((cache_.get()->*method)(call.context(), request, &response)));
  return response;
}

absl::StatusOr<v1::CacheDeleteResponse> GrpcClient::CacheDelete(const v1::CacheSelection& selection) {
  v1::CacheDeleteRequest request;
  *request.mutable_selection() = selection;
  return LongCacheCall(&v1::Cache::Stub::Delete, request);
}

absl::StatusOr<v1::CachePinResponse> GrpcClient::CachePin(const v1::CacheSelection& selection, bool unpin) {
  v1::CachePinRequest request;
  *request.mutable_selection() = selection;
  request.set_unpin(unpin);
  return LongCacheCall(&v1::Cache::Stub::Pin, request);
}

absl::StatusOr<v1::CacheVerifyResponse> GrpcClient::CacheVerify() {
  return LongCacheCall(&v1::Cache::Stub::Verify, v1::CacheVerifyRequest());
}

absl::StatusOr<v1::CacheBackupResponse> GrpcClient::CacheBackup(const std::string& directory) {
  v1::CacheBackupRequest request;
  request.set_directory(directory);
  return LongCacheCall(&v1::Cache::Stub::Backup, request);
}

absl::Status GrpcClient::CacheExport(const v1::CacheSelection& selection,
                                     absl::FunctionRef<absl::Status(absl::string_view)> write) {
  Call call(*this, options_.tune_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::CacheExportRequest request;
  *request.mutable_selection() = selection;
  const auto reader = cache_->Export(call.context(), request);
  absl::Status written;
  for (v1::PackChunk chunk; reader->Read(&chunk);) {
    written = write(chunk.data());
    if (written.ok()) continue;
    call.context()->TryCancel();
    break;
  }
  const grpc::Status status = reader->Finish();
  QGEMM_RETURN_IF_ERROR(written);
  return FromGrpc(status);
}

absl::StatusOr<v1::CacheImportResponse> GrpcClient::CacheImport(
    bool replace, absl::FunctionRef<absl::StatusOr<std::string>()> read) {
  Call call(*this, options_.tune_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::CacheImportResponse response;
  const auto writer = cache_->Import(call.context(), &response);
  while (true) {
    absl::StatusOr<std::string> bytes = read();
    if (!bytes.ok()) {
      call.context()->TryCancel();
      writer->Finish();
      return bytes.status();
    }
    if (bytes->empty()) break;
    v1::PackChunk chunk;
    chunk.set_data(*std::move(bytes));
    chunk.set_replace(replace);
    if (!writer->Write(chunk)) break;  // Finish says why
  }
  writer->WritesDone();
  QGEMM_RETURN_IF_ERROR(FromGrpc(writer->Finish()));
  return response;
}

absl::StatusOr<v1::DescribeResponse> GrpcClient::Describe() {
  v1::DescribeResponse response;
  QGEMM_RETURN_IF_ERROR(Retry(options_.call_timeout, [&](absl::Time deadline) -> absl::Status {
    Call call(*this, deadline);
    QGEMM_RETURN_IF_ERROR(call.Start());
    return FromGrpc(device_->Describe(call.context(), v1::DescribeRequest(), &response));
  }));
  return response;
}

absl::StatusOr<v1::CompareSourceSummary> GrpcClient::CompareSource(
    const v1::CompareSourceRequest& request,
    absl::FunctionRef<void(const v1::CompareSourceEvent&)> on_event) {
  Call call(*this, options_.tune_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  const auto reader = bench_->CompareSource(call.context(), request);
  bool has_summary = false;
  v1::CompareSourceSummary summary;
  for (v1::CompareSourceEvent event; reader->Read(&event);) {
    if (event.has_summary()) {
      has_summary = true;
      summary = event.summary();
    }
    on_event(event);
  }
  QGEMM_RETURN_IF_ERROR(FromGrpc(reader->Finish()));
  if (!has_summary) return absl::InternalError("the daemon ended the comparison without a summary");
  return summary;
}

absl::Status GrpcClient::PauseDevice() {
  Call call(*this, options_.call_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::PauseResponse response;
  return FromGrpc(device_->Pause(call.context(), v1::PauseRequest(), &response));
}

absl::Status GrpcClient::ResumeDevice() {
  Call call(*this, options_.call_timeout);
  QGEMM_RETURN_IF_ERROR(call.Start());
  v1::ResumeResponse response;
  return FromGrpc(device_->Resume(call.context(), v1::ResumeRequest(), &response));
}

void GrpcClient::Cancel() {
  MutexLock lock(mu_);
  cancelled_ = true;
  cancel_.NotifyAll();
  for (grpc::ClientContext* context : running_) context->TryCancel();
  for (GrpcClient* client : derived_) client->Cancel();
}

std::unique_ptr<Client> GrpcClient::Derive(const ClientOptions& options) {
  ClientOptions derived = options;
  derived.server = options_.server;
  derived.connect_timeout = options_.connect_timeout;
  derived.token = options_.token;
  derived.tls_ca = options_.tls_ca;
  derived.tls_cert = options_.tls_cert;
  return std::make_unique<GrpcClient>(std::move(derived), channel_, this);
}

}  // namespace

absl::string_view ClientVersion() { return QGEMM_VERSION; }

std::string DefaultClientId() {
  if (const char* name = std::getenv("QGEMM_CLIENT_ID"); name != nullptr && *name != '\0') return name;
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const char* user = std::getenv("USER");
  std::string id = absl::StrCat(user != nullptr && *user != '\0' ? user : absl::StrCat("uid-", geteuid()),
                                "@", host.data());
  // Whatever the environment holds makes an id, if an odd one.
  std::replace_if(
      id.begin(), id.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  id.resize(std::min(id.size(), kMaxClientIdBytes));
  return id;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  ClientOptions resolved = options;
  if (resolved.server.empty()) resolved.server = DefaultServerAddress();
  QGEMM_RETURN_IF_ERROR(ValidateServerAddress(resolved.server));
  if (resolved.client_id.empty()) resolved.client_id = DefaultClientId();
  const bool printable = std::all_of(resolved.client_id.begin(), resolved.client_id.end(),
                                     [](char c) { return c >= 0x20 && c <= 0x7e; });
  if (!printable || resolved.client_id.size() > kMaxClientIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("client id \"", absl::CEscape(resolved.client_id),
                                                   "\" is not allowed: use at most ", kMaxClientIdBytes,
                                                   " printable ASCII characters"));
  }
  QGEMM_RETURN_IF_ERROR(ResolveSecurity(resolved));
  QGEMM_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                         MakeChannelCredentials(resolved));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  // A daemon is addressed directly: the host's http_proxy is for other traffic.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A daemon that hangs during a call is noticed by unanswered pings, however long the call may be silent.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingIntervalMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Soon after a daemon is back its clients are, too.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  auto channel = grpc::CreateCustomChannel(resolved.server, credentials, arguments);
  return std::make_unique<GrpcClient>(std::move(resolved), std::move(channel), nullptr);
}

}  // namespace qgemm
