#include "server/worker/nvrtc_compile.h"

#include <chrono>
#include <string>
#include <utility>

namespace qgemm {

internal::CompileReply CompileWithNvrtc(const Nvrtc& nvrtc, const internal::CompileRequest& request) {
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

}  // namespace qgemm
