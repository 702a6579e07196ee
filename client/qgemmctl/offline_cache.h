#ifndef QGEMM_CLIENT_QGEMMCTL_OFFLINE_CACHE_H_
#define QGEMM_CLIENT_QGEMMCTL_OFFLINE_CACHE_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "qgemm/v1/cache.pb.h"

namespace qgemm {

class CacheStore;

// A data directory that is read without a daemon: what the Cache RPCs that only read would answer. Changes
// and holds nothing. Not thread-safe.
class OfflineCache {
 public:
  // NotFound: there is no store; DataLoss: its files are damaged; FailedPrecondition: it cannot be read.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<OfflineCache>> Open(const std::string& data_dir);
  ~OfflineCache();

  [[nodiscard]] absl::StatusOr<v1::CacheStatsResponse> Stats();
  [[nodiscard]] absl::Status List(const v1::CacheListRequest& request,
                                  absl::FunctionRef<void(const v1::CacheEntry&)> visit);
  [[nodiscard]] absl::StatusOr<v1::CacheVerifyResponse> Verify();
  [[nodiscard]] absl::Status Export(const v1::CacheSelection& selection,
                                    absl::FunctionRef<absl::Status(absl::string_view)> write);

 private:
  OfflineCache(std::string data_dir, std::unique_ptr<CacheStore> store);

  const std::string data_dir_;
  const std::unique_ptr<CacheStore> store_;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_OFFLINE_CACHE_H_
