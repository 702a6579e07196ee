#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/interrupt.h"
#include "client/qgemmctl/json_output.h"

namespace qgemm {
namespace {

struct GlobalOptions {
  std::string server;
  std::string output = "table";
  double timeout_s = 0;  // 0: each call's own default
  std::string token_file;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
};

absl::StatusOr<std::unique_ptr<Client>> Connect(const GlobalOptions& global) {
  ClientOptions options;
  options.server = global.server;
  options.token_file = global.token_file;
  options.tls_ca = global.tls_ca;
  options.tls_cert = global.tls_cert;
  options.tls_key = global.tls_key;
  if (global.timeout_s > 0) {
    options.call_timeout = options.tune_timeout = absl::Seconds(global.timeout_s);
  }
  return Client::Connect(options);
}

absl::StatusOr<ExitCode> Run(const GlobalOptions& global, const Command& command) {
  QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Connect(global));
  InterruptWatch watch([&] { client->Cancel(); });
  CommandContext context{.client = *client, .json = global.output == "json"};
  absl::StatusOr<ExitCode> code = command(context);
  if (!code.ok() && watch.interrupted()) return ExitCode::kInterrupted;
  return code;
}

// Whether the command line asks for JSON, also where it cannot be parsed.
bool WantsJson(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument == "--output=json") return true;
    if (argument == "--output" && i + 1 < argc && absl::string_view(argv[i + 1]) == "json") return true;
  }
  return false;
}

// One sentence on standard error; in JSON mode the same as an object in the place of the result.
ExitCode Report(const absl::Status& status, bool json) {
  std::string sentence(status.message());
  absl::StrReplaceAll({{"\n", " "}}, &sentence);
  std::fprintf(stderr, "qgemmctl: %s\n", sentence.c_str());
  // The exit code tells what happened also where standard output cannot be written.
  if (json) (void)WriteStdout(JsonText(ErrorToJson(status)));
  return ExitCodeFor(status);
}

// `qgemmctl kernel` alone: which words may follow.
absl::Status MissingCommand(const CLI::App& app) {
  std::string path = app.get_name();
  const CLI::App* last = &app;
  while (!last->get_subcommands().empty()) {
    last = last->get_subcommands().front();
    absl::StrAppend(&path, " ", last->get_name());
  }
  const std::vector<const CLI::App*> known = last->get_subcommands([](const CLI::App*) { return true; });
  return absl::InvalidArgumentError(absl::StrCat(
      "a command is missing after \"", path, "\": use one of ",
      absl::StrJoin(known, ", ",
                    [](std::string* out, const CLI::App* app) { out->append(app->get_name()); })));
}

absl::Status ValidateGlobalOptions(const CLI::App& app, const GlobalOptions& global) {
  if (global.output != "table" && global.output != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("output \"", global.output, "\" is not allowed: use table or json"));
  }
  if (app.count("--timeout") > 0 && !(global.timeout_s > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout ", global.timeout_s, " is out of range: seconds above 0"));
  }
  return absl::OkStatus();
}

void AddEverything(CLI::App& app, GlobalOptions& global, Command& command) {
  app.add_option("--server", global.server, "The daemon: unix:PATH or HOST:PORT (also QGEMM_SERVER)")
      ->type_name("ADDR");
  app.add_option("--output", global.output, "How to print")->type_name("table|json")->capture_default_str();
  app.add_option("--timeout", global.timeout_s,
                 "Deadline of the whole call; else none for tune, watch, warm and bench, 30 s for the others")
      ->type_name("SECONDS");
  const auto add_file = [&](const char* name, std::string& field, const char* help) {
    app.add_option(name, field, help)->type_name("FILE");
  };
  add_file("--token-file", global.token_file,
           "The token that the daemon asks for (also QGEMM_TOKEN_FILE, or the token itself in QGEMM_TOKEN)");
  add_file(
      "--tls-ca", global.tls_ca,
      "PEM: who signs the daemon's certificate (also QGEMM_TLS_CA); else the system's roots. Other machines "
      "are always spoken to in TLS");
  add_file("--tls-cert", global.tls_cert, "PEM: this client's certificate (also QGEMM_TLS_CERT)");
  add_file("--tls-key", global.tls_key, "PEM: its private key (also QGEMM_TLS_KEY)");
  AddTuneCommand(app, command);
  AddLookupCommand(app, command);
  AddExplainCommand(app, command);
  AddWarmCommand(app, command);
  AddJobsCommand(app, command);
  AddWatchCommand(app, command);
  AddKernelCommand(app, command);
  AddBundleCommand(app, command);
  AddCacheCommand(app, command);
  AddDeviceCommand(app, command);
  AddBenchCommand(app, command);
  AddVersionCommand(app, command);
  // The options above may stand behind the command, too.
  for (CLI::App* subcommand : app.get_subcommands(nullptr)) {
    subcommand->fallthrough();
    for (CLI::App* nested : subcommand->get_subcommands(nullptr)) nested->fallthrough();
  }
  app.footer(
      "Exit codes: 0 ok, 1 a job failed, 2 usage, 3 unavailable, 4 not allowed, 5 deadline, 6 not found, "
      "7 exhausted, 8 corrupt, 130 interrupted.");
}

int Main(int argc, char** argv) {
  InterruptWatch::BlockSignals();
  // What gRPC logs on its own account reaches the user as a sentence of ours.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);

  GlobalOptions global;
  Command command;
  CLI::App app("Tunes quantized GEMM problems with a qgemm daemon and looks into its store.", "qgemmctl");
  AddEverything(app, global, command);
  const bool json = WantsJson(argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help
    return app.exit(success);
  } catch (const CLI::ConversionError& error) {  // --timeout alone is no text
    return static_cast<int>(Report(
        absl::InvalidArgumentError(absl::StrCat(error.what(), ": a number of seconds is needed")), json));
  } catch (const CLI::ParseError& error) {
    return static_cast<int>(
        Report(absl::InvalidArgumentError(absl::StrCat(error.what(), " (see qgemmctl --help)")), json));
  }
  absl::StatusOr<ExitCode> code = ExitCode::kOk;
  if (absl::Status valid = ValidateGlobalOptions(app, global); !valid.ok()) {
    code = std::move(valid);
  } else if (!command) {
    code = MissingCommand(app);
  } else {
    code = Run(global, command);
  }
  if (!code.ok()) return static_cast<int>(Report(code.status(), json));
  if (*code == ExitCode::kInterrupted) std::fprintf(stderr, "qgemmctl: interrupted\n");
  return static_cast<int>(*code);
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) { return qgemm::Main(argc, argv); }
