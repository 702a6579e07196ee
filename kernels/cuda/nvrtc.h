#ifndef QGEMM_KERNELS_CUDA_NVRTC_H_
#define QGEMM_KERNELS_CUDA_NVRTC_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernel_source.h"

namespace qgemm {

// What ptxas reports about one kernel, per thread.
struct KernelResources {
  int registers = 0;
  int static_smem_bytes = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int stack_bytes = 0;

  friend bool operator==(const KernelResources&, const KernelResources&) = default;
};

// The part of ptxas's verbose log that is about `entry`. NotFound when the log does not mention it.
[[nodiscard]] absl::StatusOr<KernelResources> ParseResources(absl::string_view log, absl::string_view entry);

// Whether ptxas says that it waits behind every wgmma, since something touches what one writes (C7510 to
// C7519).
[[nodiscard]] bool SerialisesWgmma(absl::string_view log);

struct NvrtcOutput {
  std::string cubin;
  std::string ptx;  // empty unless asked for
  KernelResources resources;
  std::string log;
};

// For a process that does little else than compile, before its first compile: what a compile frees stays with
// the process, for the next one.
void KeepCompilersMemory();

// NVIDIA's run-time compiler, opened with dlopen. Needs no GPU and no driver. All functions are thread-safe.
class Nvrtc {
 public:
  // Opens the library once per process. QGEMM_NVRTC_PATH, when set, names the library or its folder; else it
  // is libnvrtc.so.13 or .12 on the loader's path, in $CUDA_HOME (lib64, lib), beside the program (../lib),
  // in /usr/local/cuda/lib64, or of NVIDIA's pip packages in $VIRTUAL_ENV, ~/.local and /usr/local/lib.
  // NotFound says what was tried. Never unloaded.
  [[nodiscard]] static absl::StatusOr<const Nvrtc*> Load();

  // "nvrtc 13.0".
  const std::string& toolchain() const { return toolchain_; }
  // Every arch it compiles for, ascending: "sm_75", "sm_80", ..., with "sm_90a" and "sm_100a" beside their
  // base.
  const std::vector<std::string>& archs() const { return archs_; }

  // One call yields cubin, PTX and resources. InvalidArgument: the source does not compile, the message is
  // the first error line (`log`, if not null, gets all of it even then); Internal: the compiler failed.
  [[nodiscard]] absl::StatusOr<NvrtcOutput> Compile(const KernelSource& source, absl::string_view arch,
                                                    bool want_ptx, std::string* log = nullptr) const;

 private:
  struct Api;
  explicit Nvrtc(const Api* api) : api_(api) {}
  [[nodiscard]] static absl::StatusOr<const Nvrtc*> LoadOnce();

  // Constant after Load.
  const Api* api_;
  std::string toolchain_;
  bool has_disk_cache_ = false;  // from CUDA 13 on
  std::vector<std::string> archs_;
};

}  // namespace qgemm

#endif  // QGEMM_KERNELS_CUDA_NVRTC_H_
