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
class WriteBatch;
}  // namespace rocksdb

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
  // The store's files are kept below this: what was used least recently is removed first. 0: no limit.
  int64_t limit_bytes = 0;
};

// The smallest limit that leaves room for RocksDB's own files.
inline constexpr int64_t kMinStoreLimitBytes = int64_t{64} << 20;

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

  // The next three belong to Housekeeping (cache/housekeeping.h) and do nothing when nothing is to be done.
  // Tries to bring writes back, at most once per `reopen_interval`.
  void Heal();
  // Begins a fresh store when the directory, or the files in it, were deleted under this one; returns
  // whether.
  bool RenewIfDeleted();
  // Evicts when less than a sixteenth of the limit is free; the first eviction after the limit was lowered
  // may take long. ResourceExhausted: what is left is pinned or in use, and more than the limit.
  absl::Status MakeRoom();
  // Gives the space of removed entries back.
  absl::Status Compact();
  // Whether RequestCompaction was called since.
  bool TakeCompactionRequest() { return compaction_requested_.exchange(false); }

  void RequestCompaction() override { compaction_requested_ = true; }

  absl::Status Backup(absl::string_view directory) override;

 protected:
  absl::StatusOr<std::string> Read(RecordFamily family, absl::string_view key) override;
  absl::StatusOr<Page> ReadPage(RecordFamily family, absl::string_view begin, absl::string_view end,
                                int limit) override;
  absl::StatusOr<int64_t> Count(RecordFamily family) override;
  absl::Status Write(const std::vector<Mutation>& mutations) override;
  absl::StatusOr<std::vector<bool>> ApplyIfStill(const std::vector<Conditional>& conditionals) override;
  int64_t DiskBytes() override;
  int64_t LimitBytes() override { return options_.limit_bytes; }
  absl::Status WriteError() const override { return write_error(); }

 private:
  RocksDbStore(std::string directory, const RocksDbStoreOptions& options);

  absl::Status OpenForWriting() QGEMM_REQUIRES(mu_);
  // Renames the directory, opens a fresh store in its place and copies what is readable.
  absl::Status StartAfresh(absl::string_view reason) QGEMM_REQUIRES(mu_);
  absl::Status Salvage(RocksDbStore& damaged, int64_t& copied) QGEMM_REQUIRES(mu_);
  // Pins, dates and the toolchain of an imported pack.
  absl::Status SalvageIndex(RocksDbStore& damaged) QGEMM_REQUIRES(mu_);
  // Runs the migrations that the store needs and the disk allows.
  absl::Status Migrate();
  // Whether the directory or its files were deleted.
  bool IsDeleted() const;
  // Before records are added: OK when the limit allows it.
  absl::Status ReserveRoom(const std::vector<Mutation>& mutations);
  absl::Status CompactUntil(int64_t disk_bytes);
  // Leaves word for the next Open() that a table is damaged.
  void MarkDamaged(const absl::Status& reason);
  // Sets found_version_.
  absl::Status CheckSchema() QGEMM_REQUIRES(mu_);
  absl::StatusOr<std::string> ReadLocked(RecordFamily family, absl::string_view key)
      QGEMM_REQUIRES_SHARED(mu_);
  absl::Status WriteLocked(const std::vector<Mutation>& mutations) QGEMM_REQUIRES_SHARED(mu_);
  absl::Status AddTo(rocksdb::WriteBatch& batch, const std::vector<Mutation>& mutations)
      QGEMM_REQUIRES_SHARED(mu_);
  absl::Status WriteBatch(rocksdb::WriteBatch& batch) QGEMM_REQUIRES_SHARED(mu_);
  // OK when writes may go on: there was no error, or reopening cured it.
  absl::Status RecoverWrites() QGEMM_EXCLUDES(mu_);
  void Latch(absl::Status error) QGEMM_EXCLUDES(latch_mu_);

  const std::string directory_;
  const RocksDbStoreOptions options_;
  // The directory's lock; null when opened for reading only. Constant after Open.
  std::unique_ptr<StoreDirectory> held_;

  // Serialises evictions. Taken before all others.
  Mutex room_mu_;
  std::atomic<int64_t> estimated_bytes_{0};  // disk_bytes as of the last look, plus what was written since
  std::atomic<bool> compaction_canceled_{false};
  std::atomic<bool> compaction_requested_{false};

  // Shared by every read and write; exclusive while the database is reopened. It is held during I/O on
  // purpose: it keeps the database from being closed under a reader. Taken before write_mu_ and latch_mu_.
  mutable SharedMutex mu_;
  // Shared by every write, exclusive by those that depend on what they read. Held during the write.
  SharedMutex write_mu_;
  int found_version_ = kSchemaVersion;                               // constant after Open, but for Migrate
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
