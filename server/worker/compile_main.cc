// qgemm-compile: compiles CUDA kernels for qgemmd, one at a time, through NVRTC. Reads CompileRequest frames
// from its channel (base/subprocess.h) and answers each with a CompileReply, until the daemon closes the
// channel. Needs no GPU.

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "base/framed_stream.h"
#include "base/log.h"
#include "kernels/cuda/nvrtc.h"
#include "qgemm/internal/worker.pb.h"

namespace qgemm {
namespace {

constexpr int kProtocolVersion = 1;

internal::CompileReply Compile(const Nvrtc& nvrtc, const internal::CompileRequest& request) {
  KernelSource source;
  source.name = request.name();
  source.entry = request.entry();
  source.text = request.source();
  source.options.assign(request.options().begin(), request.options().end());

  const auto start = std::chrono::steady_clock::now();
  internal::CompileReply reply;
  auto output = nvrtc.Compile(source, request.arch(), request.want_ptx(), reply.mutable_log());
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;

  reply.set_id(request.id());
  reply.set_compile_ms(elapsed.count());
  if (!output.ok()) {
    reply.set_error(std::string(output.status().message()));
    reply.set_compiler_failed(!absl::IsInvalidArgument(output.status()));
    return reply;
  }
  reply.set_cubin(std::move(output->cubin));
  reply.set_ptx(std::move(output->ptx));
  internal::ResourceReport* report = reply.mutable_report();
  report->set_registers(output->resources.registers);
  report->set_static_smem_bytes(output->resources.static_smem_bytes);
  report->set_spill_store_bytes(output->resources.spill_store_bytes);
  report->set_spill_load_bytes(output->resources.spill_load_bytes);
  report->set_stack_bytes(output->resources.stack_bytes);
  return reply;
}

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
    if (status.ok()) status = channel->Write(Compile(**nvrtc, request));
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
  qgemm::FramedStream stream{qgemm::UniqueFd(fd)};
  return qgemm::Serve(&stream);
}
