"""Canonical weights (codes, scales, zero points) to the packed planes that kernels read, and back.

kernels/LAYOUT.md in the repository defines the bytes; tests compare them with the C++ packer bit for bit. All functions
take NumPy arrays or PyTorch tensors (of any device) and answer in kind.

    q = quantize(weight, "int4-g128")                    # float [N, K] -> Canonical
    packed = pack(q)                                     # Canonical -> Packed: three flat planes
    weight = dequantize(q)                               # float32 [N, K], exact
"""

import dataclasses
from typing import Any, Optional

import numpy as np

from qgemm.types import WeightFormat, as_format

LAYOUT_ID = "qgemm-frag16x64-v1"
_PAD = 64


@dataclasses.dataclass(frozen=True)
class Canonical:
    """Weights as importers produce them."""

    format: WeightFormat  # with its scale type
    codes: Any  # uint8 [N, K]
    scales: Any  # [N, K / group] as uint16 bits (NumPy), or bfloat16 / float16 (PyTorch)
    zeros: Optional[Any] = None  # uint8 [N, K / group]

    @property
    def n(self):
        return self.codes.shape[0]

    @property
    def k(self):
        return self.codes.shape[1]


@dataclasses.dataclass(frozen=True)
class Packed:
    """The planes of kernels/LAYOUT.md as flat uint8 arrays; `zeros` is None in formats without zero points."""

    format: WeightFormat
    n: int
    k: int
    weights: Any
    scales: Any
    zeros: Optional[Any] = None


def padded(n, k, group_size):
    """(padded N, padded K, groups of the padded K)."""
    padded_n, padded_k = -(-n // _PAD) * _PAD, -(-k // _PAD) * _PAD
    return padded_n, padded_k, padded_k // group_size


# ---- the few operations that NumPy and PyTorch spell differently ----------------------------------------------------


def _is_torch(array):
    return type(array).__module__.split(".")[0] == "torch"


def _filled(like, shape, value, dtype):
    if _is_torch(like):
        import torch

        return torch.full(shape, value, dtype=getattr(torch, dtype), device=like.device)
    return np.full(shape, value, dtype=dtype)


def _as_type(array, dtype):
    if _is_torch(array):
        import torch

        return array.to(getattr(torch, dtype))
    return array.astype(dtype)


def _transposed(array, axes):
    return array.permute(axes).contiguous() if _is_torch(array) else np.ascontiguousarray(array.transpose(axes))


def _bytes_of(array):
    """The array's memory as flat uint8."""
    if _is_torch(array):
        import torch

        return array.contiguous().reshape(-1).view(torch.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _scale_bits(scales):
    """16-bit scales as int16 / uint16 of the same bits."""
    if _is_torch(scales):
        import torch

        return scales.view(torch.int16)
    return scales.view(np.uint16)


def _scale_values(scales, scale_type):
    """16-bit scales as float32 numbers."""
    if _is_torch(scales):
        import torch

        types = {"bf16": torch.bfloat16, "fp16": torch.float16}
        return (scales if scales.is_floating_point() else scales.view(types[scale_type])).float()
    bits = scales.view(np.uint16)
    if scale_type == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


def _rounded_scales(values, scale_type):
    """float32 numbers to the 16-bit type's nearest: (its bits or tensor, its float32 values)."""
    if _is_torch(values):
        import torch

        scales = values.to({"bf16": torch.bfloat16, "fp16": torch.float16}[scale_type])
        return scales, scales.float()
    if scale_type == "fp16":
        scales = values.astype(np.float16)
        return scales.view(np.uint16), scales.astype(np.float32)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return bits, _scale_values(bits, "bf16")


# ---- layout ---------------------------------------------------------------------------------------------------------


def _check(canonical):
    f, n, k = canonical.format, canonical.n, canonical.k
    if f.bits != 4 or f.zero not in ("none", "int"):
        raise ValueError(f"format {f} is not allowed: layout {LAYOUT_ID} has 4-bit codes and zero points none or int")
    if f.group_size not in (32, 64, 128):
        raise ValueError(f"group_size {f.group_size} is not allowed: use 32, 64 or 128")
    if k % f.group_size:
        raise ValueError(f"k {k} is not a multiple of group_size {f.group_size}")
    shape = (n, k // f.group_size)
    for name, plane in (("scales", canonical.scales), ("zeros", canonical.zeros)):
        if plane is not None and tuple(plane.shape) != shape:
            raise ValueError(f"{name} has the shape {tuple(plane.shape)}: this format needs {shape}")
    if f.has_zeros != (canonical.zeros is not None):
        raise ValueError(f"zeros are {'missing' if f.has_zeros else 'given'}: format {f} says otherwise")
    for name, plane in (("codes", canonical.codes), ("zeros", canonical.zeros)):
        if plane is not None and int(plane.max()) >= 1 << f.bits:
            raise ValueError(f"{name} holds {int(plane.max())}: allowed are 0 to {(1 << f.bits) - 1}")


def _pad_plane(plane, shape, fill, dtype):
    full = _filled(plane, shape, fill, dtype)
    full[: plane.shape[0], : plane.shape[1]] = plane
    return full


def _pack_groups(plane, padded_n, groups, fill, dtype):
    full = _pad_plane(plane, (padded_n, groups), fill, dtype)
    return _bytes_of(_transposed(full.reshape(padded_n // 16, 2, 8, groups), (0, 3, 2, 1)))  # i, j, g, h


def pack(canonical):
    """Canonical -> Packed. ValueError names the plane whose shape or value does not fit."""
    _check(canonical)
    n, k = canonical.n, canonical.k
    padded_n, padded_k, groups = padded(n, k, canonical.format.group_size)
    codes = _pad_plane(canonical.codes, (padded_n, padded_k), 8, "uint8")
    # i, p % 2, g, j, w, p / 2, t, odd  ->  i, j, g, t, w, odd, p / 2, p % 2: byte 2 odd + p / 2 of a word holds the
    # codes p % 2 = 0 in its low and 1 in its high half.
    codes = codes.reshape(padded_n // 16, 2, 8, padded_k // 64, 4, 2, 4, 2)
    codes = _transposed(codes, (0, 3, 2, 6, 4, 7, 5, 1))
    weights = _bytes_of(codes[..., 0] | (codes[..., 1] << 4))
    bits_type = "int16" if _is_torch(canonical.scales) else "uint16"
    scales = _pack_groups(_scale_bits(canonical.scales), padded_n, groups, 0, bits_type)
    zeros = None
    if canonical.zeros is not None:
        zeros = _pack_groups(canonical.zeros, padded_n, groups, 8, "uint8")
    return Packed(canonical.format, n, k, weights, scales, zeros)


def _unpack_groups(plane, padded_n, groups, n, canonical_groups, dtype):
    if _is_torch(plane):
        import torch

        values = plane.view(getattr(torch, dtype))
    else:
        values = plane.view(dtype)
    values = _transposed(values.reshape(padded_n // 16, groups, 8, 2), (0, 3, 2, 1)).reshape(padded_n, groups)
    return values[:n, :canonical_groups]


def unpack(packed):
    """The inverse of pack; scales come back as bits (int16 in PyTorch, uint16 in NumPy)."""
    n, k, f = packed.n, packed.k, packed.format
    padded_n, padded_k, groups = padded(n, k, f.group_size)
    data = packed.weights.reshape(padded_n // 16, padded_k // 64, 8, 4, 4, 2, 2)  # i, j, g, t, w, odd, p / 2
    codes = _filled(data, (*data.shape, 2), 0, "uint8")
    codes[..., 0] = data & 15
    codes[..., 1] = data >> 4
    codes = _transposed(codes, (0, 7, 2, 1, 4, 6, 3, 5)).reshape(padded_n, padded_k)[:n, :k]
    bits_type = "int16" if _is_torch(packed.scales) else "uint16"
    scales = _unpack_groups(packed.scales, padded_n, groups, n, k // f.group_size, bits_type)
    zeros = None
    if packed.zeros is not None:
        zeros = _unpack_groups(packed.zeros, padded_n, groups, n, k // f.group_size, "uint8")
    return Canonical(f, codes, scales, zeros)


# ---- numbers --------------------------------------------------------------------------------------------------------


def _spread(plane, group_size):
    """[N, K / group] -> [N, K]."""
    if _is_torch(plane):
        return plane.repeat_interleave(group_size, dim=1)
    return np.repeat(plane, group_size, axis=1)


def dequantize(canonical):
    """float32 [N, K]: (q - z) * s, exact."""
    f = canonical.format
    scales = _spread(_scale_values(canonical.scales, f.scale), f.group_size)
    zeros = 1 << (f.bits - 1)
    if canonical.zeros is not None:
        zeros = _spread(_as_type(canonical.zeros, "float32"), f.group_size)
    return (_as_type(canonical.codes, "float32") - zeros) * scales


def quantize(weight, format, scale_type="bf16"):
    """Round-to-nearest per group. `weight`: float [N, K], K a multiple of the group size; `scale_type` where the format
    names none. Symmetric: the group's largest magnitude is code 0 or 2^bits - 1; with zero points its range is."""
    f = as_format(format)
    f = dataclasses.replace(f, scale=f.scale or scale_type)
    n, k = weight.shape
    if k % f.group_size:
        raise ValueError(f"k {k} is not a multiple of group_size {f.group_size}")
    values = _as_type(weight, "float32").reshape(n, k // f.group_size, f.group_size)
    top, half = (1 << f.bits) - 1, 1 << (f.bits - 1)
    low, high = (values.amin(2), values.amax(2)) if _is_torch(values) else (values.min(2), values.max(2))
    if f.has_zeros:
        low, high = low.clip(max=0) if _is_torch(low) else low.clip(None, 0), high.clip(0)
        scales, steps = _rounded_scales((high - low) / top, f.scale)
        safe = _as_type(steps == 0, "float32") + steps
        zeros = (-low / safe).round().clip(0, top)
        codes = ((values / safe[..., None]).round() + zeros[..., None]).clip(0, top)
        zeros = _as_type(zeros, "uint8")
    else:
        # The larger side decides: -half steps reach below zero, half - 1 above.
        reach = -low / half, high / (half - 1)
        largest = reach[0].maximum(reach[1]) if _is_torch(low) else np.maximum(*reach)
        scales, steps = _rounded_scales(largest, f.scale)
        safe = _as_type(steps == 0, "float32") + steps
        zeros = None
        codes = ((values / safe[..., None]).round() + half).clip(0, top)
    return Canonical(f, _as_type(codes.reshape(n, k), "uint8"), scales, zeros)
