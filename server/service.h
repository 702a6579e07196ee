#ifndef QGEMM_SERVER_SERVICE_H_
#define QGEMM_SERVER_SERVICE_H_

#include <string>

#include "cache/cache_store.h"
#include "qgemm/v1/device.grpc.pb.h"
#include "qgemm/v1/tuner.grpc.pb.h"
#include "server/compiler.h"
#include "server/tuner.h"

namespace qgemm {

// The RPCs: unpack, call, map. No logic of their own. Thread-safe; everything is borrowed.

class TunerService final : public v1::Tuner::Service {
 public:
  TunerService(Tuner& tuner, CacheStore& store) : tuner_(tuner), store_(store) {}

  grpc::Status Tune(grpc::ServerContext* context, const v1::TuneRequest* request,
                    grpc::ServerWriter<v1::TuneEvent>* writer) override;
  grpc::Status Lookup(grpc::ServerContext* context, const v1::LookupRequest* request,
                      v1::LookupResponse* response) override;
  grpc::Status Estimate(grpc::ServerContext* context, const v1::TuneRequest* request,
                        v1::TuneEstimate* response) override;
  grpc::Status Warm(grpc::ServerContext* context, const v1::WarmRequest* request,
                    grpc::ServerWriter<v1::WarmEvent>* writer) override;
  grpc::Status GetKernels(grpc::ServerContext* context, const v1::GetKernelsRequest* request,
                          grpc::ServerWriter<v1::KernelChunk>* writer) override;

 private:
  Tuner& tuner_;
  CacheStore& store_;
};

class DeviceService final : public v1::Device::Service {
 public:
  DeviceService(Tuner& tuner, Compiler& compiler, std::string server_version)
      : tuner_(tuner), compiler_(compiler), server_version_(std::move(server_version)) {}

  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeRequest* request,
                        v1::DescribeResponse* response) override;

 private:
  Tuner& tuner_;
  Compiler& compiler_;
  const std::string server_version_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_SERVICE_H_
