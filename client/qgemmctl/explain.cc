#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/problem_proto.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/problem_arguments.h"
#include "client/qgemmctl/result.h"
#include "client/qgemmctl/table.h"
#include "kernels/bucket.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

struct ExplainArguments {
  ProblemArguments problems;
  size_t candidates = 10;  // 0: all
};

Json CandidateToJson(const v1::ExplainedCandidate& candidate) {
  Json json = {{"candidate", candidate.candidate()},
               {"picked", candidate.picked()},
               {"predicted_us", candidate.predicted_us()},
               {"time_us", nullptr},
               {"center_us", nullptr},
               {"error_us", candidate.error_us()},
               {"samples", candidate.samples()},
               {"confidence", nullptr},
               {"relative_error", candidate.relative_error()},
               {"driver_changed", candidate.driver_changed()},
               {"rejected", nullptr}};
  if (candidate.has_time_us()) {
    json["time_us"] = candidate.time_us();
    json["center_us"] = candidate.center_us();
    json["confidence"] = candidate.low_confidence() ? "low" : "high";
  }
  if (!candidate.rejected().empty()) json["rejected"] = candidate.rejected();
  return json;
}

Json ToJson(const Result& asked, const v1::ExplainResponse& response) {
  Json json = ResultToJson(asked);
  json["answer"] = response.answer();
  json["differences"] = Json::array();
  for (const v1::KeyDifference& difference : response.differences()) {
    json["differences"].push_back(
        {{"field", difference.field()}, {"wanted", difference.wanted()}, {"stored", difference.stored()}});
  }
  json["tried"] = Json::array();
  for (const v1::ExplainedCandidate& candidate : response.candidates()) {
    json["tried"].push_back(CandidateToJson(candidate));
  }
  json["quarantined"] = Json::array();
  for (const v1::QuarantinedKernel& kernel : response.quarantined()) {
    json["quarantined"].push_back({{"config", kernel.config()},
                                   {"reason", kernel.reason()},
                                   {"candidate", kernel.candidate()},
                                   {"unix_ms", kernel.unix_ms()}});
  }
  return json;
}

std::string ToText(const Result& asked, const v1::ExplainResponse& response, size_t most) {
  using enum Table::Align;
  std::string text = absl::StrCat(ResultName(asked), ": ", response.answer(), "\n");
  Table table({{"candidate"},
               {"us", kRight},
               {"+-", kRight},
               {"samples", kRight},
               {"predicted", kRight},
               {"why not"}});
  size_t shown = 0;
  for (const v1::ExplainedCandidate& candidate : response.candidates()) {
    if (most > 0 && shown == most && !candidate.picked()) continue;
    if (!candidate.picked()) ++shown;
    const bool timed = candidate.has_center_us();
    std::string why = candidate.picked() ? "picked" : candidate.rejected();
    if (why.empty() && !timed) why = "not tried";
    table.AddRow({candidate.candidate(), timed ? absl::StrFormat("%.3f", candidate.center_us()) : "",
                  timed ? absl::StrFormat("%.3f", candidate.error_us()) : "",
                  timed ? absl::StrCat(candidate.samples()) : "",
                  absl::StrFormat("%.2f", candidate.predicted_us()), why});
  }
  absl::StrAppend(&text, table.ToString());
  const size_t left_out = static_cast<size_t>(response.candidates_size()) -
                          std::min<size_t>(static_cast<size_t>(response.candidates_size()), table.rows());
  if (left_out > 0) absl::StrAppend(&text, left_out, " more candidates: --candidates 0 shows all\n");
  for (const v1::QuarantinedKernel& kernel : response.quarantined()) {
    absl::StrAppend(&text, "quarantined: ", kernel.config(), ": ", kernel.reason(), " (", kernel.candidate(),
                    "); tried again when its source or the toolchain changes, or with tune --retune\n");
  }
  return text;
}

absl::StatusOr<ExitCode> RunExplain(const ExplainArguments& arguments, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const RequestedProblems requested, ResolveProblems(arguments.problems));
  Json json;
  json["results"] = Json::array();
  std::string text;
  for (const RequestedProblem& problem : requested.problems) {
    for (const int64_t m : requested.m) {
      Result asked = ResultFor(problem, BucketFor(m));
      v1::ExplainRequest request;
      *request.mutable_problem() = asked.problem;
      request.set_m(m);
      request.set_target(arguments.problems.target);
      QGEMM_ASSIGN_OR_RETURN(const v1::ExplainResponse response, context.client.Explain(request));
      if (response.has_pick()) {
        asked.pick = response.pick();
        asked.cached = true;
        asked.stale = response.stale();
      } else {
        asked.error = response.answer();
      }
      json["results"].push_back(ToJson(asked, response));
      absl::StrAppend(&text, text.empty() ? "" : "\n", ToText(asked, response, arguments.candidates));
    }
  }
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(json) : text));
  return ExitCode::kOk;
}

}  // namespace

void AddExplainCommand(CLI::App& app, Command& selected) {
  const auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* command = app.add_subcommand(
      "explain", "Why a lookup hits or misses, what every candidate did, and what is quarantined");
  arguments->problems.AddTo(*command);
  command->add_option("--candidates", arguments->candidates, "How many the table shows; 0: all")
      ->type_name("N")
      ->capture_default_str();
  command->callback([&selected, arguments] {
    selected = [arguments](CommandContext& context) { return RunExplain(*arguments, context); };
  });
}

}  // namespace qgemm
