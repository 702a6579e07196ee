#ifndef QGEMM_CACHE_ROCKSDB_DATABASE_H_
#define QGEMM_CACHE_ROCKSDB_DATABASE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cache/record_store.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"

namespace qgemm {

// An open RocksDB database with the families of cache/FORMAT.md. Thread-safe once open.
class RocksDbDatabase {
 public:
  enum class Mode { kReadWrite, kReadOnly };

  // `env` null: the real one. `limit_bytes`: how large the database may become, 0: any size; files and
  // buffers are small enough for it. The database is created when absent (kReadWrite). Returns RocksDB's own
  // status: the caller decides what damage or a full disk means.
  [[nodiscard]] static rocksdb::Status Open(const std::string& directory, Mode mode, rocksdb::Env* env,
                                            int64_t limit_bytes, std::unique_ptr<RocksDbDatabase>& database);
  // Closes it. Writes that were acknowledged are in the write-ahead log.
  ~RocksDbDatabase();
  RocksDbDatabase(const RocksDbDatabase&) = delete;
  RocksDbDatabase& operator=(const RocksDbDatabase&) = delete;

  [[nodiscard]] rocksdb::DB& db() { return *db_; }
  // Null: opened for reading only, and the database lacks the family.
  [[nodiscard]] rocksdb::ColumnFamilyHandle* family(RecordFamily family) const {
    return families_[static_cast<size_t>(family)];
  }

  // Gives deleted records' space back, `done()` asked between steps; `canceled` ends it early (Aborted). Each
  // step needs no more free space than a few small files.
  [[nodiscard]] rocksdb::Status Compact(const std::function<bool()>& done, std::atomic<bool>& canceled);

 private:
  RocksDbDatabase() = default;

  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, kFamilyCount> families_{};
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;  // all of them, also those of unknown families
};

// True when the bytes on disk are wrong or files are missing, so that trying again cannot help.
[[nodiscard]] bool IsDamage(const rocksdb::Status& status);

// Damage that stays when the record is deleted and that compaction will meet: anything but a blob's.
[[nodiscard]] bool IsTableDamage(const rocksdb::Status& status);

// True for a full disk and an exhausted disk quota.
[[nodiscard]] bool IsDiskFull(const rocksdb::Status& status);

// "store DIRECTORY: WHAT: RocksDB's words", with the code of cache_store.h: ResourceExhausted for a full
// disk, DataLoss for damage, FailedPrecondition for missing permissions, else Unavailable.
[[nodiscard]] absl::Status FromRocksDb(const rocksdb::Status& status, absl::string_view directory,
                                       absl::string_view what);

}  // namespace qgemm

#endif  // QGEMM_CACHE_ROCKSDB_DATABASE_H_
