#include "tests/emulator/emulated_kernel.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/emulator/device_translator.h"

namespace qgemm {

absl::StatusOr<std::unique_ptr<EmulatedKernel>> EmulatedKernel::Compile(const KernelSource& source,
                                                                        int arch) {
  std::string folder = (std::filesystem::temp_directory_path() / "qgemm-emulator-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("no folder could be made as ", folder));
  }
  const std::string base = folder + "/kernel";
  std::ofstream(base + ".cc") << "#include \"" QGEMM_EMULATOR_PRELUDE "\"\n"
                              << TranslateDeviceSource(source.text, source.entry);
  // Kernels have functions and statics of the same names: none are shared (-fno-gnu-unique).
  // GCC hands every load and store to a __tsan_ function: the machine's (machine.cc). The sanitizer itself is
  // not linked.
  const std::string command = absl::StrCat(QGEMM_EMULATOR_COMPILER
                                           " -std=c++17 -O1 -w -fPIC -fno-exceptions -fno-rtti "
                                           "-fno-threadsafe-statics -fno-strict-aliasing -fno-gnu-unique "
                                           "-ffp-contract=off -fsanitize=thread -D__CUDA_ARCH__=",
                                           arch, " -c -o ", base, ".o ", base, ".cc >", base,
                                           ".log 2>&1 && " QGEMM_EMULATOR_COMPILER " -shared -o ", base,
                                           ".so ", base, ".o >>", base, ".log 2>&1");
  const int failed = std::system(command.c_str());
  std::ostringstream log;
  log << std::ifstream(base + ".log").rdbuf();
  std::unique_ptr<EmulatedKernel> kernel(new EmulatedKernel);
  if (failed == 0) kernel->library_ = dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* error = kernel->library_ == nullptr && failed == 0 ? dlerror() : "";
  if (getenv("QGEMM_EMULATOR_KEEP") == nullptr) std::filesystem::remove_all(folder);
  if (kernel->library_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.name, " did not compile for the emulator: ", log.str(), error));
  }
  kernel->run_ = reinterpret_cast<void (*)(const unsigned char*)>(dlsym(kernel->library_, "simt_run"));
  kernel->static_count_ = *static_cast<const int*>(dlsym(kernel->library_, "simt_static_count"));
  kernel->arch_ = arch;
  return kernel;
}

EmulatedKernel::~EmulatedKernel() {
  if (library_ != nullptr) dlclose(library_);
}

absl::StatusOr<MachineReport> EmulatedKernel::Launch(const LaunchSpec& spec, const LaunchOperands& operands,
                                                     const GlobalMemory& memory, uint64_t seed) const {
  QGEMM_ASSIGN_OR_RETURN(ArgumentBlock block, MarshalArguments(spec, operands));
  QGEMM_RETURN_IF_ERROR(FillTensorMaps(block, [](const TensorMapShape& shape, absl::Span<std::byte> out) {
    static_assert(sizeof(shape) <= 128);
    std::memcpy(out.data(), &shape, sizeof(shape));  // as Machine::IssueTensorCopy reads it
    return absl::OkStatus();
  }));
  MachineLaunch launch = Prepare(spec.Grid(operands.m), spec.block_threads, seed);
  launch.cluster_z = spec.cluster_z;
  launch.dynamic_bytes = spec.dynamic_smem_bytes;
  launch.dependent = arch_ >= 900;
  // Slices of a tile: too many CTAs to wait for each other; all of them lose their patience; all of them
  // meet.
  constexpr int kMostFibers = 2048;
  launch.sm_count = seed % 3 == 0 ? 0 : 1 << 16;
  launch.slices_side_by_side =
      seed % 3 == 2 && spec.cluster_z == 1 && spec.split_k * spec.block_threads <= kMostFibers;
  return Run(launch, block.bytes, memory);
}

MachineReport EmulatedKernel::Launch(Dim3 grid, int threads, absl::Span<const std::byte> parameters,
                                     const GlobalMemory& memory, uint64_t seed,
                                     uint32_t static_slot_bytes) const {
  MachineLaunch launch = Prepare(grid, threads, seed);
  launch.static_slot_bytes = static_slot_bytes;
  return Run(launch, parameters, memory);
}

MachineLaunch EmulatedKernel::Prepare(Dim3 grid, int threads, uint64_t seed) const {
  MachineLaunch launch;
  launch.grid = grid;
  launch.threads = threads;
  launch.static_count = static_count_;
  launch.run = run_;
  launch.seed = seed;
  return launch;
}

MachineReport EmulatedKernel::Run(MachineLaunch& launch, absl::Span<const std::byte> parameters,
                                  const GlobalMemory& memory) {
  // Parameters are aligned to at most 64 bytes.
  struct alignas(64) Aligned {
    unsigned char bytes[64];
  };
  std::vector<Aligned> aligned((parameters.size() + 63) / 64);
  std::memcpy(aligned.data(), parameters.data(), parameters.size());
  launch.parameters = aligned.data()->bytes;
  launch.memory = &memory;
  return Machine(launch).Run();
}

}  // namespace qgemm
