#include "client/qgemmctl/dry_run.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/qgemmctl/file_output.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/table.h"

namespace qgemm {

absl::StatusOr<ExitCode> RunDryRun(const v1::TuneRequest& request, CommandContext& context) {
  QGEMM_ASSIGN_OR_RETURN(const v1::TuneEstimate estimate, context.client.Estimate(request));
  const nlohmann::ordered_json json = {
      {"results", estimate.results()},        {"stored", estimate.stored()},
      {"candidates", estimate.candidates()},  {"kernels", estimate.kernels()},
      {"compiles", estimate.compiles()},      {"compile_cpu_s", estimate.compile_cpu_s()},
      {"timing_s", estimate.timing_s()},      {"wall_s", estimate.wall_s()},
      {"store_bytes", estimate.store_bytes()}};
  const std::string text = KeyValueLines(
      {{"picks", absl::StrCat(estimate.results(), ", ", estimate.stored(), " of them stored")},
       {"kernels to compile", absl::StrCat(estimate.compiles(), " of ", estimate.kernels())},
       {"candidates to time", absl::StrCat(estimate.candidates())},
       {"compiling", absl::StrFormat("%.1f s of all workers together", estimate.compile_cpu_s())},
       {"timing", absl::StrFormat("%.1f s of the GPU", estimate.timing_s())},
       {"expected", absl::StrFormat("%.1f s", estimate.wall_s())},
       {"store grows by", absl::StrFormat("%.1f MB", static_cast<double>(estimate.store_bytes()) / 1e6)}});
  QGEMM_RETURN_IF_ERROR(WriteStdout(context.json ? JsonText(json) : text));
  return ExitCode::kOk;
}

}  // namespace qgemm
