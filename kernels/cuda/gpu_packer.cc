#include "kernels/cuda/gpu_packer.h"

#include <utility>

#include "base/status_macros.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/kernel_source.h"

namespace qgemm {

absl::StatusOr<GpuPacker> GpuPacker::Create(const Context& context) {
  const DeviceProperties& properties = context.properties();
  QGEMM_ASSIGN_OR_RETURN(const Nvrtc* const nvrtc, Nvrtc::Load());
  QGEMM_ASSIGN_OR_RETURN(
      const NvrtcOutput output,
      nvrtc->Compile(SupportKernelSource(), ArchFor(properties.compute_major, properties.compute_minor),
                     /*want_ptx=*/false));
  QGEMM_ASSIGN_OR_RETURN(Module module, Module::Load(output.cubin));
  QGEMM_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  return GpuPacker(std::move(module), std::move(stream), properties.sm_count);
}

absl::Status GpuPacker::Pack(int64_t n, int64_t k, const WeightFormat& format, const CanonicalAddresses& from,
                             const PackedAddresses& to) const {
  QGEMM_ASSIGN_OR_RETURN(std::vector<SupportLaunch> launches,
                         PackLaunches(n, k, format, from, to, sm_count_));
  for (SupportLaunch& launch : launches) {
    QGEMM_ASSIGN_OR_RETURN(const Kernel kernel, module_.Find(launch.entry));
    QGEMM_RETURN_IF_ERROR(stream_.Launch(kernel, launch.grid, launch.threads, 0, launch.Params()));
  }
  return stream_.Synchronize();
}

}  // namespace qgemm
