#include "cache/rocksdb_store.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "cache/crash_point.h"
#include "cache/eviction.h"
#include "cache/index_keys.h"
#include "cache/rocksdb_database.h"
#include "cache/store_directory.h"
#include "rocksdb/db.h"
#include "rocksdb/utilities/checkpoint.h"
#include "rocksdb/write_batch.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

rocksdb::Slice ToSlice(absl::string_view bytes) { return {bytes.data(), bytes.size()}; }

// For reading from end to end: the few blocks that are asked for again and again stay remembered.
rocksdb::ReadOptions ScanOptions() {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  return options;
}

// A file in the store's directory that says, in a sentence, that an earlier process met a damaged table.
constexpr absl::string_view kDamageMark = "DAMAGED";

constexpr int kSalvageEntries = 64;

constexpr int kOldestSchemaVersion = 1;

// Evicting begins when less than this part of the limit is free, and ends when twice as much or more is.
constexpr int64_t kHeadRoomParts = 16;

// DataLoss: the directory holds a damaged store, as far as its file names tell. RocksDB creates a database
// where CURRENT is missing and deletes the files it does not know: a store that lost that one file must not
// get there.
absl::Status FindDamage(const std::string& directory) {
  std::error_code error;
  bool has_current = false;
  bool has_data = false;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name == kDamageMark) {
      return absl::DataLossError(
          absl::StrCat("store ", directory, ": an earlier process met a damaged table"));
    }
    has_current = has_current || name == "CURRENT";
    const std::string extension = it->path().extension().string();
    has_data = has_data || extension == ".sst" || extension == ".blob" || extension == ".log";
  }
  if (has_current || !has_data) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("store ", directory, ": its file CURRENT is missing"));
}

// Options files that a process was killed over as it wrote them: RocksDB 7.8 removes what it finds of its
// other temporary files, and never these (PurgeObsoleteFiles). The store's directory is held, so nobody
// writes one.
void RemoveUnfinishedOptions(const std::string& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> unfinished;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::filesystem::path& path = it->path();
    if (absl::StartsWith(path.filename().string(), "OPTIONS-") && path.extension() == ".dbtmp") {
      unfinished.push_back(path);
    }
  }
  // What cannot be removed is tried again by the next opening.
  for (const std::filesystem::path& path : unfinished) std::filesystem::remove(path, error);
}

// A key to go on from when the block that holds `key` cannot be read: the next value of the two bytes that
// follow the index's name part. Keys are digests, so few others share those. Empty: there is none.
std::string SkipAhead(RecordFamily family, const std::string& key) {
  const size_t prefix = family == RecordFamily::kIndex ? key.find('/') + 1 : 0;
  std::string next = key.substr(0, prefix + 2);
  next.resize(prefix + 2, '\0');
  for (size_t i = prefix + 2; i > prefix; --i) {
    if (++next[i - 1] != '\0') return next;
  }
  return "";
}

}  // namespace

RocksDbStore::RocksDbStore(std::string directory, const RocksDbStoreOptions& options)
    : RecordStore(*options.clock), directory_(std::move(directory)), options_(options) {}

RocksDbStore::~RocksDbStore() = default;

absl::StatusOr<std::unique_ptr<RocksDbStore>> RocksDbStore::Open(absl::string_view directory,
                                                                 const RocksDbStoreOptions& options) {
  QGEMM_ASSIGN_OR_RETURN(StoreDirectory held, StoreDirectory::Acquire(directory));
  auto store = absl::WrapUnique(new RocksDbStore(held.path(), options));
  store->held_ = std::make_unique<StoreDirectory>(std::move(held));
  {
    WriterLock lock(store->mu_);
    absl::Status status = FindDamage(store->directory_);
    if (status.ok()) status = store->OpenForWriting();
    if (absl::IsDataLoss(status)) status = store->StartAfresh(status.message());
    QGEMM_RETURN_IF_ERROR(status);
  }
  QGEMM_RETURN_IF_ERROR(store->Migrate());
  store->estimated_bytes_ = store->DiskBytes();
  return store;
}

absl::StatusOr<std::unique_ptr<RocksDbStore>> RocksDbStore::OpenReadOnly(absl::string_view directory,
                                                                         const RocksDbStoreOptions& options) {
  QGEMM_RETURN_IF_ERROR(StoreDirectory::CheckReadable(directory));
  auto store = absl::WrapUnique(new RocksDbStore(std::string(directory), options));
  {
    MutexLock latch(store->latch_mu_);
    store->curable_ = false;
    store->write_error_ =
        absl::FailedPreconditionError(absl::StrCat("store ", directory, " was opened for reading only"));
  }
  WriterLock lock(store->mu_);
  std::error_code error;
  if (!std::filesystem::exists(store->directory_ + "/CURRENT", error)) {
    return absl::NotFoundError(absl::StrCat("there is no store in ", directory));
  }
  const rocksdb::Status status = RocksDbDatabase::Open(store->directory_, RocksDbDatabase::Mode::kReadOnly,
                                                       options.env, 0, store->database_);
  QGEMM_RETURN_IF_ERROR(FromRocksDb(status, directory, "it cannot be opened for reading"));
  QGEMM_RETURN_IF_ERROR(store->CheckSchema());
  return store;
}

// Falls back to reading only when the disk is full.
absl::Status RocksDbStore::OpenForWriting() {
  database_.reset();
  RemoveUnfinishedOptions(directory_);
  const rocksdb::Status status = RocksDbDatabase::Open(directory_, RocksDbDatabase::Mode::kReadWrite,
                                                       options_.env, options_.limit_bytes, database_);
  if (IsDiskFull(status) && RocksDbDatabase::Open(directory_, RocksDbDatabase::Mode::kReadOnly, options_.env,
                                                  options_.limit_bytes, database_)
                                .ok()) {
    spdlog::warn("store {}: the disk is full, records are read but not written: {}", directory_,
                 status.ToString());
    Latch(FromRocksDb(status, directory_, "the disk is full"));
  } else {
    QGEMM_RETURN_IF_ERROR(FromRocksDb(status, directory_, "it cannot be opened"));
  }
  return CheckSchema();
}

absl::Status RocksDbStore::StartAfresh(absl::string_view reason) {
  database_.reset();
  QGEMM_ASSIGN_OR_RETURN(moved_aside_, held_->MoveAside(options_.clock->WallUnixMs() / 1000));
  marked_damaged_ = false;
  NoteAllWritten();
  QGEMM_RETURN_IF_ERROR(OpenForWriting());
  int64_t copied = 0;
  absl::Status salvaged;
  if (auto damaged = OpenReadOnly(*moved_aside_, options_); damaged.ok()) {
    salvaged = Salvage(**damaged, copied);
  } else {
    salvaged = damaged.status();
  }
  spdlog::warn("{}; it was moved to {} and a fresh store took over {} of its records{}", std::string(reason),
               *moved_aside_, copied, salvaged.ok() ? "" : absl::StrCat(": ", salvaged.message()));
  // What was not taken over is made again when it is asked for.
  return absl::OkStatus();
}

absl::Status RocksDbStore::Salvage(RocksDbStore& damaged, int64_t& copied) {
  for (const RecordFamily family :
       {RecordFamily::kKernel, RecordFamily::kPick, RecordFamily::kTiming, RecordFamily::kJob}) {
    std::string begin;
    while (true) {
      QGEMM_ASSIGN_OR_RETURN(const Page page, damaged.ReadPage(family, begin, "", kSalvageEntries));
      std::vector<Mutation> mutations;
      for (const auto& [key, value] : page) {
        if (family != RecordFamily::kKernel) {
          mutations.push_back({family, key, value});
          if (family == RecordFamily::kPick) {
            mutations.push_back(UsedMutation({EntryKind::kPick, key}, value.size()));
          }
          ++copied;
          continue;
        }
        internal::KernelRecord record;
        if (!DecodeStoredRecord(RecordType::kKernel, key, value, record).ok()) continue;
        QGEMM_ASSIGN_OR_RETURN(std::vector<Mutation> kernel, KernelMutations(record));
        std::move(kernel.begin(), kernel.end(), std::back_inserter(mutations));
        ++copied;
      }
      if (!mutations.empty()) QGEMM_RETURN_IF_ERROR(WriteLocked(mutations));
      if (page.size() < kSalvageEntries) break;
      begin = KeyAfter(page.back().first);
    }
  }
  return SalvageIndex(damaged);
}

absl::Status RocksDbStore::SalvageIndex(RocksDbStore& damaged) {
  std::vector<Mutation> mutations;
  const absl::StatusOr<std::string> toolchain = damaged.Read(RecordFamily::kMeta, kToolchainKey);
  if (toolchain.ok()) mutations.push_back({RecordFamily::kMeta, std::string(kToolchainKey), *toolchain});
  for (const absl::string_view prefix : {kPinPrefix, kUsedPrefix}) {
    const std::string end = PrefixEnd(prefix);
    std::string begin(prefix);
    while (true) {
      QGEMM_ASSIGN_OR_RETURN(const Page page,
                             damaged.ReadPage(RecordFamily::kIndex, begin, end, kSalvageEntries));
      for (const auto& [key, value] : page) {
        // Only entries of records that were taken over: those have one, dated now.
        if (prefix == kPinPrefix || ReadLocked(RecordFamily::kIndex, key).ok()) {
          mutations.push_back({RecordFamily::kIndex, key, value});
        }
      }
      if (!mutations.empty()) QGEMM_RETURN_IF_ERROR(WriteLocked(mutations));
      mutations.clear();
      if (page.size() < kSalvageEntries) break;
      begin = KeyAfter(page.back().first);
    }
  }
  return absl::OkStatus();
}

void RocksDbStore::MarkDamaged(const absl::Status& reason) {
  if (held_ == nullptr || marked_damaged_.exchange(true)) return;
  std::ofstream(absl::StrCat(directory_, "/", kDamageMark)) << reason.message() << "\n";
  spdlog::error("{}; records beneath it are missing, the store is renewed when it is opened again",
                std::string(reason.message()));
}

std::optional<std::string> RocksDbStore::moved_aside() const {
  ReaderLock lock(mu_);
  return moved_aside_;
}

absl::Status RocksDbStore::CheckSchema() {
  const absl::StatusOr<std::string> stored = ReadLocked(RecordFamily::kMeta, kSchemaKey);
  if (stored.ok()) {
    int version = 0;
    if (!absl::SimpleAtoi(*stored, &version)) {
      return absl::DataLossError(absl::StrCat("store ", directory_, ": its schema version is \"",
                                              absl::CEscape(*stored), "\", it must be a number"));
    }
    found_version_ = version;
    if (version >= kOldestSchemaVersion && version <= kSchemaVersion) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("store ", directory_, " has schema version ", version, ", this program knows version ",
                     kSchemaVersion, " and older ones from ", kOldestSchemaVersion,
                     version > kSchemaVersion ? "; use a newer program" : " and no way from there",
                     " or another store directory"));
  }
  if (!absl::IsNotFound(stored.status())) return stored.status();
  for (const RecordFamily family :
       {RecordFamily::kKernel, RecordFamily::kPick, RecordFamily::kTiming, RecordFamily::kJob}) {
    rocksdb::ColumnFamilyHandle* handle = database_->family(family);
    if (handle == nullptr) continue;
    const std::unique_ptr<rocksdb::Iterator> it(database_->db().NewIterator(rocksdb::ReadOptions(), handle));
    it->SeekToFirst();
    if (it->Valid()) {
      // It is the first record that every version writes: this is what is left of a store.
      return absl::DataLossError(
          absl::StrCat("store ", directory_, ": it has records but no schema version"));
    }
  }
  if (!write_error().ok()) return absl::OkStatus();  // empty and read-only: nothing can be misread
  found_version_ = kSchemaVersion;
  return WriteLocked({{RecordFamily::kMeta, std::string(kSchemaKey), absl::StrCat(kSchemaVersion)}});
}

absl::Status RocksDbStore::Migrate() {
  if (found_version_ == kSchemaVersion) return absl::OkStatus();
  const int64_t begin_ms = options_.clock->WallUnixMs();
  const absl::Status status = MigrateFrom(found_version_);
  if (absl::IsResourceExhausted(status)) {
    // Old records read as well as new ones; the next opening tries again.
    spdlog::warn("store {}: not migrated from schema version {}: {}", directory_, found_version_,
                 std::string(status.message()));
    return absl::OkStatus();
  }
  QGEMM_RETURN_IF_ERROR(status);
  spdlog::info("store {}: migrated from schema version {} to {} in {} ms", directory_, found_version_,
               kSchemaVersion, options_.clock->WallUnixMs() - begin_ms);
  found_version_ = kSchemaVersion;
  return absl::OkStatus();
}

absl::StatusOr<std::string> RocksDbStore::Read(RecordFamily family, absl::string_view key) {
  ReaderLock lock(mu_);
  return ReadLocked(family, key);
}

absl::StatusOr<std::string> RocksDbStore::ReadLocked(RecordFamily family, absl::string_view key) {
  if (database_ == nullptr) return write_error();
  rocksdb::ColumnFamilyHandle* handle = database_->family(family);
  if (handle == nullptr) return absl::NotFoundError("no such family");
  std::string value;
  const rocksdb::Status status = database_->db().Get(rocksdb::ReadOptions(), handle, ToSlice(key), &value);
  if (status.IsNotFound()) return absl::NotFoundError("no such key");
  if (status.ok()) return value;
  absl::Status error =
      FromRocksDb(status, directory_, absl::StrCat("a ", FamilyName(family), " record cannot be read"));
  if (IsTableDamage(status)) MarkDamaged(error);
  return error;
}

absl::StatusOr<RecordStore::Page> RocksDbStore::ReadPage(RecordFamily family, absl::string_view begin,
                                                         absl::string_view end, int limit) {
  ReaderLock lock(mu_);
  Page page;
  if (database_ == nullptr) return write_error();
  rocksdb::ColumnFamilyHandle* handle = database_->family(family);
  if (handle == nullptr) return page;
  rocksdb::ReadOptions options = ScanOptions();
  const rocksdb::Slice upper_bound = ToSlice(end);
  if (!end.empty()) options.iterate_upper_bound = &upper_bound;
  const std::unique_ptr<rocksdb::Iterator> it(database_->db().NewIterator(options, handle));
  std::string from(begin);
  it->Seek(from);
  while (page.size() < static_cast<size_t>(limit)) {
    if (it->Valid()) {
      from = it->key().ToString();
      page.emplace_back(from, it->value().ToString());
      it->Next();
      continue;
    }
    absl::Status error =
        FromRocksDb(it->status(), directory_, absl::StrCat(FamilyName(family), " records cannot be listed"));
    if (error.ok()) break;
    if (!IsDamage(it->status())) return error;
    if (IsTableDamage(it->status())) MarkDamaged(error);
    from = SkipAhead(family, from);
    if (from.empty()) break;
    it->Seek(from);
  }
  return page;
}

absl::StatusOr<int64_t> RocksDbStore::Count(RecordFamily family) {
  ReaderLock lock(mu_);
  if (database_ == nullptr) return write_error();
  rocksdb::ColumnFamilyHandle* handle = database_->family(family);
  if (handle == nullptr) return 0;
  const std::unique_ptr<rocksdb::Iterator> it(database_->db().NewIterator(ScanOptions(), handle));
  int64_t count = 0;
  std::string from;
  it->SeekToFirst();
  while (true) {
    for (; it->Valid(); it->Next()) {
      ++count;
      from.assign(it->key().data(), it->key().size());
    }
    absl::Status error =
        FromRocksDb(it->status(), directory_, absl::StrCat(FamilyName(family), " records cannot be counted"));
    if (error.ok()) return count;
    if (!IsDamage(it->status())) return error;
    if (IsTableDamage(it->status())) MarkDamaged(error);
    from = SkipAhead(family, from);
    if (from.empty()) return count;
    it->Seek(from);
  }
}

absl::Status RocksDbStore::Write(const std::vector<Mutation>& mutations) {
  QGEMM_RETURN_IF_ERROR(RecoverWrites());
  QGEMM_RETURN_IF_ERROR(ReserveRoom(mutations));
  CrashPoint("store-before-write");
  {
    ReaderLock lock(mu_);
    ReaderLock write_lock(write_mu_);
    QGEMM_RETURN_IF_ERROR(WriteLocked(mutations));
  }
  CrashPoint("store-after-write");
  // An unlinked log takes writes and syncs like any other.
  if (IsDeleted()) {
    return absl::UnavailableError(absl::StrCat(
        "store ", directory_, ": its files were deleted, nothing was kept; a fresh store is begun"));
  }
  return absl::OkStatus();
}

absl::Status RocksDbStore::WriteLocked(const std::vector<Mutation>& mutations) {
  QGEMM_RETURN_IF_ERROR(write_error());
  rocksdb::WriteBatch batch;
  QGEMM_RETURN_IF_ERROR(AddTo(batch, mutations));
  absl::Status status = WriteBatch(batch);
  NoteWritten(mutations);
  return status;
}

absl::Status RocksDbStore::AddTo(rocksdb::WriteBatch& batch, const std::vector<Mutation>& mutations) {
  for (const Mutation& mutation : mutations) {
    rocksdb::ColumnFamilyHandle* handle = database_->family(mutation.family);
    const rocksdb::Status added = mutation.value.has_value()
                                      ? batch.Put(handle, mutation.key, *mutation.value)
                                      : batch.Delete(handle, mutation.key);
    QGEMM_RETURN_IF_ERROR(FromRocksDb(added, directory_, "a write cannot be prepared"));
  }
  return absl::OkStatus();
}

absl::Status RocksDbStore::WriteBatch(rocksdb::WriteBatch& batch) {
  rocksdb::WriteOptions options;
  options.sync = true;
  const rocksdb::Status status = database_->db().Write(options, &batch);
  if (status.ok()) {
    estimated_bytes_ += static_cast<int64_t>(batch.GetDataSize());
    return absl::OkStatus();
  }
  absl::Status error = FromRocksDb(
      status, directory_, IsDiskFull(status) ? "the disk is full, nothing was written" : "a write failed");
  if (IsTableDamage(status)) MarkDamaged(error);
  Latch(error);
  return error;
}

absl::StatusOr<std::vector<bool>> RocksDbStore::ApplyIfStill(const std::vector<Conditional>& conditionals) {
  ReaderLock lock(mu_);
  WriterLock write_lock(write_mu_);
  QGEMM_RETURN_IF_ERROR(write_error());
  rocksdb::WriteBatch batch;
  std::vector<bool> applied;
  for (const Conditional& conditional : conditionals) {
    applied.push_back(StillHolds(conditional.seen, ReadLocked(conditional.family, conditional.key)));
    if (applied.back()) QGEMM_RETURN_IF_ERROR(AddTo(batch, conditional.mutations));
  }
  if (batch.Count() > 0) {
    const absl::Status status = WriteBatch(batch);
    for (const Conditional& conditional : conditionals) NoteWritten(conditional.mutations);
    QGEMM_RETURN_IF_ERROR(status);
  }
  return applied;
}

int64_t RocksDbStore::DiskBytes() { return FileBytes(directory_); }

absl::Status RocksDbStore::write_error() const {
  MutexLock lock(latch_mu_);
  return write_error_;
}

void RocksDbStore::Latch(absl::Status error) {
  MutexLock lock(latch_mu_);
  if (!write_error_.ok()) return;
  spdlog::error("{}; records are still read, writes are refused until the store can be reopened",
                std::string(error.message()));
  write_error_ = std::move(error);
  next_reopen_ = options_.clock->Now() + options_.reopen_interval;
}

absl::Status RocksDbStore::RecoverWrites() {
  bool damaged = false;
  {
    MutexLock latch(latch_mu_);
    if (write_error_.ok()) return absl::OkStatus();
    damaged = absl::IsDataLoss(write_error_);
    if (!curable_ || options_.clock->Now() < next_reopen_) return write_error_;
    next_reopen_ = options_.clock->Now() + options_.reopen_interval;
  }
  compaction_canceled_ = true;
  WriterLock lock(mu_);
  compaction_canceled_ = false;
  CrashPoint("store-before-reopen");
  if (damaged) {
    // RocksDB met damage while compacting and would meet it again.
    absl::Status reason;
    {
      MutexLock latch(latch_mu_);
      reason = std::exchange(write_error_, absl::OkStatus());
    }
    absl::Status renewed = StartAfresh(reason.message());
    if (!renewed.ok()) Latch(renewed);
    return renewed;
  }
  database_.reset();
  const rocksdb::Status status = RocksDbDatabase::Open(directory_, RocksDbDatabase::Mode::kReadWrite,
                                                       options_.env, options_.limit_bytes, database_);
  if (!status.ok()) {
    const rocksdb::Status reading = RocksDbDatabase::Open(directory_, RocksDbDatabase::Mode::kReadOnly,
                                                          options_.env, options_.limit_bytes, database_);
    MutexLock latch(latch_mu_);
    write_error_ =
        FromRocksDb(status, directory_,
                    IsDiskFull(status) ? "the disk is full, nothing was written" : "it cannot be reopened");
    if (!reading.ok()) {
      spdlog::error("store {}: it can no longer be read: {}", directory_, reading.ToString());
    }
    return write_error_;
  }
  MutexLock latch(latch_mu_);
  write_error_ = absl::OkStatus();
  spdlog::info("store {}: reopened, writes work again", directory_);
  return absl::OkStatus();
}

void RocksDbStore::Heal() {
  if (!write_error().ok()) RecoverWrites().IgnoreError();
}

bool RocksDbStore::IsDeleted() const {
  if (held_ == nullptr) return false;
  return !held_->StillThere() || access(absl::StrCat(directory_, "/CURRENT").c_str(), F_OK) != 0;
}

bool RocksDbStore::RenewIfDeleted() {
  if (!IsDeleted()) return false;
  compaction_canceled_ = true;
  WriterLock lock(mu_);
  compaction_canceled_ = false;
  database_.reset();
  absl::Status status;
  if (!held_->StillThere()) {
    absl::StatusOr<StoreDirectory> anew = StoreDirectory::Acquire(directory_);
    status = anew.status();
    if (anew.ok()) *held_ = *std::move(anew);
  }
  {
    MutexLock latch(latch_mu_);
    write_error_ = absl::OkStatus();
  }
  if (status.ok() && absl::IsDataLoss(FindDamage(directory_))) {
    status = held_->MoveAside(options_.clock->WallUnixMs() / 1000).status();
  }
  if (status.ok()) status = OpenForWriting();
  if (!status.ok()) Latch(status);
  NoteAllWritten();
  spdlog::error("store {}: its files were deleted while they were in use; {}", directory_,
                status.ok() ? "a fresh store was begun, what is missing is made again when it is asked for"
                            : absl::StrCat("no fresh store can be begun: ", status.message()));
  return true;
}

absl::Status RocksDbStore::ReserveRoom(const std::vector<Mutation>& mutations) {
  if (options_.limit_bytes <= 0) return absl::OkStatus();
  int64_t bytes = 0;
  bool adds_records = false;
  for (const Mutation& mutation : mutations) {
    bytes += static_cast<int64_t>(mutation.key.size() + mutation.value.value_or("").size());
    adds_records =
        adds_records || (mutation.value.has_value() && mutation.family != RecordFamily::kIndex &&
                         mutation.family != RecordFamily::kMeta && mutation.family != RecordFamily::kJob);
  }
  // Evicting itself writes to the index, and a job is journalled at any time: that room is always left.
  if (!adds_records || estimated_bytes_ + bytes <= options_.limit_bytes) return absl::OkStatus();
  return MakeRoom();
}

absl::Status RocksDbStore::MakeRoom() {
  const int64_t limit = options_.limit_bytes;
  if (limit <= 0) return absl::OkStatus();
  const int64_t head_room = limit / kHeadRoomParts;
  if (estimated_bytes_ <= limit - head_room) return absl::OkStatus();
  MutexLock lock(room_mu_);
  // The log's bytes were counted twice if they are in tables by now.
  int64_t used = DiskBytes();
  estimated_bytes_ = used;
  if (used <= limit - head_room) return absl::OkStatus();
  const int64_t target = limit - 3 * head_room;
  QGEMM_ASSIGN_OR_RETURN(const RemovedEntries removed,
                         EvictFraction(*this, 1.0 - static_cast<double>(target) / static_cast<double>(used)));
  CountEvicted(removed.picks + removed.kernels);
  const absl::Status compacted = CompactUntil(limit - 2 * head_room);
  const int64_t before = used;
  used = DiskBytes();
  estimated_bytes_ = used;
  spdlog::info(
      "store {}: at its limit of {} bytes: {} kernels, {} picks and {} timings evicted, {} -> {} bytes",
      directory_, limit, removed.kernels, removed.picks, removed.timings, before, used);
  QGEMM_RETURN_IF_ERROR(compacted);
  if (used <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("store ", directory_, " has ", used, " bytes, its limit is ", limit,
                   ", and the rest is pinned or in use: raise the limit, unpin or delete"));
}

absl::Status RocksDbStore::Compact() {
  MutexLock lock(room_mu_);
  return CompactUntil(0);
}

absl::Status RocksDbStore::CompactUntil(int64_t disk_bytes) {
  ReaderLock lock(mu_);
  if (database_ == nullptr) return write_error();
  const rocksdb::Status status =
      database_->Compact([&] { return DiskBytes() <= disk_bytes; }, compaction_canceled_);
  if (status.ok() || status.IsIncomplete() || status.IsAborted()) return absl::OkStatus();
  return FromRocksDb(status, directory_, "space cannot be given back");
}

absl::Status RocksDbStore::Backup(absl::string_view directory) {
  const std::string target(directory);
  if (target.empty() || target[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("the backup directory is \"", absl::CEscape(target), "\", it must be an absolute path"));
  }
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(target, error))) {
    return absl::FailedPreconditionError(
        absl::StrCat("the backup directory ", target, " exists, it must be a new one"));
  }
  FlushUses().IgnoreError();  // a copy with older dates is as good
  ReaderLock lock(mu_);
  if (database_ == nullptr) return write_error();
  rocksdb::Checkpoint* raw = nullptr;
  rocksdb::Status status = rocksdb::Checkpoint::Create(&database_->db(), &raw);
  const std::unique_ptr<rocksdb::Checkpoint> checkpoint(raw);
  // A checkpoint is made under another name and renamed when it is whole.
  CrashPoint("backup-before-checkpoint");
  if (status.ok()) status = checkpoint->CreateCheckpoint(target);
  return FromRocksDb(status, directory_, absl::StrCat("it cannot be copied to ", target));
}

}  // namespace qgemm
