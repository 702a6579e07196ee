#include "server/runner/verifier.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

// The byte checks of one verification, by their numbers in the support library.
enum Check { kBeforeY, kAfterY, kBeforeWorkspace, kAfterWorkspace, kTickets, kRepeat };

absl::Status CheckGuards(SupportLibrary& support, const GuardedRegion& region, int before, int after) {
  QGEMM_RETURN_IF_ERROR(
      support.CheckBytes(before, region.front(), GuardedRegion::kFrontBytes, GuardedRegion::kGuardByte));
  return support.CheckBytes(after, region.back(), region.back_bytes(), GuardedRegion::kGuardByte);
}

std::string Touched(const char* what, const ByteCheck& check) {
  return absl::StrCat("wrote out of bounds: ", check.unequal, " bytes ", what,
                      " changed, the first at offset ", check.first);
}

Verdict Judge(const SupportLibrary::Results& results, double tolerance) {
  Verdict verdict;
  const Comparison& comparison = results.comparison;
  verdict.relative_error = comparison.relative_error;
  const auto fail = [&](internal::CandidateFailure failure, std::string reason) {
    verdict.failure = failure;
    verdict.reason = std::move(reason);
    return verdict;
  };
  const std::pair<Check, const char*> guards[] = {
      {kBeforeY, "before the output"},
      {kAfterY, "behind the output (rows beyond M come first)"},
      {kBeforeWorkspace, "before the workspace"},
      {kAfterWorkspace, "behind the workspace"},
  };
  for (const auto& [check, what] : guards) {
    if (results.checks[check].unequal > 0) {
      return fail(internal::CANDIDATE_FAILURE_OUT_OF_BOUNDS, Touched(what, results.checks[check]));
    }
  }
  if (comparison.unwritten > 0) {
    return fail(internal::CANDIDATE_FAILURE_WRONG,
                absl::StrCat("wrong result: ", comparison.unwritten, " outputs were not written"));
  }
  if (comparison.not_finite > 0) {
    return fail(internal::CANDIDATE_FAILURE_WRONG,
                absl::StrCat("wrong result: ", comparison.not_finite, " outputs are not finite"));
  }
  if (!(comparison.relative_error <= tolerance)) {
    return fail(internal::CANDIDATE_FAILURE_WRONG,
                absl::StrFormat("wrong result: relative error %.2e exceeds %.1e", comparison.relative_error,
                                tolerance));
  }
  if (results.checks[kTickets].unequal > 0) {
    return fail(internal::CANDIDATE_FAILURE_NOT_REPEATABLE,
                absl::StrCat("not repeatable: ", results.checks[kTickets].unequal,
                             " bytes of the workspace's tickets were left non-zero"));
  }
  if (results.checks[kRepeat].unequal > 0) {
    return fail(internal::CANDIDATE_FAILURE_NOT_REPEATABLE,
                absl::StrCat("not repeatable: ", results.checks[kRepeat].unequal,
                             " bytes of a second run's output differ, the first at offset ",
                             results.checks[kRepeat].first));
  }
  return verdict;
}

}  // namespace

absl::StatusOr<Verdict> VerifyCandidate(Device& device, SupportLibrary& support, const ProblemData& data,
                                        const LaunchSpec& spec, double tolerance,
                                        const std::function<absl::Status()>& launch) {
  const int64_t workspace_bytes = spec.WorkspaceBytes(data.m());
  const int64_t ticket_bytes = spec.TicketBytes(data.m());
  const GuardedRegion& output = data.output();
  const GuardedRegion& workspace = data.workspace();
  const auto poison = [&]() -> absl::Status {
    QGEMM_RETURN_IF_ERROR(device.SetBytes(output.address(), SupportLibrary::kPoison, output.bytes()));
    if (workspace_bytes == 0) return absl::OkStatus();
    return device.SetBytes(workspace.address() + ticket_bytes, SupportLibrary::kPoison,
                           workspace_bytes - ticket_bytes);
  };
  // A launch that is refused is the candidate's fault, unless the context is lost.
  const auto refused = [](const absl::Status& status) -> absl::StatusOr<Verdict> {
    if (absl::IsAborted(status)) return status;
    return Verdict{internal::CANDIDATE_FAILURE_LAUNCH, std::string(status.message()), 0};
  };

  QGEMM_RETURN_IF_ERROR(support.ClearResults());
  QGEMM_RETURN_IF_ERROR(output.Arm(&device));
  if (workspace_bytes > 0) {
    QGEMM_RETURN_IF_ERROR(workspace.Arm(&device));
    QGEMM_RETURN_IF_ERROR(device.SetBytes(workspace.address(), 0, ticket_bytes));
  }
  QGEMM_RETURN_IF_ERROR(poison());
  if (absl::Status status = launch(); !status.ok()) return refused(status);
  QGEMM_RETURN_IF_ERROR(support.Compare(output.address(), data.reference(), data.m(),
                                        data.problem().y_columns(), data.ldy(),
                                        data.problem().signature.out));
  QGEMM_RETURN_IF_ERROR(device.CopyOnDevice(data.first_output(), output.address(), output.bytes()));

  QGEMM_RETURN_IF_ERROR(poison());
  if (absl::Status status = launch(); !status.ok()) return refused(status);
  QGEMM_RETURN_IF_ERROR(support.CheckSame(kRepeat, data.first_output(), output.address(), output.bytes()));
  QGEMM_RETURN_IF_ERROR(CheckGuards(support, output, kBeforeY, kAfterY));
  if (workspace_bytes > 0) {
    QGEMM_RETURN_IF_ERROR(CheckGuards(support, workspace, kBeforeWorkspace, kAfterWorkspace));
    QGEMM_RETURN_IF_ERROR(support.CheckBytes(kTickets, workspace.address(), ticket_bytes, 0));
  }
  QGEMM_ASSIGN_OR_RETURN(const SupportLibrary::Results results, support.ReadResults());
  return Judge(results, tolerance);
}

}  // namespace qgemm
