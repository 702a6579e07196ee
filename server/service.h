#ifndef QGEMM_SERVER_SERVICE_H_
#define QGEMM_SERVER_SERVICE_H_

#include <string>

#include "cache/cache_store.h"
#include "qgemm/v1/device.grpc.pb.h"
#include "qgemm/v1/tuner.grpc.pb.h"
#include "server/access.h"
#include "server/compiler.h"
#include "server/pausable_gpu.h"
#include "server/tuner.h"

namespace qgemm {

// The RPCs: unpack, call, map. No logic of their own. Thread-safe; everything is borrowed.

class TunerService final : public v1::Tuner::Service {
 public:
  TunerService(Tuner& tuner, CacheStore& store, const Access& access)
      : tuner_(tuner), store_(store), access_(access) {}

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
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override;
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::TuneEvent>* writer) override;
  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request,
                         v1::CancelJobResponse* response) override;

 private:
  Tuner& tuner_;
  CacheStore& store_;
  const Access& access_;
};

class DeviceService final : public v1::Device::Service {
 public:
  // `gpu` may be null: there is none.
  DeviceService(Tuner& tuner, Compiler& compiler, PausableGpu* gpu, const Access& access,
                std::string server_version)
      : tuner_(tuner),
        compiler_(compiler),
        gpu_(gpu),
        access_(access),
        server_version_(std::move(server_version)) {}

  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeRequest* request,
                        v1::DescribeResponse* response) override;
  grpc::Status Pause(grpc::ServerContext* context, const v1::PauseRequest* request,
                     v1::PauseResponse* response) override;
  grpc::Status Resume(grpc::ServerContext* context, const v1::ResumeRequest* request,
                      v1::ResumeResponse* response) override;

 private:
  Tuner& tuner_;
  Compiler& compiler_;
  PausableGpu* const gpu_;
  const Access& access_;
  const std::string server_version_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_SERVICE_H_
