#include "cache/memory_store.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace qgemm {
namespace {
size_t Index(RecordFamily family) { return static_cast<size_t>(family); }
}  // namespace

void MemoryStore::SetWriteError(absl::Status error) {
  MutexLock lock(mu_);
  write_error_ = std::move(error);
}

absl::Status MemoryStore::WriteError() const {
  MutexLock lock(mu_);
  return write_error_;
}

absl::StatusOr<std::string> MemoryStore::Read(RecordFamily family, absl::string_view key) {
  MutexLock lock(mu_);
  return ReadLocked(family, key);
}

absl::StatusOr<std::string> MemoryStore::ReadLocked(RecordFamily family, absl::string_view key) {
  const auto& table = tables_[Index(family)];
  const auto found = table.find(std::string(key));
  if (found == table.end()) return absl::NotFoundError("no such key");
  return found->second;
}

absl::StatusOr<RecordStore::Page> MemoryStore::ReadPage(RecordFamily family, absl::string_view begin,
                                                        absl::string_view end, int limit) {
  MutexLock lock(mu_);
  const auto& table = tables_[Index(family)];
  Page page;
  for (auto it = table.lower_bound(std::string(begin)); it != table.end(); ++it) {
    if (!end.empty() && it->first >= end) break;
    if (page.size() == static_cast<size_t>(limit)) break;
    page.emplace_back(it->first, it->second);
  }
  return page;
}

absl::StatusOr<int64_t> MemoryStore::Count(RecordFamily family) {
  MutexLock lock(mu_);
  return static_cast<int64_t>(tables_[Index(family)].size());
}

absl::Status MemoryStore::Write(const std::vector<Mutation>& mutations) {
  MutexLock lock(mu_);
  if (!write_error_.ok()) return write_error_;
  Apply(mutations);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<bool>> MemoryStore::ApplyIfStill(const std::vector<Conditional>& conditionals) {
  MutexLock lock(mu_);
  if (!write_error_.ok()) return write_error_;
  std::vector<bool> applied;
  for (const Conditional& conditional : conditionals) {
    applied.push_back(StillHolds(conditional.seen, ReadLocked(conditional.family, conditional.key)));
    if (applied.back()) Apply(conditional.mutations);
  }
  return applied;
}

absl::Status MemoryStore::Backup(absl::string_view /*directory*/) {
  return absl::FailedPreconditionError("a store in memory has no files to copy");
}

void MemoryStore::Apply(const std::vector<Mutation>& mutations) {
  for (const Mutation& mutation : mutations) {
    auto& table = tables_[Index(mutation.family)];
    if (mutation.value.has_value()) {
      table[mutation.key] = *mutation.value;
    } else {
      table.erase(mutation.key);
    }
  }
  NoteWritten(mutations);
}

}  // namespace qgemm
