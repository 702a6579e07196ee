#ifndef QGEMM_CLIENT_QGEMMCTL_COMMAND_H_
#define QGEMM_CLIENT_QGEMMCTL_COMMAND_H_

#include <functional>

#include "absl/status/statusor.h"
#include "client/qgemm/client.h"
#include "client/qgemmctl/exit_code.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
}

namespace qgemm {

struct CommandContext {
  Client& client;
  bool json = false;  // --output json
};

// What a command line asked for. An error stands for the whole command: nothing was printed for it yet.
using Command = std::function<absl::StatusOr<ExitCode>(CommandContext&)>;

// Each adds one command of qgemmctl; when the command line names it, `selected` becomes it.
void AddTuneCommand(CLI::App& app, Command& selected);
void AddLookupCommand(CLI::App& app, Command& selected);
void AddExplainCommand(CLI::App& app, Command& selected);
void AddWarmCommand(CLI::App& app, Command& selected);
void AddJobsCommand(CLI::App& app, Command& selected);
void AddWatchCommand(CLI::App& app, Command& selected);
void AddKernelCommand(CLI::App& app, Command& selected);
void AddBundleCommand(CLI::App& app, Command& selected);
void AddCacheCommand(CLI::App& app, Command& selected);
void AddBenchCommand(CLI::App& app, Command& selected);
void AddDeviceCommand(CLI::App& app, Command& selected);
void AddVersionCommand(CLI::App& app, Command& selected);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_COMMAND_H_
