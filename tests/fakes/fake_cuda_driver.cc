// A libcuda.so.1 for tests of what speaks to the driver, with its functions in the versions that
// kernels/cuda/driver.cc asks for.
#include "tests/fakes/fake_cuda_driver.h"

#include <cuda.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>

// cuda.h maps plain names to the versions of its toolkit.
#undef cuCtxGetCurrent
#undef cuCtxSetCurrent
#undef cuDeviceGetUuid
#undef cuEventElapsedTime
#undef cuEventRecordWithFlags
#undef cuGraphInstantiateWithFlags
#undef cuGraphLaunch
#undef cuLaunchKernel
#undef cuLaunchKernelEx
#undef cuMemcpyDtoDAsync
#undef cuMemcpyDtoH
#undef cuMemcpyHtoD
#undef cuMemsetD8Async
#undef cuStreamEndCapture
#undef cuStreamGetCaptureInfo
#undef cuStreamSynchronize

using qgemm::fake_cuda::Current;

// The driver's opaque types.
struct CUmod_st {};
struct CUfunc_st {
  CUmodule module = nullptr;
  std::string name;
};
struct CUevent_st {
  int number = 0;
  double us = -1;
};
struct CUgraphNode_st {
  CUfunction function = nullptr;  // null: an event
  CUmodule module = nullptr;      // of the function: known even when that is gone
  std::string launch;
  CUevent event = nullptr;
};
// Runs its function with its last reference, whose holders are graphs and what is made of them.
struct CUuserObject_st {
  std::shared_ptr<void> reference;
};
struct CUgraph_st {
  std::vector<CUgraphNode_st> nodes;
  std::vector<std::shared_ptr<void>> keeps;
};
struct CUgraphExec_st {
  CUgraph_st of;  // a copy: the graph may go first
};
struct CUstream_st {
  CUgraph capturing = nullptr;
};
struct CUctx_st {};

namespace {

CUctx_st g_context;
std::map<CUmodule, std::vector<std::unique_ptr<CUfunc_st>>> g_modules;
double g_now_us = 0;
int g_events = 0;
CUstreamCaptureMode g_capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
std::pair<CUdeviceptr, size_t> g_free_block;  // address 0: none

void Violation(const std::string& what) { Current().violations.push_back(what); }

std::string Describe(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned smem,
                     void** params) {
  std::string text = function->name + "(";
  const std::string sizes = function->name.substr(function->name.find('_') + 1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    unsigned long long value = 0;
    std::memcpy(&value, params[i], sizes[i] - '0');
    text += (i == 0 ? "" : ", ") + std::to_string(value);
  }
  return text + ") " + std::to_string(x) + "x" + std::to_string(y) + "x" + std::to_string(z) + " threads " +
         std::to_string(threads) + " smem " + std::to_string(smem);
}

void Run(const CUgraphNode_st& node) {
  if (node.function != nullptr) {
    if (g_modules.count(node.module) == 0) Violation("launched a function whose module is unloaded");
    Current().ran.push_back(node.launch);
    g_now_us += 10;
  } else {
    Current().ran.push_back("record " + std::to_string(node.event->number));
    node.event->us = g_now_us;
  }
}

CUresult Put(CUstream stream, CUgraphNode_st node) {
  if (stream->capturing == nullptr) {
    Run(node);
    return CUDA_SUCCESS;
  }
  stream->capturing->nodes.push_back(std::move(node));
  return CUDA_SUCCESS;
}

}  // namespace

namespace qgemm::fake_cuda {
State& Current() {
  static auto* const state = new State;
  return *state;
}
}  // namespace qgemm::fake_cuda

// NOLINTBEGIN(readability-identifier-naming,readability-inconsistent-declaration-parameter-name): the
// driver's own.
extern "C" {

CUresult cuGetErrorName(CUresult, const char** text) { return *text = "CUDA_ERROR", CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) { return *text = "as told to", CUDA_SUCCESS; }
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int) { return *device = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
  return std::strncpy(name, "Fake GPU", bytes), CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice) { return *uuid = {}, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) { return *value = 9, CUDA_SUCCESS; }
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) { return *bytes = 1 << 30, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return *context = &g_context, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) { return *context = &g_context, CUDA_SUCCESS; }
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return *free = 1 << 29, *total = 1 << 30, CUDA_SUCCESS;
}
// Like the driver's, it likes to give the block again that came back last.
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  if (bytes > Current().most_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  if (g_free_block.second == bytes) {
    *address = std::exchange(g_free_block, {}).first;
  } else {
    *address = reinterpret_cast<CUdeviceptr>(new char[bytes]);
  }
  Current().blocks[*address] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
  const auto block = Current().blocks.find(address);
  if (block == Current().blocks.end()) {
    Violation("freed what is not allocated");
    return CUDA_ERROR_INVALID_VALUE;
  }
  delete[] reinterpret_cast<char*>(g_free_block.first);
  g_free_block = *block;
  Current().blocks.erase(block);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream) { return CUDA_SUCCESS; }
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream) { return CUDA_SUCCESS; }

CUresult cuModuleLoadData(CUmodule* module, const void*) {
  static auto& all = *new std::vector<std::unique_ptr<CUmod_st>>;  // a later one must not get an old address
  all.push_back(std::make_unique<CUmod_st>());
  *module = all.back().get();
  g_modules[*module];
  return ++Current().modules, CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
  g_modules.erase(module);
  return --Current().modules, CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  auto& functions = g_modules.at(module);
  functions.push_back(std::make_unique<CUfunc_st>(CUfunc_st{module, name}));
  return *function = functions.back().get(), CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) { return *value = 0, CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                        unsigned, unsigned smem, CUstream stream, void** params, void**) {
  return Put(stream, {function, function->module,
                      Describe(function, x, y, z, threads, smem, params) + " cluster 1", nullptr});
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void**) {
  const std::string launch = Describe(function, config->gridDimX, config->gridDimY, config->gridDimZ,
                                      config->blockDimX, config->sharedMemBytes, params);
  const unsigned cluster = config->attrs[0].value.clusterDim.z;
  return Put(config->hStream,
             {function, function->module, launch + " cluster " + std::to_string(cluster), nullptr});
}
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned) { return *stream = new CUstream_st, CUDA_SUCCESS; }
CUresult cuStreamDestroy_v2(CUstream stream) {
  delete stream;
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {  // null: the default stream, which is never captured
  return stream != nullptr && stream->capturing != nullptr ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                           : CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  stream->capturing = new CUgraph_st;
  return ++Current().graphs, CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  *graph = stream->capturing;
  stream->capturing = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t*,
                                   CUgraph* graph, const CUgraphNode**, size_t*) {
  *status = stream->capturing != nullptr ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (graph != nullptr) *graph = stream->capturing;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(g_capture_mode, *mode);
  return CUDA_SUCCESS;
}
CUresult cuUserObjectCreate(CUuserObject* object, void* argument, CUhostFn function, unsigned, unsigned) {
  if (Current().refuse_object_create) return CUDA_ERROR_OUT_OF_MEMORY;
  *object = new CUuserObject_st{std::shared_ptr<void>(argument, function)};
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned) {
  delete object;
  return CUDA_SUCCESS;
}
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned, unsigned flags) {
  if (Current().refuse_object_retain) return CUDA_ERROR_OUT_OF_MEMORY;
  if (flags != CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_NOT_SUPPORTED;  // nobody else holds one here
  graph->keeps.push_back(std::move(object->reference));
  delete object;
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  return *event = new CUevent_st{g_events++, -1}, CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent event) {
  delete event;
  return CUDA_SUCCESS;
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  const bool external = flags == CU_EVENT_RECORD_EXTERNAL;
  if (external != (stream->capturing != nullptr)) {
    Violation("an event's flags do not fit where it is recorded");
  }
  return Put(stream, {nullptr, nullptr, "", event});
}
CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  *milliseconds = static_cast<float>((end->us - begin->us) / 1e3);
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  *exec = new CUgraphExec_st{*graph};
  return ++Current().execs, CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
  delete graph;
  return --Current().graphs, CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec exec) {
  delete exec;
  return --Current().execs, CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream) {
  for (const CUgraphNode_st& node : exec->of.nodes) Run(node);
  return CUDA_SUCCESS;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming,readability-inconsistent-declaration-parameter-name)
