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
#include "client/qgemmctl/tune_results.h"
#include "kernels/bucket.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

struct TuneArguments {
  ProblemArguments problems;
  std::string effort = "balanced";
  bool retune = false;
  std::string only;
  int max_candidates = 0;
  double budget_s = 0;
  bool dry_run = false;
  bool detach = false;
  std::string job_class;
  int priority = 0;
  double queue_deadline_s = 0;
  double execution_deadline_s = 0;
};

absl::StatusOr<v1::Effort> ParseEffort(absl::string_view text) {
  for (const v1::Effort effort :
       {v1::EFFORT_EXHAUSTIVE, v1::EFFORT_BALANCED, v1::EFFORT_QUICK, v1::EFFORT_MODEL_ONLY}) {
    if (text == EffortWord(effort)) return effort;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("effort \"", text, "\" is not allowed: use exhaustive, balanced, quick or model-only"));
}

absl::StatusOr<v1::JobClass> ParseJobClass(absl::string_view text) {
  if (text.empty()) return v1::JOB_CLASS_UNSPECIFIED;
  if (text == "interactive") return v1::JOB_CLASS_INTERACTIVE;
  if (text == "batch") return v1::JOB_CLASS_BATCH;
  return absl::InvalidArgumentError(
      absl::StrCat("class \"", text, "\" is not allowed: use interactive or batch"));
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
  QGEMM_ASSIGN_OR_RETURN(const v1::JobClass job_class, ParseJobClass(arguments.job_class));
  request.set_job_class(job_class);
  request.set_priority(arguments.priority);
  request.set_queue_deadline_s(arguments.queue_deadline_s);
  request.set_execution_deadline_s(arguments.execution_deadline_s);
  return request;
}

absl::StatusOr<ExitCode> RunTune(const TuneArguments& arguments, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const RequestedProblems requested, ResolveProblems(arguments.problems));
  QGEMM_ASSIGN_OR_RETURN(const v1::TuneRequest request, MakeRequest(arguments, requested));
  if (arguments.dry_run) return RunDryRun(request, context);
  if (arguments.detach) {
    QGEMM_ASSIGN_OR_RETURN(const std::string job_id, context.client.TuneDetached(request));
    QGEMM_RETURN_IF_ERROR(WriteStdout(
        context.json
            ? JsonText(Json{{"job_id", job_id}})
            : absl::StrCat("job ", job_id, " was accepted; to see it: qgemmctl watch ", job_id, "\n")));
    return ExitCode::kOk;
  }
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
  return PrintTuneResults(results, *summary, context.json);
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
      ->add_option(
          "--budget", arguments->budget_s,
          "Time per shape and M at most; then the best so far (the model's, if nothing was timed) is "
          "shown and not kept")
      ->type_name("SECONDS");
  command->add_flag("--dry-run", arguments->dry_run, "Only say what would be compiled and timed");
  command->add_flag("--retune", arguments->retune, "Ignore stored picks and timings");
  command->add_flag("--detach", arguments->detach, "Print a job's id and leave: see jobs and watch");
  command->add_option("--class", arguments->job_class, "Which queue it stands in; batch with --detach")
      ->type_name("interactive|batch");
  command->add_option("--priority", arguments->priority, "Among your own jobs: higher first, -100 to 100");
  command->add_option("--queue-deadline", arguments->queue_deadline_s, "Fail unless begun within")
      ->type_name("SECONDS");
  command
      ->add_option("--execution-deadline", arguments->execution_deadline_s,
                   "Once begun, end within, with the best so far")
      ->type_name("SECONDS");
  command->callback([&selected, arguments] {
    selected = [arguments](CommandContext& context) { return RunTune(*arguments, context); };
  });
}

}  // namespace qgemm
