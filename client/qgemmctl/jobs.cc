#include <CLI/CLI.hpp>
#include <ctime>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/problem_proto.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/progress.h"
#include "client/qgemmctl/table.h"
#include "client/qgemmctl/tune_results.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

// "JOB_STATE_RUNNING" -> "running".
std::string Word(absl::string_view enumerator, absl::string_view prefix) {
  return absl::AsciiStrToLower(enumerator.substr(prefix.size()));
}
std::string StateWord(const v1::Job& job) { return Word(v1::JobState_Name(job.state()), "JOB_STATE_"); }
std::string ClassWord(const v1::Job& job) { return Word(v1::JobClass_Name(job.job_class()), "JOB_CLASS_"); }

Json ToJson(const v1::Job& job) {
  return {{"job_id", job.job_id()},
          {"state", StateWord(job)},
          {"client", job.client()},
          {"class", ClassWord(job)},
          {"priority", job.priority()},
          {"detached", job.detached()},
          {"accepted_unix_ms", job.accepted_unix_ms()},
          {"started_unix_ms", job.started_unix_ms()},
          {"finished_unix_ms", job.finished_unix_ms()},
          {"problems", job.problems()},
          {"results_wanted", job.results_wanted()},
          {"results_done", job.results_done()},
          {"effort", std::string(EffortWord(job.effort()))},
          {"description", job.description()},
          {"error", job.error()}};
}

std::string TimeWord(int64_t unix_ms) {
  if (unix_ms == 0) return "";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), absl::LocalTimeZone());
}

std::string ToText(const v1::ListJobsResponse& response) {
  if (response.jobs().empty()) return "no jobs\n";
  Table table({{"job"},
               {"state"},
               {"client"},
               {"class"},
               {"priority", Table::Align::kRight},
               {"results", Table::Align::kRight},
               {"accepted"},
               {"finished"},
               {"what"},
               {"note"}});
  for (const v1::Job& job : response.jobs()) {
    table.AddRow({job.job_id(), StateWord(job), job.client(), ClassWord(job),
                  job.priority() == 0 ? "" : absl::StrCat(job.priority()),
                  absl::StrCat(job.results_done(), "/", job.results_wanted()),
                  TimeWord(job.accepted_unix_ms()), TimeWord(job.finished_unix_ms()), job.description(),
                  job.error()});
  }
  return table.ToString();
}

absl::StatusOr<ExitCode> RunJobs(const v1::ListJobsRequest& request, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const v1::ListJobsResponse response, context.client.ListJobs(request));
  Json json;
  json["jobs"] = Json::array();
  for (const v1::Job& job : response.jobs()) json["jobs"].push_back(ToJson(job));
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(json) : ToText(response)));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunCancel(const std::string& job_id, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const v1::Job job, context.client.CancelJob(job_id));
  QGEMM_RETURN_IF_ERROR(WriteStdout(
      context.json ? JsonText(ToJson(job))
                   : absl::StrCat("job ", job.job_id(), " is ", StateWord(job), ", ", job.results_done(),
                                  " of ", job.results_wanted(), " results were done\n")));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunWatch(const std::string& job_id, CommandContext& context) {
  std::optional<TuneResults> collected;
  ProgressBar bar(TerminalWriter(), TerminalWidth(), RealClock());
  const absl::StatusOr<v1::TuneSummary> summary =
      context.client.WatchJob(job_id, [&](const v1::TuneEvent& event) {
        if (event.has_accepted()) collected.emplace(event.accepted().request());
        if (event.has_progress()) bar.Show(event.progress());
        if (event.has_result() && collected.has_value()) collected->Add(event.result());
      });
  bar.Clear();
  QGEMM_RETURN_IF_ERROR(summary.status());
  if (!collected.has_value()) return absl::InternalError("the daemon did not say what the job is");
  QGEMM_ASSIGN_OR_RETURN(const std::vector<Result> results, std::move(*collected).Take());
  return PrintTuneResults(results, *summary, context.json);
}

}  // namespace

void AddJobsCommand(CLI::App& app, Command& selected) {
  const auto request = std::make_shared<v1::ListJobsRequest>();
  const auto client = std::make_shared<std::string>();
  const auto unfinished = std::make_shared<bool>(false);
  CLI::App* jobs = app.add_subcommand("jobs", "List the daemon's jobs");
  jobs->add_flag("--unfinished", *unfinished, "Leave the history out");
  jobs->add_option("--client", *client, "Of this client alone")->type_name("NAME");
  jobs->callback([&selected, jobs, request, client, unfinished] {
    if (!jobs->get_subcommands().empty()) return;
    request->set_unfinished_only(*unfinished);
    request->set_client(*client);
    selected = [request](CommandContext& context) { return RunJobs(*request, context); };
  });
  const auto job_id = std::make_shared<std::string>();
  CLI::App* cancel = jobs->add_subcommand("cancel", "Withdraw a job");
  cancel->add_option("JOB", *job_id, "Its id")->required();
  cancel->callback([&selected, job_id] {
    selected = [job_id](CommandContext& context) { return RunCancel(*job_id, context); };
  });
}

void AddWatchCommand(CLI::App& app, Command& selected) {
  const auto job_id = std::make_shared<std::string>();
  CLI::App* watch = app.add_subcommand("watch", "Wait for a job and show its picks");
  watch->add_option("JOB", *job_id, "Its id")->required();
  watch->callback([&selected, job_id] {
    selected = [job_id](CommandContext& context) { return RunWatch(*job_id, context); };
  });
}

}  // namespace qgemm
