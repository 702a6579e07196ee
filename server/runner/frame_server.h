#ifndef QGEMM_SERVER_RUNNER_FRAME_SERVER_H_
#define QGEMM_SERVER_RUNNER_FRAME_SERVER_H_

#include "absl/status/status.h"
#include "base/framed_stream.h"
#include "server/runner/profiler.h"

namespace qgemm {

inline constexpr int kRunnerProtocolVersion = 1;
// The process keeps at least this many of the last used kernels loaded; the daemon relies on half of it.
inline constexpr int kRunnerModules = 256;

// Says hello, then answers requests one by one until the daemon closes the channel. OK: it did. Aborted: the
// GPU's context is lost; the daemon was told and the caller should exit. Other codes: the channel failed.
[[nodiscard]] absl::Status ServeFrames(FramedStream& channel, Profiler& profiler);

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_FRAME_SERVER_H_
