// qgemm-compile: compiles CUDA kernels for qgemmd, one at a time, through NVRTC. Reads CompileRequest frames
// from its channel (base/subprocess.h) and answers each with a CompileReply, until the daemon closes the
// channel. Needs no GPU.

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "base/framed_stream.h"
#include "base/log.h"
#include "kernels/cuda/nvrtc.h"
#include "qgemm/internal/worker.pb.h"
#include "server/worker/nvrtc_compile.h"

namespace qgemm {
namespace {

constexpr int kProtocolVersion = 1;

// The exit code: 0 when the daemon closed the channel.
int Serve(FramedStream* channel) {
  internal::WorkerHello hello;
  hello.set_protocol_version(kProtocolVersion);
  const auto nvrtc = Nvrtc::Load();
  if (nvrtc.ok()) {
    hello.set_toolchain((*nvrtc)->toolchain());
    for (const std::string& arch : (*nvrtc)->archs()) hello.add_archs(arch);
  } else {
    hello.set_error(std::string(nvrtc.status().message()));
  }
  if (!channel->Write(hello).ok() || !nvrtc.ok()) return 1;

  while (true) {
    internal::CompileRequest request;
    absl::Status status = channel->Read(&request);
    if (absl::IsUnavailable(status)) return 0;
    if (status.ok()) status = channel->Write(CompileWithNvrtc(**nvrtc, request));
    if (absl::IsUnavailable(status)) return 0;
    if (!status.ok()) {
      spdlog::error("{}", status.ToString());
      return 1;
    }
  }
}

}  // namespace
}  // namespace qgemm

int main() {
  (void)qgemm::InitLog({.program = "qgemm-compile"});
  const char* channel = std::getenv("QGEMM_CHANNEL_FD");
  int fd = -1;
  if (channel == nullptr || !absl::SimpleAtoi(channel, &fd) || fd < 0) {
    spdlog::error("qgemm-compile is started by qgemmd, not by hand: QGEMM_CHANNEL_FD is not set");
    return 2;
  }
  qgemm::KeepCompilersMemory();
  qgemm::FramedStream stream{qgemm::UniqueFd(fd)};
  return qgemm::Serve(&stream);
}
