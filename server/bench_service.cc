#include "server/bench_service.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

bool IsLocalPeer(absl::string_view peer) {
  // gRPC escapes the brackets of IPv6 addresses in some versions.
  const std::string name =
      absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}});
  for (const absl::string_view local :
       {"unix:", "unix-abstract:", "ipv4:127.", "ipv6:[::1]:", "ipv6:[::ffff:127."}) {
    if (absl::StartsWith(name, local)) return true;
  }
  return false;
}

grpc::Status BenchService::CompareSource(grpc::ServerContext* context,
                                         const v1::CompareSourceRequest* request,
                                         grpc::ServerWriter<v1::CompareSourceEvent>* writer) {
  if (!IsLocalPeer(context->peer())) {
    return ToGrpcStatus(absl::PermissionDeniedError(
        absl::StrCat("this call came from ", context->peer(),
                     ", and a changed source is compiled and run for callers of this machine only: use the "
                     "unix socket or a loopback address")));
  }
  GrpcCompareSourceStream stream(*context, *writer);
  const absl::Status status = bench_.Compare(*request, stream);
  grpc::Status result = ToGrpcStatus(status);
  spdlog::info("comparison of {} ({} bytes) from {}: {}", request->source_name(), request->source().size(),
               context->peer(), status.ok() ? "done" : result.error_message());
  return result;
}

}  // namespace qgemm
