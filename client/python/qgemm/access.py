"""Which pointers of a kernel are read and written, by its PTX: once per call signature (client/qgemm/access_c_api.h).

    memo = AccessMemo()
    call = Call.of_pick(pick, {"x": x.data_ptr(), ...}, m=16, ptx=lambda: client.get_ptx(pick))
    report = memo.report(call)
    [pick.launch.arguments[row.index].name for row in report.parameters if row.written]      # ["y", "workspace"]

A signature is the kernel and, of each argument, its dtype and whether its address is a multiple of 16, or its value, or
that it is symbolic. A call with an opaque argument is analysed every time; a failed analysis is never kept, and means that
everything is written. Thread-safe.
"""

import ctypes
import dataclasses
import functools
import threading
from typing import Optional, Tuple

from qgemm.importers import library
from qgemm.types import IntegerArgument

_MOST_PARAMETERS = 32
# Numbers of the dtypes of arguments; any others serve as well.
_BYTES, _INT32, _INT64, _DTYPES = 0, 1, 2, {"bf16": 3, "fp16": 4, "fp32": 5}


class _Argument(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("dtype", ctypes.c_int32), ("value", ctypes.c_uint64)]


def pointer(dtype, address):
    """Of a tensor map: its tensor's address."""
    return _Argument(0, dtype, address)


def scalar(dtype, value):
    return _Argument(1, dtype, value & 0xFFFFFFFFFFFFFFFF)


def symbolic(dtype):
    """A size that is a symbol; any is like any other."""
    return _Argument(2, dtype, 0)


def opaque():
    """Anything else: the call has no key."""
    return _Argument(3, 0, 0)


_PtxFunction = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class _Call(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char_p),
        ("entry", ctypes.c_char_p),
        ("arguments", ctypes.POINTER(_Argument)),
        ("argument_count", ctypes.c_int32),
        ("ptx", _PtxFunction),
        ("context", ctypes.c_void_p),
    ]


class _Row(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("index", "read", "written", "alignment")]


class _Report(ctypes.Structure):
    _fields_ = [
        ("failed", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("parameters", _Row * _MOST_PARAMETERS),
        ("failure", ctypes.c_char * 256),
    ]

    def __init__(self):
        super().__init__()
        self.address = ctypes.addressof(self)


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("analyses", "failures", "repeats")]


@functools.lru_cache(maxsize=None)
def _library():
    loaded = library.load()
    memo = ctypes.c_void_p
    loaded.qgemm_access_memo_create.restype = memo
    loaded.qgemm_access_memo_free.argtypes, loaded.qgemm_access_memo_free.restype = [memo], None
    # By plain addresses: ctypes takes as long to convert pointers as a repeat takes.
    loaded.qgemm_access_memo_get.argtypes = [ctypes.c_void_p] * 3
    loaded.qgemm_access_memo_get_counts.argtypes = [memo, ctypes.POINTER(_Counts)]
    loaded.qgemm_access_memo_get_counts.restype = None
    return loaded


def available():
    """Whether libqgemm.so is there, and knows of accesses."""
    try:
        return hasattr(library.load(), "qgemm_access_memo_get")
    except ImportError:
        return False


@dataclasses.dataclass(frozen=True)
class ParameterAccess:
    index: int  # of the kernel's parameters, from 0
    read: bool
    written: bool
    alignment: int  # bytes of the widest access; 0: never accessed


@dataclasses.dataclass(frozen=True)
class AccessReport:
    """Of every parameter that may be a pointer; `failure`: why the analysis failed, then all are read and written."""

    parameters: Tuple[ParameterAccess, ...]
    failure: Optional[str]


@dataclasses.dataclass(frozen=True)
class AccessCounts:
    analyses: int
    failures: int  # of them failed
    repeats: int  # answered without


class _OfThread(threading.local):
    """What a call of `ptx` left: C reads the text while other threads analyse the same Call."""

    text = error = None


class Call:
    """A kernel and its arguments, one for each of its parameters. `ptx`: a function that gives the kernel's PTX, called
    where the signature has to be analysed; None: there is none, and the analysis fails."""

    def __init__(self, kernel, entry, arguments, ptx=None):
        self._ptx, self._made = ptx, _OfThread()
        self._arguments = (_Argument * len(arguments))(*arguments)
        function = _PtxFunction(self._get_ptx) if ptx else _PtxFunction()
        self._struct = _Call(kernel.encode(), entry.encode(), self._arguments, len(arguments), function, None)
        self.address = ctypes.addressof(self._struct)

    def _get_ptx(self, _):
        try:
            self._made.text = ctypes.create_string_buffer(self._ptx().encode())
        except BaseException as error:  # it would end in C
            self._made.error = error
            return None
        return ctypes.addressof(self._made.text)

    def take_error(self):
        """What `ptx` raised in this thread since the last time, or None."""
        error, self._made.error = self._made.error, None
        return error

    @classmethod
    def of_pick(cls, pick, addresses, m=None, ptx=None):
        """The launch of a pick as an exporter knows it. `addresses`: {role: address}, 0 or missing where there is none;
        `m`: rows of every launch; None: any."""
        p, out = pick.problem, []
        numbers = {"m": m, "ldx": p.k, "ldy": p.y_columns, "ldr": p.y_columns}
        types = {"x": p.act, "y": p.out, "residual": p.out, "bias": p.out, "scales": p.format.scale}
        for argument in pick.launch.arguments:
            if isinstance(argument, IntegerArgument):
                dtype = _INT32 if argument.bits == 32 else _INT64
                value = numbers[argument.value] if isinstance(argument.value, str) else argument.value
                out.append(symbolic(dtype) if value is None else scalar(dtype, value))
            else:
                out.append(pointer(_DTYPES.get(types.get(argument.role), _BYTES), addresses.get(argument.role, 0)))
        return cls(pick.kernel_sha256, pick.launch.entry, out, ptx)

    @property
    def signature(self):
        """What tells calls apart; None: an argument is opaque."""
        rows = [(a.kind, a.dtype, int(a.value % 16 == 0) if a.kind == 0 else a.value) for a in self._arguments]
        return None if any(kind == 3 for kind, _, _ in rows) else (self._struct.kernel, *rows)


class AccessMemo:
    def __init__(self):
        self._memo = _library().qgemm_access_memo_create()
        self._get = _library().qgemm_access_memo_get

    def __del__(self):
        memo, self._memo = getattr(self, "_memo", None), None
        if memo:
            _library().qgemm_access_memo_free(memo)

    def report(self, call):
        """The AccessReport of a Call. Raises what its `ptx` raised."""
        made = _Report()
        self.get(call, made)
        error = call.take_error()
        if error is not None:
            raise error
        rows = made.parameters[: made.count]
        parameters = tuple(ParameterAccess(row.index, bool(row.read), bool(row.written), row.alignment) for row in rows)
        return AccessReport(parameters, made.failure.decode("utf-8", "replace") if made.failed else None)

    def get(self, call, out):
        """As `report`, into a structure of the C interface (new_report)."""
        if self._get(self._memo, call.address, out.address) != 0:
            raise ValueError(f"a kernel of {call._struct.argument_count} parameters: at most {_MOST_PARAMETERS} are allowed")

    @property
    def counts(self):
        made = _Counts()
        _library().qgemm_access_memo_get_counts(self._memo, made)
        return AccessCounts(made.analyses, made.failures, made.repeats)


def new_report():
    """For AccessMemo.get."""
    return _Report()
