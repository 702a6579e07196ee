#ifndef QGEMM_CACHE_RECORD_STORE_H_
#define QGEMM_CACHE_RECORD_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/cache_store.h"
#include "cache/record.h"

namespace qgemm {

inline constexpr int kSchemaVersion = 1;

// Column families of cache/FORMAT.md.
enum class RecordFamily { kKernel, kPick, kTiming, kIndex, kMeta, kJob };
inline constexpr int kFamilyCount = 6;
[[nodiscard]] absl::string_view FamilyName(RecordFamily family);

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
  absl::Status PutPick(const internal::PickRecord& pick,
                       absl::Span<const internal::TimingRecord> timings) final;
  // `visit` is called without a lock: it may use the store. Records written meanwhile may or may not be seen.
  absl::Status VisitPicks(const std::function<bool(const internal::PickRecord&)>& visit) final;
  absl::Status VisitKernels(const std::function<bool(const v1::KernelInfo&)>& visit) final;
  absl::StatusOr<internal::JobRecord> GetJob(absl::string_view job_id) final;
  absl::Status PutJob(const internal::JobRecord& record) final;
  absl::Status DeleteJobs(absl::Span<const std::string> job_ids) final;
  absl::Status VisitJobs(const std::function<bool(const internal::JobRecord&)>& visit) final;
  absl::StatusOr<CacheStats> Stats() final;

 protected:
  struct Mutation {
    RecordFamily family;
    std::string key;
    std::optional<std::string> value;  // nullopt: delete
  };
  using Page = std::vector<std::pair<std::string, std::string>>;

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
  // Deletes `key` and applies `also`, unless Read(family, key) no longer gives `seen` (a value, or DataLoss).
  // No write comes in between.
  virtual absl::Status RemoveIfStill(RecordFamily family, absl::string_view key,
                                     const absl::StatusOr<std::string>& seen,
                                     const std::vector<Mutation>& also) = 0;
  virtual int64_t DiskBytes() = 0;

  // The one write that stores a kernel: record and index entries. InvalidArgument as PutKernel.
  static absl::StatusOr<std::vector<Mutation>> KernelMutations(const internal::KernelRecord& record);

 private:
  friend class RecordStoreTestPeer;

  absl::Status ReadRecord(RecordFamily family, RecordType type, absl::string_view key,
                          google::protobuf::MessageLite& message);
  // Counts, logs and removes what `seen` shows to be corrupt.
  void DropCorrupt(RecordFamily family, absl::string_view key, const absl::StatusOr<std::string>& seen,
                   const absl::Status& reason);
  std::optional<v1::KernelInfo> RebuildKernelInfo(const std::string& kernel_key, const std::string& index_key,
                                                  const std::string& seen, const absl::Status& reason);

  std::atomic<int64_t> corrupt_{0};
};

}  // namespace qgemm

#endif  // QGEMM_CACHE_RECORD_STORE_H_
