#include "cache/record_store.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "cache/index_keys.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

// Entries read per locked step while visiting: long visits never keep writers or a reopening waiting.
constexpr int kPageEntries = 512;

absl::Status CheckKey(absl::string_view name, absl::string_view key) {
  if (key.size() == kKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " has ", key.size(), " bytes, it must have ", kKeyBytes));
}

absl::Status CheckJobId(absl::string_view job_id) {
  constexpr size_t kMaxBytes = 64;
  if (!job_id.empty() && job_id.size() <= kMaxBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("job_id has ", job_id.size(), " characters, it must have 1 .. ", kMaxBytes));
}

// Keys are digests: their first bytes are spread evenly.
size_t EpochSlot(absl::string_view pick_key) {
  if (pick_key.size() < 2) return 0;
  return (static_cast<uint8_t>(pick_key[0]) | static_cast<size_t>(static_cast<uint8_t>(pick_key[1])) << 8) %
         4096;
}

// EncodeRecord of what can be read again. Protobuf writes a text that is not UTF-8 and then refuses to read
// it: what a client was told is stored would be a miss.
absl::StatusOr<std::string> EncodeReadable(RecordType type, absl::string_view key,
                                           const google::protobuf::MessageLite& message) {
  std::string value = EncodeRecord(type, key, message);
  const std::unique_ptr<google::protobuf::MessageLite> again(message.New());
  if (again->ParseFromArray(value.data() + kRecordEnvelopeBytes,
                            static_cast<int>(value.size() - kRecordEnvelopeBytes))) {
    return value;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a text of the ", message.GetTypeName(), " is not UTF-8: it could not be read again"));
}

absl::string_view OwnKey(RecordType type, absl::string_view key,
                         const google::protobuf::MessageLite& message) {
  switch (type) {
    case RecordType::kKernel:
      return static_cast<const internal::KernelRecord&>(message).kernel_key();
    case RecordType::kPick:
      return static_cast<const internal::PickRecord&>(message).pick_key();
    case RecordType::kTiming:
      return static_cast<const internal::TimingRecord&>(message).timing_key();
    case RecordType::kJob:
      return static_cast<const internal::JobRecord&>(message).job().job_id();
    case RecordType::kKernelInfo:
      return key;  // it names none
  }
  return key;
}

bool IsMiss(const absl::Status& status) { return absl::IsNotFound(status); }

}  // namespace

absl::string_view FamilyName(RecordFamily family) {
  switch (family) {
    case RecordFamily::kKernel:
      return "kernel";
    case RecordFamily::kPick:
      return "pick";
    case RecordFamily::kTiming:
      return "timing";
    case RecordFamily::kIndex:
      return "index";
    case RecordFamily::kMeta:
      return "meta";
    case RecordFamily::kJob:
      return "job";
  }
  return "unknown";
}

absl::Status DecodeStoredRecord(RecordType type, absl::string_view key, absl::string_view value,
                                google::protobuf::MessageLite& message) {
  QGEMM_RETURN_IF_ERROR(DecodeRecord(type, key, value, message));
  if (OwnKey(type, key, message) != key) {
    return absl::DataLossError("the record's SHA-256 matches, but its message names another key");
  }
  if (type == RecordType::kKernelInfo && key.size() != kInfoPrefix.size() + kKeyBytes) {
    return absl::DataLossError("the record's SHA-256 matches, but its key is none of a kernel's");
  }
  if (type == RecordType::kPick) {
    const auto& pick = static_cast<const internal::PickRecord&>(message);
    const auto is_key = [](const std::string& named) { return named.size() == kKeyBytes; };
    if (!is_key(pick.kernel_key()) ||
        !std::all_of(pick.timing_keys().begin(), pick.timing_keys().end(), is_key)) {
      return absl::DataLossError("the record's SHA-256 matches, but its pick rests on keys that are none");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<internal::KernelRecord> RecordStore::GetKernel(absl::string_view kernel_key) {
  QGEMM_RETURN_IF_ERROR(CheckKey("kernel_key", kernel_key));
  internal::KernelRecord record;
  QGEMM_RETURN_IF_ERROR(ReadRecord(RecordFamily::kKernel, RecordType::kKernel, kernel_key, record));
  reads_.Touch(EntryKind::kKernel, kernel_key);
  return record;
}

absl::StatusOr<internal::KernelRecord> RecordStore::GetKernelBySha256(absl::string_view sha256_hex) {
  if (!IsSha256Hex(sha256_hex)) {
    return absl::InvalidArgumentError(absl::StrCat("kernel sha256 is \"",
                                                   absl::CEscape(sha256_hex.substr(0, 80)),
                                                   "\", it must be 64 lower-case hexadecimal digits"));
  }
  const std::string prefix = Sha256Key(sha256_hex, "");
  const std::string end = PrefixEnd(prefix);
  std::string begin = prefix;
  while (true) {
    QGEMM_ASSIGN_OR_RETURN(const Page page, ReadPage(RecordFamily::kIndex, begin, end, kPageEntries));
    for (const auto& [index_key, unused] : page) {
      const absl::string_view kernel_key = absl::string_view(index_key).substr(prefix.size());
      if (kernel_key.size() != kKeyBytes) continue;
      absl::StatusOr<internal::KernelRecord> record = GetKernel(kernel_key);
      if (record.ok() && record->info().sha256() == sha256_hex) return record;
      if (!record.ok() && !IsMiss(record.status())) return record.status();
    }
    if (page.size() < kPageEntries) break;
    begin = KeyAfter(page.back().first);
  }
  return absl::NotFoundError(absl::StrCat("no kernel with sha256 ", sha256_hex, " is stored"));
}

absl::Status RecordStore::PutKernel(const internal::KernelRecord& record) {
  QGEMM_ASSIGN_OR_RETURN(const std::vector<Mutation> mutations, KernelMutations(record));
  return Write(mutations);
}

absl::StatusOr<std::vector<RecordStore::Mutation>> RecordStore::KernelMutations(
    const internal::KernelRecord& record) {
  QGEMM_RETURN_IF_ERROR(CheckKey("kernel_key", record.kernel_key()));
  if (const std::string digest = Sha256Hex(record.cubin()); record.info().sha256() != digest) {
    return absl::InvalidArgumentError(absl::StrCat("info.sha256 is \"", absl::CEscape(record.info().sha256()),
                                                   "\", the SHA-256 of the cubin is ", digest));
  }
  internal::KernelRecord stored = record;
  stored.mutable_info()->set_cubin_bytes(static_cast<int64_t>(record.cubin().size()));
  const std::string info_key = InfoKey(record.kernel_key());
  QGEMM_ASSIGN_OR_RETURN(std::string value, EncodeReadable(RecordType::kKernel, record.kernel_key(), stored));
  std::vector<Mutation> mutations;
  mutations.push_back({RecordFamily::kKernel, record.kernel_key(), std::move(value)});
  mutations.push_back(
      {RecordFamily::kIndex, info_key, EncodeRecord(RecordType::kKernelInfo, info_key, stored.info())});
  mutations.push_back({RecordFamily::kIndex, Sha256Key(stored.info().sha256(), record.kernel_key()), ""});
  mutations.push_back(
      UsedMutation({EntryKind::kKernel, record.kernel_key()}, mutations.front().value->size()));
  return mutations;
}

absl::StatusOr<std::vector<std::optional<internal::TimingRecord>>> RecordStore::GetTimings(
    absl::Span<const std::string> timing_keys) {
  std::vector<std::optional<internal::TimingRecord>> timings;
  timings.reserve(timing_keys.size());
  for (const std::string& key : timing_keys) {
    QGEMM_RETURN_IF_ERROR(CheckKey("timing_key", key));
    internal::TimingRecord record;
    const absl::Status status = ReadRecord(RecordFamily::kTiming, RecordType::kTiming, key, record);
    if (status.ok()) {
      timings.emplace_back(std::move(record));
    } else if (IsMiss(status)) {
      timings.emplace_back(std::nullopt);
    } else {
      return status;
    }
  }
  return timings;
}

absl::Status RecordStore::PutTimings(absl::Span<const internal::TimingRecord> timings) {
  std::vector<Mutation> mutations;
  mutations.reserve(timings.size());
  for (const internal::TimingRecord& timing : timings) {
    QGEMM_RETURN_IF_ERROR(CheckKey("timing_key", timing.timing_key()));
    QGEMM_ASSIGN_OR_RETURN(std::string value,
                           EncodeReadable(RecordType::kTiming, timing.timing_key(), timing));
    mutations.push_back({RecordFamily::kTiming, timing.timing_key(), std::move(value)});
  }
  if (mutations.empty()) return absl::OkStatus();
  return Write(mutations);
}

absl::StatusOr<internal::PickRecord> RecordStore::GetPick(absl::string_view pick_key) {
  QGEMM_RETURN_IF_ERROR(CheckKey("pick_key", pick_key));
  internal::PickRecord record;
  QGEMM_RETURN_IF_ERROR(ReadRecord(RecordFamily::kPick, RecordType::kPick, pick_key, record));
  // Who uses a pick wants its kernel.
  reads_.Touch(EntryKind::kPick, pick_key);
  reads_.Touch(EntryKind::kKernel, record.kernel_key());
  return record;
}

uint64_t RecordStore::PickEpoch(absl::string_view pick_key) const {
  return pick_epochs_[EpochSlot(pick_key)].load(std::memory_order_acquire);
}

void RecordStore::NoteWritten(const std::vector<Mutation>& mutations) {
  for (const Mutation& mutation : mutations) {
    if (mutation.family == RecordFamily::kPick) {
      pick_epochs_[EpochSlot(mutation.key)].fetch_add(1, std::memory_order_release);
    }
  }
}

void RecordStore::NoteAllWritten() {
  for (std::atomic<uint64_t>& epoch : pick_epochs_) epoch.fetch_add(1, std::memory_order_release);
}

absl::Status RecordStore::PutPick(const internal::PickRecord& pick,
                                  absl::Span<const internal::TimingRecord> timings) {
  QGEMM_ASSIGN_OR_RETURN(const std::vector<Mutation> mutations, PickMutations(pick, timings));
  return Write(mutations);
}

absl::StatusOr<std::vector<RecordStore::Mutation>> RecordStore::PickMutations(
    const internal::PickRecord& pick, absl::Span<const internal::TimingRecord> timings) {
  QGEMM_RETURN_IF_ERROR(CheckKey("pick_key", pick.pick_key()));
  QGEMM_RETURN_IF_ERROR(CheckKey("kernel_key", pick.kernel_key()));
  for (const std::string& key : pick.timing_keys()) QGEMM_RETURN_IF_ERROR(CheckKey("timing_keys", key));
  std::vector<Mutation> mutations;
  mutations.reserve(timings.size() + 2);
  size_t bytes = 0;
  for (const internal::TimingRecord& timing : timings) {
    QGEMM_RETURN_IF_ERROR(CheckKey("timing_key", timing.timing_key()));
    QGEMM_ASSIGN_OR_RETURN(std::string value,
                           EncodeReadable(RecordType::kTiming, timing.timing_key(), timing));
    mutations.push_back({RecordFamily::kTiming, timing.timing_key(), std::move(value)});
    bytes += mutations.back().value->size();
  }
  QGEMM_ASSIGN_OR_RETURN(std::string value, EncodeReadable(RecordType::kPick, pick.pick_key(), pick));
  mutations.push_back({RecordFamily::kPick, pick.pick_key(), std::move(value)});
  bytes += mutations.back().value->size();
  mutations.push_back(UsedMutation({EntryKind::kPick, pick.pick_key()}, bytes));
  return mutations;
}

RecordStore::Mutation RecordStore::UsedMutation(const EntryId& entry, size_t bytes) {
  UsedValue value;
  const int64_t now_ms = clock_.WallUnixMs();
  value.unix_hour = static_cast<uint32_t>(now_ms / kHourMs);
  value.bytes = bytes;
  // Unique also across restarts, as long as the clock goes forward.
  value.write_number = (static_cast<uint64_t>(now_ms) << 20) + write_number_.fetch_add(1);
  return {RecordFamily::kIndex, UsedKey(entry), EncodeUsed(value)};
}

absl::Status RecordStore::VisitPicks(const std::function<bool(const internal::PickRecord&)>& visit) {
  std::string begin;
  while (true) {
    QGEMM_ASSIGN_OR_RETURN(const Page page, ReadPage(RecordFamily::kPick, begin, "", kPageEntries));
    for (const auto& [key, value] : page) {
      internal::PickRecord record;
      const absl::Status status = DecodeStoredRecord(RecordType::kPick, key, value, record);
      if (!status.ok()) {
        DropCorrupt(RecordFamily::kPick, key, value, status);
      } else if (!visit(record)) {
        return absl::OkStatus();
      }
    }
    if (page.size() < kPageEntries) return absl::OkStatus();
    begin = KeyAfter(page.back().first);
  }
}

absl::Status RecordStore::VisitKernels(const std::function<bool(const v1::KernelInfo&)>& visit) {
  return VisitKernelEntries([&](absl::string_view, const v1::KernelInfo& info) { return visit(info); });
}

absl::Status RecordStore::VisitKernelEntries(
    const std::function<bool(absl::string_view kernel_key, const v1::KernelInfo&)>& visit) {
  const std::string end = PrefixEnd(kInfoPrefix);
  std::string begin(kInfoPrefix);
  while (true) {
    QGEMM_ASSIGN_OR_RETURN(const Page page, ReadPage(RecordFamily::kIndex, begin, end, kPageEntries));
    for (const auto& [key, value] : page) {
      v1::KernelInfo info;
      const absl::Status status = DecodeStoredRecord(RecordType::kKernelInfo, key, value, info);
      if (!status.ok()) {
        std::optional<v1::KernelInfo> rebuilt =
            RebuildKernelInfo(key.substr(kInfoPrefix.size()), key, value, status);
        if (!rebuilt.has_value()) continue;
        info = *std::move(rebuilt);
      }
      if (!visit(absl::string_view(key).substr(kInfoPrefix.size()), info)) return absl::OkStatus();
    }
    if (page.size() < kPageEntries) return absl::OkStatus();
    begin = KeyAfter(page.back().first);
  }
}

absl::StatusOr<internal::JobRecord> RecordStore::GetJob(absl::string_view job_id) {
  QGEMM_RETURN_IF_ERROR(CheckJobId(job_id));
  internal::JobRecord record;
  QGEMM_RETURN_IF_ERROR(ReadRecord(RecordFamily::kJob, RecordType::kJob, job_id, record));
  return record;
}

absl::Status RecordStore::PutJob(const internal::JobRecord& record) {
  const std::string& job_id = record.job().job_id();
  QGEMM_RETURN_IF_ERROR(CheckJobId(job_id));
  QGEMM_ASSIGN_OR_RETURN(std::string value, EncodeReadable(RecordType::kJob, job_id, record));
  return Write({{RecordFamily::kJob, job_id, std::move(value)}});
}

absl::Status RecordStore::DeleteJobs(absl::Span<const std::string> job_ids) {
  std::vector<Mutation> mutations;
  mutations.reserve(job_ids.size());
  for (const std::string& job_id : job_ids) {
    QGEMM_RETURN_IF_ERROR(CheckJobId(job_id));
    mutations.push_back({RecordFamily::kJob, job_id, std::nullopt});
  }
  if (mutations.empty()) return absl::OkStatus();
  return Write(mutations);
}

absl::Status RecordStore::VisitJobs(const std::function<bool(const internal::JobRecord&)>& visit) {
  std::string begin;
  while (true) {
    QGEMM_ASSIGN_OR_RETURN(const Page page, ReadPage(RecordFamily::kJob, begin, "", kPageEntries));
    for (const auto& [key, value] : page) {
      internal::JobRecord record;
      const absl::Status status = DecodeStoredRecord(RecordType::kJob, key, value, record);
      if (!status.ok()) {
        DropCorrupt(RecordFamily::kJob, key, value, status);
      } else if (!visit(record)) {
        return absl::OkStatus();
      }
    }
    if (page.size() < kPageEntries) return absl::OkStatus();
    begin = KeyAfter(page.back().first);
  }
}

absl::StatusOr<CacheStats> RecordStore::Stats() {
  CacheStats stats;
  stats.schema_version = kSchemaVersion;
  QGEMM_RETURN_IF_ERROR(VisitKernels([&stats](const v1::KernelInfo& info) {
    ++stats.kernels;
    stats.kernel_bytes += info.cubin_bytes();
    return true;
  }));
  QGEMM_ASSIGN_OR_RETURN(stats.picks, Count(RecordFamily::kPick));
  QGEMM_ASSIGN_OR_RETURN(stats.timings, Count(RecordFamily::kTiming));
  stats.disk_bytes = DiskBytes();
  stats.corrupt = corrupt_.load();
  stats.evicted = evicted_.load();
  stats.limit_bytes = LimitBytes();
  stats.write_error = std::string(WriteError().message());
  QGEMM_RETURN_IF_ERROR(
      VisitEntries(RecordFamily::kIndex, kPinPrefix, [&stats](const std::string& key, const std::string&) {
        if (ParseEntryKey(kPinPrefix, key).has_value()) ++stats.pinned;
        return true;
      }));
  QGEMM_ASSIGN_OR_RETURN(stats.adopted_toolchain, AdoptedToolchain());
  return stats;
}

absl::Status RecordStore::ReadRecord(RecordFamily family, RecordType type, absl::string_view key,
                                     google::protobuf::MessageLite& message) {
  const absl::StatusOr<std::string> value = Read(family, key);
  absl::Status status = value.status();
  if (value.ok()) status = DecodeStoredRecord(type, key, *value, message);
  if (status.ok()) return status;
  if (absl::IsDataLoss(status)) {
    DropCorrupt(family, key, value, status);
  } else if (!IsMiss(status)) {
    return status;
  }
  return absl::NotFoundError(absl::StrCat("no ", FamilyName(family), " is stored under key ", ToHex(key)));
}

bool RecordStore::StillHolds(const absl::StatusOr<std::string>& seen,
                             const absl::StatusOr<std::string>& now) {
  if (seen.ok()) return now.ok() && *now == *seen;
  return now.status().code() == seen.status().code();
}

absl::Status RecordStore::RemoveIfStill(RecordFamily family, absl::string_view key,
                                        const absl::StatusOr<std::string>& seen,
                                        const std::vector<Mutation>& also) {
  Conditional removal{family, std::string(key), seen, also};
  removal.mutations.push_back({family, std::string(key), std::nullopt});
  return ApplyIfStill({std::move(removal)}).status();
}

void RecordStore::DropCorrupt(RecordFamily family, absl::string_view key,
                              const absl::StatusOr<std::string>& seen, const absl::Status& reason) {
  corrupt_.fetch_add(1);
  std::vector<Mutation> also;
  if (family == RecordFamily::kKernel) {
    // The record no longer says which cubin it held; its index entry does.
    const std::string info_key = InfoKey(key);
    also.push_back({RecordFamily::kIndex, info_key, std::nullopt});
    also.push_back({RecordFamily::kIndex, UsedKey({EntryKind::kKernel, std::string(key)}), std::nullopt});
    const absl::StatusOr<std::string> value = Read(RecordFamily::kIndex, info_key);
    v1::KernelInfo info;
    if (value.ok() && DecodeStoredRecord(RecordType::kKernelInfo, info_key, *value, info).ok() &&
        IsSha256Hex(info.sha256())) {
      also.push_back({RecordFamily::kIndex, Sha256Key(info.sha256(), key), std::nullopt});
    }
  }
  if (family == RecordFamily::kPick) {
    also.push_back({RecordFamily::kIndex, UsedKey({EntryKind::kPick, std::string(key)}), std::nullopt});
  }
  const absl::Status removed = RemoveIfStill(family, key, seen, also);
  spdlog::warn("store: corrupt {} record {} {}: {}{}", std::string(FamilyName(family)), ToHex(key),
               removed.ok() ? "removed" : "skipped", std::string(reason.message()),
               removed.ok() ? "" : absl::StrCat("; it cannot be removed: ", removed.message()));
}

std::optional<v1::KernelInfo> RecordStore::RebuildKernelInfo(const std::string& kernel_key,
                                                             const std::string& index_key,
                                                             const std::string& seen,
                                                             const absl::Status& reason) {
  DropCorrupt(RecordFamily::kIndex, index_key, seen, reason);
  if (kernel_key.size() != kKeyBytes) return std::nullopt;
  const absl::StatusOr<internal::KernelRecord> record = GetKernel(kernel_key);
  if (!record.ok()) return std::nullopt;
  absl::StatusOr<std::vector<Mutation>> mutations = KernelMutations(*record);
  if (!mutations.ok()) return std::nullopt;
  // The record itself is right as it is.
  mutations->erase(
      std::remove_if(mutations->begin(), mutations->end(),
                     [](const Mutation& mutation) { return mutation.family != RecordFamily::kIndex; }),
      mutations->end());
  // Where this fails (a full disk) the entry is rebuilt by the next visit or the next write of the kernel.
  const absl::Status written = Write(*mutations);
  if (!written.ok()) {
    spdlog::warn("store: index entry of kernel {} not rebuilt: {}", ToHex(kernel_key),
                 std::string(written.message()));
  }
  return record->info();
}

}  // namespace qgemm
