#include "kernels/cuda/driver.h"

#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/dynamic_library.h"

namespace qgemm {

// One line per function used. Names are the driver's exported symbols: cuda.h maps the plain names to
// versioned ones by macros, and which version it picks changes between toolkits. These versions exist in
// every driver that can load a CUDA 12 or 13 cubin.
#define QGEMM_DRIVER_FUNCTIONS(X)                                                                          \
  X(GetErrorName, "cuGetErrorName", CUresult(CUresult, const char**))                                      \
  X(GetErrorString, "cuGetErrorString", CUresult(CUresult, const char**))                                  \
  X(Init, "cuInit", CUresult(unsigned))                                                                    \
  X(DriverGetVersion, "cuDriverGetVersion", CUresult(int*))                                                \
  X(DeviceGetCount, "cuDeviceGetCount", CUresult(int*))                                                    \
  X(DeviceGet, "cuDeviceGet", CUresult(CUdevice*, int))                                                    \
  X(DeviceGetName, "cuDeviceGetName", CUresult(char*, int, CUdevice))                                      \
  X(DeviceGetUuid, "cuDeviceGetUuid", CUresult(CUuuid*, CUdevice))                                         \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", CUresult(int*, CUdevice_attribute, CUdevice))              \
  X(DeviceTotalMem, "cuDeviceTotalMem_v2", CUresult(size_t*, CUdevice))                                    \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", CUresult(CUcontext*, CUdevice))                    \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", CUresult(CUdevice))                           \
  X(CtxSetCurrent, "cuCtxSetCurrent", CUresult(CUcontext))                                                 \
  X(CtxGetCurrent, "cuCtxGetCurrent", CUresult(CUcontext*))                                                \
  X(CtxSynchronize, "cuCtxSynchronize", CUresult())                                                        \
  X(MemGetInfo, "cuMemGetInfo_v2", CUresult(size_t*, size_t*))                                             \
  X(MemAlloc, "cuMemAlloc_v2", CUresult(CUdeviceptr*, size_t))                                             \
  X(MemFree, "cuMemFree_v2", CUresult(CUdeviceptr))                                                        \
  X(MemcpyHtoD, "cuMemcpyHtoD_v2", CUresult(CUdeviceptr, const void*, size_t))                             \
  X(MemcpyDtoH, "cuMemcpyDtoH_v2", CUresult(void*, CUdeviceptr, size_t))                                   \
  X(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", CUresult(CUdeviceptr, CUdeviceptr, size_t, CUstream))         \
  X(MemsetD8Async, "cuMemsetD8Async", CUresult(CUdeviceptr, unsigned char, size_t, CUstream))              \
  X(ModuleLoadData, "cuModuleLoadData", CUresult(CUmodule*, const void*))                                  \
  X(ModuleUnload, "cuModuleUnload", CUresult(CUmodule))                                                    \
  X(ModuleGetFunction, "cuModuleGetFunction", CUresult(CUfunction*, CUmodule, const char*))                \
  X(FuncSetAttribute, "cuFuncSetAttribute", CUresult(CUfunction, CUfunction_attribute, int))               \
  X(FuncGetAttribute, "cuFuncGetAttribute", CUresult(int*, CUfunction_attribute, CUfunction))              \
  X(LaunchKernel, "cuLaunchKernel",                                                                        \
    CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,   \
             void**, void**))                                                                              \
  X(LaunchKernelEx, "cuLaunchKernelEx", CUresult(const CUlaunchConfig*, CUfunction, void**, void**))       \
  X(TensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                                        \
    CUresult(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,   \
             const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,              \
             CUtensorMapL2promotion, CUtensorMapFloatOOBfill))                                             \
  X(StreamCreate, "cuStreamCreate", CUresult(CUstream*, unsigned))                                         \
  X(StreamDestroy, "cuStreamDestroy_v2", CUresult(CUstream))                                               \
  X(StreamSynchronize, "cuStreamSynchronize", CUresult(CUstream))                                          \
  X(StreamBeginCapture, "cuStreamBeginCapture_v2", CUresult(CUstream, CUstreamCaptureMode))                \
  X(StreamEndCapture, "cuStreamEndCapture", CUresult(CUstream, CUgraph*))                                  \
  X(StreamGetCaptureInfo, "cuStreamGetCaptureInfo_v2",                                                     \
    CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**, size_t*))       \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", CUresult(CUstreamCaptureMode*))  \
  X(UserObjectCreate, "cuUserObjectCreate", CUresult(CUuserObject*, void*, CUhostFn, unsigned, unsigned))  \
  X(UserObjectRelease, "cuUserObjectRelease", CUresult(CUuserObject, unsigned))                            \
  X(GraphRetainUserObject, "cuGraphRetainUserObject", CUresult(CUgraph, CUuserObject, unsigned, unsigned)) \
  X(EventCreate, "cuEventCreate", CUresult(CUevent*, unsigned))                                            \
  X(EventDestroy, "cuEventDestroy_v2", CUresult(CUevent))                                                  \
  X(EventRecordWithFlags, "cuEventRecordWithFlags", CUresult(CUevent, CUstream, unsigned))                 \
  X(EventSynchronize, "cuEventSynchronize", CUresult(CUevent))                                             \
  X(EventElapsedTime, "cuEventElapsedTime", CUresult(float*, CUevent, CUevent))                            \
  X(GraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",                                              \
    CUresult(CUgraphExec*, CUgraph, unsigned long long))                                                   \
  X(GraphDestroy, "cuGraphDestroy", CUresult(CUgraph))                                                     \
  X(GraphExecDestroy, "cuGraphExecDestroy", CUresult(CUgraphExec))                                         \
  X(GraphLaunch, "cuGraphLaunch", CUresult(CUgraphExec, CUstream))

struct Driver::Api {
#define QGEMM_MEMBER(name, symbol, ...) \
  using name##Function = __VA_ARGS__;   \
  name##Function* name;
  QGEMM_DRIVER_FUNCTIONS(QGEMM_MEMBER)
#undef QGEMM_MEMBER
};

namespace {

// Set by Driver::Load; handles exist only after it succeeded.
const Driver::Api* g_api = nullptr;

absl::Status ToStatus(const Driver::Api& api, CUresult result, absl::string_view call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* sentence = nullptr;
  api.GetErrorName(result, &name);
  api.GetErrorString(result, &sentence);
  const std::string message =
      absl::StrCat(call, ": ", name != nullptr ? name : absl::StrCat("error ", static_cast<int>(result)),
                   " (", sentence != nullptr ? sentence : "unknown error", ")");
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::ResourceExhaustedError(message);
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_NOT_INITIALIZED:
      return absl::UnavailableError(message);
    case CUDA_ERROR_NOT_FOUND:
      return absl::NotFoundError(message);
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_NOT_SUPPORTED:
      return absl::FailedPreconditionError(message);
    // After these the context answers every call with the same error.
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
      return absl::AbortedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

#define QGEMM_CU(api, function, ...) ToStatus((api), (api).function(__VA_ARGS__), "cu" #function)

int DeviceProperties::memory_gib() const { return static_cast<int>((memory_total_bytes + (1 << 29)) >> 30); }

std::string ArchFor(int compute_major, int compute_minor) {
  // Hopper and datacenter Blackwell have arch-specific instructions that only the "a" target offers.
  const bool specific = (compute_major == 9 || compute_major == 10) && compute_minor == 0;
  return absl::StrCat("sm_", compute_major, compute_minor, specific ? "a" : "");
}

bool IsSticky(const absl::Status& status) { return absl::IsAborted(status); }

absl::StatusOr<const Driver*> Driver::Load() {
  static const auto* const loaded = new absl::StatusOr<const Driver*>(LoadOnce());
  return *loaded;
}

absl::StatusOr<const Driver*> Driver::LoadOnce() {
  const absl::StatusOr<DynamicLibrary> library = DynamicLibrary::Open("the CUDA driver", {"libcuda.so.1"});
  if (!library.ok()) return absl::UnavailableError(library.status().message());
  auto* const api = new Api;
#define QGEMM_RESOLVE(name, symbol, ...) QGEMM_RETURN_IF_ERROR(library->Resolve(symbol, &api->name));
  QGEMM_DRIVER_FUNCTIONS(QGEMM_RESOLVE)
#undef QGEMM_RESOLVE
  auto* const driver = new Driver(api);
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*api, Init, 0));
  int version = 0;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*api, DriverGetVersion, &version));
  driver->cuda_version_ = absl::StrCat(version / 1000, ".", version % 1000 / 10);
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*api, DeviceGetCount, &driver->device_count_));
  if (driver->device_count_ == 0) return absl::UnavailableError("the CUDA driver finds no device");
  g_api = api;
  return driver;
}

absl::StatusOr<DeviceProperties> Driver::Properties(int ordinal) const {
  if (ordinal < 0 || ordinal >= device_count_) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ordinal ", ordinal, " is outside 0 .. ", device_count_ - 1));
  }
  CUdevice device = 0;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*api_, DeviceGet, &device, ordinal));
  DeviceProperties properties;
  properties.ordinal = ordinal;
  char name[256] = {};
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*api_, DeviceGetName, name, sizeof(name), device));
  properties.product_name = name;
  CUuuid uuid = {};
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*api_, DeviceGetUuid, &uuid, device));
  properties.uuid = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) properties.uuid += '-';
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    properties.uuid += digits;
  }
  size_t memory = 0;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*api_, DeviceTotalMem, &memory, device));
  properties.memory_total_bytes = static_cast<int64_t>(memory);
  int l2 = 0;
  const std::pair<CUdevice_attribute, int*> attributes[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &properties.compute_major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &properties.compute_minor},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &properties.sm_count},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &properties.max_dynamic_smem_bytes},
  };
  for (const auto& [attribute, value] : attributes) {
    QGEMM_RETURN_IF_ERROR(QGEMM_CU(*api_, DeviceGetAttribute, value, attribute, device));
  }
  properties.l2_bytes = l2;
  return properties;
}

namespace internal {
// Releasing can fail only when the context is lost, and then everything goes with the process.
void Release::operator()(CUmod_st* module) const { static_cast<void>(g_api->ModuleUnload(module)); }
void Release::operator()(CUstream_st* stream) const { static_cast<void>(g_api->StreamDestroy(stream)); }
void Release::operator()(CUevent_st* event) const { static_cast<void>(g_api->EventDestroy(event)); }
void Release::operator()(CUgraph_st* graph) const { static_cast<void>(g_api->GraphDestroy(graph)); }
void Release::operator()(CUgraphExec_st* exec) const { static_cast<void>(g_api->GraphExecDestroy(exec)); }
}  // namespace internal

absl::StatusOr<Context> Context::Retain(const Driver& driver, int ordinal) {
  QGEMM_ASSIGN_OR_RETURN(DeviceProperties properties, driver.Properties(ordinal));
  CUdevice device = 0;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(driver.api(), DeviceGet, &device, ordinal));
  CUcontext context = nullptr;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(driver.api(), DevicePrimaryCtxRetain, &context, device));
  return Context(&driver, device, context, std::move(properties));
}

absl::StatusOr<Context> Context::Open(const Driver& driver, int ordinal) {
  QGEMM_ASSIGN_OR_RETURN(Context context, Retain(driver, ordinal));
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(driver.api(), CtxSetCurrent, context.context_));
  return context;
}

CurrentContext::CurrentContext(const Context& context) {
  static_cast<void>(g_api->CtxGetCurrent(&previous_));
  if (previous_ == context.get()) return;
  // A lost context shows at the next call, which is checked.
  static_cast<void>(g_api->CtxSetCurrent(context.get()));
  changed_ = true;
}

CurrentContext::~CurrentContext() {
  if (changed_) static_cast<void>(g_api->CtxSetCurrent(previous_));
}

Context::Context(Context&& other) noexcept
    : driver_(std::exchange(other.driver_, nullptr)),
      device_(other.device_),
      context_(other.context_),
      properties_(std::move(other.properties_)) {}

Context::~Context() {
  if (driver_ != nullptr) static_cast<void>(driver_->api().DevicePrimaryCtxRelease(device_));
}

absl::StatusOr<Context::Memory> Context::MemoryInfo() const {
  size_t free = 0, total = 0;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(driver_->api(), MemGetInfo, &free, &total));
  return Memory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

absl::Status Context::Synchronize() const { return QGEMM_CU(driver_->api(), CtxSynchronize); }

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(int64_t bytes) {
  if (bytes == 0) return DeviceBuffer();
  CUdeviceptr address = 0;
  const CUresult result = g_api->MemAlloc(&address, static_cast<size_t>(bytes));
  QGEMM_RETURN_IF_ERROR(ToStatus(*g_api, result, absl::StrCat("cuMemAlloc of ", bytes, " bytes")));
  return DeviceBuffer(address, bytes);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : address_(std::exchange(other.address_, 0)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ != 0) static_cast<void>(g_api->MemFree(address_));
}

absl::Status CopyToDevice(uint64_t address, absl::Span<const std::byte> source) {
  if (source.empty()) return absl::OkStatus();
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*g_api, MemcpyHtoD, address, source.data(), source.size()));
  // Of pageable memory it comes back once the bytes are staged (CUDA driver API, synchronization behaviour):
  // they go on in the default stream, which other streams do not wait for.
  return QGEMM_CU(*g_api, StreamSynchronize, nullptr);
}

absl::Status CopyToHost(uint64_t address, absl::Span<std::byte> target) {
  if (target.empty()) return absl::OkStatus();
  return QGEMM_CU(*g_api, MemcpyDtoH, target.data(), address, target.size());
}

absl::Status Kernel::AllowDynamicSmem(int bytes) const {
  int allowed = 0;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*g_api, FuncGetAttribute, &allowed,
                                 CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function_));
  if (bytes <= allowed) return absl::OkStatus();
  return QGEMM_CU(*g_api, FuncSetAttribute, function_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                  bytes);
}

absl::StatusOr<Module> Module::Load(absl::string_view image) {
  CUmodule module = nullptr;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*g_api, ModuleLoadData, &module, image.data()));
  return Module(module);
}

absl::StatusOr<Kernel> Module::Find(const std::string& entry) const {
  CUfunction function = nullptr;
  const CUresult result = g_api->ModuleGetFunction(&function, module_.get(), entry.c_str());
  QGEMM_RETURN_IF_ERROR(ToStatus(*g_api, result, absl::StrCat("entry '", entry, "'")));
  return Kernel(function);
}

absl::StatusOr<Event> Event::Create() {
  CUevent event = nullptr;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*g_api, EventCreate, &event, CU_EVENT_DEFAULT));
  return Event(event);
}

absl::Status Event::Synchronize() const { return QGEMM_CU(*g_api, EventSynchronize, event_.get()); }

absl::StatusOr<double> ElapsedMicroseconds(const Event& begin, const Event& end) {
  float milliseconds = 0;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*g_api, EventElapsedTime, &milliseconds, begin.get(), end.get()));
  return static_cast<double>(milliseconds) * 1e3;
}

absl::Status GraphExec::Launch(const Stream& stream) const {
  return QGEMM_CU(*g_api, GraphLaunch, exec_.get(), stream.get());
}

absl::StatusOr<Stream> Stream::Create() {
  CUstream stream = nullptr;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*g_api, StreamCreate, &stream, CU_STREAM_NON_BLOCKING));
  return Stream(stream);
}

absl::Status Stream::Synchronize() const { return QGEMM_CU(*g_api, StreamSynchronize, stream_.get()); }

absl::Status EncodeTensorMap(const TensorMapShape& shape, absl::Span<std::byte> out) {
  CUtensorMap map;  // aligned as the driver wants it
  static_assert(sizeof(map) == 128);
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(shape.columns), static_cast<cuuint64_t>(shape.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(shape.row_pitch_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(shape.box_columns),
                            static_cast<cuuint32_t>(shape.box_rows)};
  const cuuint32_t element_strides[] = {1, 1};
  const CUtensorMapDataType type = shape.element == TensorElement::kBf16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : shape.element == TensorElement::kFp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : shape.element == TensorElement::kU32  ? CU_TENSOR_MAP_DATA_TYPE_UINT32
                                                                           : CU_TENSOR_MAP_DATA_TYPE_UINT64;
  const CUtensorMapSwizzle swizzle =
      shape.swizzle_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
  QGEMM_RETURN_IF_ERROR(
      QGEMM_CU(*g_api, TensorMapEncodeTiled, &map, type, 2,
               reinterpret_cast<void*>(shape.address),  // NOLINT(performance-no-int-to-ptr): a device address
               dims, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  std::memcpy(out.data(), &map, sizeof(map));
  return absl::OkStatus();
}

absl::Status LaunchOnStream(CUfunc_st* function, Dim3 grid, int block_threads, int dynamic_smem_bytes,
                            void** params, CUstream_st* stream, int cluster_z, bool programmatic) {
  if (cluster_z > 1 || programmatic) {
    CUlaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (cluster_z > 1) {
      attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attributes[count++].value.clusterDim = {1, 1, static_cast<unsigned>(cluster_z)};
    }
    if (programmatic) {
      attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attributes[count++].value.programmaticStreamSerializationAllowed = 1;
    }
    CUlaunchConfig config = {};
    config.gridDimX = static_cast<unsigned>(grid.x);
    config.gridDimY = static_cast<unsigned>(grid.y);
    config.gridDimZ = static_cast<unsigned>(grid.z);
    config.blockDimX = static_cast<unsigned>(block_threads);
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = static_cast<unsigned>(dynamic_smem_bytes);
    config.hStream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return QGEMM_CU(*g_api, LaunchKernelEx, &config, function, params, nullptr);
  }
  return QGEMM_CU(*g_api, LaunchKernel, function, static_cast<unsigned>(grid.x),
                  static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z),
                  static_cast<unsigned>(block_threads), 1, 1, static_cast<unsigned>(dynamic_smem_bytes),
                  stream, params, nullptr);
}

absl::Status Stream::Launch(const Kernel& kernel, Dim3 grid, int block_threads, int dynamic_smem_bytes,
                            absl::Span<void* const> params, int cluster_z) const {
  return LaunchOnStream(kernel.get(), grid, block_threads, dynamic_smem_bytes,
                        const_cast<void**>(params.data()), stream_.get(), cluster_z, /*programmatic=*/false);
}

absl::Status Stream::SetBytes(uint64_t address, uint8_t value, int64_t bytes) const {
  if (bytes == 0) return absl::OkStatus();
  return QGEMM_CU(*g_api, MemsetD8Async, address, value, static_cast<size_t>(bytes), stream_.get());
}

absl::Status Stream::CopyOnDevice(uint64_t dst, uint64_t src, int64_t bytes) const {
  if (bytes == 0) return absl::OkStatus();
  return QGEMM_CU(*g_api, MemcpyDtoDAsync, dst, src, static_cast<size_t>(bytes), stream_.get());
}

absl::Status Stream::Record(const Event& event) const {
  // An external record is the only kind whose event may be read after a graph launch; outside a capture the
  // flag is refused.
  return QGEMM_CU(*g_api, EventRecordWithFlags, event.get(), stream_.get(),
                  capturing_ ? CU_EVENT_RECORD_EXTERNAL : CU_EVENT_RECORD_DEFAULT);
}

absl::Status Stream::BeginCapture() {
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*g_api, StreamBeginCapture, stream_.get(), CU_STREAM_CAPTURE_MODE_RELAXED));
  capturing_ = true;
  return absl::OkStatus();
}

absl::StatusOr<GraphExec> Stream::EndCapture() {
  capturing_ = false;
  CUgraph raw_graph = nullptr;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*g_api, StreamEndCapture, stream_.get(), &raw_graph));
  const std::unique_ptr<CUgraph_st, internal::Release> graph(raw_graph);
  CUgraphExec exec = nullptr;
  QGEMM_RETURN_IF_ERROR(QGEMM_CU(*g_api, GraphInstantiateWithFlags, &exec, graph.get(), 0));
  return GraphExec(exec);
}

RelaxedCapture::RelaxedCapture() : mode_(CU_STREAM_CAPTURE_MODE_RELAXED) { Exchange(); }

RelaxedCapture::~RelaxedCapture() { Exchange(); }

void RelaxedCapture::Exchange() {
  CUstreamCaptureMode mode = static_cast<CUstreamCaptureMode>(mode_);
  static_cast<void>(g_api->ThreadExchangeStreamCaptureMode(&mode));
  mode_ = static_cast<int>(mode);
}

absl::StatusOr<CUgraph_st*> GraphOfCapture(CUstream_st* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  QGEMM_RETURN_IF_ERROR(
      QGEMM_CU(*g_api, StreamGetCaptureInfo, stream, &status, nullptr, &graph, nullptr, nullptr));
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return absl::FailedPreconditionError("the stream is not being captured in a graph");
  }
  return graph;
}

absl::Status OnGraphDestroyed(CUgraph_st* graph, void (*function)(void*), void* argument) {
  CUuserObject object = nullptr;
  absl::Status status =
      QGEMM_CU(*g_api, UserObjectCreate, &object, argument, function, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (!status.ok()) {
    function(argument);
    return status;
  }
  status = QGEMM_CU(*g_api, GraphRetainUserObject, graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (!status.ok()) static_cast<void>(g_api->UserObjectRelease(object, 1));  // runs the function
  return status;
}

void Stream::AbandonCapture() {
  if (!capturing_) return;
  capturing_ = false;
  CUgraph graph = nullptr;
  static_cast<void>(g_api->StreamEndCapture(stream_.get(), &graph));
  if (graph != nullptr) static_cast<void>(g_api->GraphDestroy(graph));
}

}  // namespace qgemm
