#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/table.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const v1::DescribeResponse& description) {
  const v1::DeviceClass& device = description.device();
  Json json = {{"has_gpu", description.has_gpu()}, {"device", nullptr}};
  if (description.has_gpu()) {
    json["device"] = {{"product_name", device.product_name()},   {"compute_major", device.compute_major()},
                      {"compute_minor", device.compute_minor()}, {"sm_count", device.sm_count()},
                      {"l2_bytes", device.l2_bytes()},           {"memory_gib", device.memory_gib()}};
  }
  json["uuid"] = description.uuid();
  json["driver_version"] = description.driver_version();
  json["state"] = description.state();
  json["target"] = description.target();
  json["arch"] = description.arch();
  json["toolchain"] = description.toolchain();
  json["compile_workers"] = description.compile_workers();
  json["known_targets"] = Json::array();
  for (const std::string& target : description.known_targets()) json["known_targets"].push_back(target);
  json["server_version"] = description.server_version();
  json["gpu_memory_total_bytes"] = description.gpu_memory_total_bytes();
  json["gpu_memory_free_bytes"] = description.gpu_memory_free_bytes();
  return json;
}

std::string Mebibytes(int64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

std::string ToText(const v1::DescribeResponse& description) {
  std::vector<std::pair<std::string, std::string>> lines;
  if (description.has_gpu()) {
    const v1::DeviceClass& device = description.device();
    lines = {{"GPU", device.product_name()},
             {"compute capability", absl::StrCat(device.compute_major(), ".", device.compute_minor())},
             {"SMs", absl::StrCat(device.sm_count())},
             {"L2 cache", Mebibytes(device.l2_bytes())},
             {"memory", absl::StrCat(Mebibytes(description.gpu_memory_total_bytes()), ", ",
                                     Mebibytes(description.gpu_memory_free_bytes()), " free")},
             {"UUID", description.uuid()},
             {"driver", description.driver_version()}};
  }
  lines.insert(lines.end(), {{"state", description.state()},
                             {"target", description.target()},
                             {"arch", description.arch()},
                             {"toolchain", description.toolchain().empty() ? "none: no compile worker"
                                                                           : description.toolchain()},
                             {"compile workers", absl::StrCat(description.compile_workers())},
                             {"known targets", absl::StrJoin(description.known_targets(), " ")},
                             {"qgemmd", description.server_version()}});
  return KeyValueLines(lines);
}

absl::StatusOr<ExitCode> RunDevice(CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const v1::DescribeResponse description, context.client.Describe());
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(ToJson(description)) : ToText(description)));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunPause(CommandContext& context) {
  QGEMM_RETURN_IF_ERROR(context.client.PauseDevice());
  return RunDevice(context);
}

absl::StatusOr<ExitCode> RunResume(CommandContext& context) {
  QGEMM_RETURN_IF_ERROR(context.client.ResumeDevice());
  return RunDevice(context);
}

}  // namespace

void AddDeviceCommand(CLI::App& app, Command& selected) {
  CLI::App* device = app.add_subcommand("device", "The GPU or target that the daemon works for");
  device->callback([&selected, device] {
    if (device->get_subcommands().empty()) selected = RunDevice;
  });
  device->add_subcommand("pause", "Give the GPU back for a while: jobs wait, lookups are served")
      ->callback([&selected] { selected = RunPause; });
  device->add_subcommand("resume", "Take the GPU again")->callback([&selected] { selected = RunResume; });
}

}  // namespace qgemm
