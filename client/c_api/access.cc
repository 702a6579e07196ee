#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/qgemm/access_c_api.h"
#include "kernels/access_memo.h"
#include "kernels/access_report.h"

struct qgemm_access_memo {  // NOLINT(readability-identifier-naming): the C interface's name
  qgemm::AccessMemo memo;
};

namespace qgemm {
namespace {

// What may be a pointer is one, and read and written.
AccessReport Failed(const qgemm_call& call, std::string why) {
  AccessReport report;
  report.failure = std::move(why);
  for (int index = 0; index < call.argument_count; ++index) {
    const int kind = call.arguments[index].kind;
    if (kind != QGEMM_POINTER_ARGUMENT && kind != QGEMM_OPAQUE_ARGUMENT) continue;
    report.parameters.push_back({index, true, true, 16});
  }
  return report;
}

int Get(AccessMemo& memo, const qgemm_call& call, qgemm_access_report& out) {
  constexpr std::array kKinds = {CallArgument::Kind::kPointer, CallArgument::Kind::kScalar,
                                 CallArgument::Kind::kSymbolic, CallArgument::Kind::kOpaque};
  absl::InlinedVector<CallArgument, QGEMM_MOST_PARAMETERS> arguments;
  for (int i = 0; i < call.argument_count; ++i) {
    const qgemm_call_argument& argument = call.arguments[i];
    if (argument.kind < QGEMM_POINTER_ARGUMENT || argument.kind > QGEMM_OPAQUE_ARGUMENT) {
      return static_cast<int>(absl::StatusCode::kInvalidArgument);
    }
    arguments.push_back({kKinds[argument.kind], argument.dtype, argument.value});
  }
  const std::shared_ptr<const AccessReport> report = memo.Get(call.kernel, arguments, [&call] {
    const char* const ptx = call.ptx != nullptr ? call.ptx(call.context) : nullptr;
    if (ptx == nullptr) return Failed(call, absl::StrCat("there is no PTX of kernel ", call.kernel));
    AccessReport made = AnalyzeAccess(ptx, call.entry);
    if (made.failed()) return Failed(call, std::move(made.failure));
    // Candidates are in the order of the kernel's parameters.
    if (!made.parameters.empty() && made.parameters.back().index >= call.argument_count) {
      return Failed(call, absl::StrCat("kernel ", call.kernel, " has more parameters than the call's ",
                                       call.argument_count, " arguments"));
    }
    return made;
  });
  if (report->parameters.size() > QGEMM_MOST_PARAMETERS) {
    return static_cast<int>(absl::StatusCode::kInvalidArgument);
  }
  out.failed = report->failed() ? 1 : 0;
  out.count = static_cast<int32_t>(report->parameters.size());
  std::transform(report->parameters.begin(), report->parameters.end(), out.parameters,
                 [](const ParameterAccess& access) -> qgemm_parameter_access {
                   return {access.index, access.read ? 1 : 0, access.written ? 1 : 0, access.alignment};
                 });
  const size_t length = std::min(report->failure.size(), sizeof(out.failure) - 1);
  std::copy_n(report->failure.begin(), length, out.failure);
  out.failure[length] = '\0';
  return static_cast<int>(absl::StatusCode::kOk);
}

}  // namespace
}  // namespace qgemm

qgemm_access_memo* qgemm_access_memo_create(void) { return new qgemm_access_memo; }

void qgemm_access_memo_free(qgemm_access_memo* memo) { delete memo; }

int qgemm_access_memo_get(qgemm_access_memo* memo, const qgemm_call* call, qgemm_access_report* out) {
  if (memo == nullptr || call == nullptr || out == nullptr || call->kernel == nullptr ||
      call->entry == nullptr || call->argument_count < 0 ||
      (call->arguments == nullptr && call->argument_count > 0)) {
    return static_cast<int>(absl::StatusCode::kInvalidArgument);
  }
  return qgemm::Get(memo->memo, *call, *out);
}

void qgemm_access_memo_get_counts(const qgemm_access_memo* memo, qgemm_access_counts* out) {
  const qgemm::AccessMemo::Counts counts = memo->memo.counts();
  *out = {counts.analyses, counts.failures, counts.repeats};
}
