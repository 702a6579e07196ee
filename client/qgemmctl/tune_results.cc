#include "client/qgemmctl/tune_results.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "kernels/bucket.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

// How many rejection reasons a failed result's sentence names.
constexpr int kShownRejections = 3;

std::string ErrorSentence(const v1::TuneResult& result) {
  std::string sentence =
      result.error().empty() ? "the daemon made no pick and gave no reason" : result.error();
  for (int i = 0; i < std::min(result.rejections_size(), kShownRejections); ++i) {
    const v1::Rejection& rejection = result.rejections(i);
    absl::StrAppend(&sentence, "; ", rejection.candidates(), " candidates: ", rejection.reason());
    if (!rejection.example().empty()) absl::StrAppend(&sentence, ", such as ", rejection.example());
  }
  return sentence;
}

Json ToJson(const std::vector<Result>& results, const v1::TuneSummary& summary) {
  Json json;
  json["results"] = Json::array();
  for (const Result& result : results) json["results"].push_back(ResultToJson(result));
  json["stats"] = {{"compiles", summary.compiles()},           {"timings", summary.timings()},
                   {"cache_hits", summary.cache_hits()},       {"wall_s", summary.wall_s()},
                   {"compile_cpu_s", summary.compile_cpu_s()}, {"gpu_busy_s", summary.gpu_busy_s()}};
  return json;
}

std::string ToText(const std::vector<Result>& results, const v1::TuneSummary& summary) {
  const size_t picks = std::count_if(results.begin(), results.end(),
                                     [](const Result& result) { return result.pick.has_value(); });
  return absl::StrCat(ResultsTable(results), picks, " of ", results.size(), " picks: ", summary.compiles(),
                      " kernels compiled, ", summary.timings(), " candidates timed, ", summary.cache_hits(),
                      " from the cache, ", absl::StrFormat("%.2f s\n", summary.wall_s()));
}

}  // namespace

TuneResults::TuneResults(const RequestedProblems& requested) {
  for (size_t i = 0; i < requested.problems.size(); ++i) {
    for (const int64_t m : requested.m) {
      Expect(static_cast<int>(i), ResultFor(requested.problems[i], BucketFor(m)));
    }
  }
}

TuneResults::TuneResults(const v1::TuneRequest& request) {
  std::set<int> buckets;
  for (const int64_t m : request.m()) buckets.insert(BucketFor(m));
  for (int i = 0; i < request.problems_size(); ++i) {
    for (const int bucket : buckets) Expect(i, {.problem = request.problems(i), .m_bucket = bucket});
  }
}

void TuneResults::Expect(int problem_index, Result result) {
  index_.emplace(std::pair(problem_index, result.m_bucket), results_.size());
  results_.push_back(std::move(result));
  arrived_.push_back(false);
}

void TuneResults::Add(const v1::TuneResult& event) {
  const int bucket = event.has_pick() ? event.pick().m_bucket() : event.m_bucket();
  const auto found = index_.find({event.problem_index(), bucket});
  if (found == index_.end()) return;  // nobody asked for it
  arrived_[found->second] = true;
  Result& result = results_[found->second];
  result.cached = event.cached();
  result.stale = event.stale();
  if (event.has_pick()) {
    result.pick = event.pick();
  } else {
    result.error = ErrorSentence(event);
  }
}

absl::StatusOr<std::vector<Result>> TuneResults::Take() && {
  const size_t arrived = std::count(arrived_.begin(), arrived_.end(), true);
  if (arrived != results_.size()) {
    return absl::InternalError(
        absl::StrCat("the daemon sent ", arrived, " of ", results_.size(), " results that were asked for"));
  }
  return std::move(results_);
}

absl::StatusOr<ExitCode> PrintTuneResults(const std::vector<Result>& results, const v1::TuneSummary& summary,
                                          bool json) {
  QGEMM_RETURN_IF_ERROR(WriteStdout(json ? JsonText(ToJson(results, summary)) : ToText(results, summary)));
  ExitCode code = ExitCode::kOk;
  for (const Result& result : results) {
    if (result.pick.has_value() && result.pick->source() == v1::PICK_SOURCE_MODEL && result.pick->partial()) {
      std::fprintf(stderr,
                   "qgemmctl: %s: no candidate was timed: this is the cost model's pick under the limits\n",
                   ResultName(result).c_str());
    }
    if (result.pick.has_value()) continue;
    code = ExitCode::kFailed;
    std::fprintf(stderr, "qgemmctl: %s: %s\n", ResultName(result).c_str(), result.error.c_str());
  }
  return code;
}

}  // namespace qgemm
