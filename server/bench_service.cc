#include "server/bench_service.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/client_identity.h"
#include "server/grpc_status.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

class GrpcCompareSourceStream : public CompareSourceStream {
 public:
  GrpcCompareSourceStream(grpc::ServerContext& context, grpc::ServerWriter<v1::CompareSourceEvent>& writer)
      : context_(context), writer_(writer) {}

  void Send(const v1::CompareSourceEvent& event) override { broken_ = broken_ || !writer_.Write(event); }
  bool Cancelled() override { return broken_ || context_.IsCancelled(); }

 private:
  grpc::ServerContext& context_;
  grpc::ServerWriter<v1::CompareSourceEvent>& writer_;
  bool broken_ = false;
};

}  // namespace

grpc::Status BenchService::CompareSource(grpc::ServerContext* context,
                                         const v1::CompareSourceRequest* request,
                                         grpc::ServerWriter<v1::CompareSourceEvent>* writer) {
  const absl::StatusOr<Caller> caller = AdmitWriter(access_, *context, "bench");
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  if (!caller->same_host) {
    return ToGrpcStatus(absl::PermissionDeniedError(
        absl::StrCat("this call came from ", context->peer(),
                     ", and a changed source is compiled and run for callers of this machine only: use the "
                     "unix socket or a loopback address")));
  }
  GrpcCompareSourceStream stream(*context, *writer);
  const absl::Status status = bench_.Compare(*request, stream);
  grpc::Status result = ToGrpcStatus(status);
  spdlog::info("comparison of {} ({} bytes) from {}: {}", request->source_name(), request->source().size(),
               caller->name, status.ok() ? "done" : result.error_message());
  return result;
}

}  // namespace qgemm
