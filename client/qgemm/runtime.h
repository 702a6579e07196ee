#ifndef QGEMM_CLIENT_QGEMM_RUNTIME_H_
#define QGEMM_CLIENT_QGEMM_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

// Runs the layers of a bundle (client/bundle) on a GPU: no daemon, no compiler, nothing is tuned.

// Scratch memory of launches that run one after the other: a stream's, or a captured graph's. Launches that
// may run at the same time need one each. The first `ticket_bytes` must be zero before the first launch;
// every launch leaves them zero.
struct WorkspaceMemory {
  uint64_t address = 0;  // device address, 256-byte aligned; 0: none
  int64_t bytes = 0;
  int64_t ticket_bytes = 0;
};

// The data of one launch. Pointers are device addresses, those of tensors 16-byte aligned; X, Y and residual
// are rows of M, ld* elements apart.
struct LayerLaunch {
  int64_t m = 0;  // 0: nothing is launched
  uint64_t x = 0;
  int64_t ldx = 0;  // a multiple of 8, at least k
  uint64_t y = 0;
  int64_t ldy = 0;  // at least y_columns
  uint64_t residual = 0;
  int64_t ldr = 0;
  // The packed planes, where they are not the bundle's own (UploadWeights): all that the format has, or none.
  uint64_t weights = 0;
  uint64_t scales = 0;
  uint64_t zeros = 0;
  uint64_t steps = 0;
  uint64_t bias = 0;  // alone: instead of the bundle's
  WorkspaceMemory workspace;
  void* stream = nullptr;  // CUstream (cudaStream_t); null: the default stream
  // Programmatic dependent launch: lets the kernel start while the one before it ends. FailedPrecondition
  // where the kernel does not wait for it by itself.
  bool programmatic = false;
};

struct LayerInfo {
  std::string name;
  int64_t n = 0;
  int64_t k = 0;
  int64_t y_columns = 0;
  int64_t static_m = 0;  // 0: any M
  std::string problem;   // "5376x4096 int4-g128-bf16 act bf16 out bf16"
  bool has_weights = false;
};

// Texts are valid while the runtime is.
struct SelectedKernel {
  int m_bucket = 0;  // that it was tuned for
  absl::string_view kernel_sha256;
  absl::string_view config;
  bool is_similar = false;  // M's bucket was not tuned for this layer: the most similar pick of the method
};

// One method of a bundle on one device; another device, another Runtime. Launch and Select may be called from
// several threads at once; they neither wait for the GPU nor allocate, so that they can be captured in a
// graph.
class Runtime {
 public:
  // NotFound: no such bundle or method; DataLoss: it is damaged, or a kernel writes what its launch does not
  // say; FailedPrecondition: another version, or a kernel that is not for this device; Unavailable: no
  // driver, or it has no device; InvalidArgument: no device of this ordinal.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Runtime>> Load(const std::string& bundle_path,
                                                                     absl::string_view method,
                                                                     int device_ordinal);
  virtual ~Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Copies the bundle's packed weights of this method to the device, each once. FailedPrecondition: it has
  // none; ResourceExhausted: they do not fit.
  [[nodiscard]] virtual absl::Status UploadWeights() = 0;

  virtual int layer_count() const = 0;
  virtual const LayerInfo& layer(int index) const = 0;
  // The index of a layer; -1: there is none of that name.
  virtual int FindLayer(absl::string_view name) const = 0;

  // The kernel that a launch with m rows uses: the layer's pick for the bucket of m; where it was not tuned
  // for that bucket the nearest of the method's picks that is legal for this layer and M
  // (kernels/similarity.h). Nothing is measured. InvalidArgument: none serves it.
  [[nodiscard]] virtual absl::StatusOr<SelectedKernel> Select(int layer, int64_t m) const = 0;

  // The workspace that serves every layer with up to max_m rows; its address is 0.
  virtual WorkspaceMemory WorkspaceFor(int64_t max_m) const = 0;
  // The same, allocated and zeroed; freed with the runtime, or by FreeWorkspace.
  [[nodiscard]] virtual absl::StatusOr<WorkspaceMemory> AllocateWorkspace(int64_t max_m) = 0;
  virtual void FreeWorkspace(const WorkspaceMemory& workspace) = 0;
  // The same for launches that are captured on `stream` (CUstream, being captured now): it belongs to the
  // graph and is freed when that and all that was made of it are gone, at the latest with the runtime; so
  // graphs that are captured on one stream, each with its own, may be replayed at once. FailedPrecondition:
  // the stream is not being captured.
  [[nodiscard]] virtual absl::StatusOr<WorkspaceMemory> AllocateWorkspaceForGraph(int64_t max_m,
                                                                                  void* stream) = 0;

  // InvalidArgument names the layer, the argument and what is wrong: not aligned, missing, a bias or residual
  // that the layer does not add, an M that no kernel serves, rows that lie in each other, a workspace that is
  // too small, a Y that lies over X or the residual (in its own place a residual may be).
  [[nodiscard]] virtual absl::Status Launch(int layer, const LayerLaunch& launch) = 0;

  // For programs without CUDA code of their own: zeroed device memory, freed with the runtime, and copies
  // that wait for the default stream.
  [[nodiscard]] virtual absl::StatusOr<uint64_t> AllocateMemory(int64_t bytes) = 0;
  [[nodiscard]] virtual absl::Status CopyIn(uint64_t address, const void* bytes, int64_t count) = 0;
  [[nodiscard]] virtual absl::Status CopyOut(void* bytes, uint64_t address, int64_t count) = 0;

 protected:
  Runtime() = default;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMM_RUNTIME_H_
