#include "cache/access_log.h"

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace qgemm {

void AccessLog::Touch(EntryKind kind, absl::string_view key) {
  std::string name = absl::StrCat(std::string(1, static_cast<char>(kind)), key);
  MutexLock lock(mu_);
  if (touched_.size() < max_entries_) touched_.insert(std::move(name));
}

std::vector<EntryId> AccessLog::Drain() {
  std::unordered_set<std::string> touched;
  {
    MutexLock lock(mu_);
    touched.swap(touched_);
  }
  std::vector<EntryId> entries;
  entries.reserve(touched.size());
  for (const std::string& name : touched) {
    entries.push_back({static_cast<EntryKind>(name[0]), name.substr(1)});
  }
  return entries;
}

}  // namespace qgemm
