#ifndef QGEMM_CACHE_CACHE_REPORT_H_
#define QGEMM_CACHE_CACHE_REPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "cache/cache_store.h"
#include "qgemm/v1/cache.pb.h"

namespace qgemm {

// A store's figures as the API has them, for the daemon and for qgemmctl's reads without one. Hits and misses
// are the daemon's.
[[nodiscard]] absl::StatusOr<v1::CacheStatsResponse> StatsReport(CacheStore& store,
                                                                 const std::string& data_dir);
[[nodiscard]] v1::CacheVerifyResponse VerifyResponse(const VerifyReport& report);

}  // namespace qgemm

#endif  // QGEMM_CACHE_CACHE_REPORT_H_
