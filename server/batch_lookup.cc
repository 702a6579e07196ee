#include "server/batch_lookup.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "server/proto_convert.h"

namespace qgemm {
namespace {

// How long an answer is given from memory. The store learns of a use when the answer is made: to the hour,
// which is what it keeps.
constexpr Duration kAnswerLife = std::chrono::minutes(10);

std::string InAResponse(v1::LookupAnswer answer) {
  v1::LookupResponse response;
  *response.add_answers() = std::move(answer);
  return response.SerializeAsString();
}

}  // namespace

v1::BriefPick BriefOf(const v1::Pick& pick) {
  v1::BriefPick brief;
  brief.set_m_bucket(pick.m_bucket());
  brief.set_source(pick.source());
  brief.set_effort(pick.effort());
  brief.set_config(pick.config());
  brief.set_split_k(pick.split_k());
  brief.set_reduction(pick.reduction());
  if (pick.has_time_us()) brief.set_time_us(pick.time_us());
  brief.set_predicted_us(pick.predicted_us());
  brief.set_confidence(pick.confidence());
  brief.set_kernel_sha256(absl::HexStringToBytes(pick.kernel().sha256()));
  return brief;
}

BatchLookup::BatchLookup(PickLookup& lookup, CacheStore& store, Clock& clock, size_t max_answers)
    : lookup_(lookup),
      store_(store),
      clock_(clock),
      max_per_generation_(std::max<size_t>(1, max_answers / 2 / kShards)) {}

absl::Status BatchLookup::Run(const v1::LookupRequest& request, const TuningTarget& target,
                              absl::string_view toolchain, std::string& response, LookupCounts& counts) {
  const TimePoint now = clock_.Now();
  const std::string suffix = absl::StrCat("\n", target.name, "\n", target.measured ? "1" : "0", "\n",
                                          target.profile.arch, "\n", target.driver_version, "\n", toolchain);
  std::string name;
  for (int i = 0; i < request.keys_size(); ++i) {
    const v1::LookupKey& key = request.keys(i);
    // As the client wrote it: two ways to write one problem are two answers in memory.
    name.clear();
    const bool written = key.AppendToString(&name);
    name += suffix;
    AnswerPtr answer = written ? Recall(name, now) : nullptr;
    if (answer == nullptr) {
      absl::StatusOr<AnswerPtr> made = Make(key, target, toolchain);
      if (!made.ok()) {
        if (request.keys_size() == 1 || !absl::IsInvalidArgument(made.status())) return made.status();
        return absl::InvalidArgumentError(absl::StrCat("keys[", i, "]: ", made.status().message()));
      }
      answer = *std::move(made);
      Remember(name, answer);
    }
    ++(answer->hit ? counts.hits : counts.misses);
    const std::string& bytes = request.brief() ? answer->brief : answer->full;
    if (i == 0) response.reserve(response.size() + static_cast<size_t>(request.keys_size()) * bytes.size());
    response += bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchLookup::AnswerPtr> BatchLookup::Make(const v1::LookupKey& key, const TuningTarget& target,
                                                         absl::string_view toolchain) {
  QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(key.problem()));
  QGEMM_RETURN_IF_ERROR(ValidateRows(key.m()));
  const int bucket = BucketFor(key.m());
  // A predicted pick never stands in a measured one's place.
  const v1::Effort least = target.measured ? v1::EFFORT_QUICK : v1::EFFORT_MODEL_ONLY;
  auto answer = std::make_shared<Answer>();
  answer->pick_keys = PickLookup::KeysFor(problem, bucket, target, least);
  // Before they are read: a write that comes in between makes the answer old.
  answer->epochs = EpochSum(answer->pick_keys);
  answer->valid_until = clock_.Now() + kAnswerLife;
  QGEMM_ASSIGN_OR_RETURN(std::optional<StoredPick> found,
                         lookup_.Find(problem, bucket, target, least, toolchain));
  answer->hit = found.has_value();
  v1::LookupAnswer full;
  if (found.has_value()) {
    v1::LookupAnswer brief;
    brief.set_stale(found->stale());
    *brief.mutable_brief() = BriefOf(found->record.pick());
    answer->brief = InAResponse(std::move(brief));
    full.set_stale(found->stale());
    *full.mutable_pick() = std::move(*found->record.mutable_pick());
    answer->full = InAResponse(std::move(full));
  } else {
    full.set_miss_reason(
        absl::StrCat(ProblemName(problem), " was never tuned at bucket ", bucket, " for ", target.name));
    answer->full = InAResponse(std::move(full));
    answer->brief = answer->full;
  }
  return AnswerPtr(std::move(answer));
}

BatchLookup::Shard& BatchLookup::ShardOf(const std::string& name) {
  return shards_[(std::hash<std::string>()(name) >> 32) % kShards];
}

uint64_t BatchLookup::EpochSum(const std::vector<std::string>& pick_keys) const {
  // Each only grows, so that their sum stays the same only when all do.
  uint64_t sum = 0;
  for (const std::string& key : pick_keys) sum += store_.PickEpoch(key);
  return sum;
}

BatchLookup::AnswerPtr BatchLookup::Recall(const std::string& name, TimePoint now) {
  Shard& shard = ShardOf(name);
  AnswerPtr answer;
  {
    MutexLock lock(shard.mu);
    const auto fresh = shard.fresh.find(name);
    if (fresh != shard.fresh.end()) {
      answer = fresh->second;
    } else if (const auto old = shard.old.find(name); old != shard.old.end()) {
      answer = std::move(old->second);
      shard.old.erase(old);
      shard.fresh.emplace(name, answer);
    }
  }
  if (answer == nullptr || now >= answer->valid_until || answer->epochs != EpochSum(answer->pick_keys)) {
    return nullptr;
  }
  return answer;
}

void BatchLookup::Remember(const std::string& name, AnswerPtr answer) {
  Shard& shard = ShardOf(name);
  std::unordered_map<std::string, AnswerPtr> dropped;  // destroyed without the lock
  MutexLock lock(shard.mu);
  if (shard.fresh.size() >= max_per_generation_) {
    dropped = std::exchange(shard.old, std::exchange(shard.fresh, {}));
  }
  shard.fresh[name] = std::move(answer);
}

}  // namespace qgemm
