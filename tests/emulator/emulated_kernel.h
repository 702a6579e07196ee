#ifndef QGEMM_TESTS_EMULATOR_EMULATED_KERNEL_H_
#define QGEMM_TESTS_EMULATOR_EMULATED_KERNEL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/launch.h"
#include "kernels/kernel_source.h"
#include "tests/emulator/machine.h"

namespace qgemm {

// A kernel's own source, compiled by the host's compiler to run on the Machine.
class EmulatedKernel {
 public:
  // `arch`: what __CUDA_ARCH__ says, 800 or 900. The error has what the compiler said.
  static absl::StatusOr<std::unique_ptr<EmulatedKernel>> Compile(const KernelSource& source, int arch);
  ~EmulatedKernel();
  EmulatedKernel(const EmulatedKernel&) = delete;
  EmulatedKernel& operator=(const EmulatedKernel&) = delete;

  // One launch with parameters as cuLaunchKernel finds them. Static shared variables may be of any size up to
  // `static_slot_bytes`.
  MachineReport Launch(Dim3 grid, int threads, absl::Span<const std::byte> parameters,
                       const GlobalMemory& memory, uint64_t seed, uint32_t static_slot_bytes) const;

  // One launch by `spec` on operands in `memory`.
  absl::StatusOr<MachineReport> Launch(const LaunchSpec& spec, const LaunchOperands& operands,
                                       const GlobalMemory& memory, uint64_t seed) const;

 private:
  EmulatedKernel() = default;

  MachineLaunch Prepare(Dim3 grid, int threads, uint64_t seed) const;
  static MachineReport Run(MachineLaunch& launch, absl::Span<const std::byte> parameters,
                           const GlobalMemory& memory);

  void* library_ = nullptr;
  void (*run_)(const unsigned char*) = nullptr;
  int static_count_ = 0;
  int arch_ = 0;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_EMULATOR_EMULATED_KERNEL_H_
