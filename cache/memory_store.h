#ifndef QGEMM_CACHE_MEMORY_STORE_H_
#define QGEMM_CACHE_MEMORY_STORE_H_

#include <array>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "cache/record_store.h"

namespace qgemm {

// A CacheStore that is gone with the process, for tests: the same records, checks and errors as the one on
// disk. Thread-safe.
class MemoryStore final : public RecordStore {
 public:
  explicit MemoryStore(Clock& clock = RealClock()) : RecordStore(clock) {}

  // From now on writes answer `error` and change nothing (ResourceExhausted: a full disk); OK: they work
  // again.
  void SetWriteError(absl::Status error);

  // FailedPrecondition: there are no files to copy.
  absl::Status Backup(absl::string_view directory) override;
  void RequestCompaction() override {}

 protected:
  absl::StatusOr<std::string> Read(RecordFamily family, absl::string_view key) override;
  absl::StatusOr<Page> ReadPage(RecordFamily family, absl::string_view begin, absl::string_view end,
                                int limit) override;
  absl::StatusOr<int64_t> Count(RecordFamily family) override;
  absl::Status Write(const std::vector<Mutation>& mutations) override;
  absl::StatusOr<std::vector<bool>> ApplyIfStill(const std::vector<Conditional>& conditionals) override;
  int64_t DiskBytes() override { return 0; }
  int64_t LimitBytes() override { return 0; }
  absl::Status WriteError() const override;

 private:
  absl::StatusOr<std::string> ReadLocked(RecordFamily family, absl::string_view key) QGEMM_REQUIRES(mu_);
  void Apply(const std::vector<Mutation>& mutations) QGEMM_REQUIRES(mu_);

  mutable Mutex mu_;
  std::array<std::map<std::string, std::string>, kFamilyCount> tables_ QGEMM_GUARDED_BY(mu_);
  absl::Status write_error_ QGEMM_GUARDED_BY(mu_);
};

}  // namespace qgemm

#endif  // QGEMM_CACHE_MEMORY_STORE_H_
