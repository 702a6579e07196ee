#include "cache/pack.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "cache/crash_point.h"
#include "cache/index_keys.h"
#include "cache/selection.h"

namespace qgemm {
namespace {

constexpr absl::string_view kMagic = "QGEMMPAK";
constexpr uint32_t kPackVersion = 1;
constexpr size_t kPrefixBytes = 12;          // magic and version
constexpr size_t kEntryHeaderBytes = 1 + 8;  // type and length
// Larger than any kernel: what announces more is damage, and must not be allocated.
constexpr uint64_t kMaxEntryBytes = uint64_t{256} << 20;
constexpr int kMaxRefusals = 100;

enum class EntryType : char { kHeader = 'H', kKernel = 'K', kTiming = 'T', kPick = 'P', kEnd = 'E' };

std::string LittleEndian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

uint64_t FromLittleEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

class PackWriter {
 public:
  explicit PackWriter(const std::function<absl::Status(absl::string_view)>& write) : write_(write) {}

  absl::Status Begin(const internal::PackHeader& header) {
    QGEMM_RETURN_IF_ERROR(Write(absl::StrCat(kMagic, LittleEndian(kPackVersion, 4))));
    return Add(EntryType::kHeader, header.SerializeAsString());
  }
  absl::Status Add(EntryType type, const std::string& payload) {
    const std::string head =
        absl::StrCat(std::string(1, static_cast<char>(type)), LittleEndian(payload.size(), 8));
    ++entries_;
    return Write(absl::StrCat(head, payload, Sha256(absl::StrCat(head, payload))));
  }
  // The number of entries before it, and the digest of all bytes before it.
  absl::Status End() { return Add(EntryType::kEnd, absl::StrCat(LittleEndian(entries_, 8), all_.Finish())); }

 private:
  absl::Status Write(const std::string& bytes) {
    all_.Update(bytes);
    return write_(bytes);
  }

  const std::function<absl::Status(absl::string_view)>& write_;
  Sha256Hasher all_;
  uint64_t entries_ = 0;
};

struct PackEntry {
  EntryType type = EntryType::kEnd;
  int64_t offset = 0;
  std::string payload;
};

absl::Status BadPack(int64_t offset, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the pack is bad at offset ", offset, ": ", what));
}

// Reads a pack from its beginning, checking each entry.
class PackReader {
 public:
  explicit PackReader(const std::string& path) : in_(path, std::ios::binary) {}

  absl::Status Begin() {
    if (!in_.is_open()) return absl::NotFoundError("the pack cannot be opened");
    std::string prefix;
    QGEMM_RETURN_IF_ERROR(Read(kPrefixBytes, "the beginning of a pack", prefix));
    if (absl::string_view(prefix).substr(0, kMagic.size()) != kMagic) {
      return BadPack(0, absl::StrCat("it does not begin with ", kMagic));
    }
    const uint64_t version = FromLittleEndian(absl::string_view(prefix).substr(kMagic.size()));
    if (version != kPackVersion) {
      return BadPack(static_cast<int64_t>(kMagic.size()),
                     absl::StrCat("its version is ", version, ", version ", kPackVersion, " is known"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<PackEntry> Next() {
    PackEntry entry;
    entry.offset = offset_;
    const uint64_t entries_before = entries_++;
    std::string head;
    QGEMM_RETURN_IF_ERROR(Read(kEntryHeaderBytes, "an entry", head));
    entry.type = static_cast<EntryType>(head[0]);
    if (!absl::StrContains("HKTPE", head.substr(0, 1))) {
      return BadPack(entry.offset, absl::StrCat("an entry has the unknown type ", static_cast<int>(head[0])));
    }
    const uint64_t length = FromLittleEndian(absl::string_view(head).substr(1));
    if (length > kMaxEntryBytes) {
      return BadPack(entry.offset, absl::StrCat("an entry announces ", length, " bytes; allowed: at most ",
                                                kMaxEntryBytes));
    }
    QGEMM_RETURN_IF_ERROR(Read(length, "an entry's bytes", entry.payload));
    std::string digest;
    QGEMM_RETURN_IF_ERROR(Read(kSha256Bytes, "an entry's SHA-256", digest));
    if (Sha256(absl::StrCat(head, entry.payload)) != digest) {
      return BadPack(entry.offset, "the entry's SHA-256 does not match its bytes");
    }
    if (entry.type == EntryType::kEnd) {
      if (entry.payload != absl::StrCat(LittleEndian(entries_before, 8), all_.Finish())) {
        return BadPack(entry.offset, "entries are missing, added or in another order than they were written");
      }
      if (in_.peek() != std::ifstream::traits_type::eof()) {
        return BadPack(offset_, "bytes follow the end of the pack");
      }
      return entry;
    }
    all_.Update(head);
    all_.Update(entry.payload);
    all_.Update(digest);
    return entry;
  }

 private:
  absl::Status Read(size_t bytes, absl::string_view what, std::string& out) {
    out.resize(bytes);
    in_.read(out.data(), static_cast<std::streamsize>(bytes));
    const auto got = static_cast<size_t>(in_.gcount());
    if (got != bytes) {
      return BadPack(offset_ + static_cast<int64_t>(got),
                     absl::StrCat("the file ends within ", what, ", ", bytes - got, " bytes are missing"));
    }
    if (offset_ == 0) all_.Update(out);  // the prefix; entries are added as they turn out good
    offset_ += static_cast<int64_t>(bytes);
    return absl::OkStatus();
  }

  std::ifstream in_;
  int64_t offset_ = 0;
  uint64_t entries_ = 0;
  Sha256Hasher all_;
};

// Writes what a checked pack holds, entry by entry, and keeps the report.
class Importer {
 public:
  Importer(CacheStore& store, bool replace) : store_(store), replace_(replace) {}

  // An error is the store's; what is wrong with the entry goes into the report.
  absl::Status Take(const PackEntry& entry) {
    switch (entry.type) {
      case EntryType::kHeader:
        return TakeHeader(entry);
      case EntryType::kKernel:
        return TakeKernel(entry);
      case EntryType::kTiming:
        return TakeTiming(entry);
      case EntryType::kPick:
        return TakePick(entry);
      case EntryType::kEnd:
        return WriteTimings();
    }
    return absl::OkStatus();
  }

  v1::CacheImportResponse Report() { return std::move(report_); }
  const internal::PackHeader& header() const { return header_; }
  void SetToolchain(const std::string& toolchain) { report_.set_toolchain(toolchain); }

 private:
  void Refuse(const PackEntry& entry, const std::string& name, absl::string_view reason) {
    report_.set_refused(report_.refused() + 1);
    if (report_.refusals_size() >= kMaxRefusals) return;
    v1::CacheImportResponse::Refused& refused = *report_.add_refusals();
    refused.set_entry(name);
    refused.set_offset(entry.offset);
    refused.set_reason(std::string(reason));
  }
  void CountAdded() { report_.set_added(report_.added() + 1); }
  void CountThere() { report_.set_already_there(report_.already_there() + 1); }

  absl::Status TakeHeader(const PackEntry& entry) {
    if (!header_.ParseFromString(entry.payload)) Refuse(entry, "header", "it cannot be parsed");
    return absl::OkStatus();
  }

  absl::Status TakeKernel(const PackEntry& entry) {
    internal::KernelRecord record;
    if (!record.ParseFromString(entry.payload)) {
      Refuse(entry, "kernel", "it cannot be parsed");
      return absl::OkStatus();
    }
    const std::string name = absl::StrCat("kernel ", record.info().sha256());
    if (record.kernel_key().size() == kKeyBytes) {
      const absl::StatusOr<internal::KernelRecord> stored = store_.GetKernel(record.kernel_key());
      if (stored.ok() && stored->info().sha256() == record.info().sha256()) {
        CountThere();
        return absl::OkStatus();
      }
      if (stored.ok() && !replace_) {
        Refuse(entry, name,
               absl::StrCat("another kernel, ", stored->info().sha256(), ", is stored under its key"));
        return absl::OkStatus();
      }
      if (!stored.ok() && !absl::IsNotFound(stored.status())) return stored.status();
    }
    return Put(entry, name, store_.PutKernel(record));
  }

  absl::Status TakeTiming(const PackEntry& entry) {
    internal::TimingRecord record;
    if (!record.ParseFromString(entry.payload) || record.timing_key().size() != kKeyBytes) {
      Refuse(entry, "timing", "it cannot be parsed");
      return absl::OkStatus();
    }
    // Timings go with the pick that follows them.
    timings_.push_back(std::move(record));
    return absl::OkStatus();
  }

  absl::Status TakePick(const PackEntry& entry) {
    internal::PickRecord record;
    if (!record.ParseFromString(entry.payload) || record.pick_key().size() != kKeyBytes) {
      timings_.clear();
      Refuse(entry, "pick", "it cannot be parsed");
      return absl::OkStatus();
    }
    const std::string name = absl::StrCat("pick ", ToHex(record.pick_key()));
    const absl::StatusOr<internal::PickRecord> stored = store_.GetPick(record.pick_key());
    if (!stored.ok() && !absl::IsNotFound(stored.status())) return stored.status();
    const bool same = stored.ok() && stored->SerializeAsString() == record.SerializeAsString();
    if (stored.ok() && (same || !replace_)) {
      timings_.clear();
      if (same) {
        CountThere();
      } else {
        Refuse(entry, name, "another pick is stored for its problem, bucket and device");
      }
      return absl::OkStatus();
    }
    const absl::Status written = store_.PutPick(record, timings_);
    timings_.clear();
    return Put(entry, name, written);
  }

  // Those that no pick of the pack came with.
  absl::Status WriteTimings() { return store_.PutTimings(timings_); }

  absl::Status Put(const PackEntry& entry, const std::string& name, const absl::Status& written) {
    CrashPoint("import-after-entry");
    if (written.ok()) {
      CountAdded();
    } else if (absl::IsInvalidArgument(written)) {
      Refuse(entry, name, written.message());
    } else {
      return written;
    }
    return absl::OkStatus();
  }

  CacheStore& store_;
  const bool replace_;
  internal::PackHeader header_;
  std::vector<internal::TimingRecord> timings_;
  v1::CacheImportResponse report_;
};

// Calls `take` for every entry up to the end of the pack.
absl::Status ReadPack(const std::string& path, const std::function<absl::Status(const PackEntry&)>& take) {
  PackReader reader(path);
  QGEMM_RETURN_IF_ERROR(reader.Begin());
  bool first = true;
  while (true) {
    QGEMM_ASSIGN_OR_RETURN(const PackEntry entry, reader.Next());
    if ((entry.type == EntryType::kHeader) != first) {
      return BadPack(entry.offset, first ? "its first entry is not its header" : "it has two headers");
    }
    first = false;
    QGEMM_RETURN_IF_ERROR(take(entry));
    if (entry.type == EntryType::kEnd) return absl::OkStatus();
  }
}

}  // namespace

absl::Status WritePack(CacheStore& store, const v1::CacheSelection& selection, absl::string_view writer,
                       int64_t now_unix_ms, const std::function<absl::Status(absl::string_view)>& write) {
  QGEMM_ASSIGN_OR_RETURN(const SelectedEntries selected, Select(store, selection, now_unix_ms));
  const std::set<std::string> picks(selected.picks.begin(), selected.picks.end());
  std::set<std::string> kernels(selected.kernels.begin(), selected.kernels.end());
  QGEMM_RETURN_IF_ERROR(store.VisitPicks([&](const internal::PickRecord& pick) {
    if (picks.count(pick.pick_key()) > 0) kernels.insert(pick.kernel_key());
    return true;
  }));
  if (picks.empty() && kernels.empty()) return absl::NotFoundError("the selection holds nothing");

  std::set<std::string> toolchains;
  QGEMM_RETURN_IF_ERROR(store.VisitKernelEntries([&](absl::string_view key, const v1::KernelInfo& info) {
    if (kernels.count(std::string(key)) > 0) toolchains.insert(info.toolchain());
    return true;
  }));
  internal::PackHeader header;
  header.set_writer(std::string(writer));
  header.set_created_unix_ms(now_unix_ms);
  for (const std::string& toolchain : toolchains) header.add_toolchains(toolchain);

  PackWriter pack(write);
  QGEMM_RETURN_IF_ERROR(pack.Begin(header));
  for (const std::string& key : kernels) {
    const absl::StatusOr<internal::KernelRecord> kernel = store.GetKernel(key);
    if (absl::IsNotFound(kernel.status())) continue;
    QGEMM_RETURN_IF_ERROR(kernel.status());
    QGEMM_RETURN_IF_ERROR(pack.Add(EntryType::kKernel, kernel->SerializeAsString()));
  }
  for (const std::string& key : selected.picks) {
    const absl::StatusOr<internal::PickRecord> pick = store.GetPick(key);
    if (absl::IsNotFound(pick.status())) continue;
    QGEMM_RETURN_IF_ERROR(pick.status());
    const std::vector<std::string> timing_keys(pick->timing_keys().begin(), pick->timing_keys().end());
    QGEMM_ASSIGN_OR_RETURN(const auto timings, store.GetTimings(timing_keys));
    for (const std::optional<internal::TimingRecord>& timing : timings) {
      if (!timing.has_value()) continue;
      QGEMM_RETURN_IF_ERROR(pack.Add(EntryType::kTiming, timing->SerializeAsString()));
    }
    QGEMM_RETURN_IF_ERROR(pack.Add(EntryType::kPick, pick->SerializeAsString()));
  }
  return pack.End();
}

absl::StatusOr<v1::CacheImportResponse> ImportPack(const std::string& path, bool replace, CacheStore& store) {
  QGEMM_RETURN_IF_ERROR(ReadPack(path, [](const PackEntry&) { return absl::OkStatus(); }));
  Importer importer(store, replace);
  QGEMM_RETURN_IF_ERROR(ReadPack(path, [&](const PackEntry& entry) { return importer.Take(entry); }));
  if (importer.header().toolchains_size() == 1) {
    QGEMM_RETURN_IF_ERROR(store.AdoptToolchain(importer.header().toolchains(0)));
    importer.SetToolchain(importer.header().toolchains(0));
  }
  return importer.Report();
}

}  // namespace qgemm
