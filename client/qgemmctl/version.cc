#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/table.h"

namespace qgemm {
namespace {

// The client's own version is an answer also where no daemon is.
absl::StatusOr<ExitCode> RunVersion(CommandContext& context) {
  const std::string client(ClientVersion());
  const absl::StatusOr<v1::DescribeResponse> description = context.client.Describe();
  nlohmann::ordered_json json = {
      {"client", client}, {"server", nullptr}, {"address", context.client.address()}};
  if (description.ok()) json["server"] = description->server_version();
  const std::string text =
      KeyValueLines({{"qgemmctl", client},
                     {"qgemmd", description.ok() ? absl::StrCat(description->server_version(), " at ",
                                                                context.client.address())
                                                 : std::string(description.status().message())}});
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(json) : text));
  return ExitCode::kOk;
}

}  // namespace

void AddVersionCommand(CLI::App& app, Command& selected) {
  app.add_subcommand("version", "Versions of qgemmctl and of the daemon")->callback([&selected] {
    selected = RunVersion;
  });
}

}  // namespace qgemm
