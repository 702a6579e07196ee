#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/problem_proto.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/problem_arguments.h"
#include "client/qgemmctl/progress.h"
#include "client/qgemmctl/table.h"

namespace qgemm {
namespace {

absl::StatusOr<ExitCode> RunWarm(ProblemArguments arguments, CommandContext& context) {
  if (!arguments.shapes.empty() || !arguments.model_path.empty()) {
    return absl::InvalidArgumentError(
        "--shape and --model are not for warm: a format's kernels serve every shape");
  }
  const bool every_bucket = arguments.m.empty();
  if (every_bucket) arguments.m = {"1"};
  // Any shape that every group size divides: only its format counts.
  arguments.shapes = {"64x65536"};
  QGEMM_ASSIGN_OR_RETURN(const RequestedProblems requested, ResolveProblems(arguments));
  v1::WarmRequest request;
  *request.mutable_problem() = ProblemToProto(requested.problems.front().problem);
  request.set_target(arguments.target);
  if (!every_bucket) {
    for (const int64_t m : requested.m) request.add_m(m);
  }
  ProgressBar bar(TerminalWriter(), TerminalWidth(), RealClock());
  const absl::StatusOr<v1::WarmEvent> end = context.client.Warm(request, [&](const v1::WarmEvent& event) {
    v1::TuneProgress progress;
    progress.set_kernels_wanted(event.kernels());
    progress.set_kernels_compiled(event.ready() + event.failed());
    progress.set_elapsed_s(event.elapsed_s());
    bar.Show(progress);
  });
  bar.Clear();
  QGEMM_RETURN_IF_ERROR(end.status());
  const nlohmann::ordered_json json = {{"arch", end->arch()},     {"kernels", end->kernels()},
                                       {"ready", end->ready()},   {"compiled", end->compiled()},
                                       {"failed", end->failed()}, {"spilled", end->spilled()},
                                       {"bytes", end->bytes()},   {"wall_s", end->elapsed_s()}};
  const std::string text = absl::StrCat(
      end->ready(), " of ", end->kernels(), " kernels for ", end->arch(), " are stored, ", end->compiled(),
      " compiled now, ", end->spilled(), " spill registers, ", end->failed(), " failed; ",
      absl::StrFormat("%.1f MB, %.2f s\n", static_cast<double>(end->bytes()) / 1e6, end->elapsed_s()));
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(json) : text));
  for (const std::string& failure : end->failures()) {
    std::fprintf(stderr, "qgemmctl: not compiled: %s\n", failure.c_str());
  }
  return end->failed() == 0 ? ExitCode::kOk : ExitCode::kFailed;
}

}  // namespace

void AddWarmCommand(CLI::App& app, Command& selected) {
  const auto arguments = std::make_shared<ProblemArguments>();
  CLI::App* command = app.add_subcommand(
      "warm", "Compile a format's kernels ahead, for every shape (and bucket, without --m); needs no GPU");
  arguments->AddTo(*command);
  command->callback([&selected, arguments] {
    selected = [arguments](CommandContext& context) { return RunWarm(*arguments, context); };
  });
}

}  // namespace qgemm
