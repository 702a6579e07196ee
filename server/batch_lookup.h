#ifndef QGEMM_SERVER_BATCH_LOOKUP_H_
#define QGEMM_SERVER_BATCH_LOOKUP_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "cache/cache_store.h"
#include "qgemm/v1/tuner.pb.h"
#include "server/pick_lookup.h"
#include "server/tuning_target.h"

namespace qgemm {

struct LookupCounts {
  int64_t hits = 0;
  int64_t misses = 0;
};

// A pick as `brief` requests get it.
v1::BriefPick BriefOf(const v1::Pick& pick);

// Answers Lookup's keys: from memory while the store's picks behind an answer are unchanged (some hundred
// nanoseconds), else from the store. Memory is bounded; what was not asked for lately is forgotten.
// Thread-safe.
class BatchLookup {
 public:
  // Borrowed: lookup, store, clock. At most `max_answers` are remembered.
  BatchLookup(PickLookup& lookup, CacheStore& store, Clock& clock, size_t max_answers = size_t{1} << 16);

  // Appends one answer per key of the request, in order, to the bytes of a LookupResponse: an answer is
  // serialized when it is made, not when it is given. InvalidArgument names the key and its field.
  [[nodiscard]] absl::Status Run(const v1::LookupRequest& request, const TuningTarget& target,
                                 absl::string_view toolchain, std::string& response, LookupCounts& counts);

 private:
  // Constant once made.
  struct Answer {
    std::string full;  // as it stands in a LookupResponse
    std::string brief;
    bool hit = false;
    std::vector<std::string> pick_keys;  // of the picks that could have answered
    uint64_t epochs = 0;                 // sum over pick_keys, before they were read
    TimePoint valid_until;
  };
  using AnswerPtr = std::shared_ptr<const Answer>;
  // Two generations: what is found in the old one moves to the new one; the old one is dropped when the new
  // one is full.
  struct Shard {
    Mutex mu;
    std::unordered_map<std::string, AnswerPtr> fresh QGEMM_GUARDED_BY(mu);
    std::unordered_map<std::string, AnswerPtr> old QGEMM_GUARDED_BY(mu);
  };

  static constexpr size_t kShards = 16;

  Shard& ShardOf(const std::string& name);
  // Null: not remembered, or no longer right.
  AnswerPtr Recall(const std::string& name, TimePoint now);
  void Remember(const std::string& name, AnswerPtr answer);
  uint64_t EpochSum(const std::vector<std::string>& pick_keys) const;
  absl::StatusOr<AnswerPtr> Make(const v1::LookupKey& key, const TuningTarget& target,
                                 absl::string_view toolchain);

  PickLookup& lookup_;
  CacheStore& store_;
  Clock& clock_;
  const size_t max_per_generation_;
  std::array<Shard, kShards> shards_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_BATCH_LOOKUP_H_
