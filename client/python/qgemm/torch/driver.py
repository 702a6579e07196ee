"""The few calls of the CUDA driver API that launching a kernel takes, by ctypes: no compiler, no CUDA package.

PyTorch's primary context is the current one whenever these are called. Thread-safe.
"""

import ctypes
import functools

_DYNAMIC_SMEM = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_PORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_OUT_OF_MEMORY = 2
_NO_DESTRUCTOR_SYNC = 1
_GRAPH_MOVE = 1


class CudaError(RuntimeError):
    """A call of the driver failed; `code` is its CUresult."""

    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute; the first three words of its 64-byte value are a cluster's dimensions."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


CLUSTER_ATTRIBUTE = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


class Driver:
    # CUtensorMapDataType, and the bytes of an element
    ELEMENTS = {"bf16": (9, 2), "fp16": (6, 2), "u32": (2, 4), "u64": (4, 8)}
    SWIZZLES = {0: 0, 128: 3}  # CUtensorMapSwizzle

    def __init__(self, library=None):
        self._cuda = library or ctypes.CDLL("libcuda.so.1")

    def check(self, result, call):
        if result != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(result, ctypes.byref(text))
            raise CudaError(f"{call}: {(text.value or b'unknown error').decode()} ({result})", result)

    def bind(self, device):
        """Makes the device's primary context current in a thread that has none yet: PyTorch does so only when it needs
        one itself, and a cached allocation needs none."""
        context = ctypes.c_void_p()
        self.check(self._cuda.cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")
        if not context.value:
            self.check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
            self.check(self._cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def load(self, cubin, entry):
        """The function `entry` of a module that stays loaded as long as the process."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with self.relaxed_capture():
            self.check(self._cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(cubin)), "cuModuleLoadData")
            call = f"cuModuleGetFunction({entry})"
            self.check(self._cuda.cuModuleGetFunction(ctypes.byref(function), module, entry.encode()), call)
        return function

    def allow(self, function, dynamic_smem_bytes, cluster):
        """Lets a function use that much shared memory, and clusters beyond the portable size of 8."""
        set_attribute = self._cuda.cuFuncSetAttribute
        if dynamic_smem_bytes > 48 << 10:
            call = f"cuFuncSetAttribute({dynamic_smem_bytes} bytes of shared memory)"
            self.check(set_attribute(function, _DYNAMIC_SMEM, dynamic_smem_bytes), call)
        if cluster > 8:
            self.check(set_attribute(function, _NON_PORTABLE_CLUSTER, 1), "cuFuncSetAttribute(cluster)")

    def launch(self, config, function, params):
        self.check(self._cuda.cuLaunchKernelEx(ctypes.byref(config), function, params, None), "cuLaunchKernelEx")

    def encode_tensor_map(self, out, name, element, columns, rows, pitch, box_columns, box_rows, swizzle, address):
        """Fills the 128 bytes at `out`."""
        if element not in self.ELEMENTS or swizzle not in self.SWIZZLES:
            raise ValueError(f"argument {name} has element {element} and swizzle {swizzle}, which this client does not know")
        if address == 0 or address % 16 or pitch % 16:
            raise ValueError(f"argument {name} at {address:#x}, rows {pitch} bytes apart: multiples of 16 are needed")
        self.check(
            self._cuda.cuTensorMapEncodeTiled(
                ctypes.byref(out), self.ELEMENTS[element][0], ctypes.c_uint32(2), ctypes.c_void_p(address),
                (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(pitch),
                (ctypes.c_uint32 * 2)(box_columns, box_rows), (ctypes.c_uint32 * 2)(1, 1),
                0, self.SWIZZLES[swizzle], 0, 0,  # no interleave, swizzle, no L2 promotion, zero fill
            ),
            f"cuTensorMapEncodeTiled({name})",
        )  # fmt: skip

    # ---- memory that is not PyTorch's: a graph's workspace must not lie in a pool that PyTorch reuses ---------------

    def allocate(self, size):
        """Device memory, also while a stream is captured; None when there is not enough."""
        address = ctypes.c_uint64()
        with self.relaxed_capture():
            result = self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        if result == _OUT_OF_MEMORY:
            return None
        self.check(result, f"cuMemAlloc({size})")
        return address.value

    def zero(self, address, size, stream):
        """On the stream: becomes a node of the graph where it is captured."""
        pointer, count = ctypes.c_uint64(address), ctypes.c_size_t(size)
        self.check(self._cuda.cuMemsetD8Async(pointer, ctypes.c_ubyte(0), count, ctypes.c_void_p(stream)), "cuMemsetD8Async")

    def capture(self, stream):
        """(id, graph) of the capture that the stream is part of; (0, None) where it is in none."""
        status, identity, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
        self.check(
            self._cuda.cuStreamGetCaptureInfo_v2(
                ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(identity), ctypes.byref(graph), None, None
            ),
            "cuStreamGetCaptureInfo",
        )
        return (identity.value, graph) if status.value == 1 else (0, None)

    def on_graph_destroyed(self, graph, function, argument):
        """The C function `function(argument)` runs once a graph and all that was made of it are gone."""
        user_object = ctypes.c_void_p()
        create = self._cuda.cuUserObjectCreate
        self.check(create(ctypes.byref(user_object), argument, function, 1, _NO_DESTRUCTOR_SYNC), "cuUserObjectCreate")
        self.check(self._cuda.cuGraphRetainUserObject(graph, user_object, 1, _GRAPH_MOVE), "cuGraphRetainUserObject")

    def relaxed_capture(self):
        """A context in which this thread may load modules and allocate although a stream is being captured."""
        return _RelaxedCapture(self._cuda)


class _RelaxedCapture:
    def __init__(self, cuda):
        self._cuda, self._mode = cuda, ctypes.c_int(_CAPTURE_RELAXED)

    def __enter__(self):
        self._cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(self._mode))

    def __exit__(self, *_):
        self._cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(self._mode))


@functools.lru_cache(maxsize=None)
def driver():
    return Driver()
