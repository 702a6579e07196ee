#include "server/runner/frame_server.h"

#include <chrono>
#include <utility>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "qgemm/internal/runner.pb.h"

namespace qgemm {
namespace {

using internal::RunnerReply;
using internal::RunnerRequest;

absl::Status Answer(const RunnerRequest& request, Profiler& profiler, RunnerReply* reply) {
  switch (request.kind_case()) {
    case RunnerRequest::kPrepare: {
      QGEMM_ASSIGN_OR_RETURN(*reply->mutable_prepare(), profiler.Prepare(request.prepare()));
      return absl::OkStatus();
    }
    case RunnerRequest::kScreen: {
      QGEMM_ASSIGN_OR_RETURN(*reply->mutable_screen(), profiler.Screen(request.screen()));
      return absl::OkStatus();
    }
    case RunnerRequest::kFinals: {
      QGEMM_ASSIGN_OR_RETURN(*reply->mutable_finals(), profiler.Finals(request.finals()));
      return absl::OkStatus();
    }
    case RunnerRequest::kStatus: {
      QGEMM_ASSIGN_OR_RETURN(*reply->mutable_status(), profiler.Status());
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError("the request has no kind this program knows");
  }
}

}  // namespace

absl::Status ServeFrames(FramedStream& channel, Profiler& profiler) {
  QGEMM_RETURN_IF_ERROR(channel.Write(profiler.Hello()));
  while (true) {
    RunnerRequest request;
    const absl::Status received = channel.Read(&request);
    if (absl::IsUnavailable(received)) return absl::OkStatus();  // the daemon has gone, or is done
    QGEMM_RETURN_IF_ERROR(received);
    const TimePoint begin = RealClock().Now();
    RunnerReply reply;
    const absl::Status answered = Answer(request, profiler, &reply);
    if (!answered.ok()) {
      reply.Clear();
      reply.set_error(std::string(answered.message()));
      reply.set_code(static_cast<int>(answered.code()));
      reply.set_gpu_lost(absl::IsAborted(answered));
    }
    reply.set_id(request.id());
    reply.set_gpu_busy_ms(std::chrono::duration<double, std::milli>(RealClock().Now() - begin).count());
    QGEMM_RETURN_IF_ERROR(channel.Write(reply));
    if (reply.gpu_lost()) return answered;
  }
}

}  // namespace qgemm
