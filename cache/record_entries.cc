// RecordStore's entries: what is used, pinned, held, removed and verified as one.
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/digest.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "cache/crash_point.h"
#include "cache/index_keys.h"
#include "cache/record.h"
#include "cache/record_store.h"

namespace qgemm {
namespace {

constexpr int kPageEntries = 512;
// Kernels are some hundred KB each.
constexpr int kKernelPageEntries = 16;
// Uses written, entries removed by one synced write.
constexpr size_t kBatchEntries = 256;

absl::string_view KindName(EntryKind kind) { return kind == EntryKind::kKernel ? "kernel" : "pick"; }

RecordFamily FamilyOf(EntryKind kind) {
  return kind == EntryKind::kKernel ? RecordFamily::kKernel : RecordFamily::kPick;
}

absl::Status CheckEntry(const EntryId& entry) {
  if (entry.key.size() == kKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the key of a ", KindName(entry.kind), " has ",
                                                 entry.key.size(), " bytes, it must have ", kKeyBytes));
}

}  // namespace

struct RecordStore::Kept {
  std::set<std::string> kernels;
  std::set<std::string> picks;
};

absl::Status RecordStore::VisitEntries(
    RecordFamily family, absl::string_view prefix,
    const std::function<bool(const std::string& key, const std::string& value)>& visit) {
  const std::string end = PrefixEnd(prefix);
  const int limit = family == RecordFamily::kKernel ? kKernelPageEntries : kPageEntries;
  std::string begin(prefix);
  while (true) {
    QGEMM_ASSIGN_OR_RETURN(const Page page, ReadPage(family, begin, end, limit));
    for (const auto& [key, value] : page) {
      if (!visit(key, value)) return absl::OkStatus();
    }
    if (page.size() < static_cast<size_t>(limit)) return absl::OkStatus();
    begin = KeyAfter(page.back().first);
  }
}

absl::Status RecordStore::VisitUses(const std::function<bool(const EntryUse&)>& visit) {
  std::set<std::string> pins;
  QGEMM_RETURN_IF_ERROR(
      VisitEntries(RecordFamily::kIndex, kPinPrefix, [&](const std::string& key, const std::string&) {
        pins.insert(key.substr(kPinPrefix.size()));
        return true;
      }));
  return VisitEntries(RecordFamily::kIndex, kUsedPrefix,
                      [&](const std::string& key, const std::string& value) {
                        std::optional<EntryId> entry = ParseEntryKey(kUsedPrefix, key);
                        if (!entry.has_value()) return true;
                        const UsedValue used = DecodeUsed(value);
                        EntryUse use;
                        use.id = *std::move(entry);
                        use.used_unix_hour = used.unix_hour;
                        use.bytes = static_cast<int64_t>(used.bytes);
                        use.pinned = pins.count(key.substr(kUsedPrefix.size())) > 0;
                        return visit(use);
                      });
}

absl::Status RecordStore::FlushUses() {
  const auto hour = static_cast<uint32_t>(clock_.WallUnixMs() / kHourMs);
  std::vector<Mutation> batch;
  const auto write = [&]() -> absl::Status {
    if (batch.empty()) return absl::OkStatus();
    CrashPoint("uses-before-write");
    absl::Status status = Write(batch);
    batch.clear();
    return status;
  };
  for (const EntryId& entry : reads_.Drain()) {
    const std::string key = UsedKey(entry);
    const absl::StatusOr<std::string> stored = Read(RecordFamily::kIndex, key);
    if (!stored.ok()) continue;  // a record that is gone, or one that cannot be read either
    UsedValue used = DecodeUsed(*stored);
    if (used.unix_hour >= hour) continue;
    used.unix_hour = hour;
    batch.push_back({RecordFamily::kIndex, key, EncodeUsed(used)});
    if (batch.size() == kBatchEntries) QGEMM_RETURN_IF_ERROR(write());
  }
  return write();
}

absl::Status RecordStore::SetPinned(absl::Span<const EntryId> entries, bool pinned) {
  std::vector<Mutation> mutations;
  for (const EntryId& entry : entries) {
    QGEMM_RETURN_IF_ERROR(CheckEntry(entry));
    if (pinned) {
      const absl::StatusOr<std::string> stored = Read(FamilyOf(entry.kind), entry.key);
      if (absl::IsNotFound(stored.status())) {
        return absl::NotFoundError(
            absl::StrCat("no ", KindName(entry.kind), " is stored under key ", ToHex(entry.key)));
      }
      QGEMM_RETURN_IF_ERROR(stored.status());
    }
    mutations.push_back({RecordFamily::kIndex, PinKey(entry),
                         pinned ? std::optional<std::string>("") : std::optional<std::string>()});
  }
  if (mutations.empty()) return absl::OkStatus();
  return Write(mutations);
}

absl::StatusOr<RecordStore::Kept> RecordStore::ReadKept() {
  Kept kept;
  std::vector<std::string> picks;
  QGEMM_RETURN_IF_ERROR(
      VisitEntries(RecordFamily::kIndex, kPinPrefix, [&](const std::string& key, const std::string&) {
        const std::optional<EntryId> entry = ParseEntryKey(kPinPrefix, key);
        if (!entry.has_value()) return true;
        (entry->kind == EntryKind::kKernel ? kept.kernels : kept.picks).insert(entry->key);
        return true;
      }));
  for (const std::string& key : kept.picks) {
    internal::PickRecord pick;
    const absl::StatusOr<std::string> value = Read(RecordFamily::kPick, key);
    if (value.ok() && DecodeStoredRecord(RecordType::kPick, key, *value, pick).ok()) {
      kept.kernels.insert(pick.kernel_key());
    }
  }
  MutexLock lock(holds_mu_);
  for (const auto& [key, holders] : holds_) kept.kernels.insert(key);
  return kept;
}

std::optional<RecordStore::Conditional> RecordStore::RemovalOf(const EntryId& entry, const Kept& kept,
                                                               RemovedEntries& removed) {
  const bool is_kernel = entry.kind == EntryKind::kKernel;
  if ((is_kernel ? kept.kernels : kept.picks).count(entry.key) > 0) {
    ++removed.kept;
    return std::nullopt;
  }
  const std::string used_key = UsedKey(entry);
  Conditional removal{RecordFamily::kIndex, used_key, Read(RecordFamily::kIndex, used_key), {}};
  if (!removal.seen.ok()) return std::nullopt;
  std::vector<Mutation>& gone = removal.mutations;
  gone.push_back({FamilyOf(entry.kind), entry.key, std::nullopt});
  gone.push_back({RecordFamily::kIndex, used_key, std::nullopt});
  if (is_kernel) {
    const std::string info_key = InfoKey(entry.key);
    gone.push_back({RecordFamily::kIndex, info_key, std::nullopt});
    const absl::StatusOr<std::string> value = Read(RecordFamily::kIndex, info_key);
    v1::KernelInfo info;
    if (value.ok() && DecodeStoredRecord(RecordType::kKernelInfo, info_key, *value, info).ok() &&
        IsSha256Hex(info.sha256())) {
      gone.push_back({RecordFamily::kIndex, Sha256Key(info.sha256(), entry.key), std::nullopt});
    }
  } else {
    const absl::StatusOr<std::string> value = Read(RecordFamily::kPick, entry.key);
    internal::PickRecord pick;
    if (value.ok() && DecodeStoredRecord(RecordType::kPick, entry.key, *value, pick).ok()) {
      for (const std::string& timing_key : pick.timing_keys()) {
        gone.push_back({RecordFamily::kTiming, timing_key, std::nullopt});
      }
    }
  }
  return removal;
}

absl::StatusOr<RemovedEntries> RecordStore::Remove(absl::Span<const EntryId> entries) {
  for (const EntryId& entry : entries) QGEMM_RETURN_IF_ERROR(CheckEntry(entry));
  RemovedEntries removed;
  for (size_t begin = 0; begin < entries.size(); begin += kBatchEntries) {
    // Read anew for every batch: pins and holds come and go meanwhile.
    QGEMM_ASSIGN_OR_RETURN(const Kept kept, ReadKept());
    const absl::Span<const EntryId> batch = entries.subspan(begin, kBatchEntries);
    std::vector<Conditional> removals;
    std::vector<EntryKind> kinds;
    for (const EntryId& entry : batch) {
      std::optional<Conditional> removal = RemovalOf(entry, kept, removed);
      if (!removal.has_value()) continue;
      removals.push_back(*std::move(removal));
      kinds.push_back(entry.kind);
    }
    if (removals.empty()) continue;
    CrashPoint("remove-before-write");
    QGEMM_ASSIGN_OR_RETURN(const std::vector<bool> applied, ApplyIfStill(removals));
    CrashPoint("remove-after-write");
    for (size_t i = 0; i < removals.size(); ++i) {
      if (!applied[i]) {
        ++removed.kept;
        continue;
      }
      removed.bytes += static_cast<int64_t>(DecodeUsed(*removals[i].seen).bytes);
      if (kinds[i] == EntryKind::kKernel) {
        ++removed.kernels;
        continue;
      }
      ++removed.picks;
      removed.timings +=
          std::count_if(removals[i].mutations.begin(), removals[i].mutations.end(),
                        [](const Mutation& mutation) { return mutation.family == RecordFamily::kTiming; });
    }
  }
  return removed;
}

absl::StatusOr<RemovedEntries> RecordStore::RemoveTimingsBefore(int64_t unix_ms) {
  RemovedEntries removed;
  std::vector<Mutation> batch;
  int64_t batch_bytes = 0;
  absl::Status status;
  const auto write = [&] {
    if (batch.empty() || !status.ok()) return;
    CrashPoint("remove-before-write");
    // Not conditional: whoever took one of them again meanwhile has it in hand, and loses a repetition at
    // most.
    status = Write(batch);
    if (status.ok()) {
      removed.timings += static_cast<int64_t>(batch.size());
      removed.bytes += batch_bytes;
    }
    batch.clear();
    batch_bytes = 0;
  };
  QGEMM_RETURN_IF_ERROR(
      VisitEntries(RecordFamily::kTiming, "", [&](const std::string& key, const std::string& value) {
        internal::TimingRecord timing;
        const absl::Status decoded = DecodeStoredRecord(RecordType::kTiming, key, value, timing);
        if (!decoded.ok()) {
          DropCorrupt(RecordFamily::kTiming, key, value, decoded);
        } else if (timing.unix_ms() < unix_ms) {
          batch.push_back({RecordFamily::kTiming, key, std::nullopt});
          batch_bytes += static_cast<int64_t>(value.size());
          if (batch.size() == kBatchEntries) write();
        }
        return status.ok();
      }));
  write();
  QGEMM_RETURN_IF_ERROR(status);
  return removed;
}

KernelHold RecordStore::Hold(absl::string_view kernel_key) {
  const std::string key(kernel_key);
  {
    MutexLock lock(holds_mu_);
    ++holds_[key];
  }
  return KernelHold(this, [key](void* store) {
    auto* holder = static_cast<RecordStore*>(store);
    MutexLock lock(holder->holds_mu_);
    const auto found = holder->holds_.find(key);
    if (--found->second == 0) holder->holds_.erase(found);
  });
}

absl::Status RecordStore::VerifyFamily(RecordFamily family, RecordType type, int64_t& good) {
  return VisitEntries(family, "", [&](const std::string& key, const std::string& value) {
    const std::unique_ptr<google::protobuf::MessageLite> message =
        type == RecordType::kKernel
            ? std::unique_ptr<google::protobuf::MessageLite>(new internal::KernelRecord())
        : type == RecordType::kPick
            ? std::unique_ptr<google::protobuf::MessageLite>(new internal::PickRecord())
            : std::unique_ptr<google::protobuf::MessageLite>(new internal::TimingRecord());
    const absl::Status status = DecodeStoredRecord(type, key, value, *message);
    if (status.ok()) {
      ++good;
    } else {
      DropCorrupt(family, key, value, status);
    }
    return true;
  });
}

absl::StatusOr<VerifyReport> RecordStore::Verify() {
  VerifyReport report;
  const int64_t corrupt_before = corrupt_.load();
  // Blobs that cannot be read end a page of kernels: each is read by itself.
  std::vector<std::string> kernel_keys;
  QGEMM_RETURN_IF_ERROR(VisitKernelEntries([&](absl::string_view key, const v1::KernelInfo&) {
    kernel_keys.emplace_back(key);
    return true;
  }));
  std::set<std::string> kernels;
  for (std::string& key : kernel_keys) {
    internal::KernelRecord record;
    const absl::Status status = ReadRecord(RecordFamily::kKernel, RecordType::kKernel, key, record);
    if (status.ok()) {
      ++report.kernels;
      kernels.insert(std::move(key));
    } else if (!absl::IsNotFound(status)) {
      return status;
    }
  }
  QGEMM_RETURN_IF_ERROR(VerifyFamily(RecordFamily::kPick, RecordType::kPick, report.picks));
  QGEMM_RETURN_IF_ERROR(VerifyFamily(RecordFamily::kTiming, RecordType::kTiming, report.timings));
  QGEMM_RETURN_IF_ERROR(VisitJobs([](const internal::JobRecord&) { return true; }));
  QGEMM_RETURN_IF_ERROR(VisitPicks([&](const internal::PickRecord& pick) {
    if (kernels.count(pick.kernel_key()) == 0) ++report.picks_without_kernel;
    return true;
  }));
  report.corrupt = corrupt_.load() - corrupt_before;
  return report;
}

absl::StatusOr<std::string> RecordStore::AdoptedToolchain() {
  absl::StatusOr<std::string> stored = Read(RecordFamily::kMeta, kToolchainKey);
  if (absl::IsNotFound(stored.status())) return std::string();
  return stored;
}

absl::Status RecordStore::AdoptToolchain(absl::string_view toolchain) {
  return Write({{RecordFamily::kMeta, std::string(kToolchainKey),
                 toolchain.empty() ? std::optional<std::string>() : std::string(toolchain)}});
}

}  // namespace qgemm
