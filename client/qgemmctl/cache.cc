#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/result.h"
#include "client/qgemmctl/table.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<ExitCode> RunList(CommandContext& context) {
  std::vector<Result> results;
  QGEMM_RETURN_IF_ERROR(
      context.client.CacheList(v1::CacheListRequest::PICKS, [&](const v1::CacheEntry& entry) {
        const v1::Pick& pick = entry.pick();
        results.push_back({.problem = pick.problem(),
                           .m_bucket = pick.m_bucket(),
                           .pick = pick,
                           .cached = true,
                           .stale = entry.stale()});
      }));
  if (!context.json) {
    QGEMM_RETURN_IF_ERROR(WriteStdout(ResultsTable(results)));
    return ExitCode::kOk;
  }
  Json json;
  json["results"] = Json::array();
  for (const Result& result : results) json["results"].push_back(ResultToJson(result));
  QGEMM_RETURN_IF_ERROR(WriteStdout(JsonText(json)));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunStats(CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const v1::CacheStatsResponse stats, context.client.CacheStats());
  const Json json = {{"data_dir", stats.data_dir()},     {"schema_version", stats.schema_version()},
                     {"kernels", stats.kernels()},       {"kernel_bytes", stats.kernel_bytes()},
                     {"picks", stats.picks()},           {"timings", stats.timings()},
                     {"disk_bytes", stats.disk_bytes()}, {"hits", stats.hits()},
                     {"misses", stats.misses()},         {"corrupt", stats.corrupt()}};
  const std::string text = KeyValueLines({{"data dir", stats.data_dir()},
                                          {"schema version", absl::StrCat(stats.schema_version())},
                                          {"kernels", absl::StrCat(stats.kernels())},
                                          {"kernel bytes", absl::StrCat(stats.kernel_bytes())},
                                          {"picks", absl::StrCat(stats.picks())},
                                          {"timings", absl::StrCat(stats.timings())},
                                          {"disk bytes", absl::StrCat(stats.disk_bytes())},
                                          {"hits since start", absl::StrCat(stats.hits())},
                                          {"misses since start", absl::StrCat(stats.misses())},
                                          {"corrupt since start", absl::StrCat(stats.corrupt())}});
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(json) : text));
  return ExitCode::kOk;
}

}  // namespace

void AddCacheCommand(CLI::App& app, Command& selected) {
  CLI::App* cache = app.add_subcommand("cache", "The daemon's store");
  cache->add_subcommand("ls", "List the picks")->callback([&selected] { selected = RunList; });
  cache->add_subcommand("stats", "Count what is stored")->callback([&selected] { selected = RunStats; });
}

}  // namespace qgemm
