#ifndef QGEMM_SERVER_RUNNER_SUPPORT_LIBRARY_H_
#define QGEMM_SERVER_RUNNER_SUPPORT_LIBRARY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device_packing.h"
#include "kernels/problem.h"
#include "server/runner/device.h"

namespace qgemm {

// Where an epilogue's operands are on the device, in the output's type. 0 = absent.
struct EpilogueAddresses {
  uint64_t bias = 0;      // [n]
  uint64_t residual = 0;  // [m][ldr]
  int64_t ldr = 0;
};

// Output and reference, compared.
struct Comparison {
  double relative_error = 0;  // Frobenius, of the finite outputs
  double reference_norm = 0;
  int64_t not_finite = 0;  // outputs, the unwritten ones included
  int64_t unwritten = 0;   // outputs that still have the poison's bits
};

// Bytes found different from what they should be.
struct ByteCheck {
  int64_t unequal = 0;
  int64_t first = 0;  // offset of the first, when there are any
};

// The kernels of kernels/device/support.cuh on a device. Calls put work on the stream; results are read back
// by the Read functions, which wait. Borrowed: the device.
class SupportLibrary {
 public:
  // Loads the cubin and allocates the flush buffer (twice the L2). DataLoss: not a cubin of the support
  // kernels for this device.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SupportLibrary>> Load(Device* device,
                                                                            absl::string_view cubin);

  // Fills canonical weights: codes, integer zero points and the codes of two-level scales (of both signs)
  // uniform over all they can be; scales such that weights of all widths are about as large, in 0.002 ..
  // 0.022 with 4 bits; float zero points near those of symmetric weights. Deterministic in `seed`.
  [[nodiscard]] absl::Status FillWeights(const Problem& problem, const CanonicalAddresses& to, uint64_t seed);
  // Operands that are `count` normal numbers, each kind with a sequence of its own; the first ones do not
  // depend on how many follow.
  enum class Normal { kBias, kActivations, kResidual };
  [[nodiscard]] absl::Status FillNormal(Normal kind, uint64_t to, int64_t count, ScalarType type,
                                        uint64_t seed);
  // As kernels/packing.h's Pack.
  [[nodiscard]] absl::Status Pack(const Problem& problem, const CanonicalAddresses& from,
                                  const PackedAddresses& to);
  // reference: fp32 [m][columns of Y].
  [[nodiscard]] absl::Status ReferenceGemm(const Problem& problem, const CanonicalAddresses& weights,
                                           const EpilogueAddresses& epilogue, uint64_t x, int64_t m,
                                           int64_t ldx, uint64_t reference);

  // Fills both result areas anew: the comparison's and the byte checks'.
  [[nodiscard]] absl::Status ClearResults();
  [[nodiscard]] absl::Status Compare(uint64_t y, uint64_t reference, int64_t m, int64_t columns, int64_t ldy,
                                     ScalarType type);
  // Byte checks are numbered from 0 to kMaxByteChecks - 1.
  [[nodiscard]] absl::Status CheckBytes(int check, uint64_t address, int64_t bytes, uint8_t value);
  [[nodiscard]] absl::Status CheckSame(int check, uint64_t a, uint64_t b, int64_t bytes);

  struct Results {
    Comparison comparison;
    std::vector<ByteCheck> checks;  // kMaxByteChecks of them
  };
  // Waits for the stream.
  [[nodiscard]] absl::StatusOr<Results> ReadResults();

  // Has the device's events marked by a kernel, unless the GPU's clock is coarser than kCoarsestStepNs: what
  // a kernel between two events of the driver seems to take depends on more than the kernel, by some tenths
  // of a microsecond that differ from kernel to kernel and from process to process (README.md). The library
  // must then outlive the device's last event, or another one's call of this.
  [[nodiscard]] absl::Status MarkEvents();
  static constexpr uint64_t kCoarsestStepNs = 128;

  // Reads twice the L2's size, so that nothing of a kernel's operands is left in it.
  [[nodiscard]] absl::Status Flush();
  // About ten microseconds of arithmetic on every SM.
  [[nodiscard]] absl::Status Probe();

  static constexpr int kMaxByteChecks = 8;
  // Every byte of a poisoned buffer: a NaN in every scalar type.
  static constexpr uint8_t kPoison = 0xff;

 private:
  explicit SupportLibrary(Device* device) : device_(device) {}
  absl::Status LoadKernels(absl::string_view cubin);
  template <typename... Args>
  absl::Status Run(const char* entry, Dim3 grid, int threads, Args... args);
  // A grid that fills the device once, for `items` items.
  Dim3 GridFor(int64_t items) const;

  Device* const device_;
  std::unique_ptr<DeviceModule> module_;
  std::map<std::string, std::unique_ptr<DeviceKernel>> kernels_;
  std::unique_ptr<DeviceMemory> flush_;
  std::unique_ptr<DeviceMemory> results_;
  std::vector<int64_t> check_bytes_ =
      std::vector<int64_t>(kMaxByteChecks, 0);  // size of each byte check's region
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_SUPPORT_LIBRARY_H_
