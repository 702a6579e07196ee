"""libqgemm.so by ctypes: client/qgemm/import_c_api.h, line by line."""

import ctypes
import functools
import os
import pathlib

_ERROR_BYTES = 2048

INT32, INT64, UINT8, INT8, FP16, BF16, FP32 = range(7)
ZERO_MIDDLE, ZERO_INTEGER, ZERO_FLOAT = range(3)


class TensorStruct(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_int64),
    ]


class View(ctypes.Structure):
    _fields_ = [
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("group_size", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("super_size", ctypes.c_int64),
        ("supers", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("scale_type", ctypes.c_int32),
        ("zero", ctypes.c_int32),
        ("origin", ctypes.c_int32),
        ("codes", ctypes.POINTER(ctypes.c_uint8)),
        ("scales", ctypes.POINTER(ctypes.c_uint16)),
        ("zeros", ctypes.POINTER(ctypes.c_uint8)),
        ("offsets", ctypes.POINTER(ctypes.c_uint16)),
        ("d", ctypes.POINTER(ctypes.c_uint16)),
        ("dmin", ctypes.POINTER(ctypes.c_uint16)),
        ("scale_codes", ctypes.POINTER(ctypes.c_int8)),
        ("zero_codes", ctypes.POINTER(ctypes.c_uint8)),
        ("permutation", ctypes.POINTER(ctypes.c_int32)),
    ]


def _candidates():
    if "QGEMM_LIBRARY" in os.environ:
        return [os.environ["QGEMM_LIBRARY"]]  # no other one then
    package = pathlib.Path(__file__).resolve().parent.parent
    # In the package, or beside it as in the bundle: python/qgemm and lib.
    return [str(package / "libqgemm.so"), str(package.parent.parent / "lib" / "libqgemm.so"), "libqgemm.so"]


@functools.lru_cache(maxsize=None)
def load():
    failures = []
    for candidate in _candidates():
        try:
            library = ctypes.CDLL(candidate)
            break
        except OSError as error:
            failures.append(str(error))
    else:
        raise ImportError(f"qgemm: libqgemm.so is not to be found: set QGEMM_LIBRARY to its path ({'; '.join(failures)})")
    library.qgemm_import_view_of.restype = None
    library.qgemm_import_free.restype = None
    library.qgemm_import_free.argtypes = [ctypes.c_void_p]
    library.qgemm_import_view_of.argtypes = [ctypes.c_void_p, ctypes.POINTER(View)]
    tensor, error = ctypes.POINTER(TensorStruct), [ctypes.c_char_p, ctypes.c_size_t]
    out = [ctypes.POINTER(ctypes.c_void_p), *error]
    i32, i64 = ctypes.c_int32, ctypes.c_int64
    library.qgemm_import_dequantize.argtypes = [ctypes.c_void_p, i64, i64, ctypes.c_void_p, *error]
    library.qgemm_import_gptq.argtypes = [tensor] * 4 + [i32, i64, i32, *out]
    library.qgemm_import_gptq_zeros.argtypes = [tensor, i32, ctypes.POINTER(i32), *error]
    library.qgemm_import_awq.argtypes = [tensor] * 3 + [i64, *out]
    library.qgemm_import_compressed_tensors.argtypes = [tensor] * 5 + [i32, i64, i32, *out]
    library.qgemm_import_torchao.argtypes = [tensor] * 2 + [i64, i64, i64, *out]
    library.qgemm_import_gguf.argtypes = [tensor, i32, i64, i64, *out]
    return library


def call(function, *arguments):
    """Calls `function` of the library; its sentence, or None where all is well."""
    message = ctypes.create_string_buffer(_ERROR_BYTES)
    if getattr(load(), function)(*arguments, message, _ERROR_BYTES) == 0:
        return None
    return message.value.decode("utf-8", "replace")
