#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/problem_proto.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/problem_arguments.h"
#include "client/qgemmctl/result.h"
#include "kernels/bucket.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

struct LookupArguments {
  ProblemArguments problems;
  bool launch_spec = false;
  bool allow_similar = false;
  std::string distance;
};

// Requests hold at most as many keys; a model for every bucket needs fewer.
constexpr size_t kMaxKeys = 4096;

absl::StatusOr<std::vector<Result>> Lookup(const RequestedProblems& requested,
                                           const LookupArguments& arguments, Client& client) {
  std::vector<Result> results;
  v1::LookupRequest request;
  request.set_target(arguments.problems.target);
  request.set_allow_similar(arguments.allow_similar);
  request.set_distance(arguments.distance);
  for (const RequestedProblem& problem : requested.problems) {
    for (const int64_t m : requested.m) {
      results.push_back(ResultFor(problem, BucketFor(m)));
      v1::LookupKey& key = *request.add_keys();
      *key.mutable_problem() = results.back().problem;
      key.set_m(m);
    }
  }
  if (results.size() > kMaxKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat(results.size(), " keys (shapes times m) are too many: allowed are ", kMaxKeys));
  }
  QGEMM_ASSIGN_OR_RETURN(const v1::LookupResponse response, client.Lookup(request));
  for (int i = 0; i < response.answers_size(); ++i) {
    const v1::LookupAnswer& answer = response.answers(i);
    if (answer.has_pick()) {
      results[i].pick = answer.pick();
      results[i].cached = true;
      results[i].stale = answer.stale();
    } else {
      results[i].error = answer.miss_reason();
    }
  }
  return results;
}

// The first misses by name: a model's layers may have many, and the table and the JSON show them all.
void ReportMisses(const std::vector<Result>& results) {
  constexpr size_t kNamed = 3;
  size_t misses = 0;
  for (const Result& result : results) {
    if (result.pick.has_value() || ++misses > kNamed) continue;
    std::fprintf(stderr, "qgemmctl: %s: not found: %s\n", ResultName(result).c_str(), result.error.c_str());
  }
  if (misses > kNamed) {
    std::fprintf(stderr, "qgemmctl: %zu more of %zu picks were not found\n", misses - kNamed, results.size());
  }
}

absl::StatusOr<ExitCode> RunLookup(const LookupArguments& arguments, CommandContext& context) {
  if (arguments.launch_spec && !context.json) {
    return absl::InvalidArgumentError(
        "--launch-spec is for --output json: a launch spec does not fit a table");
  }
  QGEMM_ASSIGN_OR_RETURN(const RequestedProblems requested, ResolveProblems(arguments.problems));
  const TimePoint start = RealClock().Now();
  QGEMM_ASSIGN_OR_RETURN(const std::vector<Result> results, Lookup(requested, arguments, context.client));
  const std::chrono::duration<double> wall = RealClock().Now() - start;

  Json json;
  json["results"] = Json::array();
  int64_t hits = 0;
  for (const Result& result : results) {
    Json& entry = json["results"].emplace_back(ResultToJson(result));
    if (!result.pick.has_value()) continue;
    ++hits;
    if (arguments.launch_spec) entry["launch"] = LaunchSpecToJson(result.pick->launch());
  }
  json["stats"] = {{"compiles", 0}, {"timings", 0}, {"cache_hits", hits}, {"wall_s", wall.count()}};
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(json) : ResultsTable(results)));
  ReportMisses(results);
  return hits == static_cast<int64_t>(results.size()) ? ExitCode::kOk : ExitCode::kNotFound;
}

}  // namespace

void AddLookupCommand(CLI::App& app, Command& selected) {
  const auto arguments = std::make_shared<LookupArguments>();
  CLI::App* command = app.add_subcommand("lookup", "Show stored picks; nothing is tuned");
  arguments->problems.AddTo(*command);
  command->add_flag("--launch-spec", arguments->launch_spec,
                    "With --output json: say how to launch each pick");
  CLI::Option* similar =
      command
          ->add_option("--similar", arguments->distance,
                       "Answer an untuned shape with the nearest tuned one's pick; by which distance")
          ->type_name("[log2-l1|log2-l2|weighted|cost]")
          ->expected(0, 1);
  command->callback([&selected, arguments, similar] {
    arguments->allow_similar = similar->count() > 0;
    selected = [arguments](CommandContext& context) { return RunLookup(*arguments, context); };
  });
}

}  // namespace qgemm
