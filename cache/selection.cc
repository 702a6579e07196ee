#include "cache/selection.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
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

namespace qgemm {
namespace {

constexpr int kMaxKeys = 65536;

struct Use {
  int64_t unix_hour = 0;
  int64_t bytes = 0;
  bool pinned = false;
};

// By kind and key.
using Uses = std::unordered_map<std::string, Use>;

std::string UseName(EntryKind kind, absl::string_view key) {
  return absl::StrCat(std::string(1, static_cast<char>(kind)), key);
}

absl::StatusOr<Uses> ReadUses(CacheStore& store) {
  Uses uses;
  QGEMM_RETURN_IF_ERROR(store.VisitUses([&](const EntryUse& use) {
    uses[UseName(use.id.kind, use.id.key)] = {use.used_unix_hour, use.bytes, use.pinned};
    return true;
  }));
  return uses;
}

bool HasPickField(const v1::CacheSelection& selection) {
  return !selection.target().empty() || selection.n() != 0 || selection.k() != 0 ||
         selection.m_bucket() != 0 || selection.source() != v1::PICK_SOURCE_UNSPECIFIED;
}

// A selection with what its checks need at hand.
class Matcher {
 public:
  Matcher(const v1::CacheSelection& selection, const Uses& uses, int64_t now_unix_ms)
      : selection_(selection),
        uses_(uses),
        keys_(selection.keys().begin(), selection.keys().end()),
        used_before_hour_(now_unix_ms / kHourMs - selection.unused_for_s() / 3600) {}

  bool Matches(const internal::PickRecord& record) const {
    const v1::Pick& pick = record.pick();
    const auto unset_or = [](const auto& wanted, const auto& value) {
      return wanted == std::decay_t<decltype(wanted)>() || wanted == value;
    };
    return (keys_.empty() || keys_.count(ToHex(record.pick_key())) > 0) &&
           unset_or(selection_.target(), pick.target()) &&
           unset_or(selection_.arch(), pick.kernel().arch()) &&
           unset_or(selection_.n(), pick.problem().n()) && unset_or(selection_.k(), pick.problem().k()) &&
           unset_or(selection_.m_bucket(), pick.m_bucket()) && unset_or(selection_.source(), pick.source()) &&
           (selection_.producer().empty() || selection_.producer() == pick.producer() ||
            selection_.producer() == pick.kernel().producer()) &&
           IsUnused(EntryKind::kPick, record.pick_key());
  }
  bool Matches(absl::string_view kernel_key, const v1::KernelInfo& info) const {
    return !HasPickField(selection_) && (keys_.empty() || keys_.count(info.sha256()) > 0) &&
           (selection_.arch().empty() || selection_.arch() == info.arch()) &&
           (selection_.producer().empty() || selection_.producer() == info.producer()) &&
           IsUnused(EntryKind::kKernel, kernel_key);
  }

 private:
  bool IsUnused(EntryKind kind, absl::string_view key) const {
    if (selection_.unused_for_s() == 0) return true;
    const auto found = uses_.find(UseName(kind, key));
    return found == uses_.end() || found->second.unix_hour < used_before_hour_;
  }

  const v1::CacheSelection& selection_;
  const Uses& uses_;
  const std::unordered_set<std::string> keys_;
  const int64_t used_before_hour_;
};

bool IsEmpty(const v1::CacheSelection& selection) {
  return !selection.all() && selection.keys().empty() && selection.arch().empty() &&
         selection.producer().empty() && selection.unused_for_s() == 0 && !HasPickField(selection);
}

}  // namespace

absl::Status ValidateSelection(const v1::CacheSelection& selection) {
  if (IsEmpty(selection)) {
    return absl::InvalidArgumentError("selection is empty; allowed: all, or at least one other field");
  }
  v1::CacheSelection others = selection;
  others.clear_all();
  if (selection.all() && !IsEmpty(others)) {
    return absl::InvalidArgumentError("selection.all is set beside other fields; allowed: all alone");
  }
  if (selection.keys_size() > kMaxKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat("selection.keys has ", selection.keys_size(), " entries; allowed: at most ", kMaxKeys));
  }
  for (const std::string& key : selection.keys()) {
    if (IsSha256Hex(key)) continue;
    return absl::InvalidArgumentError(absl::StrCat("selection.keys has \"", absl::CEscape(key.substr(0, 80)),
                                                   "\"; allowed: 64 lower-case hexadecimal digits"));
  }
  for (const auto& [name, value] : {std::pair<absl::string_view, int64_t>{"n", selection.n()},
                                    {"k", selection.k()},
                                    {"m_bucket", selection.m_bucket()},
                                    {"unused_for_s", selection.unused_for_s()}}) {
    if (value < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("selection.", name, " is ", value, "; allowed: 0 (any) or more"));
    }
  }
  return absl::OkStatus();
}

std::vector<EntryId> SelectedEntries::Ids() const {
  std::vector<EntryId> ids;
  ids.reserve(picks.size() + kernels.size());
  for (const std::string& key : picks) ids.push_back({EntryKind::kPick, key});
  for (const std::string& key : kernels) ids.push_back({EntryKind::kKernel, key});
  return ids;
}

absl::StatusOr<SelectedEntries> Select(CacheStore& store, const v1::CacheSelection& selection,
                                       int64_t now_unix_ms) {
  QGEMM_RETURN_IF_ERROR(ValidateSelection(selection));
  Uses uses;
  if (selection.unused_for_s() > 0) {
    store.FlushUses().IgnoreError();  // a store that takes no writes has its older dates
    QGEMM_ASSIGN_OR_RETURN(uses, ReadUses(store));
  }
  const Matcher matcher(selection, uses, now_unix_ms);
  SelectedEntries selected;
  QGEMM_RETURN_IF_ERROR(store.VisitPicks([&](const internal::PickRecord& pick) {
    if (matcher.Matches(pick)) selected.picks.push_back(pick.pick_key());
    return true;
  }));
  QGEMM_RETURN_IF_ERROR(store.VisitKernelEntries([&](absl::string_view key, const v1::KernelInfo& info) {
    if (matcher.Matches(key, info)) selected.kernels.emplace_back(key);
    return true;
  }));
  return selected;
}

absl::StatusOr<RemovedEntries> DeleteSelected(CacheStore& store, const v1::CacheSelection& selection,
                                              int64_t now_unix_ms) {
  QGEMM_ASSIGN_OR_RETURN(const SelectedEntries selected, Select(store, selection, now_unix_ms));
  const std::set<std::string> picks(selected.picks.begin(), selected.picks.end());
  std::set<std::string> freed(selected.kernels.begin(), selected.kernels.end());
  const auto visit = [&](const std::function<void(const internal::PickRecord&)>& each) {
    return store.VisitPicks([&](const internal::PickRecord& pick) {
      each(pick);
      return true;
    });
  };
  QGEMM_RETURN_IF_ERROR(visit([&](const internal::PickRecord& pick) {
    if (picks.count(pick.pick_key()) > 0) freed.insert(pick.kernel_key());
  }));
  std::vector<EntryId> ids;
  for (const std::string& key : selected.picks) ids.push_back({EntryKind::kPick, key});
  QGEMM_ASSIGN_OR_RETURN(RemovedEntries removed, store.Remove(ids));

  std::set<std::string> needed;
  QGEMM_RETURN_IF_ERROR(visit([&](const internal::PickRecord& pick) { needed.insert(pick.kernel_key()); }));
  ids.clear();
  for (const std::string& key : freed) {
    if (needed.count(key) == 0) ids.push_back({EntryKind::kKernel, key});
  }
  removed.kept += std::count_if(selected.kernels.begin(), selected.kernels.end(),
                                [&](const std::string& key) { return needed.count(key) > 0; });
  QGEMM_ASSIGN_OR_RETURN(const RemovedEntries kernels, store.Remove(ids));
  removed.kernels += kernels.kernels;
  removed.kept += kernels.kept;
  removed.bytes += kernels.bytes;
  if (selection.all()) {
    // Timings that no pick rests on.
    QGEMM_ASSIGN_OR_RETURN(const RemovedEntries timings,
                           store.RemoveTimingsBefore(std::numeric_limits<int64_t>::max()));
    removed.timings += timings.timings;
    removed.bytes += timings.bytes;
  }
  return removed;
}

absl::Status VisitCacheEntries(
    CacheStore& store, const v1::CacheListRequest& request, int64_t now_unix_ms,
    const std::function<bool(const internal::PickRecord*, v1::CacheEntry&)>& visit) {
  const bool all = IsEmpty(request.selection());
  if (!all) QGEMM_RETURN_IF_ERROR(ValidateSelection(request.selection()));
  QGEMM_ASSIGN_OR_RETURN(const Uses uses, ReadUses(store));
  const Matcher matcher(request.selection(), uses, now_unix_ms);
  const auto add_use = [&](EntryKind kind, absl::string_view key, v1::CacheEntry& entry) {
    const auto found = uses.find(UseName(kind, key));
    if (found == uses.end()) return;
    entry.set_used_unix_s(found->second.unix_hour * 3600);
    entry.set_bytes(found->second.bytes);
    entry.set_pinned(found->second.pinned);
  };
  switch (request.what()) {
    case v1::CacheListRequest::WHAT_UNSPECIFIED:
    case v1::CacheListRequest::PICKS:
      return store.VisitPicks([&](const internal::PickRecord& record) {
        if (!all && !matcher.Matches(record)) return true;
        v1::CacheEntry entry;
        *entry.mutable_pick() = record.pick();
        entry.set_key(ToHex(record.pick_key()));
        add_use(EntryKind::kPick, record.pick_key(), entry);
        return visit(&record, entry);
      });
    case v1::CacheListRequest::KERNELS:
      return store.VisitKernelEntries([&](absl::string_view key, const v1::KernelInfo& info) {
        if (!all && !matcher.Matches(key, info)) return true;
        v1::CacheEntry entry;
        *entry.mutable_kernel() = info;
        entry.set_key(info.sha256());
        add_use(EntryKind::kKernel, key, entry);
        return visit(nullptr, entry);
      });
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "what is the unknown value ", static_cast<int>(request.what()), "; allowed: PICKS, KERNELS"));
  }
}

}  // namespace qgemm
