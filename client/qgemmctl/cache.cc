#include <CLI/CLI.hpp>
#include <cctype>
#include <chrono>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/problem_proto.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/offline_cache.h"
#include "client/qgemmctl/result.h"
#include "client/qgemmctl/table.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

// The options that say which entries are meant.
struct SelectionArguments {
  bool all = false;
  std::vector<std::string> keys;
  std::string target;
  std::string arch;
  std::string shape;
  int m_bucket = 0;
  std::string source;
  std::string producer;
  double unused_for_days = 0;

  void AddTo(CLI::App& command, bool with_all) {
    if (with_all) command.add_flag("--all", all, "Everything");
    command.add_option("--key", keys, "A pick's key or a kernel's SHA-256; repeatable")->type_name("KEY");
    command.add_option("--target", target, "Picks for this device profile or product")->type_name("NAME");
    command.add_option("--arch", arch, "Kernels of this arch, and picks that use them")->type_name("ARCH");
    command.add_option("--shape", shape, "Picks of this shape")->type_name("NxK");
    command.add_option("--m-bucket", m_bucket, "Picks of this bucket")->type_name("M");
    command.add_option("--source", source, "Picks of this source")->type_name("measured|model");
    command.add_option("--producer", producer, "Made on this machine; picks also where their kernel was")
        ->type_name("HOST");
    command.add_option("--unused-for", unused_for_days, "Neither written nor read for so many days")
        ->type_name("DAYS");
  }
};

absl::StatusOr<v1::CacheSelection> ParseSelection(const SelectionArguments& arguments) {
  v1::CacheSelection selection;
  selection.set_all(arguments.all);
  for (const std::string& key : arguments.keys) selection.add_keys(key);
  selection.set_target(arguments.target);
  selection.set_arch(arguments.arch);
  selection.set_m_bucket(arguments.m_bucket);
  selection.set_producer(arguments.producer);
  if (!arguments.shape.empty()) {
    const std::vector<std::string> sides = absl::StrSplit(arguments.shape, 'x');
    int64_t n = 0;
    int64_t k = 0;
    if (sides.size() != 2 || !absl::SimpleAtoi(sides[0], &n) || !absl::SimpleAtoi(sides[1], &k) || n < 1 ||
        k < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape \"", arguments.shape, "\" is not allowed: NxK, as 5376x4096"));
    }
    selection.set_n(n);
    selection.set_k(k);
  }
  if (arguments.source == "measured") {
    selection.set_source(v1::PICK_SOURCE_MEASURED);
  } else if (arguments.source == "model") {
    selection.set_source(v1::PICK_SOURCE_MODEL);
  } else if (!arguments.source.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("source \"", arguments.source, "\" is not allowed: measured or model"));
  }
  if (!(arguments.unused_for_days >= 0 && arguments.unused_for_days < 1e5)) {
    return absl::InvalidArgumentError(
        absl::StrCat("unused-for ", arguments.unused_for_days, " is out of range: days, 0 or more"));
  }
  selection.set_unused_for_s(static_cast<int64_t>(arguments.unused_for_days * 86400));
  return selection;
}

// For what must not mean every entry by an omission.
absl::StatusOr<v1::CacheSelection> ParseNonEmptySelection(const SelectionArguments& arguments) {
  QGEMM_ASSIGN_OR_RETURN(v1::CacheSelection selection, ParseSelection(arguments));
  if (selection.ByteSizeLong() == 0) {
    return absl::InvalidArgumentError(
        "selection is empty; allowed: --all, or at least one of --key, --target, --arch, --shape, "
        "--m-bucket, --source, --producer and --unused-for");
  }
  return selection;
}

absl::Status Print(const CommandContext& context, const Json& json, const std::string& text) {
  return WriteStdout(context.json ? JsonText(json) : text);
}

struct ListArguments {
  SelectionArguments selection;
  std::string data_dir;
};

absl::StatusOr<ExitCode> RunList(const ListArguments& arguments, CommandContext& context) {
  v1::CacheListRequest request;
  request.set_what(v1::CacheListRequest::PICKS);
  QGEMM_ASSIGN_OR_RETURN(*request.mutable_selection(), ParseSelection(arguments.selection));
  std::vector<Result> results;
  Json json;
  json["results"] = Json::array();
  const auto visit = [&](const v1::CacheEntry& entry) {
    const v1::Pick& pick = entry.pick();
    results.push_back({.problem = pick.problem(),
                       .m_bucket = pick.m_bucket(),
                       .pick = pick,
                       .cached = true,
                       .stale = entry.stale()});
    if (!context.json) return;
    Json& result = json["results"].emplace_back(ResultToJson(results.back()));
    result["key"] = entry.key();
    result["used_unix_s"] = entry.used_unix_s();
    result["pinned"] = entry.pinned();
    result["bytes"] = entry.bytes();
    result["producer"] = pick.producer();
    results.clear();
  };
  if (arguments.data_dir.empty()) {
    QGEMM_RETURN_IF_ERROR(context.client.CacheList(request, visit));
  } else {
    QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<OfflineCache> cache, OfflineCache::Open(arguments.data_dir));
    QGEMM_RETURN_IF_ERROR(cache->List(request, visit));
  }
  QGEMM_RETURN_IF_ERROR(Print(context, json, ResultsTable(results)));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunStats(const std::string& data_dir, CommandContext& context) {
  v1::CacheStatsResponse stats;
  if (data_dir.empty()) {
    QGEMM_ASSIGN_OR_RETURN(stats, context.client.CacheStats());
  } else {
    QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<OfflineCache> cache, OfflineCache::Open(data_dir));
    QGEMM_ASSIGN_OR_RETURN(stats, cache->Stats());
  }
  const Json json = {{"data_dir", stats.data_dir()},
                     {"schema_version", stats.schema_version()},
                     {"kernels", stats.kernels()},
                     {"kernel_bytes", stats.kernel_bytes()},
                     {"picks", stats.picks()},
                     {"timings", stats.timings()},
                     {"disk_bytes", stats.disk_bytes()},
                     {"hits", stats.hits()},
                     {"misses", stats.misses()},
                     {"corrupt", stats.corrupt()},
                     {"pinned", stats.pinned()},
                     {"limit_bytes", stats.limit_bytes()},
                     {"evicted", stats.evicted()},
                     {"adopted_toolchain", stats.adopted_toolchain()},
                     {"write_error", stats.write_error()}};
  const std::string text =
      KeyValueLines({{"data dir", stats.data_dir()},
                     {"schema version", absl::StrCat(stats.schema_version())},
                     {"kernels", absl::StrCat(stats.kernels())},
                     {"kernel bytes", absl::StrCat(stats.kernel_bytes())},
                     {"picks", absl::StrCat(stats.picks())},
                     {"timings", absl::StrCat(stats.timings())},
                     {"pinned", absl::StrCat(stats.pinned())},
                     {"disk bytes", absl::StrCat(stats.disk_bytes())},
                     {"limit bytes", stats.limit_bytes() > 0 ? absl::StrCat(stats.limit_bytes()) : "none"},
                     {"hits since start", absl::StrCat(stats.hits())},
                     {"misses since start", absl::StrCat(stats.misses())},
                     {"evicted since start", absl::StrCat(stats.evicted())},
                     {"corrupt since start", absl::StrCat(stats.corrupt())},
                     {"adopted toolchain", stats.adopted_toolchain()},
                     {"writes fail with", stats.write_error()}});
  QGEMM_RETURN_IF_ERROR(Print(context, json, text));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunDelete(const SelectionArguments& arguments, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const v1::CacheSelection selection, ParseNonEmptySelection(arguments));
  QGEMM_ASSIGN_OR_RETURN(const v1::CacheDeleteResponse deleted, context.client.CacheDelete(selection));
  QGEMM_RETURN_IF_ERROR(Print(
      context,
      {{"picks", deleted.picks()},
       {"kernels", deleted.kernels()},
       {"timings", deleted.timings()},
       {"kept", deleted.kept()},
       {"bytes", deleted.bytes()}},
      absl::StrCat("deleted ", deleted.picks(), " picks, ", deleted.kernels(), " kernels, ",
                   deleted.timings(), " timings, ", deleted.bytes(), " bytes",
                   deleted.kept() > 0
                       ? absl::StrCat("; ", deleted.kept(), " stay: pinned, in use, or needed by a pick")
                       : "",
                   "\n")));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunPin(const SelectionArguments& arguments, bool unpin, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const v1::CacheSelection selection, ParseNonEmptySelection(arguments));
  QGEMM_ASSIGN_OR_RETURN(const v1::CachePinResponse pinned, context.client.CachePin(selection, unpin));
  QGEMM_RETURN_IF_ERROR(Print(context, {{"picks", pinned.picks()}, {"kernels", pinned.kernels()}},
                              absl::StrCat(unpin ? "unpinned " : "pinned ", pinned.picks(), " picks, ",
                                           pinned.kernels(), " kernels\n")));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunVerify(const std::string& data_dir, CommandContext& context) {
  v1::CacheVerifyResponse report;
  if (data_dir.empty()) {
    QGEMM_ASSIGN_OR_RETURN(report, context.client.CacheVerify());
  } else {
    QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<OfflineCache> cache, OfflineCache::Open(data_dir));
    QGEMM_ASSIGN_OR_RETURN(report, cache->Verify());
  }
  QGEMM_RETURN_IF_ERROR(
      Print(context,
            {{"kernels", report.kernels()},
             {"picks", report.picks()},
             {"timings", report.timings()},
             {"corrupt", report.corrupt()},
             {"picks_without_kernel", report.picks_without_kernel()}},
            KeyValueLines({{"good kernels", absl::StrCat(report.kernels())},
                           {"good picks", absl::StrCat(report.picks())},
                           {"good timings", absl::StrCat(report.timings())},
                           {"corrupt records", absl::StrCat(report.corrupt())},
                           {"picks without kernel", absl::StrCat(report.picks_without_kernel())}})));
  return report.corrupt() > 0 ? ExitCode::kCorrupt : ExitCode::kOk;
}

struct ExportArguments {
  SelectionArguments selection;
  std::string path;
  std::string data_dir;
};

absl::StatusOr<ExitCode> RunExport(const ExportArguments& arguments, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const v1::CacheSelection selection, ParseNonEmptySelection(arguments.selection));
  QGEMM_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(arguments.path));
  int64_t bytes = 0;
  const auto write = [&](absl::string_view part) {
    bytes += static_cast<int64_t>(part.size());
    return file.Append(part);
  };
  if (arguments.data_dir.empty()) {
    QGEMM_RETURN_IF_ERROR(context.client.CacheExport(selection, write));
  } else {
    QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<OfflineCache> cache, OfflineCache::Open(arguments.data_dir));
    QGEMM_RETURN_IF_ERROR(cache->Export(selection, write));
  }
  QGEMM_RETURN_IF_ERROR(file.Commit());
  QGEMM_RETURN_IF_ERROR(Print(context, {{"file", arguments.path}, {"bytes", bytes}},
                              absl::StrCat(arguments.path, ": ", bytes, " bytes\n")));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunImport(const std::string& path, bool replace, CommandContext& context) {
  constexpr size_t kPartBytes = 256 << 10;
  std::ifstream in(path, std::ios::binary);
  if (!in.is_open()) {
    return absl::InvalidArgumentError(absl::StrCat("the pack ", path, " cannot be opened"));
  }
  QGEMM_ASSIGN_OR_RETURN(
      const v1::CacheImportResponse report,
      context.client.CacheImport(replace, [&]() -> absl::StatusOr<std::string> {
        std::string part(kPartBytes, '\0');
        in.read(part.data(), static_cast<std::streamsize>(part.size()));
        if (in.bad()) return absl::InvalidArgumentError(absl::StrCat("the pack ", path, " cannot be read"));
        part.resize(static_cast<size_t>(in.gcount()));
        return part;
      }));
  Json refusals = Json::array();
  std::string text = absl::StrCat("added ", report.added(), ", already there ", report.already_there(),
                                  ", refused ", report.refused(), "\n");
  for (const v1::CacheImportResponse::Refused& refused : report.refusals()) {
    refusals.push_back(
        {{"entry", refused.entry()}, {"offset", refused.offset()}, {"reason", refused.reason()}});
    absl::StrAppend(&text, "refused: ", refused.entry(), " at offset ", refused.offset(), ": ",
                    refused.reason(), "\n");
  }
  if (!report.toolchain().empty()) absl::StrAppend(&text, "toolchain ", report.toolchain(), "\n");
  QGEMM_RETURN_IF_ERROR(Print(context,
                              {{"added", report.added()},
                               {"already_there", report.already_there()},
                               {"refused", report.refused()},
                               {"refusals", std::move(refusals)},
                               {"toolchain", report.toolchain()}},
                              text));
  return report.refused() > 0 ? ExitCode::kFailed : ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunBackup(const std::string& directory, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const v1::CacheBackupResponse copied, context.client.CacheBackup(directory));
  QGEMM_RETURN_IF_ERROR(Print(context, {{"directory", directory}, {"bytes", copied.bytes()}},
                              absl::StrCat(directory, ": ", copied.bytes(), " bytes\n")));
  return ExitCode::kOk;
}

constexpr char kOffline[] = "Read this directory while no daemon runs, instead of asking one";

void AddReads(CLI::App& cache, Command& selected) {
  const auto list_arguments = std::make_shared<ListArguments>();
  CLI::App* list = cache.add_subcommand("list", "List the picks")->alias("ls");
  list_arguments->selection.AddTo(*list, /*with_all=*/false);
  list->add_option("--data-dir", list_arguments->data_dir, kOffline)->type_name("DIR");
  list->callback([&selected, list_arguments] {
    selected = [list_arguments](CommandContext& context) { return RunList(*list_arguments, context); };
  });

  const auto stats_dir = std::make_shared<std::string>();
  CLI::App* stats = cache.add_subcommand("stats", "Count what is stored");
  stats->add_option("--data-dir", *stats_dir, kOffline)->type_name("DIR");
  stats->callback([&selected, stats_dir] {
    selected = [stats_dir](CommandContext& context) { return RunStats(*stats_dir, context); };
  });

  const auto verify_dir = std::make_shared<std::string>();
  CLI::App* verify =
      cache.add_subcommand("verify", "Read and check every record; exit code 8: some are corrupt");
  verify->add_option("--data-dir", *verify_dir, kOffline)->type_name("DIR");
  verify->callback([&selected, verify_dir] {
    selected = [verify_dir](CommandContext& context) { return RunVerify(*verify_dir, context); };
  });

  const auto export_arguments = std::make_shared<ExportArguments>();
  CLI::App* pack = cache.add_subcommand("export", "Write picks, their timings and kernels to one file");
  export_arguments->selection.AddTo(*pack, /*with_all=*/true);
  pack->add_option("-o", export_arguments->path, "The file")->type_name("FILE")->required();
  pack->add_option("--data-dir", export_arguments->data_dir, kOffline)->type_name("DIR");
  pack->callback([&selected, export_arguments] {
    selected = [export_arguments](CommandContext& context) { return RunExport(*export_arguments, context); };
  });
}

void AddWrites(CLI::App& cache, Command& selected) {
  const auto deleted = std::make_shared<SelectionArguments>();
  CLI::App* remove = cache.add_subcommand("delete", "Delete picks, and kernels that no pick needs");
  deleted->AddTo(*remove, /*with_all=*/true);
  remove->callback([&selected, deleted] {
    selected = [deleted](CommandContext& context) { return RunDelete(*deleted, context); };
  });

  for (const bool unpin : {false, true}) {
    const auto pinned = std::make_shared<SelectionArguments>();
    CLI::App* pin = cache.add_subcommand(
        unpin ? "unpin" : "pin", unpin ? "Let pinned entries go again when space is needed"
                                       : "Keep picks, with their kernels, whatever the size limit says");
    pinned->AddTo(*pin, /*with_all=*/true);
    pin->callback([&selected, pinned, unpin] {
      selected = [pinned, unpin](CommandContext& context) { return RunPin(*pinned, unpin, context); };
    });
  }

  const auto import_path = std::make_shared<std::string>();
  const auto replace = std::make_shared<bool>(false);
  CLI::App* import = cache.add_subcommand("import", "Take over a file that export wrote");
  import->add_option("FILE", *import_path, "The file")->required();
  import->add_flag("--replace", *replace, "Entries of the file win over stored ones that differ");
  import->callback([&selected, import_path, replace] {
    selected = [import_path, replace](CommandContext& context) {
      return RunImport(*import_path, *replace, context);
};
}  // namespace
);

const auto directory = std::make_shared<std::string>();
CLI::App* backup = cache.add_subcommand(
    "backup", "Copy the store to a new directory of the daemon's machine; qgemmd --data-dir starts from it");
backup->add_option("DIR", *directory, "An absolute path that does not exist")->required();
backup->callback([&selected, directory] {
  selected = [directory](CommandContext& context) { return RunBackup(*directory, context); };
});
}  // namespace qgemm

}  // namespace

void AddCacheCommand(CLI::App& app, Command& selected) {
  CLI::App* cache = app.add_subcommand("cache", "The daemon's store");
  AddReads(*cache, selected);
  AddWrites(*cache, selected);
}

}  // namespace qgemm
