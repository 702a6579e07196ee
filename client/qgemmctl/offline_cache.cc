#include "client/qgemmctl/offline_cache.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cache/cache_report.h"
#include "cache/pack.h"
#include "cache/rocksdb_store.h"
#include "cache/selection.h"
#include "client/qgemm/client.h"
#include "spdlog/spdlog.h"

namespace qgemm {

OfflineCache::OfflineCache(std::string data_dir, std::unique_ptr<CacheStore> store)
    : data_dir_(std::move(data_dir)), store_(std::move(store)) {}

OfflineCache::~OfflineCache() = default;

absl::StatusOr<std::unique_ptr<OfflineCache>> OfflineCache::Open(const std::string& data_dir) {
  // Standard output is the command's, and what is wrong comes back as a status.
  spdlog::set_level(spdlog::level::off);
  QGEMM_ASSIGN_OR_RETURN(std::unique_ptr<RocksDbStore> store, RocksDbStore::OpenReadOnly(data_dir));
  return std::unique_ptr<OfflineCache>(new OfflineCache(data_dir, std::move(store)));
}

absl::StatusOr<v1::CacheStatsResponse> OfflineCache::Stats() {
  QGEMM_ASSIGN_OR_RETURN(v1::CacheStatsResponse stats, StatsReport(*store_, data_dir_));
  stats.clear_write_error();  // that it is open for reading only
  return stats;
}

absl::Status OfflineCache::List(const v1::CacheListRequest& request,
                                absl::FunctionRef<void(const v1::CacheEntry&)> visit) {
  return VisitCacheEntries(*store_, request, RealClock().WallUnixMs(),
                           [&](const internal::PickRecord*, v1::CacheEntry& entry) {
                             visit(entry);
                             return true;
                           });
}

absl::StatusOr<v1::CacheVerifyResponse> OfflineCache::Verify() {
  QGEMM_ASSIGN_OR_RETURN(const VerifyReport report, store_->Verify());
  return VerifyResponse(report);
}

absl::Status OfflineCache::Export(const v1::CacheSelection& selection,
                                  absl::FunctionRef<absl::Status(absl::string_view)> write) {
  return WritePack(*store_, selection, absl::StrCat("qgemm ", ClientVersion()), RealClock().WallUnixMs(),
                   [&](absl::string_view bytes) { return write(bytes); });
}

}  // namespace qgemm
