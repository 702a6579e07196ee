#include "client/weight_store/weight_store.h"

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

absl::Status Changed(const WeightEntry& entry) {
  return absl::InvalidArgumentError(absl::StrCat(
      "weight ", entry.key, " has changed since an earlier method wrote it: give the new one another key"));
}

// Kinds whose bytes belong to their key.
bool IsFixed(WeightEntry::Kind kind) {
  return kind == WeightEntry::Kind::kWeight || kind == WeightEntry::Kind::kCpuTensor;
}

}  // namespace

absl::StatusOr<WeightStore::Outcome> WeightStore::Add(const WeightEntry& entry) {
  const auto earlier = known_.find(entry.key);
  if (earlier != known_.end() && IsFixed(earlier->second.kind) != IsFixed(entry.kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("key ", entry.key, " is used for a weight and for something else"));
  }
  std::string fingerprint;
  if (entry.kind == WeightEntry::Kind::kWeight && entry.fingerprint && skip_repeats_) {
    QGEMM_ASSIGN_OR_RETURN(fingerprint, entry.fingerprint());
    ++counts_.fingerprints;
    if (earlier != known_.end() && !earlier->second.fingerprint.empty()) {
      if (fingerprint != earlier->second.fingerprint) return Changed(entry);
      ++counts_.skipped;
      counts_.bytes_skipped += earlier->second.bytes;
      return Outcome::kSkipped;
    }
  }
  QGEMM_ASSIGN_OR_RETURN(const absl::string_view bytes, entry.read());
  std::string digest = Sha256(bytes);
  if (earlier != known_.end() && IsFixed(entry.kind) && digest != earlier->second.digest) {
    return Changed(entry);
  }
  QGEMM_RETURN_IF_ERROR(out_.Write(entry.key, entry.dtype, entry.shape, bytes));
  ++counts_.written;
  counts_.bytes_written += static_cast<int64_t>(bytes.size());
  known_[entry.key] = {entry.kind, static_cast<int64_t>(bytes.size()), std::move(digest),
                       std::move(fingerprint)};
  return Outcome::kWritten;
}

}  // namespace qgemm
