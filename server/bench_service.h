#ifndef QGEMM_SERVER_BENCH_SERVICE_H_
#define QGEMM_SERVER_BENCH_SERVICE_H_

#include "qgemm/v1/bench.grpc.pb.h"
#include "server/access.h"
#include "server/source_bench.h"

namespace qgemm {

// The RPCs of service Bench: unpack, call, map. Thread-safe; borrows both.
class BenchService final : public v1::Bench::Service {
 public:
  BenchService(SourceBench& bench, const Access& access) : bench_(bench), access_(access) {}

  grpc::Status CompareSource(grpc::ServerContext* context, const v1::CompareSourceRequest* request,
                             grpc::ServerWriter<v1::CompareSourceEvent>* writer) override;

 private:
  SourceBench& bench_;
  const Access& access_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_BENCH_SERVICE_H_
