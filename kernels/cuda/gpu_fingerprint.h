#ifndef QGEMM_KERNELS_CUDA_GPU_FINGERPRINT_H_
#define QGEMM_KERNELS_CUDA_GPU_FINGERPRINT_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/cuda/driver.h"
#include "kernels/fingerprint.h"

namespace qgemm {

// Fingerprints (kernels/fingerprint.h) of what is in a device's memory: read there, 32 bytes come back. In
// the device's primary context, which is current only inside the calls, so that it may share a thread with
// PyTorch. Not thread-safe.
class GpuFingerprint {
 public:
  // Compiles the kernel for the device, less than a second. NotFound: no NVRTC; Unavailable: no driver or
  // device.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<GpuFingerprint>> Create(int ordinal);
  ~GpuFingerprint();
  GpuFingerprint(const GpuFingerprint&) = delete;
  GpuFingerprint& operator=(const GpuFingerprint&) = delete;

  // Of `bytes` at a device address, a multiple of 16: InvalidArgument. Whatever writes them must have ended;
  // waits for its own work.
  [[nodiscard]] absl::StatusOr<Fingerprint> Of(uint64_t address, int64_t bytes) const;
  // Copies them to the host.
  [[nodiscard]] absl::Status Read(uint64_t address, absl::Span<char> out) const;

 private:
  // What must go while the context is current.
  struct Parts {
    Module module;
    Kernel kernel;
    Stream stream;
    DeviceBuffer table;
    DeviceBuffer sums;
  };
  GpuFingerprint(Context context, Parts parts) : context_(std::move(context)), parts_(std::move(parts)) {}

  const Context context_;
  std::optional<Parts> parts_;
};

}  // namespace qgemm

#endif  // QGEMM_KERNELS_CUDA_GPU_FINGERPRINT_H_
