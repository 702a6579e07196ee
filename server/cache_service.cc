#include "server/cache_service.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cache/cache_report.h"
#include "cache/pack.h"
#include "cache/selection.h"
#include "cache/store_directory.h"
#include "server/client_identity.h"
#include "server/grpc_status.h"
#include "server/spool_file.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr size_t kChunkBytes = 256 << 10;

// Cuts a stream of bytes into messages.
class ChunkWriter {
 public:
  explicit ChunkWriter(grpc::ServerWriter<v1::PackChunk>& writer) : writer_(writer) {}

  absl::Status Write(absl::string_view bytes) {
    while (!bytes.empty()) {
      const size_t part = std::min(bytes.size(), kChunkBytes - chunk_.data().size());
      chunk_.mutable_data()->append(bytes.data(), part);
      bytes.remove_prefix(part);
      if (chunk_.data().size() == kChunkBytes) QGEMM_RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }
  absl::Status Flush() {
    if (!chunk_.data().empty() && !writer_.Write(chunk_)) return absl::CancelledError("the client is gone");
    chunk_.clear_data();
    return absl::OkStatus();
  }

 private:
  grpc::ServerWriter<v1::PackChunk>& writer_;
  v1::PackChunk chunk_;
};

}  // namespace

grpc::Status CacheService::Stats(grpc::ServerContext* context, const v1::CacheStatsRequest* /*request*/,
                                 v1::CacheStatsResponse* response) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const absl::StatusOr<v1::CacheStatsResponse> stats = StatsReport(store_, data_dir_);
  if (!stats.ok()) return ToGrpcStatus(stats.status());
  *response = *stats;
  const TunerCounters counters = tuner_.counters();
  response->set_hits(counters.hits);
  response->set_misses(counters.misses);
  return grpc::Status::OK;
}

grpc::Status CacheService::List(grpc::ServerContext* context, const v1::CacheListRequest* request,
                                grpc::ServerWriter<v1::CacheEntry>* writer) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  return ToGrpcStatus(VisitCacheEntries(store_, *request, clock_.WallUnixMs(),
                                        [&](const internal::PickRecord* pick, v1::CacheEntry& entry) {
                                          if (pick != nullptr) entry.set_stale(tuner_.IsStale(*pick));
                                          return writer->Write(entry);
                                        }));
}

grpc::Status CacheService::Delete(grpc::ServerContext* context, const v1::CacheDeleteRequest* request,
                                  v1::CacheDeleteResponse* response) {
  const absl::StatusOr<Caller> caller = AdmitAdmin(access_, *context, "cache delete");
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const absl::StatusOr<RemovedEntries> removed =
      DeleteSelected(store_, request->selection(), clock_.WallUnixMs());
  if (!removed.ok()) return ToGrpcStatus(removed.status());
  store_.RequestCompaction();
  response->set_picks(removed->picks);
  response->set_kernels(removed->kernels);
  response->set_timings(removed->timings);
  response->set_kept(removed->kept);
  response->set_bytes(removed->bytes);
  spdlog::info("cache: {} deleted {} picks, {} kernels, {} timings", caller->name, removed->picks,
               removed->kernels, removed->timings);
  return grpc::Status::OK;
}

grpc::Status CacheService::Pin(grpc::ServerContext* context, const v1::CachePinRequest* request,
                               v1::CachePinResponse* response) {
  const absl::StatusOr<Caller> caller = AdmitAdmin(access_, *context, "cache pin");
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const absl::StatusOr<SelectedEntries> selected = Select(store_, request->selection(), clock_.WallUnixMs());
  if (!selected.ok()) return ToGrpcStatus(selected.status());
  const absl::Status pinned = store_.SetPinned(selected->Ids(), !request->unpin());
  response->set_picks(static_cast<int64_t>(selected->picks.size()));
  response->set_kernels(static_cast<int64_t>(selected->kernels.size()));
  return ToGrpcStatus(pinned);
}

grpc::Status CacheService::Verify(grpc::ServerContext* context, const v1::CacheVerifyRequest* /*request*/,
                                  v1::CacheVerifyResponse* response) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const absl::StatusOr<VerifyReport> report = store_.Verify();
  if (!report.ok()) return ToGrpcStatus(report.status());
  *response = VerifyResponse(*report);
  return grpc::Status::OK;
}

grpc::Status CacheService::Export(grpc::ServerContext* context, const v1::CacheExportRequest* request,
                                  grpc::ServerWriter<v1::PackChunk>* writer) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  ChunkWriter chunks(*writer);
  absl::Status status =
      WritePack(store_, request->selection(), absl::StrCat("qgemm ", version_), clock_.WallUnixMs(),
                [&](absl::string_view bytes) { return chunks.Write(bytes); });
  if (status.ok()) status = chunks.Flush();
  return ToGrpcStatus(status);
}

grpc::Status CacheService::Import(grpc::ServerContext* context, grpc::ServerReader<v1::PackChunk>* reader,
                                  v1::CacheImportResponse* response) {
  const absl::StatusOr<Caller> caller = AdmitAdmin(access_, *context, "cache import");
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  absl::StatusOr<SpoolFile> spool = SpoolFile::Create(data_dir_);
  if (!spool.ok()) return ToGrpcStatus(spool.status());
  bool replace = false;
  for (v1::PackChunk chunk; reader->Read(&chunk);) {
    replace = replace || chunk.replace();
    const absl::Status appended = spool->Append(chunk.data());
    if (!appended.ok()) return ToGrpcStatus(appended);
  }
  if (context->IsCancelled()) return ToGrpcStatus(absl::CancelledError("the client is gone"));
  absl::StatusOr<v1::CacheImportResponse> report = ImportPack(spool->path(), replace, store_);
  if (!report.ok()) return ToGrpcStatus(report.status());
  if (!report->toolchain().empty()) tuner_.AdoptToolchain(report->toolchain());
  spdlog::info("cache: {} imported a pack: {} added, {} already there, {} refused", caller->name,
               report->added(), report->already_there(), report->refused());
  *response = *std::move(report);
  return grpc::Status::OK;
}

grpc::Status CacheService::Explain(grpc::ServerContext* context, const v1::ExplainRequest* request,
                                   v1::ExplainResponse* response) {
  const absl::StatusOr<Caller> caller = Admit(access_, *context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  absl::StatusOr<v1::ExplainResponse> explained = tuner_.Explain(*request);
  if (!explained.ok()) return ToGrpcStatus(explained.status());
  *response = *std::move(explained);
  return grpc::Status::OK;
}

grpc::Status CacheService::Backup(grpc::ServerContext* context, const v1::CacheBackupRequest* request,
                                  v1::CacheBackupResponse* response) {
  const absl::StatusOr<Caller> caller = AdmitAdmin(access_, *context, "cache backup");
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const absl::Status copied = store_.Backup(request->directory());
  if (!copied.ok()) return ToGrpcStatus(copied);
  response->set_bytes(FileBytes(request->directory()));
  return grpc::Status::OK;
}

}  // namespace qgemm
