#ifndef QGEMM_CACHE_ROCKSDB_STORE_H_
#define QGEMM_CACHE_ROCKSDB_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "cache/record_store.h"

namespace rocksdb {
class Env;
}

namespace qgemm {

class RocksDbDatabase;
class StoreDirectory;

struct RocksDbStoreOptions {
  // Names a damaged store and paces reopening. Borrowed: outlives the store.
  Clock* clock = &RealClock();
  // After a failed write, the store tries to reopen itself at most this often.
  std::chrono::milliseconds reopen_interval{1000};
  // Files are read and written through it; null: the real ones. Borrowed: outlives the store.
  rocksdb::Env* env = nullptr;
};

// The store on disk (cache/FORMAT.md). Thread-safe.
class RocksDbStore final : public RecordStore {
 public:
  // Opens the store in `directory`, which is created when absent, and holds it until destruction. Errors are
  // one sentence that names the directory. FailedPrecondition: the directory cannot be used (not a directory,
  // not readable and writable, on a network file system, held by another process) or its schema is not this
  // version's. ResourceExhausted: the disk is full and there is no store yet; a store that is there is opened
  // and refuses writes. A store whose files are damaged is moved aside and a fresh one is opened: see
  // moved_aside().
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RocksDbStore>> Open(
      absl::string_view directory, const RocksDbStoreOptions& options = RocksDbStoreOptions());

  // A snapshot of the store, for reading while no daemon runs. Creates, holds and changes nothing; writes
  // answer FailedPrecondition. NotFound: there is no store. DataLoss: its files are damaged.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RocksDbStore>> OpenReadOnly(
      absl::string_view directory, const RocksDbStoreOptions& options = RocksDbStoreOptions());

  ~RocksDbStore() override;

  // Where this store's damaged predecessor is now, if there was one since Open() began.
  [[nodiscard]] std::optional<std::string> moved_aside() const;

  // The error that writes answer at present; OK when they work.
  [[nodiscard]] absl::Status write_error() const;

 protected:
  absl::StatusOr<std::string> Read(RecordFamily family, absl::string_view key) override;
  absl::StatusOr<Page> ReadPage(RecordFamily family, absl::string_view begin, absl::string_view end,
                                int limit) override;
  absl::StatusOr<int64_t> Count(RecordFamily family) override;
  absl::Status Write(const std::vector<Mutation>& mutations) override;
  absl::Status RemoveIfStill(RecordFamily family, absl::string_view key,
                             const absl::StatusOr<std::string>& seen,
                             const std::vector<Mutation>& also) override;
  int64_t DiskBytes() override;

 private:
  RocksDbStore(std::string directory, const RocksDbStoreOptions& options);

  absl::Status OpenForWriting() QGEMM_REQUIRES(mu_);
  // Renames the directory, opens a fresh store in its place and copies what is readable.
  absl::Status StartAfresh(absl::string_view reason) QGEMM_REQUIRES(mu_);
  absl::Status Salvage(RocksDbStore& damaged, int64_t& copied) QGEMM_REQUIRES(mu_);
  // Leaves word for the next Open() that a table is damaged.
  void MarkDamaged(const absl::Status& reason);
  absl::Status CheckSchema() QGEMM_REQUIRES(mu_);
  absl::StatusOr<std::string> ReadLocked(RecordFamily family, absl::string_view key)
      QGEMM_REQUIRES_SHARED(mu_);
  absl::Status WriteLocked(const std::vector<Mutation>& mutations) QGEMM_REQUIRES_SHARED(mu_);
  // OK when writes may go on: there was no error, or reopening cured it.
  absl::Status RecoverWrites() QGEMM_EXCLUDES(mu_);
  void Latch(absl::Status error) QGEMM_EXCLUDES(latch_mu_);

  const std::string directory_;
  const RocksDbStoreOptions options_;
  // The directory's lock; null when opened for reading only. Constant after Open.
  std::unique_ptr<StoreDirectory> held_;

  // Shared by every read and write; exclusive while the database is reopened or a corrupt record is removed.
  // It is held during I/O on purpose: it keeps the database from being closed under a reader. Taken before
  // latch_mu_.
  mutable SharedMutex mu_;
  std::unique_ptr<RocksDbDatabase> database_ QGEMM_GUARDED_BY(mu_);  // null: reopening failed

  std::optional<std::string> moved_aside_ QGEMM_GUARDED_BY(mu_);
  std::atomic<bool> marked_damaged_{false};

  mutable Mutex latch_mu_;
  absl::Status write_error_ QGEMM_GUARDED_BY(latch_mu_);
  bool curable_ QGEMM_GUARDED_BY(latch_mu_) = true;  // false: opened for reading only
  TimePoint next_reopen_ QGEMM_GUARDED_BY(latch_mu_);
};

}  // namespace qgemm

#endif  // QGEMM_CACHE_ROCKSDB_STORE_H_
