#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/result.h"
#include "client/qgemmctl/table.h"
#include "kernels/access_report.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

struct GetArguments {
  std::string sha256;
  std::string output_path;
  bool ptx = false;
  bool launch_spec = false;
  bool access = false;
};

absl::Status ValidateSha256(const std::string& sha256) {
  if (sha256.size() == 64 && sha256.find_first_not_of("0123456789abcdef") == std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "SHA is \"", sha256, "\": the 64 lower-case hexadecimal digits of a kernel's SHA-256 are needed"));
}

// How to launch the kernel, once for every stored pick that uses it: a launch spec belongs to a kernel at a
// shape.
absl::StatusOr<std::string> LaunchSpecs(const std::string& sha256, Client& client) {
  Json json;
  json["kernel"] = nullptr;
  json["launches"] = Json::array();
  QGEMM_RETURN_IF_ERROR(client.CacheList(v1::CacheListRequest::PICKS, [&](const v1::CacheEntry& entry) {
    const v1::Pick& pick = entry.pick();
    if (pick.kernel().sha256() != sha256) return;
    json["kernel"] = KernelInfoToJson(pick.kernel());
    Json& launch = json["launches"].emplace_back(ResultToJson({.problem = pick.problem(),
                                                               .m_bucket = pick.m_bucket(),
                                                               .pick = pick,
                                                               .cached = true,
                                                               .stale = entry.stale()}));
    launch["launch"] = LaunchSpecToJson(pick.launch());
  }));
  if (json["launches"].empty()) {
    return absl::NotFoundError(
        absl::StrCat("no stored pick uses kernel ", sha256, ", so that no launch spec is known for it"));
  }
  return JsonText(json);
}

// Which parameters the kernel reads and writes: as the daemon stored it, else from the PTX.
absl::StatusOr<std::string> Access(const std::string& sha256, Client& client) {
  QGEMM_ASSIGN_OR_RETURN(const Kernel kernel, client.GetKernel(sha256));
  v1::AccessReport report = kernel.info.access();
  if (!kernel.info.has_access()) {
    QGEMM_ASSIGN_OR_RETURN(const std::string ptx, client.GetPtx(sha256));
    const AccessReport analyzed = AnalyzeAccess(ptx, kernel.info.entry());
    report.set_failure(analyzed.failure);
    for (const ParameterAccess& access : analyzed.parameters) {
      v1::AccessReport::Parameter& parameter = *report.add_parameters();
      parameter.set_index(access.index);
      parameter.set_read(access.read);
      parameter.set_written(access.written);
      parameter.set_alignment(access.alignment);
    }
  }
  Json json = {{"sha256", sha256}, {"entry", kernel.info.entry()}};
  json.update(AccessReportToJson(report));
  return JsonText(json);
}

absl::StatusOr<ExitCode> RunGet(const GetArguments& arguments, CommandContext& context) {
  QGEMM_RETURN_IF_ERROR(ValidateSha256(arguments.sha256));
  std::string bytes;
  Json kernel = nullptr;
  if (arguments.launch_spec) {
    QGEMM_ASSIGN_OR_RETURN(bytes, LaunchSpecs(arguments.sha256, context.client));
  } else if (arguments.access) {
    QGEMM_ASSIGN_OR_RETURN(bytes, Access(arguments.sha256, context.client));
  } else if (arguments.ptx) {
    QGEMM_ASSIGN_OR_RETURN(bytes, context.client.GetPtx(arguments.sha256));
  } else {
    QGEMM_ASSIGN_OR_RETURN(Kernel fetched, context.client.GetKernel(arguments.sha256));
    bytes = std::move(fetched.cubin);
    kernel = KernelInfoToJson(fetched.info);
  }
  if (arguments.output_path == "-") {
    QGEMM_RETURN_IF_ERROR(WriteStdout(bytes));
    return ExitCode::kOk;
  }
  QGEMM_RETURN_IF_ERROR(WriteFileAtomically(arguments.output_path, bytes));
  const Json json = {{"sha256", arguments.sha256},
                     {"file", arguments.output_path},
                     {"bytes", bytes.size()},
                     {"kernel", std::move(kernel)}};
  QGEMM_RETURN_IF_ERROR(WriteStdout(
      context.json ? JsonText(json) : absl::StrCat(arguments.output_path, ": ", bytes.size(), " bytes\n")));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunList(CommandContext& context) {
  using enum Table::Align;
  Table table({{"sha256"},
               {"config"},
               {"arch"},
               {"bytes", kRight},
               {"registers", kRight},
               {"spill bytes", kRight},
               {"compile ms", kRight},
               {"toolchain"}});
  Json json;
  json["kernels"] = Json::array();
  QGEMM_RETURN_IF_ERROR(
      context.client.CacheList(v1::CacheListRequest::KERNELS, [&](const v1::CacheEntry& entry) {
        const v1::KernelInfo& kernel = entry.kernel();
        json["kernels"].push_back(KernelInfoToJson(kernel));
        table.AddRow({kernel.sha256(), kernel.config(), kernel.arch(), absl::StrCat(kernel.cubin_bytes()),
                      absl::StrCat(kernel.registers()),
                      absl::StrCat(kernel.spill_store_bytes() + kernel.spill_load_bytes()),
                      absl::StrFormat("%.0f", kernel.compile_ms()), kernel.toolchain()});
      }));
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(json) : table.ToString()));
  return ExitCode::kOk;
}

}  // namespace

void AddKernelCommand(CLI::App& app, Command& selected) {
  CLI::App* kernel = app.add_subcommand("kernel", "Stored kernels");

  const auto arguments = std::make_shared<GetArguments>();
  CLI::App* get = kernel->add_subcommand("get", "Write one kernel to a file");
  get->add_option("SHA", arguments->sha256, "The kernel's SHA-256")->required();
  get->add_option("-o", arguments->output_path, "Where to; - is standard output")
      ->type_name("FILE")
      ->required();
  CLI::Option* ptx = get->add_flag("--ptx", arguments->ptx, "The PTX text instead of the cubin");
  CLI::Option* launch_spec = get->add_flag("--launch-spec", arguments->launch_spec,
                                           "How to launch it, as JSON, for each pick that uses it")
                                 ->excludes(ptx);
  get->add_flag("--access", arguments->access,
                "Which parameters it reads and writes, and their alignment, as JSON")
      ->excludes(ptx)
      ->excludes(launch_spec);
  get->callback([&selected, arguments] {
    selected = [arguments](CommandContext& context) { return RunGet(*arguments, context); };
  });

  kernel->add_subcommand("ls", "List the kernels")->callback([&selected] { selected = RunList; });
}

}  // namespace qgemm
