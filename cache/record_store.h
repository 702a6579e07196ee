#ifndef QGEMM_CACHE_RECORD_STORE_H_
#define QGEMM_CACHE_RECORD_STORE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "cache/access_log.h"
#include "cache/cache_store.h"
#include "cache/record.h"

namespace qgemm {

inline constexpr int kSchemaVersion = 2;

// Column families of cache/FORMAT.md.
enum class RecordFamily { kKernel, kPick, kTiming, kIndex, kMeta, kJob };
inline constexpr int kFamilyCount = 6;
[[nodiscard]] absl::string_view FamilyName(RecordFamily family);

// As DecodeRecord; DataLoss also when the message, which is of the type's own kind, names another key than
// the one it was read under, or rests on keys that are none.
[[nodiscard]] absl::Status DecodeStoredRecord(RecordType type, absl::string_view key, absl::string_view value,
                                              google::protobuf::MessageLite& message);

// The store's typed half: keys, envelopes, indexes and what happens to corrupt records (cache/FORMAT.md),
// over an ordered table of bytes per family that a derived class keeps. Both stores share it, so a test that
// passes with the one in memory says something about the one on disk. Thread-safe when the derived class's
// table is.
class RecordStore : public CacheStore {
 public:
  absl::StatusOr<internal::KernelRecord> GetKernel(absl::string_view kernel_key) final;
  absl::StatusOr<internal::KernelRecord> GetKernelBySha256(absl::string_view sha256_hex) final;
  absl::Status PutKernel(const internal::KernelRecord& record) final;
  absl::StatusOr<std::vector<std::optional<internal::TimingRecord>>> GetTimings(
      absl::Span<const std::string> timing_keys) final;
  absl::Status PutTimings(absl::Span<const internal::TimingRecord> timings) final;
  absl::StatusOr<internal::PickRecord> GetPick(absl::string_view pick_key) final;
  uint64_t PickEpoch(absl::string_view pick_key) const final;
  absl::Status PutPick(const internal::PickRecord& pick,
                       absl::Span<const internal::TimingRecord> timings) final;
  // `visit` is called without a lock: it may use the store. Records written meanwhile may or may not be seen.
  absl::Status VisitPicks(const std::function<bool(const internal::PickRecord&)>& visit) final;
  absl::Status VisitKernels(const std::function<bool(const v1::KernelInfo&)>& visit) final;
  absl::StatusOr<internal::JobRecord> GetJob(absl::string_view job_id) final;
  absl::Status PutJob(const internal::JobRecord& record) final;
  absl::Status DeleteJobs(absl::Span<const std::string> job_ids) final;
  absl::Status VisitJobs(const std::function<bool(const internal::JobRecord&)>& visit) final;
  absl::Status VisitKernelEntries(
      const std::function<bool(absl::string_view kernel_key, const v1::KernelInfo&)>& visit) final;
  absl::StatusOr<CacheStats> Stats() final;

  // In cache/record_entries.cc.
  absl::Status VisitUses(const std::function<bool(const EntryUse&)>& visit) final;
  absl::Status FlushUses() final;
  absl::Status SetPinned(absl::Span<const EntryId> entries, bool pinned) final;
  absl::StatusOr<RemovedEntries> Remove(absl::Span<const EntryId> entries) final;
  absl::StatusOr<RemovedEntries> RemoveTimingsBefore(int64_t unix_ms) final;
  KernelHold Hold(absl::string_view kernel_key) final;
  absl::StatusOr<VerifyReport> Verify() final;
  absl::StatusOr<std::string> AdoptedToolchain() final;
  absl::Status AdoptToolchain(absl::string_view toolchain) final;

 protected:
  // `clock` dates reads and writes. Borrowed.
  explicit RecordStore(Clock& clock) : clock_(clock) {}

  struct Mutation {
    RecordFamily family;
    std::string key;
    std::optional<std::string> value;  // nullopt: delete
  };
  using Page = std::vector<std::pair<std::string, std::string>>;
  // `mutations` are applied if Read(family, key) still gives `seen`: a value, NotFound or DataLoss.
  struct Conditional {
    RecordFamily family;
    std::string key;
    absl::StatusOr<std::string> seen;
    std::vector<Mutation> mutations;
  };

  // NotFound: no such key. DataLoss: the bytes beneath it are damaged. Else: reading failed, the entry may be
  // good.
  virtual absl::StatusOr<std::string> Read(RecordFamily family, absl::string_view key) = 0;
  // Up to `limit` entries with begin <= key < end, in key order; an empty `end` is no bound. Fewer than
  // `limit`: there are no more. Entries that cannot be read because the bytes beneath are damaged are left
  // out.
  virtual absl::StatusOr<Page> ReadPage(RecordFamily family, absl::string_view begin, absl::string_view end,
                                        int limit) = 0;
  virtual absl::StatusOr<int64_t> Count(RecordFamily family) = 0;
  // All or nothing, durable when it returns OK.
  virtual absl::Status Write(const std::vector<Mutation>& mutations) = 0;
  // Applies, in one durable write, those whose condition holds; which did, in order. No other write comes
  // between the checks and that write.
  virtual absl::StatusOr<std::vector<bool>> ApplyIfStill(const std::vector<Conditional>& conditionals) = 0;
  // Deletes `key` and applies `also`, unless Read(family, key) no longer gives `seen`.
  absl::Status RemoveIfStill(RecordFamily family, absl::string_view key,
                             const absl::StatusOr<std::string>& seen, const std::vector<Mutation>& also);
  // ApplyIfStill's check.
  static bool StillHolds(const absl::StatusOr<std::string>& seen, const absl::StatusOr<std::string>& now);
  virtual int64_t DiskBytes() = 0;
  virtual int64_t LimitBytes() = 0;
  virtual absl::Status WriteError() const = 0;

  // The one write that stores a kernel: record and index entries. InvalidArgument as PutKernel.
  absl::StatusOr<std::vector<Mutation>> KernelMutations(const internal::KernelRecord& record);
  // The one write that stores a pick. InvalidArgument as PutPick.
  absl::StatusOr<std::vector<Mutation>> PickMutations(const internal::PickRecord& pick,
                                                      absl::Span<const internal::TimingRecord> timings);
  // The `used/` entry of a record of this size that is written now.
  Mutation UsedMutation(const EntryId& entry, size_t bytes);

  // Brings the tables from schema `version` to kSchemaVersion, step by step; may be repeated after a crash.
  // FailedPrecondition: no way leads from there. In cache/migration.cc.
  absl::Status MigrateFrom(int version);

  // To be called by Write and ApplyIfStill after the mutations were applied, also when that may have failed.
  void NoteWritten(const std::vector<Mutation>& mutations);
  // After a table was replaced as a whole.
  void NoteAllWritten();

  void CountEvicted(int64_t entries) { evicted_.fetch_add(entries); }

 private:
  friend class RecordStoreTestPeer;

  absl::Status ReadRecord(RecordFamily family, RecordType type, absl::string_view key,
                          google::protobuf::MessageLite& message);
  // Counts, logs and removes what `seen` shows to be corrupt.
  void DropCorrupt(RecordFamily family, absl::string_view key, const absl::StatusOr<std::string>& seen,
                   const absl::Status& reason);
  std::optional<v1::KernelInfo> RebuildKernelInfo(const std::string& kernel_key, const std::string& index_key,
                                                  const std::string& seen, const absl::Status& reason);

  // What keeps entries: the pins and the held kernels.
  struct Kept;
  absl::StatusOr<Kept> ReadKept();
  // Everything that goes with an entry, for one write; nullopt when it must stay or is not there.
  std::optional<Conditional> RemovalOf(const EntryId& entry, const Kept& kept, RemovedEntries& removed);
  // Checks every record of a family; corrupt ones are dropped.
  absl::Status VerifyFamily(RecordFamily family, RecordType type, int64_t& good);
  absl::Status VisitEntries(
      RecordFamily family, absl::string_view prefix,
      const std::function<bool(const std::string& key, const std::string& value)>& visit);

  Clock& clock_;
  std::atomic<int64_t> corrupt_{0};
  std::atomic<int64_t> evicted_{0};
  std::atomic<uint64_t> write_number_{0};
  AccessLog reads_;
  std::array<std::atomic<uint64_t>, 4096> pick_epochs_{};

  Mutex holds_mu_;
  std::map<std::string, int> holds_ QGEMM_GUARDED_BY(holds_mu_);  // by kernel key
};

}  // namespace qgemm

#endif  // QGEMM_CACHE_RECORD_STORE_H_
