#ifndef QGEMM_CACHE_CACHE_STORE_H_
#define QGEMM_CACHE_CACHE_STORE_H_

#include <cstdint>
#include <functional>
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
  int64_t disk_bytes = 0;  // 0 for a store in memory
  int64_t corrupt = 0;     // records whose checksum failed since the store was opened
};

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

  [[nodiscard]] virtual absl::StatusOr<CacheStats> Stats() = 0;
};

}  // namespace qgemm

#endif  // QGEMM_CACHE_CACHE_STORE_H_
