"""The weight store of libqgemm.so (client/qgemm/weight_store_c_api.h): the weights of several methods in one file.

    with WeightStore("weights.safetensors") as store:
        for method in methods:
            store.add("layer.weights", tensor)  # on a GPU: copied and written by the first method alone
        store.finish()

A weight on a GPU is known again by a fingerprint that is made there; a changed weight under an old key is an error.
CPU tensors, constants local to a library and state are never fingerprinted and always written. The file is the same with
and without skipping. PyTorch tensors; not thread-safe.
"""

import ctypes
import dataclasses
import functools

from qgemm.errors import InvalidRequest, QgemmError
from qgemm.importers import library

KINDS = {"weight": 0, "cpu_tensor": 1, "library_constant": 2, "state": 3}
_DTYPES = {"torch.uint8": "U8", "torch.int8": "I8", "torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32",
           "torch.int32": "I32", "torch.int64": "I64", "torch.bool": "BOOL", "torch.float64": "F64"}  # fmt: skip
_INVALID_ARGUMENT = 3
_ERROR_BYTES = 2048


class _Entry(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_char_p),
        ("kind", ctypes.c_int),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("address", ctypes.c_uint64),
        ("on_device", ctypes.c_int),
    ]


class _Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64) for name in ("written", "skipped", "fingerprints", "bytes_written", "bytes_skipped")
    ]


@dataclasses.dataclass(frozen=True)
class WeightCounts:
    """Entries, and their bytes."""

    written: int
    skipped: int
    fingerprints: int
    bytes_written: int
    bytes_skipped: int


@functools.lru_cache(maxsize=None)
def _library():
    loaded = library.load()
    store, error = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_size_t]
    loaded.qgemm_weight_store_open.argtypes = [
        ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.POINTER(store), *error
    ]  # fmt: skip
    loaded.qgemm_weight_store_add.argtypes = [store, ctypes.POINTER(_Entry), ctypes.POINTER(ctypes.c_int), *error]
    loaded.qgemm_weight_store_get_counts.argtypes = [store, ctypes.POINTER(_Counts)]
    loaded.qgemm_weight_store_finish.argtypes = [store, *error]
    loaded.qgemm_weight_store_close.argtypes = [store]
    loaded.qgemm_weight_store_close.restype = None
    return loaded


def dtype_of(tensor):
    """safetensors' word for a tensor's type."""
    if str(tensor.dtype) not in _DTYPES:
        raise TypeError(f"a tensor of type {tensor.dtype} is not allowed: use {', '.join(_DTYPES)}")
    return _DTYPES[str(tensor.dtype)]


def available():
    """Whether libqgemm.so is there."""
    try:
        _library()
    except ImportError:
        return False
    return True


class WeightStore:
    """`device`: index of the GPU whose tensors are added, None: none is on a GPU."""

    def __init__(self, path, device=None, skip_repeats=True):
        self._store = ctypes.c_void_p()
        ordinal = -1 if device is None else device
        self._call("qgemm_weight_store_open", str(path).encode(), ordinal, int(skip_repeats), ctypes.byref(self._store))

    def _call(self, function, *arguments):
        message = ctypes.create_string_buffer(_ERROR_BYTES)
        code = getattr(_library(), function)(*arguments, message, _ERROR_BYTES)
        if code != 0:
            kind = InvalidRequest if code == _INVALID_ARGUMENT else QgemmError
            raise kind(message.value.decode("utf-8", "replace"))

    def add(self, key, tensor, kind="weight"):
        """Adds a tensor of a method: True where it was skipped. What writes it on a GPU must have ended. InvalidRequest: a
        changed weight under an old key, or another form of it."""
        if kind not in KINDS:
            raise ValueError(f'kind "{kind}" is not allowed: use {", ".join(KINDS)}')
        tensor = tensor.detach().contiguous()
        shape = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
        skipped = ctypes.c_int()
        on_device = int(tensor.device.type != "cpu")
        entry = _Entry(key.encode(), KINDS[kind], dtype_of(tensor).encode(), tensor.dim(), shape, tensor.data_ptr(), on_device)
        self._call("qgemm_weight_store_add", self._store, ctypes.byref(entry), ctypes.byref(skipped))
        return bool(skipped.value)

    @property
    def counts(self):
        counts = _Counts()
        _library().qgemm_weight_store_get_counts(self._store, ctypes.byref(counts))
        return WeightCounts(*(getattr(counts, field.name) for field in dataclasses.fields(WeightCounts)))

    def finish(self):
        """The file is there after this."""
        self._call("qgemm_weight_store_finish", self._store)

    def close(self):
        if self._store:
            _library().qgemm_weight_store_close(self._store)
            self._store = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
