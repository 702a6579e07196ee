#ifndef QGEMM_CACHE_ACCESS_LOG_H_
#define QGEMM_CACHE_ACCESS_LOG_H_

#include <cstddef>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "cache/cache_store.h"

namespace qgemm {

// Which entries were read since the log was drained last. Bounded: what does not fit is forgotten, so that an
// entry may look older than it is, never younger. Thread-safe.
class AccessLog {
 public:
  explicit AccessLog(size_t max_entries = size_t{1} << 17) : max_entries_(max_entries) {}

  void Touch(EntryKind kind, absl::string_view key);
  [[nodiscard]] std::vector<EntryId> Drain();

 private:
  const size_t max_entries_;
  Mutex mu_;
  std::unordered_set<std::string> touched_ QGEMM_GUARDED_BY(mu_);  // kind, then key
};

}  // namespace qgemm

#endif  // QGEMM_CACHE_ACCESS_LOG_H_
