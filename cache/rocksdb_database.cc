#include "cache/rocksdb_database.h"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rocksdb/advanced_options.h"
#include "rocksdb/cache.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/filter_policy.h"
#include "rocksdb/options.h"
#include "rocksdb/table.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Of blocks of tables, for all families together. One of RocksDB's own size for each would fill, for weeks,
// with blocks of tables that compaction has long replaced. Picks that are asked for are remembered above the
// store.
constexpr size_t kBlockCacheBytes = 4 * kMiB;

// RocksDB's messages, warnings and errors only, in our log. A logger of our own is not a convenience: the
// built-in one writes a file in the store's directory and aborts the process when the disk is full.
class WarningLogger : public rocksdb::Logger {
 public:
  WarningLogger() : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}

  void LogHeader(const char* format, va_list args) override {}
  void Logv(const char* format, va_list args) override {
    Logv(rocksdb::InfoLogLevel::WARN_LEVEL, format, args);
  }
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list args) override {
    if (level < rocksdb::InfoLogLevel::WARN_LEVEL || level == rocksdb::InfoLogLevel::HEADER_LEVEL) return;
    char line[1024];
    std::vsnprintf(line, sizeof(line), format, args);
    for (char* c = line; *c != '\0'; ++c) {
      if (*c == '\n') *c = ' ';
    }
    spdlog::warn("store: rocksdb: {}", line);
  }
};

rocksdb::CompressionType BlobCompression() {
  const std::vector<rocksdb::CompressionType> supported = rocksdb::GetSupportedCompressions();
  const bool zstd = std::find(supported.begin(), supported.end(), rocksdb::kZSTD) != supported.end();
  return zstd ? rocksdb::kZSTD : rocksdb::kNoCompression;
}

// A part of the limit, within what is reasonable without one.
uint64_t Share(int64_t limit_bytes, int64_t divisor, size_t least, size_t most) {
  if (limit_bytes <= 0) return most;
  return std::clamp(static_cast<size_t>(limit_bytes / divisor), least, most);
}

rocksdb::DBOptions DbOptions(rocksdb::Env* env, int64_t limit_bytes) {
  rocksdb::DBOptions options;
  if (env != nullptr) options.env = env;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.info_log = std::make_shared<WarningLogger>();
  options.max_background_jobs = 2;
  options.max_open_files = 512;
  // What is in the log is in memory, too, and is read again by the next opening.
  options.max_total_wal_size = Share(limit_bytes, 32, 2 * kMiB, 4 * kMiB);
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  // RocksDB's own recovery after a full disk does not bring writes back; the store reopens the database
  // instead.
  options.max_bgerror_resume_count = 0;
  return options;
}

rocksdb::ColumnFamilyOptions FamilyOptions(absl::string_view name, int64_t limit_bytes,
                                           const std::shared_ptr<rocksdb::Cache>& blocks) {
  rocksdb::ColumnFamilyOptions options;
  // An eighth of the buffer by default: as much as most families ever hold.
  options.arena_block_size = kMiB / 16;
  options.write_buffer_size = Share(limit_bytes, 128, kMiB, 8 * kMiB);
  // Compactions of ranges work on few files at a time, and need little space for it.
  options.target_file_size_base = Share(limit_bytes, 128, kMiB, 8 * kMiB);
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_cache = blocks;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  if (name == FamilyName(RecordFamily::kKernel)) {
    // Cubins are large and rarely rewritten. A blob file is deleted only as a whole, when compaction has
    // moved what still lives in it. That is left to Compact(): collecting in every compaction would rewrite
    // all blobs again and again, because the tables beside them are small and always compacted together.
    options.enable_blob_files = true;
    options.min_blob_size = 4096;
    options.blob_file_size = Share(limit_bytes, 128, kMiB, 16 * kMiB);
    options.blob_compression_type = BlobCompression();
    options.enable_blob_garbage_collection = false;
  }
  return options;
}

std::vector<std::string> OurFamilies() {
  std::vector<std::string> names = {rocksdb::kDefaultColumnFamilyName};
  for (int i = 0; i < kFamilyCount; ++i) names.emplace_back(FamilyName(static_cast<RecordFamily>(i)));
  return names;
}

}  // namespace

rocksdb::Status RocksDbDatabase::Open(const std::string& directory, Mode mode, rocksdb::Env* env,
                                      int64_t limit_bytes, std::unique_ptr<RocksDbDatabase>& database) {
  const rocksdb::DBOptions options = DbOptions(env, limit_bytes);
  // RocksDB wants every existing family named, also those of other versions.
  std::vector<std::string> names;
  rocksdb::Status listed = rocksdb::DB::ListColumnFamilies(options, directory, &names);
  const bool exists = !options.env->FileExists(absl::StrCat(directory, "/CURRENT")).IsNotFound();
  if (!listed.ok() && (exists || mode == Mode::kReadOnly)) return listed;
  if (mode == Mode::kReadWrite) {
    for (const std::string& name : OurFamilies()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  descriptors.reserve(names.size());
  const std::shared_ptr<rocksdb::Cache> blocks = rocksdb::NewLRUCache(kBlockCacheBytes);
  for (const std::string& name : names) {
    descriptors.emplace_back(name, FamilyOptions(name, limit_bytes, blocks));
  }

  std::unique_ptr<RocksDbDatabase> opened(new RocksDbDatabase());
  rocksdb::DB* db = nullptr;
  rocksdb::Status status =
      mode == Mode::kReadWrite
          ? rocksdb::DB::Open(options, directory, descriptors, &opened->handles_, &db)
          : rocksdb::DB::OpenForReadOnly(options, directory, descriptors, &opened->handles_, &db);
  opened->db_.reset(db);
  if (!status.ok()) return status;
  for (rocksdb::ColumnFamilyHandle* handle : opened->handles_) {
    for (int i = 0; i < kFamilyCount; ++i) {
      if (handle->GetName() == FamilyName(static_cast<RecordFamily>(i))) opened->families_[i] = handle;
    }
  }
  database = std::move(opened);
  return status;
}

RocksDbDatabase::~RocksDbDatabase() {
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* handle : handles_) {
    db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  }
  // After a failed write this repeats its error, which the writer has been told.
  db_->Close().PermitUncheckedError();
}

rocksdb::Status RocksDbDatabase::Compact(const std::function<bool()>& done, std::atomic<bool>& canceled) {
  // The log is shared: it is deleted when the last family no longer needs it.
  rocksdb::Status flushed = db_->Flush(rocksdb::FlushOptions(), handles_);
  if (!flushed.ok()) return flushed;
  rocksdb::CompactRangeOptions options;
  options.canceled = &canceled;
  options.exclusive_manual_compaction = false;
  options.allow_write_stall = false;
  for (const RecordFamily each : {RecordFamily::kKernel, RecordFamily::kPick, RecordFamily::kTiming,
                                  RecordFamily::kIndex, RecordFamily::kJob}) {
    // Of the kernels this moves the keys only, and tells what became garbage in which blob file.
    rocksdb::Status status = db_->CompactRange(options, family(each), nullptr, nullptr);
    if (!status.ok()) return status;
  }
  // The oldest blob files are emptied and deleted, some at a time, and what lives moves to new ones. After a
  // full round every file was looked at.
  constexpr double kStep = 1.0 / 16;
  constexpr int kMaxSteps = 20;
  options.blob_garbage_collection_policy = rocksdb::BlobGarbageCollectionPolicy::kForce;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  rocksdb::ColumnFamilyHandle* kernels = family(RecordFamily::kKernel);
  const auto property = [&](const std::string& name) {
    uint64_t value = 0;
    db_->GetIntProperty(kernels, name, &value);
    return value;
  };
  for (int step = 0; step < kMaxSteps && !done(); ++step) {
    // The last bit is not worth its writes.
    const uint64_t garbage = property(rocksdb::DB::Properties::kLiveBlobFileGarbageSize);
    if (garbage <= property(rocksdb::DB::Properties::kLiveBlobFileSize) / 32) break;
    // RocksDB rounds down to whole files.
    const auto files = static_cast<double>(property(rocksdb::DB::Properties::kNumBlobFiles));
    options.blob_garbage_collection_age_cutoff = std::min(1.0, std::max(kStep, 1.01 / std::max(1.0, files)));
    rocksdb::Status status = db_->CompactRange(options, kernels, nullptr, nullptr);
    if (!status.ok()) return status;
  }
  return rocksdb::Status::OK();
}

bool IsDamage(const rocksdb::Status& status) {
  return status.IsCorruption() || (status.IsIOError() && status.IsPathNotFound());
}

bool IsTableDamage(const rocksdb::Status& status) {
  if (!IsDamage(status)) return false;
  const std::string text = status.ToString();
  return !absl::StrContains(text, "Blob") && !absl::StrContains(text, "blob");
}

bool IsDiskFull(const rocksdb::Status& status) {
  return status.IsNoSpace() ||
         (status.IsIOError() &&
          absl::StrContains(status.ToString(), std::generic_category().message(EDQUOT)));
}

absl::Status FromRocksDb(const rocksdb::Status& status, absl::string_view directory, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat("store ", directory, ": ", what, ": ", status.ToString());
  if (IsDiskFull(status)) return absl::ResourceExhaustedError(message);
  if (IsDamage(status)) return absl::DataLossError(message);
  if (absl::StrContains(message, std::generic_category().message(EACCES))) {
    return absl::FailedPreconditionError(message);
  }
  return absl::UnavailableError(message);
}

}  // namespace qgemm
