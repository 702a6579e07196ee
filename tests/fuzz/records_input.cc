#include "tests/fuzz/records_input.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/unique_fd.h"
#include "cache/index_keys.h"
#include "cache/memory_store.h"
#include "cache/pack.h"
#include "cache/record.h"
#include "cache/selection.h"
#include "server/job_journal.h"
#include "server/launch_spec_proto.h"
#include "server/proto_convert.h"
#include "tests/fuzz/byte_source.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

constexpr int kMaxRecords = 16;
constexpr int kMaxText = 200;
constexpr int64_t kNowUnixMs = int64_t{1'800'000'000} * 1000;
constexpr RecordFamily kFamilies[] = {RecordFamily::kKernel, RecordFamily::kPick, RecordFamily::kTiming,
                                      RecordFamily::kIndex,  RecordFamily::kJob,  RecordFamily::kMeta};

std::string LittleEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i, value >>= 8) text.push_back(static_cast<char>(value));
  return text;
}

// The envelope of cache/FORMAT.md around any payload.
std::string Envelope(char type, absl::string_view key, absl::string_view payload) {
  const std::string header = absl::StrCat("QGRC", "\1", std::string(1, type));
  return absl::StrCat(header, Sha256(absl::StrCat(header, LittleEndian(key.size(), 4), key, payload)),
                      payload);
}

std::string SomeName(ByteSource& source) { return absl::StrCat("r", source.Below(3)); }

internal::KernelRecord SomeKernel(ByteSource& source) {
  internal::KernelRecord record = Kernel(SomeName(source), source.Text(40));
  record.mutable_info()->set_arch(source.Text(8));
  record.mutable_info()->set_created_unix_ms(source.Nearly(kNowUnixMs));
  return record;
}

internal::PickRecord SomePick(ByteSource& source) {
  internal::PickRecord record = PickOf(SomeName(source), SomeName(source));
  record.mutable_pick()->set_m_bucket(static_cast<int>(source.Nearly(16)));
  record.mutable_pick()->mutable_problem()->set_n(source.Nearly(4096));
  record.add_timing_keys(source.Rarely(4) ? source.Text(40) : Key("r0"));
  return record;
}

internal::JobRecord SomeJob(ByteSource& source) {
  internal::JobRecord record;
  record.mutable_job()->set_job_id(source.Rarely(8) ? source.Text(80) : SomeName(source));
  record.mutable_job()->set_state(static_cast<v1::JobState>(source.Nearly(source.Below(6))));
  record.mutable_job()->set_accepted_unix_ms(source.Nearly(kNowUnixMs));
  record.mutable_job()->set_finished_unix_ms(source.Nearly(kNowUnixMs));
  record.mutable_request()->ParseFromString(source.Text(kMaxText));
  return record;
}

// A record through the store's own writes. Refused ones are nothing.
void PutGood(ByteSource& source, MemoryStore& store) {
  absl::Status status;
  switch (source.Below(5)) {
    case 0:
      status = store.PutKernel(SomeKernel(source));
      break;
    case 1:
      status = store.PutPick(SomePick(source), {TimingOf(SomeName(source), source.Real())});
      break;
    case 2:
      status = store.PutTimings({TimingOf(SomeName(source), source.Real())});
      break;
    case 3:
      status = store.SetPinned({{source.Rarely(2) ? EntryKind::kKernel : EntryKind::kPick, Key("r0")}}, true);
      break;
    default:
      status = store.PutJob(SomeJob(source));
  }
  QGEMM_CHECK(status.ok() || absl::IsInvalidArgument(status) || absl::IsNotFound(status));
}

std::string SomeKey(ByteSource& source, RecordFamily family) {
  const std::string key = Key(SomeName(source));
  const EntryId entry{source.Rarely(2) ? EntryKind::kKernel : EntryKind::kPick, key};
  if (source.Rarely(8)) return source.Text(80);
  if (family == RecordFamily::kJob) return SomeName(source);
  if (family == RecordFamily::kMeta) return std::string(source.Rarely(2) ? kSchemaKey : kToolchainKey);
  if (family != RecordFamily::kIndex) return key;
  switch (source.Below(4)) {
    case 0:
      return InfoKey(key);
    case 1:
      return Sha256Key(Sha256Hex(source.Text(2)), key);
    case 2:
      return UsedKey(entry);
    default:
      return PinKey(entry);
  }
}

char TypeOf(RecordFamily family, absl::string_view key) {
  switch (family) {
    case RecordFamily::kKernel:
      return 'K';
    case RecordFamily::kPick:
      return 'P';
    case RecordFamily::kTiming:
      return 'T';
    case RecordFamily::kJob:
      return 'J';
    default:
      return key.substr(0, kInfoPrefix.size()) == kInfoPrefix ? 'I' : 'x';
  }
}

// Bytes that no write of the store made.
void PutForged(ByteSource& source, MemoryStore& store) {
  const RecordFamily family = kFamilies[source.Below(6)];
  const std::string key = SomeKey(source, family);
  std::string value = source.Text(kMaxText);
  if (!source.Rarely(4)) value = Envelope(TypeOf(family, key), key, value);
  QGEMM_CHECK_OK(RecordStoreTestPeer::Write(store, family, key, value));
}

void CheckMiss(const absl::Status& status) { QGEMM_CHECK(status.ok() || absl::IsNotFound(status)); }

// What callers do with a pick that was read.
void UsePick(const v1::Pick& pick) {
  const absl::StatusOr<LaunchSpec> launch = LaunchSpecFromProto(pick.launch());
  if (launch.ok()) {
    for (const int64_t m : {int64_t{1}, int64_t{4096}, (int64_t{1} << 31) - 1}) {
      const Dim3 grid = launch->Grid(m);
      QGEMM_CHECK(grid.x > 0 && grid.y > 0 && grid.z > 0);
      QGEMM_CHECK(launch->WorkspaceBytes(m) >= 0);
    }
  }
  const absl::StatusOr<Problem> problem = ProblemFromProto(pick.problem());
  if (problem.ok()) QGEMM_CHECK(*ProblemFromProto(ProblemToProto(*problem)) == *problem);
}

int ReadAll(ByteSource& source, MemoryStore& store) {
  int good = 0;
  for (const char* name : {"r0", "r1", "r2"}) {
    const absl::StatusOr<internal::KernelRecord> kernel = store.GetKernel(Key(name));
    CheckMiss(kernel.status());
    good += kernel.ok() ? 1 : 0;
    CheckMiss(store.GetPick(Key(name)).status());
    CheckMiss(store.GetTimings({Key(name)}).status());
    CheckMiss(store.GetKernelBySha256(Sha256Hex(name)).status());
    CheckMiss(store.GetJob(name).status());
  }
  QGEMM_CHECK_OK(store.VisitPicks([&](const internal::PickRecord& record) {
    UsePick(record.pick());
    ++good;
    return true;
  }));
  QGEMM_CHECK_OK(store.VisitKernels([](const v1::KernelInfo&) { return true; }));
  QGEMM_CHECK_OK(store.VisitUses([](const EntryUse& use) {
    QGEMM_CHECK(use.bytes >= 0);
    return true;
  }));
  v1::CacheListRequest list;
  list.ParseFromString(source.Text(kMaxText));
  const absl::Status listed = VisitCacheEntries(
      store, list, kNowUnixMs, [](const internal::PickRecord*, v1::CacheEntry&) { return true; });
  QGEMM_CHECK(listed.ok() || absl::IsInvalidArgument(listed));

  JobJournal journal(store, RealClock(), HistoryLimits{.count = 2});
  const absl::StatusOr<std::vector<internal::JobRecord>> unfinished = journal.Open();
  QGEMM_CHECK_OK(unfinished.status());
  QGEMM_CHECK(journal.History().size() <= 2);

  QGEMM_CHECK_OK(store.FlushUses());
  QGEMM_CHECK_OK(store.Verify().status());
  const absl::StatusOr<VerifyReport> verified = store.Verify();
  QGEMM_CHECK_OK(verified.status());
  QGEMM_CHECK(verified->corrupt == 0);
  QGEMM_CHECK_OK(store.Stats().status());
  return good;
}

// A file of these bytes, by the name that opens it.
class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view bytes) : fd_(memfd_create("pack", MFD_CLOEXEC)) {
    QGEMM_CHECK(fd_.valid());
    QGEMM_CHECK(write(fd_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_.get()); }

 private:
  const UniqueFd fd_;
};

std::string Export(MemoryStore& store) {
  v1::CacheSelection all;
  all.set_all(true);
  std::string pack;
  const absl::Status written = WritePack(store, all, "fuzz", kNowUnixMs, [&](absl::string_view bytes) {
    pack.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  });
  CheckMiss(written);  // nothing to export
  return written.ok() ? pack : "";
}

bool IsEmpty(MemoryStore& store) {
  for (const RecordFamily family : kFamilies) {
    if (RecordStoreTestPeer::Count(store, family) != 0) return false;
  }
  return true;
}

void ImportAndCheck(const std::string& pack, bool must_succeed) {
  MemoryStore store;
  const absl::StatusOr<v1::CacheImportResponse> report = ImportPack(MemoryFile(pack).path(), false, store);
  QGEMM_CHECK(report.ok() || (absl::IsInvalidArgument(report.status()) && IsEmpty(store)));
  QGEMM_CHECK(report.ok() || !must_succeed);
  if (!report.ok()) return;
  const absl::StatusOr<VerifyReport> verified = store.Verify();
  QGEMM_CHECK_OK(verified.status());
  QGEMM_CHECK(verified->corrupt == 0);
  // The same once more changes nothing.
  const absl::StatusOr<v1::CacheImportResponse> again = ImportPack(MemoryFile(pack).path(), false, store);
  QGEMM_CHECK_OK(again.status());
  QGEMM_CHECK(again->refused() + again->already_there() >= report->added());
}

int Store(ByteSource& source) {
  MemoryStore store;
  for (int i = 0; i < kMaxRecords && !source.Rarely(16); ++i) {
    source.Rarely(2) ? PutGood(source, store) : PutForged(source, store);
  }
  const int good = ReadAll(source, store);
  std::string pack = Export(store);
  if (!pack.empty()) {
    ImportAndCheck(pack, /*must_succeed=*/true);
    const auto at = static_cast<size_t>(source.Number()) % pack.size();
    pack[at] = static_cast<char>(pack[at] ^ (1 << source.Below(8)));
    MemoryStore fresh;
    QGEMM_CHECK(absl::IsInvalidArgument(ImportPack(MemoryFile(pack).path(), false, fresh).status()));
    QGEMM_CHECK(IsEmpty(fresh));
  }
  v1::CacheSelection selection;
  selection.ParseFromString(source.Text(kMaxText));
  const absl::Status deleted = DeleteSelected(store, selection, kNowUnixMs).status();
  QGEMM_CHECK(deleted.ok() || absl::IsInvalidArgument(deleted));
  return good;
}

// A pack that is whole by its digests, of entries that may be anything.
int Pack(ByteSource& source) {
  std::string pack = absl::StrCat("QGEMMPAK", LittleEndian(static_cast<uint64_t>(source.Nearly(1)), 4));
  uint64_t entries = 0;
  const auto add = [&](char type, absl::string_view payload) {
    const std::string head = absl::StrCat(
        std::string(1, type),
        LittleEndian(static_cast<uint64_t>(source.Nearly(static_cast<int64_t>(payload.size()))), 8));
    absl::StrAppend(&pack, head, payload, Sha256(absl::StrCat(head, payload)));
    ++entries;
  };
  add('H', source.Text(kMaxText));
  for (int i = 0; i < kMaxRecords && !source.Rarely(16); ++i) {
    switch (source.Below(4)) {
      case 0:
        add('K', SomeKernel(source).SerializeAsString());
        break;
      case 1:
        add('P', SomePick(source).SerializeAsString());
        break;
      case 2:
        add('T', TimingOf(SomeName(source), source.Real()).SerializeAsString());
        break;
      default:
        add("HKTPEx"[source.Below(6)], source.Text(kMaxText));
    }
  }
  add('E', absl::StrCat(LittleEndian(static_cast<uint64_t>(source.Nearly(static_cast<int64_t>(entries))), 8),
                        Sha256(pack)));
  ImportAndCheck(pack, /*must_succeed=*/false);
  return static_cast<int>(entries);
}

// An envelope that is right is taken, one with a flipped bit is not.
int Flip(ByteSource& source) {
  const std::string key = SomeName(source);
  const internal::JobRecord record = SomeJob(source);
  std::string value = EncodeRecord(RecordType::kJob, key, record);
  QGEMM_CHECK(value == Envelope('J', key, record.SerializeAsString()));
  internal::JobRecord decoded;
  // A text that is not UTF-8 is written and not read: the store refuses it.
  if (!decoded.ParseFromString(record.SerializeAsString())) return 0;
  QGEMM_CHECK_OK(DecodeRecord(RecordType::kJob, key, value, decoded));
  QGEMM_CHECK(decoded.SerializeAsString() == record.SerializeAsString());
  const auto at = static_cast<size_t>(source.Number()) % value.size();
  value[at] = static_cast<char>(value[at] ^ (1 << source.Below(8)));
  QGEMM_CHECK(absl::IsDataLoss(DecodeRecord(RecordType::kJob, key, value, decoded)));
  const std::string other = source.Rest();
  QGEMM_CHECK(absl::IsDataLoss(DecodeRecord(RecordType::kJob, key, other, decoded)));
  return 1;
}

}  // namespace

int ReadArbitraryRecords(absl::Span<const uint8_t> input) {
  ByteSource source(input);
  switch (source.Below(8)) {
    case 0:
      return Flip(source);
    case 1:
    case 2:
      return Pack(source);
    default:
      return Store(source);
  }
}

}  // namespace qgemm
