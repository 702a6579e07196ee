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
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/filter_policy.h"
#include "rocksdb/options.h"
#include "rocksdb/table.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

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

rocksdb::DBOptions DbOptions(rocksdb::Env* env) {
  rocksdb::DBOptions options;
  if (env != nullptr) options.env = env;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.info_log = std::make_shared<WarningLogger>();
  options.max_background_jobs = 2;
  options.max_open_files = 512;
  options.max_total_wal_size = 64 * kMiB;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  // RocksDB's own recovery after a full disk does not bring writes back; the store reopens the database
  // instead.
  options.max_bgerror_resume_count = 0;
  return options;
}

rocksdb::ColumnFamilyOptions FamilyOptions(absl::string_view name) {
  rocksdb::ColumnFamilyOptions options;
  options.write_buffer_size = 8 * kMiB;
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  if (name == FamilyName(RecordFamily::kKernel)) {
    // Cubins are large and rarely rewritten. A blob file is deleted only as a whole, when compaction has
    // moved what still lives in it: small files and forced collection give space back soon after a delete.
    options.enable_blob_files = true;
    options.min_blob_size = 4096;
    options.blob_file_size = 16 * kMiB;
    options.blob_compression_type = BlobCompression();
    options.enable_blob_garbage_collection = true;
    options.blob_garbage_collection_age_cutoff = 1.0;
    options.blob_garbage_collection_force_threshold = 0.5;
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
                                      std::unique_ptr<RocksDbDatabase>& database) {
  const rocksdb::DBOptions options = DbOptions(env);
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
  for (const std::string& name : names) descriptors.emplace_back(name, FamilyOptions(name));

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
