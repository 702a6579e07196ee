#include "cache/cache_report.h"

#include <string>

#include "absl/status/statusor.h"
#include "base/status_macros.h"

namespace qgemm {

absl::StatusOr<v1::CacheStatsResponse> StatsReport(CacheStore& store, const std::string& data_dir) {
  QGEMM_ASSIGN_OR_RETURN(const CacheStats stats, store.Stats());
  v1::CacheStatsResponse response;
  response.set_data_dir(data_dir);
  response.set_schema_version(stats.schema_version);
  response.set_kernels(stats.kernels);
  response.set_kernel_bytes(stats.kernel_bytes);
  response.set_picks(stats.picks);
  response.set_timings(stats.timings);
  response.set_disk_bytes(stats.disk_bytes);
  response.set_corrupt(stats.corrupt);
  response.set_pinned(stats.pinned);
  response.set_limit_bytes(stats.limit_bytes);
  response.set_evicted(stats.evicted);
  response.set_adopted_toolchain(stats.adopted_toolchain);
  response.set_write_error(stats.write_error);
  return response;
}

v1::CacheVerifyResponse VerifyResponse(const VerifyReport& report) {
  v1::CacheVerifyResponse response;
  response.set_kernels(report.kernels);
  response.set_picks(report.picks);
  response.set_timings(report.timings);
  response.set_corrupt(report.corrupt);
  response.set_picks_without_kernel(report.picks_without_kernel);
  return response;
}

}  // namespace qgemm
