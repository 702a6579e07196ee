#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/problem_proto.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/dry_run.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/problem_arguments.h"
#include "client/qgemmctl/progress.h"
#include "client/qgemmctl/result.h"
#include "kernels/bucket.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

// How many rejection reasons a failed result's sentence names.
constexpr int kShownRejections = 3;

struct TuneArguments {
  ProblemArguments problems;
  std::string effort = "balanced";
  bool retune = false;
  std::string only;
  int max_candidates = 0;
  double budget_s = 0;
  bool dry_run = false;
};

absl::StatusOr<v1::Effort> ParseEffort(absl::string_view text) {
  for (const v1::Effort effort :
       {v1::EFFORT_EXHAUSTIVE, v1::EFFORT_BALANCED, v1::EFFORT_QUICK, v1::EFFORT_MODEL_ONLY}) {
    if (text == EffortWord(effort)) return effort;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("effort \"", text, "\" is not allowed: use exhaustive, balanced, quick or model-only"));
}

absl::StatusOr<v1::TuneRequest> MakeRequest(const TuneArguments& arguments,
                                            const RequestedProblems& requested) {
  v1::TuneRequest request;
  for (const RequestedProblem& problem : requested.problems) {
    *request.add_problems() = ProblemToProto(problem.problem);
  }
  for (const int64_t m : requested.m) request.add_m(m);
  QGEMM_ASSIGN_OR_RETURN(const v1::Effort effort, ParseEffort(arguments.effort));
  request.set_effort(effort);
  request.set_target(arguments.problems.target);
  request.set_retune(arguments.retune);
  request.set_only(arguments.only);
  request.set_max_candidates(arguments.max_candidates);
  request.set_budget_s(arguments.budget_s);
  return request;
}

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

// The stream's results, in the order of the request whatever the order of their arrival.
class TuneResults {
 public:
  explicit TuneResults(const RequestedProblems& requested) : requested_(requested) {
    for (const RequestedProblem& problem : requested.problems) {
      for (const int64_t m : requested.m) results_.push_back(ResultFor(problem, BucketFor(m)));
    }
    arrived_.resize(results_.size(), false);
  }

  void Add(const v1::TuneResult& event) {
    const int bucket = event.has_pick() ? event.pick().m_bucket() : event.m_bucket();
    const auto m = std::find_if(requested_.m.begin(), requested_.m.end(),
                                [&](int64_t rows) { return BucketFor(rows) == bucket; });
    if (event.problem_index() < 0 || event.problem_index() >= static_cast<int>(requested_.problems.size()) ||
        m == requested_.m.end()) {
      return;  // nobody asked for it
    }
    const size_t index = event.problem_index() * requested_.m.size() + (m - requested_.m.begin());
    arrived_[index] = true;
    Result& result = results_[index];
    result.cached = event.cached();
    result.stale = event.stale();
    if (event.has_pick()) {
      result.pick = event.pick();
    } else {
      result.error = ErrorSentence(event);
    }
  }

  absl::StatusOr<std::vector<Result>> Take() && {
    const size_t arrived = std::count(arrived_.begin(), arrived_.end(), true);
    if (arrived != results_.size()) {
      return absl::InternalError(
          absl::StrCat("the daemon sent ", arrived, " of ", results_.size(), " results that were asked for"));
    }
    return std::move(results_);
  }

 private:
  const RequestedProblems& requested_;
  std::vector<Result> results_;
  std::vector<bool> arrived_;
};

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

absl::StatusOr<ExitCode> RunTune(const TuneArguments& arguments, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const RequestedProblems requested, ResolveProblems(arguments.problems));
  QGEMM_ASSIGN_OR_RETURN(const v1::TuneRequest request, MakeRequest(arguments, requested));
  if (arguments.dry_run) return RunDryRun(request, context);
  TuneResults collected(requested);
  ProgressBar bar(TerminalWriter(), TerminalWidth(), RealClock());
  const absl::StatusOr<v1::TuneSummary> summary =
      context.client.Tune(request, [&](const v1::TuneEvent& event) {
        if (event.has_progress()) bar.Show(event.progress());
        if (event.has_result()) collected.Add(event.result());
      });
  bar.Clear();
  QGEMM_RETURN_IF_ERROR(summary.status());
  QGEMM_ASSIGN_OR_RETURN(const std::vector<Result> results, std::move(collected).Take());
  QGEMM_RETURN_IF_ERROR(
      WriteStdout(context.json ? JsonText(ToJson(results, *summary)) : ToText(results, *summary)));
  ExitCode code = ExitCode::kOk;
  for (const Result& result : results) {
    if (result.pick.has_value()) continue;
    code = ExitCode::kFailed;
    std::fprintf(stderr, "qgemmctl: %s: %s\n", ResultName(result).c_str(), result.error.c_str());
  }
  return code;
}

}  // namespace

void AddTuneCommand(CLI::App& app, Command& selected) {
  const auto arguments = std::make_shared<TuneArguments>();
  CLI::App* command = app.add_subcommand("tune", "Tune problems for each M and show the picks");
  arguments->problems.AddTo(*command);
  command->add_option("--effort", arguments->effort, "How many candidates are timed")
      ->type_name("exhaustive|balanced|quick|model-only")
      ->capture_default_str();
  command
      ->add_option("--only", arguments->only,
                   "Only candidates (config/k<split>/<reduction>) that match; the pick is not kept")
      ->type_name("REGEX");
  command
      ->add_option("--max-candidates", arguments->max_candidates,
                   "Try at most so many per shape and M, best predictions first")
      ->type_name("N");
  command
      ->add_option("--budget", arguments->budget_s,
                   "Time per shape and M at most; then the best so far is shown and not kept")
      ->type_name("SECONDS");
  command->add_flag("--dry-run", arguments->dry_run, "Only say what would be compiled and timed");
  command->add_flag("--retune", arguments->retune, "Ignore stored picks and timings");
  command->callback([&selected, arguments] {
    selected = [arguments](CommandContext& context) { return RunTune(*arguments, context); };
  });
}

}  // namespace qgemm
