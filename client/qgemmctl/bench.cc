#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/problem_proto.h"
#include "client/qgemmctl/command.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/problem_arguments.h"
#include "client/qgemmctl/progress.h"
#include "client/qgemmctl/result.h"
#include "client/qgemmctl/table.h"
#include "kernels/kernel_source.h"
#include "qgemm/v1/bench.pb.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

// The daemon takes no more.
constexpr size_t kMaxSourceBytes = 1 << 20;

struct BenchArguments {
  ProblemArguments problems;
  std::string source_path;
  std::string name;
  std::string family;
  std::string only;
  int candidates = 0;
};

absl::StatusOr<std::string> ReadSource(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("source ", path, " cannot be opened"));
  std::string text(kMaxSourceBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  if (file.bad() || text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("source ", path, " is empty or cannot be read"));
  }
  if (text.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("source ", path, " is too large: at most ", kMaxSourceBytes, " bytes are allowed"));
  }
  return text;
}

// Which shipped source the file replaces: what was said, else the one with the file's own name.
absl::StatusOr<std::string> ReplacedName(const BenchArguments& arguments) {
  if (!arguments.name.empty() && !arguments.family.empty()) {
    return absl::InvalidArgumentError(
        "--replace and --family are given: one of them says which source it is");
  }
  std::string name = arguments.name;
  if (!arguments.family.empty()) name = arguments.family + ".cuh";
  if (name.empty()) name = arguments.source_path.substr(arguments.source_path.rfind('/') + 1);
  const std::vector<std::string> known = FamilySourceNames();
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  return absl::InvalidArgumentError(absl::StrCat("\"", name,
                                                 "\" is no device source: say with --replace which of ",
                                                 absl::StrJoin(known, ", "), " the file replaces"));
}

absl::StatusOr<v1::CompareSourceRequest> MakeRequest(const BenchArguments& arguments,
                                                     const RequestedProblems& requested) {
  v1::CompareSourceRequest request;
  QGEMM_ASSIGN_OR_RETURN(*request.mutable_source_name(), ReplacedName(arguments));
  QGEMM_ASSIGN_OR_RETURN(*request.mutable_source(), ReadSource(arguments.source_path));
  for (const RequestedProblem& problem : requested.problems) {
    *request.add_problems() = ProblemToProto(problem.problem);
  }
  for (const int64_t m : requested.m) request.add_m(m);
  request.set_only(arguments.only);
  request.set_max_candidates(arguments.candidates);
  return request;
}

// Changed over current; nothing unless both were timed.
std::optional<double> Ratio(const v1::ComparedCandidate& row) {
  if (!row.current().has_time_us() || !row.changed().has_time_us() || row.current().time_us() <= 0) {
    return std::nullopt;
  }
  return row.changed().time_us() / row.current().time_us();
}

int SpillBytes(const v1::KernelInfo& kernel) {
  return kernel.spill_store_bytes() + kernel.spill_load_bytes();
}

// "96 -> 104", or one number where nothing changed.
template <typename Of>
std::string BeforeAfter(const v1::ComparedCandidate& row, const Of& of) {
  std::string before = row.current().has_kernel() ? absl::StrCat(of(row.current().kernel())) : "-";
  if (!row.has_changed()) return before;
  const std::string after = row.changed().has_kernel() ? absl::StrCat(of(row.changed().kernel())) : "-";
  return before == after ? before : absl::StrCat(before, " -> ", after);
}

std::string TimeCell(const v1::KernelTrial& trial) {
  if (trial.has_time_us()) return absl::StrFormat("%.2f", trial.time_us());
  return trial.failure().empty() ? "-" : "failed";
}

std::string ErrorCell(const v1::ComparedCandidate& row) {
  const v1::KernelTrial& trial = row.has_changed() ? row.changed() : row.current();
  if (!trial.failure().empty()) return trial.failure();
  return trial.has_relative_error() ? absl::StrFormat("%.1e", trial.relative_error()) : "";
}

std::string ToText(const std::vector<v1::ComparedCandidate>& rows, const v1::CompareSourceRequest& request,
                   const v1::CompareSourceSummary& summary) {
  using enum Table::Align;
  Table table({{"N", kRight},
               {"K", kRight},
               {"M <=", kRight},
               {"format"},
               {"config"},
               {"split", kRight},
               {"reduction"},
               {"pick"},
               {"current us", kRight},
               {"changed us", kRight},
               {"ratio", kRight},
               {"registers", kRight},
               {"spill bytes", kRight},
               {"error"}});
  for (const v1::ComparedCandidate& row : rows) {
    const v1::Problem& problem = request.problems(row.problem_index());
    const std::optional<double> ratio = Ratio(row);
    table.AddRow({absl::StrCat(problem.n()), absl::StrCat(problem.k()), absl::StrCat(row.m_bucket()),
                  SignatureWord(problem), row.config(), absl::StrCat(row.split_k()),
                  std::string(ReductionWord(row.reduction())), row.is_pick() ? "yes" : "",
                  TimeCell(row.current()), row.has_changed() ? TimeCell(row.changed()) : "",
                  ratio.has_value() ? absl::StrFormat("%.3f", *ratio) : "",
                  BeforeAfter(row, [](const v1::KernelInfo& kernel) { return kernel.registers(); }),
                  BeforeAfter(row, SpillBytes), ErrorCell(row)});
  }
  return absl::StrCat(
      table.ToString(), rows.size(), " candidates: ", summary.compiles(), " kernels compiled, ",
      summary.timed() ? "current and changed timed in turn" : "nothing timed: the daemon has no GPU",
      absl::StrFormat(", %.2f s\n", summary.wall_s()));
}

Json TrialToJson(const v1::KernelTrial& trial) {
  return {{"time_us", trial.has_time_us() ? Json(trial.time_us()) : Json(nullptr)},
          {"spread_us", trial.has_spread_us() ? Json(trial.spread_us()) : Json(nullptr)},
          {"relative_error", trial.has_relative_error() ? Json(trial.relative_error()) : Json(nullptr)},
          {"confidence", trial.confidence() == v1::CONFIDENCE_HIGH ? "high" : "low"},
          {"failure", trial.failure().empty() ? Json(nullptr) : Json(trial.failure())},
          {"kernel", trial.has_kernel() ? KernelInfoToJson(trial.kernel()) : Json(nullptr)}};
}

Json ToJson(const std::vector<v1::ComparedCandidate>& rows, const v1::CompareSourceRequest& request,
            const v1::CompareSourceSummary& summary) {
  Json json;
  json["source"] = {{"name", request.source_name()}, {"sha256", summary.source_sha256()}};
  json["candidates"] = Json::array();
  for (const v1::ComparedCandidate& row : rows) {
    const v1::Problem& problem = request.problems(row.problem_index());
    const std::optional<double> ratio = Ratio(row);
    json["candidates"].push_back(
        {{"n", problem.n()},
         {"k", problem.k()},
         {"m_bucket", row.m_bucket()},
         {"format", SignatureWord(problem)},
         {"config", row.config()},
         {"split_k", row.split_k()},
         {"reduction", std::string(ReductionWord(row.reduction()))},
         {"predicted_us", row.predicted_us()},
         {"is_pick", row.is_pick()},
         {"ratio", ratio.has_value() ? Json(*ratio) : Json(nullptr)},
         {"current", TrialToJson(row.current())},
         {"changed", row.has_changed() ? TrialToJson(row.changed()) : Json(nullptr)}});
  }
  json["stats"] = {
      {"compiles", summary.compiles()}, {"timed", summary.timed()}, {"wall_s", summary.wall_s()}};
  return json;
}

absl::StatusOr<ExitCode> RunBench(const BenchArguments& arguments, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const RequestedProblems requested, ResolveProblems(arguments.problems));
  QGEMM_ASSIGN_OR_RETURN(const v1::CompareSourceRequest request, MakeRequest(arguments, requested));
  std::vector<v1::ComparedCandidate> rows;
  ProgressBar bar(TerminalWriter(), TerminalWidth(), RealClock());
  const TimePoint start = RealClock().Now();
  const absl::StatusOr<v1::CompareSourceSummary> summary =
      context.client.CompareSource(request, [&](const v1::CompareSourceEvent& event) {
        if (event.has_candidate()) rows.push_back(event.candidate());
        if (!event.has_progress()) return;
        v1::TuneProgress progress;
        progress.set_kernels_wanted(event.progress().kernels_wanted());
        progress.set_kernels_compiled(event.progress().kernels_compiled());
        progress.set_candidates_wanted(event.progress().candidates_wanted());
        progress.set_candidates_done(event.progress().candidates_done());
        progress.set_elapsed_s(std::chrono::duration<double>(RealClock().Now() - start).count());
        bar.Show(progress);
      });
  bar.Clear();
  QGEMM_RETURN_IF_ERROR(summary.status());
  for (const v1::ComparedCandidate& row : rows) {
    if (row.problem_index() < 0 || row.problem_index() >= request.problems_size()) {
      return absl::InternalError(
          absl::StrCat("the daemon compared problem ", row.problem_index(), ", which nobody asked for"));
    }
  }
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(ToJson(rows, request, *summary))
                                                 : ToText(rows, request, *summary)));
  const auto failed = [](const v1::ComparedCandidate& row) { return !row.changed().failure().empty(); };
  const auto first = std::find_if(rows.begin(), rows.end(), failed);
  if (first == rows.end()) return ExitCode::kOk;
  std::fprintf(stderr, "qgemmctl: %d of %zu candidates fail with the changed source: %s: %s\n",
               static_cast<int>(std::count_if(rows.begin(), rows.end(), failed)), rows.size(),
               first->config().c_str(), first->changed().failure().c_str());
  return ExitCode::kFailed;
}

}  // namespace

void AddBenchCommand(CLI::App& app, Command& selected) {
  const auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand(
      "bench", "Try a changed device source: the same candidates from it and from the shipped one, in turn");
  arguments->problems.AddTo(*command);
  command->add_option("--source", arguments->source_path, "The changed source; no pick is made from it")
      ->type_name("FILE.cuh")
      ->required();
  command
      ->add_option("--replace", arguments->name,
                   "The device source it replaces; else the one with the file's name")
      ->type_name("NAME.cuh");
  command->add_option("--family", arguments->family, "Short for --replace FAMILY.cuh")
      ->type_name("mma|wgmma");
  command
      ->add_option("--only", arguments->only,
                   "Candidates whose name (CONFIG/kSPLIT/REDUCTION) matches; else the pick and the best "
                   "predicted configs")
      ->type_name("REGEX");
  command->add_option("--candidates", arguments->candidates, "At most so many per shape and bucket; 0: 8")
      ->type_name("COUNT");
  command->callback([&selected, arguments] {
    selected = [arguments](CommandContext& context) { return RunBench(*arguments, context); };
  });
}

}  // namespace qgemm
