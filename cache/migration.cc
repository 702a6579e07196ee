// RecordStore::MigrateFrom: the steps from older schema versions (cache/FORMAT.md, "Versions").
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "cache/crash_point.h"
#include "cache/index_keys.h"
#include "cache/record.h"
#include "cache/record_store.h"

namespace qgemm {

// 1 -> 2: every pick and kernel gets its `used/` entry, dated by when it was made. What is written while a
// store is at version 1 gets one as it is written.
absl::Status RecordStore::MigrateFrom(int version) {
  if (version != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("no way leads from schema version ", version, " to ", kSchemaVersion));
  }
  constexpr size_t kBatchEntries = 1000;
  std::vector<Mutation> batch;
  absl::Status status;
  const auto write = [&] {
    if (batch.empty() || !status.ok()) return;
    CrashPoint("migration-before-batch");
    status = Write(batch);
    batch.clear();
  };
  const auto add = [&](const EntryId& entry, int64_t bytes, int64_t unix_ms) {
    std::string key = UsedKey(entry);
    if (Read(RecordFamily::kIndex, key).ok()) return;
    UsedValue used;
    used.unix_hour = static_cast<uint32_t>(unix_ms > 0 ? unix_ms / kHourMs : 0);
    used.bytes = static_cast<uint64_t>(bytes);
    batch.push_back({RecordFamily::kIndex, std::move(key), EncodeUsed(used)});
    if (batch.size() == kBatchEntries) write();
  };
  QGEMM_RETURN_IF_ERROR(VisitKernelEntries([&](absl::string_view key, const v1::KernelInfo& info) {
    add({EntryKind::kKernel, std::string(key)}, info.cubin_bytes(), info.created_unix_ms());
    return status.ok();
  }));
  QGEMM_RETURN_IF_ERROR(VisitPicks([&](const internal::PickRecord& pick) {
    add({EntryKind::kPick, pick.pick_key()}, static_cast<int64_t>(pick.ByteSizeLong()),
        pick.pick().tuned_at_unix_ms());
    return status.ok();
  }));
  write();
  QGEMM_RETURN_IF_ERROR(status);
  CrashPoint("migration-before-version");
  return Write({{RecordFamily::kMeta, std::string(kSchemaKey), absl::StrCat(kSchemaVersion)}});
}

}  // namespace qgemm
