#include "server/pick_lookup.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "server/kernel_key.h"

namespace qgemm {
namespace {
constexpr v1::Effort kEffortsFromHighest[] = {v1::EFFORT_EXHAUSTIVE, v1::EFFORT_BALANCED, v1::EFFORT_QUICK,
                                              v1::EFFORT_MODEL_ONLY};

// How much an effort looks at; its numbers on the wire are in the order of their invention.
int EffortRank(v1::Effort effort) {
  const auto* const end = std::end(kEffortsFromHighest);
  return static_cast<int>(end - std::find(std::begin(kEffortsFromHighest), end, effort));
}

}  // namespace

std::string PickLookup::KeyFor(const Problem& problem, int m_bucket, const TuningTarget& target,
                               v1::Effort effort) {
  PickKeyInput input;
  input.problem = ProblemName(problem);
  input.m_bucket = m_bucket;
  input.source = target.measured ? v1::PICK_SOURCE_MEASURED : v1::PICK_SOURCE_MODEL;
  if (target.measured) {
    input.device = target.device;
  } else {
    input.target = target.name;
  }
  input.arch = target.profile.arch;
  input.effort = effort;
  return PickKey(input);
}

std::vector<std::string> PickLookup::KeysFor(const Problem& problem, int m_bucket, const TuningTarget& target,
                                             v1::Effort least) {
  std::vector<std::string> keys;
  for (const v1::Effort effort : kEffortsFromHighest) {
    if (EffortRank(effort) >= EffortRank(least)) keys.push_back(KeyFor(problem, m_bucket, target, effort));
  }
  if (!target.measured || least != v1::EFFORT_MODEL_ONLY) return keys;
  TuningTarget predicted = target;
  predicted.measured = false;
  for (std::string& key : KeysFor(problem, m_bucket, predicted, least)) keys.push_back(std::move(key));
  return keys;
}

absl::StatusOr<std::optional<StoredPick>> PickLookup::Find(const Problem& problem, int m_bucket,
                                                           const TuningTarget& target, v1::Effort least,
                                                           absl::string_view toolchain) {
  QGEMM_ASSIGN_OR_RETURN(std::optional<StoredPick> found,
                         FindIn(problem, m_bucket, target, least, toolchain));
  if (found.has_value() || !target.measured || least != v1::EFFORT_MODEL_ONLY) return found;
  TuningTarget predicted = target;
  predicted.measured = false;
  return FindIn(problem, m_bucket, predicted, least, toolchain);
}

absl::StatusOr<std::optional<StoredPick>> PickLookup::FindIn(const Problem& problem, int m_bucket,
                                                             const TuningTarget& target, v1::Effort least,
                                                             absl::string_view toolchain) {
  for (const v1::Effort effort : kEffortsFromHighest) {
    if (EffortRank(effort) < EffortRank(least)) break;
    absl::StatusOr<internal::PickRecord> record = store_.GetPick(KeyFor(problem, m_bucket, target, effort));
    if (absl::IsNotFound(record.status())) continue;
    QGEMM_RETURN_IF_ERROR(record.status());
    StoredPick found;
    found.record = *std::move(record);
    const v1::Pick& pick = found.record.pick();
    found.driver_changed =
        pick.source() == v1::PICK_SOURCE_MEASURED && pick.driver_version() != target.driver_version;
    if (!toolchain.empty()) {
      const absl::StatusOr<KernelConfig> config = ParseConfig(pick.config());
      // A config that today's program cannot name is not one it would compile.
      found.kernel_outdated =
          !config.ok() || supply_.CurrentKey(*config, problem.signature, target.profile.arch, toolchain) !=
                              found.record.kernel_key();
    }
    return std::optional<StoredPick>(std::move(found));
  }
  return std::optional<StoredPick>();
}

}  // namespace qgemm
