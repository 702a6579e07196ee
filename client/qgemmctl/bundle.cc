#include "client/bundle/bundle.h"

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "client/qgemmctl/bundle_create.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/table.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<ExitCode> Print(const Json& json, const std::string& text, CommandContext& context) {
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(json) : text));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunCreate(const BundleCreateArguments& arguments, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const CreatedBundle created, CreateBundle(arguments, context.client));
  const Json json = {{"bundle", arguments.output},   {"methods", arguments.methods.size()},
                     {"layers", created.layers},     {"picks", created.picks},
                     {"kernels", created.kernels},   {"weight_bytes", created.weight_bytes},
                     {"compiles", created.compiles}, {"timings", created.timings}};
  return Print(json,
               absl::StrCat(arguments.output, ": ", arguments.methods.size(), " methods of ", created.layers,
                            " layers, ", created.picks, " picks, ", created.kernels, " kernels, ",
                            created.weight_bytes, " bytes of weights\n"),
               context);
}

std::string RowsText(int64_t static_m) { return static_m > 0 ? absl::StrCat(static_m) : "dynamic"; }

absl::StatusOr<ExitCode> RunInspect(const std::string& path, CommandContext& context) {
  using enum Table::Align;
  QGEMM_ASSIGN_OR_RETURN(const Bundle bundle, Bundle::Open(path));
  Table table({{"method"},
               {"M"},
               {"layer"},
               {"N", kRight},
               {"K", kRight},
               {"picks", kRight},
               {"kernels", kRight},
               {"source"},
               {"weights"}});
  Json methods = Json::array();
  for (const BundleManifest::File& file : bundle.manifest().methods) {
    QGEMM_ASSIGN_OR_RETURN(const BundleMethod method, bundle.Method(file.name));
    methods.push_back(Json::parse(MethodText(method)));
    for (const BundleLayer& layer : method.layers) {
      std::set<std::string> kernels, sources;
      for (const BundlePick& pick : layer.picks) {
        kernels.insert(pick.kernel_sha256);
        sources.insert(pick.source);
      }
      table.AddRow({method.name, RowsText(method.static_m), layer.name, absl::StrCat(layer.problem.n),
                    absl::StrCat(layer.problem.k), absl::StrCat(layer.picks.size()),
                    absl::StrCat(kernels.size()), sources.size() == 1 ? *sources.begin() : "mixed",
                    layer.weight_key});
    }
  }
  const BundleManifest& manifest = bundle.manifest();
  const Json json = {{"manifest", Json::parse(ManifestText(manifest))}, {"methods", std::move(methods)}};
  return Print(
      json,
      absl::StrCat(table.ToString(), manifest.kernels.size(), " kernels, layout ", manifest.layout_id, ", ",
                   manifest.weights.has_value() ? manifest.weights->bytes : 0, " bytes of weights\n"),
      context);
}

absl::StatusOr<ExitCode> RunVerify(const std::string& path, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const Bundle bundle, Bundle::Open(path));
  QGEMM_RETURN_IF_ERROR(bundle.Verify());
  return Print({{"bundle", path}, {"files", bundle.files().size()}, {"ok", true}},
               absl::StrCat(path, ": ", bundle.files().size(), " files are complete and undamaged\n"),
               context);
}

// "decode/q M <= 16" -> "mma_... /k2 abc123", for every pick of a bundle.
absl::StatusOr<std::map<std::string, std::string>> PicksOf(const Bundle& bundle) {
  std::map<std::string, std::string> picks;
  for (const BundleManifest::File& file : bundle.manifest().methods) {
    QGEMM_ASSIGN_OR_RETURN(const BundleMethod method, bundle.Method(file.name));
    for (const BundleLayer& layer : method.layers) {
      for (const BundlePick& pick : layer.picks) {
        picks[absl::StrFormat("%s/%s %s M <= %d", method.name, layer.name, ProblemName(layer.problem),
                              pick.m_bucket)] =
            absl::StrCat(pick.config, "/k", pick.launch.split_k, "/", pick.reduction, " ",
                         pick.kernel_sha256.substr(0, 12));
      }
    }
  }
  return picks;
}

// Which files differ, by the beginnings of their digests.
template <typename Add>
void AddOtherFiles(const Bundle& a, const Bundle& b, const Add& add) {
  const auto digest = [](const Bundle& bundle, const std::string& name) -> std::string {
    const auto file = bundle.files().find(name);
    return file == bundle.files().end() ? "" : Sha256Hex(file->second).substr(0, 12);
  };
  std::set<std::string> names;
  for (const Bundle* bundle : {&a, &b}) {
    for (const auto& [name, bytes] : bundle->files()) names.insert(name);
  }
  for (const std::string& name : names) {
    const std::string before = digest(a, name);
    const std::string after = digest(b, name);
    if (before != after) add(absl::StrCat("file ", name), before, after);
  }
}

absl::StatusOr<ExitCode> RunDiff(const std::string& from, const std::string& to, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const Bundle a, Bundle::Open(from));
  QGEMM_ASSIGN_OR_RETURN(const Bundle b, Bundle::Open(to));
  QGEMM_ASSIGN_OR_RETURN(auto before, PicksOf(a));
  QGEMM_ASSIGN_OR_RETURN(auto after, PicksOf(b));
  const auto weights = [](const Bundle& bundle) {
    return bundle.manifest().weights.has_value() ? bundle.manifest().weights->sha256 : "none";
  };
  before["weights"] = weights(a);
  after["weights"] = weights(b);
  Json changes = Json::array();
  Table table({{"what"}, {from}, {to}});
  const auto add = [&](const std::string& what, const std::string& old_value, const std::string& new_value) {
    changes.push_back({{"what", what},
                       {"from", old_value.empty() ? Json(nullptr) : Json(old_value)},
                       {"to", new_value.empty() ? Json(nullptr) : Json(new_value)}});
    table.AddRow({what, old_value.empty() ? "-" : old_value, new_value.empty() ? "-" : new_value});
  };
  for (const auto& [what, value] : before) {
    const auto other = after.find(what);
    if (other == after.end()) {
      add(what, value, "");
    } else if (other->second != value) {
      add(what, value, other->second);
    }
  }
  for (const auto& [what, value] : after) {
    if (before.count(what) == 0) add(what, "", value);
  }
  // Damage is no difference between exports: it is named, and is the answer.
  const bool same_files = a.files() == b.files();
  if (!same_files) {
    QGEMM_RETURN_IF_ERROR(a.Verify());
    QGEMM_RETURN_IF_ERROR(b.Verify());
  }
  // Evidence, access reports and the like may differ where every pick is the same.
  if (changes.empty() && !same_files) AddOtherFiles(a, b, add);
  const Json json = {{"same", changes.empty()}, {"changes", changes}};
  QGEMM_RETURN_IF_ERROR(
      Print(json, changes.empty() ? "the same, byte for byte\n" : table.ToString(), context).status());
  return changes.empty() ? ExitCode::kOk : ExitCode::kFailed;
}

}  // namespace

void AddBundleCommand(CLI::App& app, Command& selected) {
  CLI::App* bundle =
      app.add_subcommand("bundle", "Exported kernels and weights: no daemon needed to run them");

  const auto create = std::make_shared<BundleCreateArguments>();
  CLI::App* command = bundle->add_subcommand("create", "Make a bundle: tunes what is not tuned yet");
  command->add_option("-o", create->output, "A directory, or one file NAME.tar")
      ->type_name("PATH")
      ->required();
  command
      ->add_option("--method", create->methods,
                   "An exported method: M rows, or dynamic (every bucket); may be given several times")
      ->type_name("NAME=M|dynamic")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--weights", create->weights,
          "Canonical weights, safetensors: <layer>.codes, .scales, ...; layers, shapes and formats are "
          "theirs (client/bundle/README.md)")
      ->type_name("FILE");
  command->add_option("--picks", create->picks, "Take picks and kernels from this bundle; needs no daemon")
      ->type_name("BUNDLE");
  command->add_flag("--no-tune", create->no_tune, "Refuse what is not tuned");
  create->problems.AddTo(*command);
  command->remove_option(command->get_option("--m"));  // the methods have the rows
  command->callback([&selected, create] {
    selected = [create](CommandContext& context) { return RunCreate(*create, context); };
  });

  struct Paths {
    std::string first, second;
  };
  const auto paths = std::make_shared<Paths>();
  const auto add = [&](const char* name, const char* help, bool two, const auto& run) {
    CLI::App* added = bundle->add_subcommand(name, help);
    added->add_option("BUNDLE", paths->first, "A directory or tar file")->required();
    if (two) added->add_option("OTHER", paths->second, "Another one")->required();
    added->callback([&selected, paths, run] {
      selected = [paths, run](CommandContext& context) { return run(*paths, context); };
    });
  };
  add("inspect", "Show methods, layers and picks", false,
      [](const Paths& paths, CommandContext& context) { return RunInspect(paths.first, context); });
  add("verify", "Check every file: exit 0, or 8 when one is damaged", false,
      [](const Paths& paths, CommandContext& context) { return RunVerify(paths.first, context); });
  add("diff", "Compare two bundles: exit 0 when they are the same, 1 when not, 8 when one is damaged", true,
      [](const Paths& paths, CommandContext& context) {
        return RunDiff(paths.first, paths.second, context);
      });
}

}  // namespace qgemm
