"""Tensors as files hold them, and the canonical weights that importers make of them."""

import ctypes
import dataclasses
import weakref
from typing import Any, Optional, Tuple

import numpy as np

from qgemm.importers import library

_TYPES = {
    "int32": library.INT32,
    "int64": library.INT64,
    "uint8": library.UINT8,
    "int8": library.INT8,
    "fp16": library.FP16,
    "bf16": library.BF16,
    "fp32": library.FP32,
}
_NUMPY_TYPES = {"int32": "int32", "int64": "int64", "uint8": "uint8", "int8": "int8", "float16": "fp16", "float32": "fp32"}
_ZEROS = {library.ZERO_MIDDLE: "middle", library.ZERO_INTEGER: "integer", library.ZERO_FLOAT: "float"}


_GROUP_SIZES = (16, 32, 64, 128, 256)


def _bf16_to_double(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


class MalformedTensor(ValueError):
    """A file does not hold what its format says; the message names the tensor, and the shape or byte offset."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor as a file holds it: its name, element type ("int32", "bf16", ...), shape, and little-endian bytes."""

    name: str
    type: str
    shape: Tuple[int, ...]
    data: Any  # anything with a buffer

    @staticmethod
    def of(name, value):
        """From a NumPy array or a PyTorch tensor."""
        if value is None or isinstance(value, Tensor):
            return value
        if type(value).__module__.split(".")[0] == "torch":
            import torch

            value = value.detach().cpu().contiguous()
            if value.dtype == torch.bfloat16:
                return Tensor(name, "bf16", tuple(value.shape), value.view(torch.int16).numpy())
            value = value.numpy()
        value = np.asarray(value)
        if value.dtype.name not in _NUMPY_TYPES and value.dtype.name != "bfloat16":
            raise MalformedTensor(f"{name} has element type {value.dtype.name}: it must be one of {', '.join(_TYPES)}")
        value = np.ascontiguousarray(value).reshape(value.shape)
        return Tensor(name, _NUMPY_TYPES.get(value.dtype.name, "bf16"), value.shape, value)

    def struct(self):
        """The C structure, and what must live as long as it."""
        data = np.frombuffer(self.data, np.uint8) if not isinstance(self.data, np.ndarray) else self.data
        shape = (ctypes.c_int64 * max(len(self.shape), 1))(*self.shape)
        result = library.TensorStruct(
            self.name.encode(), _TYPES[self.type], len(self.shape), shape, data.ctypes.data, data.nbytes
        )
        return result, (data, shape)


@dataclasses.dataclass(frozen=True)
class ImportedWeights:
    """Canonical weights: row-major planes, bit for bit the numbers of the file (kernels/import/canonical_weights.h).

    zero "middle": w = (q - 2**(bits-1)) * s; "integer": w = (q - z) * s; "float": w = (q - origin) * s + b. Column c is in
    group c // group_size. With `permutation`, column j is column permutation[j] of the model's weight: gather the
    activations likewise. Two levels of scales (super_size > 0): s = d * scale_codes and b = -(dmin * zero_codes), one d and
    dmin per row and super_size columns. 16-bit scalars are their bits; `scale_type` names them.
    """

    n: int
    k: int
    bits: int
    group_size: int
    scale_type: str  # "fp16" or "bf16"
    zero: str
    origin: int
    super_size: int
    codes: np.ndarray  # uint8 [n, k]
    scales: Optional[np.ndarray] = None  # uint16 [n, groups]
    zeros: Optional[np.ndarray] = None  # uint8 [n, groups]
    offsets: Optional[np.ndarray] = None  # uint16 [n, groups]
    d: Optional[np.ndarray] = None  # uint16 [n, supers]
    dmin: Optional[np.ndarray] = None  # uint16 [n, supers]
    scale_codes: Optional[np.ndarray] = None  # int8 [n, groups]
    zero_codes: Optional[np.ndarray] = None  # uint8 [n, groups]
    permutation: Optional[np.ndarray] = None  # int32 [k]
    _owner: Any = dataclasses.field(default=None, repr=False, compare=False)

    def dequantize(self, model_order=True):
        """float32 [n, k]; columns as in the model's weight, or as in `codes`."""
        result = np.empty((self.n, self.k), np.float32)
        message = library.call("qgemm_import_dequantize", self._owner.handle, 0, self.n, result.ctypes.data)
        if message is not None:
            raise MalformedTensor(message)
        if not model_order or self.permutation is None:
            return result
        ordered = np.empty_like(result)
        ordered[:, self.permutation] = result
        return ordered

    def canonical(self):
        """As qgemm.packing.Canonical, which `pack` takes; columns in the order of `codes`, so that activations of act-order
        weights are gathered by `permutation`. Float offsets of another origin (torchao) become b - origin * s, rounded to
        nearest; all else is exact. ValueError where no kernel has this form."""
        from qgemm.packing import Canonical
        from qgemm.types import WeightFormat

        whole_row = self.k <= self.group_size
        if self.k % self.group_size and not whole_row:
            raise ValueError(f"the last of the groups of {self.group_size} of {self.k} columns is shorter: no kernel has that")
        group_size = 0 if whole_row and self.group_size not in _GROUP_SIZES else self.group_size
        if group_size not in (0, *_GROUP_SIZES):
            raise ValueError(f"groups of {group_size} are not served: {', '.join(map(str, _GROUP_SIZES))} or the whole row")
        zero = {"middle": "none", "integer": "int", "float": "float"}[self.zero]
        two_levels = self.super_size > 0
        format = WeightFormat(self.bits, group_size, self.scale_type, zero, 2 if two_levels else 1)
        if two_levels:
            has_offset = self.zero == "float"
            return Canonical(
                format,
                self.codes,
                self.d,
                offsets=self.dmin ^ np.uint16(0x8000) if has_offset else None,  # b = (-dmin) * code
                scale_codes=self.scale_codes,
                offset_codes=self.zero_codes.astype(np.int8) if has_offset else None,
            )
        offsets = self.offsets
        if self.zero == "float" and self.origin:
            moved = _bf16_to_double(offsets) - self.origin * _bf16_to_double(self.scales)
            mantissa, exponent = np.frexp(moved)  # 8 bits of it, to even
            rounded = np.ldexp(np.rint(mantissa * 256), exponent - 8).astype(np.float32)
            offsets = (rounded.view(np.uint32) >> 16).astype(np.uint16)
        return Canonical(format, self.codes, self.scales, zeros=self.zeros, offsets=offsets)

    def __repr__(self):
        order = ", act-order" if self.permutation is not None else ""
        levels = ", two-level scales" if self.super_size else ""
        return (
            f"ImportedWeights({self.n}x{self.k}, int{self.bits}, groups of {self.group_size}, {self.scale_type} scales, "
            f"zero {self.zero}{levels}{order})"
        )


class _Owner:
    """The C handle; arrays that look into it keep it alive."""

    def __init__(self, handle):
        self.handle = handle
        self._finalizer = weakref.finalize(self, library.load().qgemm_import_free, handle)


def _plane(owner, pointer, shape):
    if not pointer:
        return None
    size = int(np.prod(shape))
    buffer = (pointer._type_ * size).from_address(ctypes.addressof(pointer.contents))
    buffer._owner = owner  # an array keeps its buffer, the buffer the handle
    array = np.frombuffer(buffer, np.dtype(pointer._type_)).reshape(shape)
    array.flags.writeable = False
    return array


def run(function, tensors, *parameters):
    """Calls importer `function` on `tensors` (None: the file has none) and its parameters."""
    kept = []
    arguments = []
    for tensor in tensors:
        if tensor is None:
            arguments.append(None)
            continue
        struct, alive = tensor.struct()
        kept.append((struct, alive))
        arguments.append(ctypes.byref(struct))
    handle = ctypes.c_void_p()
    message = library.call(function, *arguments, *parameters, ctypes.byref(handle))
    if message is not None:
        raise MalformedTensor(message)
    owner = _Owner(handle.value)
    view = library.View()
    library.load().qgemm_import_view_of(owner.handle, ctypes.byref(view))
    grouped, per_super = (view.n, view.groups), (view.n, view.supers)
    return ImportedWeights(
        n=view.n,
        k=view.k,
        bits=view.bits,
        group_size=view.group_size,
        scale_type="bf16" if view.scale_type == library.BF16 else "fp16",
        zero=_ZEROS[view.zero],
        origin=view.origin,
        super_size=view.super_size,
        codes=_plane(owner, view.codes, (view.n, view.k)),
        scales=_plane(owner, view.scales, grouped),
        zeros=_plane(owner, view.zeros, grouped),
        offsets=_plane(owner, view.offsets, grouped),
        d=_plane(owner, view.d, per_super),
        dmin=_plane(owner, view.dmin, per_super),
        scale_codes=_plane(owner, view.scale_codes, grouped),
        zero_codes=_plane(owner, view.zero_codes, grouped),
        permutation=_plane(owner, view.permutation, (view.k,)),
        _owner=owner,
    )
