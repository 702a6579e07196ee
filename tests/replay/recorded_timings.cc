#include "tests/replay/recorded_timings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace qgemm {
namespace {

std::optional<Candidate> ParseOwn(const std::string& text) {
  const std::vector<std::string> name = absl::StrSplit(text, '/');
  Candidate candidate;
  if (name.size() != 3 || !absl::SimpleAtoi(name[1].substr(1), &candidate.split_k)) return std::nullopt;
  const absl::StatusOr<KernelConfig> config = ParseConfig(name[0]);
  if (!config.ok()) return std::nullopt;
  candidate.config = *config;
  for (const Reduction reduction : {Reduction::kWorkspace, Reduction::kCluster}) {
    if (name[2] == ReductionName(reduction)) candidate.reduction = reduction;
  }
  return candidate;
}

std::optional<Candidate> ParsePrototype(const std::string& text, int split, int reduction) {
  const std::vector<std::string> name = absl::StrSplit(text, '_');
  if (name.size() < 10 || name[0] != "A" || reduction == 2) return std::nullopt;
  int field[10] = {};
  for (int i = 1; i < 10; ++i) {
    if (!absl::SimpleAtoi(name[i], &field[i])) return std::nullopt;
  }
  const bool post = field[8] == 0 || field[8] == 2;
  const bool resident = field[9] == 1 || field[9] == 2;
  if (field[1] != 1 || !post || !resident) return std::nullopt;
  Candidate candidate;
  candidate.config = {Family::kMma,    field[2], field[3], field[4],
                      field[5],        field[7], field[6], ActivationPath::kSlice,
                      ScaleMode::kPost};
  candidate.split_k = split;
  candidate.reduction = split > 1 ? Reduction::kWorkspace : Reduction::kNone;
  return candidate;
}

}  // namespace

RecordedTimings ReadRecordedTimings(std::istream& in) {
  RecordedTimings timings;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_array() || row.size() < 5 || !row[4].is_string()) continue;
    const auto name = row[4].get<std::string>();
    const std::optional<Candidate> candidate =
        row.size() == 5 ? ParseOwn(name) : ParsePrototype(name, row[5].get<int>(), row[6].get<int>());
    if (!candidate.has_value()) continue;
    const Cell cell{row[0].get<int64_t>(), row[1].get<int64_t>(), row[2].get<int64_t>()};
    const auto us = row[3].get<double>();
    const auto [entry, inserted] = timings[cell].try_emplace(*candidate, us);
    entry->second = std::min(entry->second, us);
  }
  return timings;
}

std::vector<double> MergeRecordedTimings(const RecordedTimings& later, RecordedTimings* timings) {
  std::vector<double> ratios;
  for (const auto& [cell, candidates] : later) {
    for (const auto& [candidate, us] : candidates) {
      const auto [entry, inserted] = (*timings)[cell].try_emplace(candidate, us);
      if (inserted) continue;
      ratios.push_back(us / entry->second);
      entry->second = us;
    }
  }
  return ratios;
}

}  // namespace qgemm
