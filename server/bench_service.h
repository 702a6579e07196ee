#ifndef QGEMM_SERVER_BENCH_SERVICE_H_
#define QGEMM_SERVER_BENCH_SERVICE_H_

#include "absl/strings/string_view.h"
#include "qgemm/v1/bench.grpc.pb.h"
#include "server/source_bench.h"

namespace qgemm {

// Whether gRPC's name of a peer ("unix:", "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711") is of this machine.
bool IsLocalPeer(absl::string_view peer);

// The RPCs of service Bench: unpack, call, map. Thread-safe; borrows the bench.
class BenchService final : public v1::Bench::Service {
 public:
  explicit BenchService(SourceBench& bench) : bench_(bench) {}

  grpc::Status CompareSource(grpc::ServerContext* context, const v1::CompareSourceRequest* request,
                             grpc::ServerWriter<v1::CompareSourceEvent>* writer) override;

 private:
  SourceBench& bench_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_BENCH_SERVICE_H_
