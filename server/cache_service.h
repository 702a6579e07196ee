#ifndef QGEMM_SERVER_CACHE_SERVICE_H_
#define QGEMM_SERVER_CACHE_SERVICE_H_

#include <string>

#include "base/clock.h"
#include "cache/cache_store.h"
#include "qgemm/v1/cache.grpc.pb.h"
#include "server/access.h"
#include "server/tuner.h"

namespace qgemm {

// The Cache RPCs: unpack, call cache/, map. Thread-safe; all references are borrowed.
class CacheService final : public v1::Cache::Service {
 public:
  // `data_dir` is shown to clients and takes an import while it is checked; `version` signs packs.
  CacheService(Tuner& tuner, CacheStore& store, Clock& clock, const Access& access, std::string data_dir,
               std::string version)
      : tuner_(tuner),
        store_(store),
        clock_(clock),
        access_(access),
        data_dir_(std::move(data_dir)),
        version_(std::move(version)) {}

  grpc::Status Stats(grpc::ServerContext* context, const v1::CacheStatsRequest* request,
                     v1::CacheStatsResponse* response) override;
  grpc::Status List(grpc::ServerContext* context, const v1::CacheListRequest* request,
                    grpc::ServerWriter<v1::CacheEntry>* writer) override;
  grpc::Status Explain(grpc::ServerContext* context, const v1::ExplainRequest* request,
                       v1::ExplainResponse* response) override;
  grpc::Status Delete(grpc::ServerContext* context, const v1::CacheDeleteRequest* request,
                      v1::CacheDeleteResponse* response) override;
  grpc::Status Pin(grpc::ServerContext* context, const v1::CachePinRequest* request,
                   v1::CachePinResponse* response) override;
  grpc::Status Verify(grpc::ServerContext* context, const v1::CacheVerifyRequest* request,
                      v1::CacheVerifyResponse* response) override;
  grpc::Status Export(grpc::ServerContext* context, const v1::CacheExportRequest* request,
                      grpc::ServerWriter<v1::PackChunk>* writer) override;
  grpc::Status Import(grpc::ServerContext* context, grpc::ServerReader<v1::PackChunk>* reader,
                      v1::CacheImportResponse* response) override;
  grpc::Status Backup(grpc::ServerContext* context, const v1::CacheBackupRequest* request,
                      v1::CacheBackupResponse* response) override;

 private:
  Tuner& tuner_;
  CacheStore& store_;
  Clock& clock_;
  const Access& access_;
  const std::string data_dir_;
  const std::string version_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_CACHE_SERVICE_H_
