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

absl::StatusOr<std::string> MemoryStore::Read(RecordFamily family, absl::string_view key) {
  MutexLock lock(mu_);
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

absl::Status MemoryStore::RemoveIfStill(RecordFamily family, absl::string_view key,
                                        const absl::StatusOr<std::string>& seen,
                                        const std::vector<Mutation>& also) {
  MutexLock lock(mu_);
  if (!write_error_.ok()) return write_error_;
  auto& table = tables_[Index(family)];
  const auto found = table.find(std::string(key));
  if (found == table.end() || !seen.ok() || found->second != *seen) return absl::OkStatus();
  table.erase(found);
  Apply(also);
  return absl::OkStatus();
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
}

}  // namespace qgemm
