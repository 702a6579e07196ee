#include "kernels/cuda/gpu_fingerprint.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/kernel_source.h"

namespace qgemm {
namespace {

constexpr int kCtasPerSm = 8;
constexpr int64_t kUnitBytes = 16;
constexpr int64_t kSumsBytes = 4 * sizeof(uint64_t);

}  // namespace

absl::StatusOr<std::unique_ptr<GpuFingerprint>> GpuFingerprint::Create(int ordinal) {
  QGEMM_ASSIGN_OR_RETURN(const Driver* const driver, Driver::Load());
  QGEMM_ASSIGN_OR_RETURN(const Nvrtc* const nvrtc, Nvrtc::Load());
  QGEMM_ASSIGN_OR_RETURN(Context context, Context::Retain(*driver, ordinal));
  const DeviceProperties& properties = context.properties();
  QGEMM_ASSIGN_OR_RETURN(
      const NvrtcOutput output,
      nvrtc->Compile(FingerprintKernelSource(), ArchFor(properties.compute_major, properties.compute_minor),
                     /*want_ptx=*/false));
  const CurrentContext current(context);
  QGEMM_ASSIGN_OR_RETURN(Module module, Module::Load(output.cubin));
  QGEMM_ASSIGN_OR_RETURN(const Kernel kernel, module.Find(kFingerprintEntry));
  QGEMM_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  const std::vector<uint64_t> coefficients = FingerprintTable(FingerprintKey::Standard());
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(coefficients.data()),
                                         coefficients.size() * sizeof(uint64_t));
  QGEMM_ASSIGN_OR_RETURN(DeviceBuffer table, DeviceBuffer::Allocate(static_cast<int64_t>(bytes.size())));
  QGEMM_ASSIGN_OR_RETURN(DeviceBuffer sums, DeviceBuffer::Allocate(kSumsBytes));
  QGEMM_RETURN_IF_ERROR(CopyToDevice(table.address(), bytes));
  Parts parts{std::move(module), kernel, std::move(stream), std::move(table), std::move(sums)};
  return std::unique_ptr<GpuFingerprint>(new GpuFingerprint(std::move(context), std::move(parts)));
}

GpuFingerprint::~GpuFingerprint() {
  const CurrentContext current(context_);
  parts_.reset();
}

absl::StatusOr<Fingerprint> GpuFingerprint::Of(uint64_t address, int64_t bytes) const {
  if (address % kUnitBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor at address ", address,
                                                   " cannot be fingerprinted: multiples of 16 are needed"));
  }
  const CurrentContext current(context_);
  Fingerprint result;
  result.size = static_cast<uint64_t>(bytes);
  if (int64_t units = bytes / kUnitBytes; units > 0) {
    uint64_t table = parts_->table.address();
    uint64_t sums = parts_->sums.address();
    uint64_t radix0 = FingerprintKey::Standard().radix(0);
    uint64_t radix1 = FingerprintKey::Standard().radix(1);
    void* const params[] = {&address, &units, &table, &radix0, &radix1, &sums};
    const Dim3 grid{int64_t{context_.properties().sm_count} * kCtasPerSm, 1, 1};
    QGEMM_RETURN_IF_ERROR(parts_->stream.SetBytes(sums, 0, kSumsBytes));
    QGEMM_RETURN_IF_ERROR(parts_->stream.Launch(parts_->kernel, grid, kFingerprintThreads, 0, params));
    QGEMM_RETURN_IF_ERROR(parts_->stream.Synchronize());
    std::array<uint64_t, 4> read = {};
    QGEMM_RETURN_IF_ERROR(
        CopyToHost(sums, absl::MakeSpan(reinterpret_cast<std::byte*>(read.data()), kSumsBytes)));
    result.hash = HashFromSums(read);
  }
  if (const int64_t tail = bytes % kUnitBytes; tail > 0) {
    QGEMM_RETURN_IF_ERROR(CopyToHost(address + bytes - tail,
                                     absl::MakeSpan(reinterpret_cast<std::byte*>(result.tail.data()), tail)));
  }
  return result;
}

absl::Status GpuFingerprint::Read(uint64_t address, absl::Span<char> out) const {
  if (out.empty()) return absl::OkStatus();
  const CurrentContext current(context_);
  return CopyToHost(address, absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size()));
}

}  // namespace qgemm
