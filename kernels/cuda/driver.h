#ifndef QGEMM_KERNELS_CUDA_DRIVER_H_
#define QGEMM_KERNELS_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/launch_spec.h"

// The driver's opaque types, so that cuda.h stays inside this folder.
struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;

namespace qgemm {

// The CUDA driver API, opened with dlopen, as move-only handles and absl::Status.
//
// Errors carry the driver's name and sentence for the code: ResourceExhausted = out of memory; Unavailable =
// no driver or no device; Aborted = a sticky error, after which the context is useless and the process should
// end; FailedPrecondition = the image or the launch was refused; Internal = anything else.
//
// A Context is made current on the thread that opened it; everything here is used from that thread alone, but
// for programs that share a thread with other users of CUDA: those retain a context and make it current where
// they need it (CurrentContext).

// What a device is and can do.
struct DeviceProperties {
  int ordinal = 0;
  std::string product_name;
  std::string uuid;  // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
  int compute_major = 0;
  int compute_minor = 0;
  int sm_count = 0;
  int64_t l2_bytes = 0;
  int64_t memory_total_bytes = 0;
  int max_dynamic_smem_bytes = 0;  // per block, after opting in
  int memory_gib() const;          // total memory, rounded to the nearest GiB
};

// "sm_90a" for compute capability 9.0: what kernels for a device are compiled for.
std::string ArchFor(int compute_major, int compute_minor);

// Whether `status` says that the context is lost and the process should be replaced.
bool IsSticky(const absl::Status& status);

// The driver's functions; loaded once per process.
class Driver {
 public:
  // Unavailable when there is no driver, or it finds no device it can use.
  [[nodiscard]] static absl::StatusOr<const Driver*> Load();

  int device_count() const { return device_count_; }
  // The CUDA version the driver supports: "13.0".
  const std::string& cuda_version() const { return cuda_version_; }
  [[nodiscard]] absl::StatusOr<DeviceProperties> Properties(int ordinal) const;

  struct Api;
  const Api& api() const { return *api_; }

 private:
  explicit Driver(const Api* api) : api_(api) {}
  [[nodiscard]] static absl::StatusOr<const Driver*> LoadOnce();

  // Constant after Load.
  const Api* api_;
  int device_count_ = 0;
  std::string cuda_version_;
};

namespace internal {
// Frees a driver object of one kind; knows nothing else, so that handles stay one pointer wide.
struct Release {
  void operator()(CUmod_st* module) const;
  void operator()(CUstream_st* stream) const;
  void operator()(CUevent_st* event) const;
  void operator()(CUgraph_st* graph) const;
  void operator()(CUgraphExec_st* exec) const;
};
}  // namespace internal

// The primary context of a device, current on the opening thread. Outlives every handle made under it.
class Context {
 public:
  [[nodiscard]] static absl::StatusOr<Context> Open(const Driver& driver, int ordinal);
  // The same, current on no thread.
  [[nodiscard]] static absl::StatusOr<Context> Retain(const Driver& driver, int ordinal);
  Context(Context&& other) noexcept;
  Context& operator=(Context&&) = delete;
  ~Context();

  struct Memory {
    int64_t free_bytes = 0;
    int64_t total_bytes = 0;
  };
  [[nodiscard]] absl::StatusOr<Memory> MemoryInfo() const;
  [[nodiscard]] absl::Status Synchronize() const;
  const DeviceProperties& properties() const { return properties_; }
  CUctx_st* get() const { return context_; }

 private:
  Context(const Driver* driver, int device, CUctx_st* context, DeviceProperties properties)
      : driver_(driver), device_(device), context_(context), properties_(std::move(properties)) {}
  const Driver* driver_;
  int device_;
  CUctx_st* context_;
  DeviceProperties properties_;
};

// Makes a context current on this thread, and again what was when it goes. Costs one look where the context
// is current already.
class CurrentContext {
 public:
  explicit CurrentContext(const Context& context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  CUctx_st* previous_ = nullptr;
  bool changed_ = false;
};

// Device memory. Empty when default-constructed or moved from.
class DeviceBuffer {
 public:
  [[nodiscard]] static absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes);  // 0 bytes: an empty buffer
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  uint64_t address() const { return address_; }
  int64_t bytes() const { return bytes_; }

 private:
  DeviceBuffer(uint64_t address, int64_t bytes) : address_(address), bytes_(bytes) {}
  uint64_t address_ = 0;
  int64_t bytes_ = 0;
};

// Blocking copies between host memory and a device address. They do not wait for streams of this file, which
// are independent of the default stream: synchronise first.
[[nodiscard]] absl::Status CopyToDevice(uint64_t address, absl::Span<const std::byte> source);
[[nodiscard]] absl::Status CopyToHost(uint64_t address, absl::Span<std::byte> target);

// A kernel of a loaded module; valid while the module is.
class Kernel {
 public:
  Kernel() = default;
  // Allows launches with up to `bytes` of dynamic shared memory; never lowers what was allowed before, so
  // that launches of one kernel with different sizes may stand side by side. FailedPrecondition when the
  // device has less.
  [[nodiscard]] absl::Status AllowDynamicSmem(int bytes) const;
  CUfunc_st* get() const { return function_; }

 private:
  friend class Module;
  explicit Kernel(CUfunc_st* function) : function_(function) {}
  CUfunc_st* function_ = nullptr;
};

class Module {
 public:
  // Loads a cubin. FailedPrecondition when it is not for this device.
  [[nodiscard]] static absl::StatusOr<Module> Load(absl::string_view image);
  // NotFound names the entry.
  [[nodiscard]] absl::StatusOr<Kernel> Find(const std::string& entry) const;

 private:
  explicit Module(CUmod_st* module) : module_(module) {}
  std::unique_ptr<CUmod_st, internal::Release> module_;
};

// Records a point in a stream's work; timing is on.
class Event {
 public:
  [[nodiscard]] static absl::StatusOr<Event> Create();
  [[nodiscard]] absl::Status Synchronize() const;
  CUevent_st* get() const { return event_.get(); }

 private:
  explicit Event(CUevent_st* event) : event_(event) {}
  std::unique_ptr<CUevent_st, internal::Release> event_;
};
// Device time between two recorded events that have completed, microseconds.
[[nodiscard]] absl::StatusOr<double> ElapsedMicroseconds(const Event& begin, const Event& end);

class Stream;
// An instantiated graph.
class GraphExec {
 public:
  [[nodiscard]] absl::Status Launch(const Stream& stream) const;

 private:
  friend class Stream;
  explicit GraphExec(CUgraphExec_st* exec) : exec_(exec) {}
  std::unique_ptr<CUgraphExec_st, internal::Release> exec_;
};

// A 2-D row-major tensor on the device, read in boxes; elements beyond its edges read as 0.
struct TensorMapShape {
  uint64_t address = 0;
  TensorElement element = TensorElement::kBf16;
  int64_t columns = 0;
  int64_t rows = 0;
  int64_t row_pitch_bytes = 0;
  int box_columns = 0;
  int box_rows = 0;
  int swizzle_bytes = 0;  // 0 or 128
};
// Writes the CUtensorMap (128 bytes) to `out` (CUDA driver API, cuTensorMapEncodeTiled).
[[nodiscard]] absl::Status EncodeTensorMap(const TensorMapShape& shape, absl::Span<std::byte> out);

// Launches on a stream of anybody's in the current context; null: the default stream. `params` and cluster_z
// as in Stream::Launch. `programmatic`: the kernel may start while the one before it on the stream ends
// (programmatic dependent launch); only for kernels that wait for it themselves.
[[nodiscard]] absl::Status LaunchOnStream(CUfunc_st* function, Dim3 grid, int block_threads,
                                          int dynamic_smem_bytes, void** params, CUstream_st* stream,
                                          int cluster_z, bool programmatic);

// While it is there this thread may allocate and load although a stream, its own or another thread's, is
// being captured; none of that becomes part of the graph.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void Exchange();
  int mode_;  // a CUstreamCaptureMode
};

// The graph that a stream is being captured in. FailedPrecondition: it is not.
[[nodiscard]] absl::StatusOr<CUgraph_st*> GraphOfCapture(CUstream_st* stream);

// Runs function(argument) once, when the graph and everything made of it are gone, on a thread of the
// driver's; where this fails, at once. It must not call CUDA.
[[nodiscard]] absl::Status OnGraphDestroyed(CUgraph_st* graph, void (*function)(void*), void* argument);

class Stream {
 public:
  [[nodiscard]] static absl::StatusOr<Stream> Create();
  [[nodiscard]] absl::Status Synchronize() const;
  // `params` point at the arguments' values, one per parameter, as cuLaunchKernel takes them. cluster_z above
  // 1: clusters of (1, 1, cluster_z) CTAs.
  [[nodiscard]] absl::Status Launch(const Kernel& kernel, Dim3 grid, int block_threads,
                                    int dynamic_smem_bytes, absl::Span<void* const> params,
                                    int cluster_z = 1) const;
  [[nodiscard]] absl::Status SetBytes(uint64_t address, uint8_t value, int64_t bytes) const;
  // dst and src: device addresses that do not overlap.
  [[nodiscard]] absl::Status CopyOnDevice(uint64_t dst, uint64_t src, int64_t bytes) const;
  // Outside a capture: records now. Inside: adds a record node, so that each launch of the graph records the
  // event, which may be read afterwards like any other.
  [[nodiscard]] absl::Status Record(const Event& event) const;

  // Everything put on the stream from here goes into a graph instead of being run.
  [[nodiscard]] absl::Status BeginCapture();
  [[nodiscard]] absl::StatusOr<GraphExec> EndCapture();
  // Ends a capture that went wrong; harmless otherwise.
  void AbandonCapture();

  CUstream_st* get() const { return stream_.get(); }

 private:
  explicit Stream(CUstream_st* stream) : stream_(stream) {}
  std::unique_ptr<CUstream_st, internal::Release> stream_;
  bool capturing_ = false;
};

}  // namespace qgemm

#endif  // QGEMM_KERNELS_CUDA_DRIVER_H_
