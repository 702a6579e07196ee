#ifndef QGEMM_CACHE_CACHE_STORE_H_
#define QGEMM_CACHE_CACHE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "qgemm/internal/store.pb.h"
#include "qgemm/v1/types.pb.h"

namespace qgemm {

struct CacheStats {
  int schema_version = 0;
  int64_t kernels = 0;
  int64_t kernel_bytes = 0;  // sum of cubin bytes
  int64_t picks = 0;
  int64_t timings = 0;
  int64_t disk_bytes = 0;   // 0 for a store in memory
  int64_t corrupt = 0;      // records whose checksum failed since the store was opened
  int64_t pinned = 0;       // picks and kernels that stay whatever the size limit says
  int64_t limit_bytes = 0;  // what disk_bytes is kept below; 0: no limit
  int64_t evicted = 0;      // picks and kernels removed for the size limit or their age, since the opening
  std::string adopted_toolchain;  // of the last imported pack; empty: none
  std::string write_error;        // what writes answer at present; empty: they work
};

// What is used, pinned, evicted, deleted and exported as one. A pick's timings go with it.
enum class EntryKind : char { kKernel = 'k', kPick = 'p' };

struct EntryId {
  EntryKind kind = EntryKind::kPick;
  std::string key;  // the record's 32 bytes

  friend bool operator==(const EntryId&, const EntryId&) = default;
};

struct EntryUse {
  EntryId id;
  int64_t used_unix_hour = 0;  // last written or read, in hours since the Unix epoch
  int64_t bytes = 0;           // of the record as it was written, a pick's timings included
  bool pinned = false;
};

struct RemovedEntries {
  int64_t kernels = 0;
  int64_t picks = 0;
  int64_t timings = 0;
  int64_t kept = 0;   // pinned, in use, or changed meanwhile
  int64_t bytes = 0;  // as in EntryUse
};

struct VerifyReport {
  int64_t kernels = 0;  // checked and good
  int64_t picks = 0;
  int64_t timings = 0;
  int64_t corrupt = 0;               // removed, or skipped in a store that is only read
  int64_t picks_without_kernel = 0;  // their kernel is compiled again when it is asked for
};

// Keeps a kernel from being evicted or deleted while it lives. Movable; outlived by its store.
using KernelHold = std::shared_ptr<void>;

// Typed, durable records. Keys are the 32 bytes that server/kernel_key.h composes; the store does not look
// into them. A record that fails its checksum is reported as NotFound, counted in CacheStats::corrupt and
// removed, so that the caller rebuilds it. Writes that return OK are durable (synced). After the first failed
// write the store refuses further writes with that error (reads go on); ResourceExhausted means the disk is
// full. All methods are thread-safe.
class CacheStore {
 public:
  virtual ~CacheStore() = default;

  // One record holds a kernel's bytes and its metadata. NotFound: never stored, or was corrupt.
  [[nodiscard]] virtual absl::StatusOr<internal::KernelRecord> GetKernel(absl::string_view kernel_key) = 0;
  // By the SHA-256 (lower-case hex) of the cubin bytes.
  [[nodiscard]] virtual absl::StatusOr<internal::KernelRecord> GetKernelBySha256(
      absl::string_view sha256_hex) = 0;
  // InvalidArgument when info.sha256 is not the digest of the cubin.
  [[nodiscard]] virtual absl::Status PutKernel(const internal::KernelRecord& record) = 0;

  // One entry per key, in order; nullopt where there is none.
  [[nodiscard]] virtual absl::StatusOr<std::vector<std::optional<internal::TimingRecord>>> GetTimings(
      absl::Span<const std::string> timing_keys) = 0;
  [[nodiscard]] virtual absl::Status PutTimings(absl::Span<const internal::TimingRecord> timings) = 0;

  [[nodiscard]] virtual absl::StatusOr<internal::PickRecord> GetPick(absl::string_view pick_key) = 0;
  // A number that changes whenever a pick under this key, or under one of few others, may have changed: what
  // was read from it is still right while the number is the same. Cheap.
  [[nodiscard]] virtual uint64_t PickEpoch(absl::string_view pick_key) const = 0;
  // The pick and the timings it rests on, in one atomic write: after a crash either all of it is there or
  // none.
  [[nodiscard]] virtual absl::Status PutPick(const internal::PickRecord& pick,
                                             absl::Span<const internal::TimingRecord> timings) = 0;

  // In key order; stops when `visit` returns false. Corrupt records are skipped.
  [[nodiscard]] virtual absl::Status VisitPicks(
      const std::function<bool(const internal::PickRecord&)>& visit) = 0;
  [[nodiscard]] virtual absl::Status VisitKernels(
      const std::function<bool(const v1::KernelInfo&)>& visit) = 0;

  // The journal of jobs. Ids have 1 .. 64 characters. A corrupt record is a miss, as everywhere.
  [[nodiscard]] virtual absl::StatusOr<internal::JobRecord> GetJob(absl::string_view job_id) = 0;
  [[nodiscard]] virtual absl::Status PutJob(const internal::JobRecord& record) = 0;
  // Ids that are not stored are ignored.
  [[nodiscard]] virtual absl::Status DeleteJobs(absl::Span<const std::string> job_ids) = 0;
  [[nodiscard]] virtual absl::Status VisitJobs(
      const std::function<bool(const internal::JobRecord&)>& visit) = 0;
  // As VisitKernels, with the key.
  [[nodiscard]] virtual absl::Status VisitKernelEntries(
      const std::function<bool(absl::string_view kernel_key, const v1::KernelInfo&)>& visit) = 0;

  [[nodiscard]] virtual absl::StatusOr<CacheStats> Stats() = 0;

  // Entries with their last use; reads that FlushUses has not written yet do not show.
  [[nodiscard]] virtual absl::Status VisitUses(const std::function<bool(const EntryUse&)>& visit) = 0;
  // Writes down what was read since the last call, to the hour. Cheap when little was read.
  [[nodiscard]] virtual absl::Status FlushUses() = 0;
  // Pinned entries are neither evicted nor deleted; a pinned pick keeps its kernel. NotFound, and nothing is
  // changed, when one of them is not stored. Unpinning what is not pinned is OK.
  [[nodiscard]] virtual absl::Status SetPinned(absl::Span<const EntryId> entries, bool pinned) = 0;
  // Removes entries that are neither pinned nor held nor written meanwhile, a pick with its timings.
  [[nodiscard]] virtual absl::StatusOr<RemovedEntries> Remove(absl::Span<const EntryId> entries) = 0;
  // Removes timings taken before this time.
  [[nodiscard]] virtual absl::StatusOr<RemovedEntries> RemoveTimingsBefore(int64_t unix_ms) = 0;
  // The space of removed entries is given back soon, in the background.
  virtual void RequestCompaction() = 0;
  [[nodiscard]] virtual KernelHold Hold(absl::string_view kernel_key) = 0;

  // Reads and checks every record.
  [[nodiscard]] virtual absl::StatusOr<VerifyReport> Verify() = 0;

  // The toolchain whose kernels a machine without NVRTC looks for; empty: none was imported.
  [[nodiscard]] virtual absl::StatusOr<std::string> AdoptedToolchain() = 0;
  [[nodiscard]] virtual absl::Status AdoptToolchain(absl::string_view toolchain) = 0;

  // Writes a copy of the store as it is now to `directory`, which must not exist; a daemon can be started on
  // it. FailedPrecondition: the directory exists or cannot be made; ResourceExhausted: the disk is full.
  [[nodiscard]] virtual absl::Status Backup(absl::string_view directory) = 0;
};

}  // namespace qgemm

#endif  // QGEMM_CACHE_CACHE_STORE_H_
