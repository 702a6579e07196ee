"""Canonical weights (codes, scales, zero points) to the packed planes that kernels read, and back.

kernels/LAYOUT.md in the repository defines the bytes; tests compare them with the C++ packer bit for bit. All functions
take NumPy arrays or PyTorch tensors (of any device) and answer in kind.

    q = quantize(weight, "int4-g128")                    # float [N, K] -> Canonical
    packed = pack(q)                                     # Canonical -> Packed: flat planes of bytes
    weight = dequantize(q)                               # float32 [N, K]
"""

import dataclasses
from typing import Any, Optional

from qgemm import arrays
from qgemm.quantize import dequantize, quantize
from qgemm.types import WeightFormat

LAYOUT_ID = "qgemm-frag16x64-v1"
STEP_WEIGHTS = 256  # weights along K that share a step of a two-level scale
_PAD = 64


@dataclasses.dataclass(frozen=True)
class Canonical:
    """Weights as importers produce them. 16-bit numbers are uint16 bits in NumPy; in PyTorch tensors of their type."""

    format: WeightFormat  # with its scale type
    codes: Any  # uint8 [N, K]
    scales: Any  # one level: [N, groups]; two levels: fp16 steps [N, ceil(K / 256)]
    zeros: Optional[Any] = None  # integer zero points: uint8 [N, groups]
    offsets: Optional[Any] = None  # float zero points: as scales
    scale_codes: Optional[Any] = None  # two levels: int8 [N, groups]
    offset_codes: Optional[Any] = None  # two levels with float zero points: int8 [N, groups]

    @property
    def n(self):
        return self.codes.shape[0]

    @property
    def k(self):
        return self.codes.shape[1]


@dataclasses.dataclass(frozen=True)
class Packed:
    """The planes of kernels/LAYOUT.md as flat uint8 arrays; None where the format has no such plane."""

    format: WeightFormat
    n: int
    k: int
    weights: Any
    scales: Any
    zeros: Optional[Any] = None
    steps: Optional[Any] = None


@dataclasses.dataclass(frozen=True)
class PackedSizes:
    """Bytes of the planes, 0 where there is none, and what they are counted in."""

    padded_n: int
    padded_k: int
    groups: int
    steps: int
    weight_bytes: int
    scale_bytes: int
    zero_bytes: int
    step_bytes: int


def packed_sizes(n, k, f):
    padded_n, padded_k = -(-n // _PAD) * _PAD, -(-k // _PAD) * _PAD
    groups = -(-padded_k // f.group_size) if f.group_size else 1
    steps = -(-padded_k // STEP_WEIGHTS) if f.scale_levels == 2 else 0
    number = 1 if f.scale_levels == 2 else 2
    zero = {"none": 0, "int": 1, "float": number}[f.zero]
    levels = 2 if f.zero == "float" else 1
    return PackedSizes(
        padded_n, padded_k, groups, steps, padded_n * padded_k * f.bits // 8, padded_n * groups * number,
        padded_n * groups * zero, padded_n * steps * 2 * levels,
    )  # fmt: skip


# ---- checks ---------------------------------------------------------------------------------------------------------


def check_format(f):
    """ValueError naming field, value and what is allowed."""
    if f.bits not in (4, 5, 6, 8):
        raise ValueError(f"bits {f.bits} is not allowed: use 4, 5, 6 or 8")
    if f.group_size not in (0, 16, 32, 64, 128, 256):
        raise ValueError(f"group_size {f.group_size} is not allowed: use 16, 32, 64, 128, 256 or 0 (channel-wise)")
    if f.zero not in ("none", "int", "float"):
        raise ValueError(f'zero "{f.zero}" is not allowed: use none, int or float')
    if f.scale not in ("bf16", "fp16"):
        raise ValueError(f'scale "{f.scale}" is not allowed: use bf16 or fp16')
    if f.scale_levels == 2:
        if f.scale != "fp16" or f.zero == "int" or f.group_size not in (16, 32, 64, 128):
            raise ValueError(f"format {f} is not allowed: two levels need fp16, groups of 16 to 128, zero none or float")
    elif f.scale_levels != 1:
        raise ValueError(f"scale_levels {f.scale_levels} is not allowed: use 1 or 2")


def check_canonical(c):
    """ValueError names the plane whose shape or value does not fit."""
    f, n, k = c.format, c.n, c.k
    check_format(f)
    if k % (f.group_size or 8):
        raise ValueError(f"k {k} is not a multiple of {f'group_size {f.group_size}' if f.group_size else 8}")
    groups = (n, k // f.group_size if f.group_size else 1)
    numbers = (n, -(-k // STEP_WEIGHTS)) if f.scale_levels == 2 else groups
    is_float = f.zero == "float"
    wanted = {
        "scales": numbers,
        "zeros": groups if f.zero == "int" else None,
        "offsets": numbers if is_float else None,
        "scale_codes": groups if f.scale_levels == 2 else None,
        "offset_codes": groups if f.scale_levels == 2 and is_float else None,
    }
    for name, shape in wanted.items():
        plane = getattr(c, name)
        if (plane is None) != (shape is None):
            raise ValueError(f"{name} are {'given' if shape is None else 'missing'}: format {f} says otherwise")
        if plane is not None and tuple(plane.shape) != shape:
            raise ValueError(f"{name} has the shape {tuple(plane.shape)}: this format needs {shape}")
    for name in ("codes", "zeros"):
        plane = getattr(c, name)
        if plane is not None and int(plane.max()) >= 1 << f.bits:
            raise ValueError(f"{name} holds {int(plane.max())}: allowed are 0 to {(1 << f.bits) - 1}")


# ---- codes ----------------------------------------------------------------------------------------------------------

# Axes of the codes of W: i, r = p % 2, g, j, w, c = p / 2, t, o = odd. A byte of a word is numbered by (o, c).
_I, _R, _G, _J, _W, _C, _T, _O = range(8)


def _pack_codes(xp, codes, bits, padded_n, padded_k):
    full = xp.full(codes, (padded_n, padded_k), 1 << (bits - 1), "uint8")
    full[: codes.shape[0], : codes.shape[1]] = codes
    q = full.reshape(padded_n // 16, 2, 8, padded_k // 64, 4, 2, 4, 2)
    blocks = (padded_n // 16, padded_k // 64, -1)
    if bits == 8:
        q = (q ^ 128).reshape(padded_n // 16, 2, 8, padded_k // 64, 2, 2, 2, 4, 2)  # w as (plane, w % 2)
        return xp.permute(q, (0, 3, 4, 2, 7, 5, 1, 8, 6)).reshape(blocks)  # i, j, plane, g, t, w % 2, r, o, c
    q = xp.permute(q, (_I, _J, _G, _T, _W, _O, _C, _R))
    planes = [((q[..., 0] & 15) | (q[..., 1] << 4)).reshape(blocks)]
    if bits == 5:
        high = xp.full(q, q[:, :, :, :, 0, :, :, 0].shape, 0, "uint8")  # i, j, g, t, o, c
        for w in range(4):
            for r in range(2):
                high |= (q[:, :, :, :, w, :, :, r] >> 4) << (2 * w + r)
        planes.append(high.reshape(blocks))
    elif bits == 6:
        high = xp.full(q, q[:, :, :, :, :2, :, :, 0].shape, 0, "uint8")  # i, j, g, t, w / 2, o, c
        for w in range(4):
            for r in range(2):
                high[:, :, :, :, w // 2] |= (q[:, :, :, :, w, :, :, r] >> 4) << (4 * (w % 2) + 2 * r)
        planes.append(high.reshape(blocks))
    return planes[0] if len(planes) == 1 else xp.concatenate(planes, 2)


def _unpack_codes(xp, flat, bits, padded_n, padded_k):
    blocks = flat.reshape(padded_n // 16, padded_k // 64, 128 * bits)
    rows, columns = padded_n // 16, padded_k // 64
    if bits == 8:
        q = blocks.reshape(rows, columns, 2, 8, 4, 2, 2, 2, 2) ^ 128  # i, j, plane, g, t, w % 2, r, o, c
        return xp.permute(q, (0, 6, 3, 1, 2, 5, 8, 4, 7)).reshape(padded_n, padded_k)
    low = blocks[:, :, :512].reshape(rows, columns, 8, 4, 4, 2, 2)  # i, j, g, t, w, o, c
    q = xp.full(low, (*low.shape, 2), 0, "uint8")
    q[..., 0], q[..., 1] = low & 15, low >> 4
    if bits == 5:
        high = blocks[:, :, 512:].reshape(rows, columns, 8, 4, 2, 2)
        for w in range(4):
            for r in range(2):
                q[:, :, :, :, w, :, :, r] |= ((high >> (2 * w + r)) & 1) << 4
    elif bits == 6:
        high = blocks[:, :, 512:].reshape(rows, columns, 8, 4, 2, 2, 2)
        for w in range(4):
            for r in range(2):
                q[:, :, :, :, w, :, :, r] |= ((high[:, :, :, :, w // 2] >> (4 * (w % 2) + 2 * r)) & 3) << 4
    return xp.permute(q, (0, 7, 2, 1, 4, 6, 3, 5)).reshape(padded_n, padded_k)  # i, r, g, j, w, c, t, o


# ---- planes of numbers ----------------------------------------------------------------------------------------------


def _pack_numbers(xp, plane, padded_n, count, fill, dtype):
    """[N, given] -> [padded_n / 16, count, 8, 2]: i, group, g, h."""
    full = xp.full(plane, (padded_n, count), fill, dtype)
    full[: plane.shape[0], : plane.shape[1]] = plane
    return xp.permute(full.reshape(padded_n // 16, 2, 8, count), (0, 3, 2, 1))


def _unpack_numbers(xp, plane, n, count):
    """The inverse: i, group, g, h -> [n, count]."""
    rows, given = plane.shape[0], plane.shape[1]
    return xp.permute(plane, (0, 3, 2, 1)).reshape(rows * 16, given)[:n, :count]


def pack(c):
    """Canonical -> Packed. ValueError names the plane whose shape or value does not fit."""
    check_canonical(c)
    f, xp, sizes = c.format, arrays.of(c.codes), packed_sizes(c.n, c.k, c.format)
    weights = _pack_codes(xp, c.codes, f.bits, sizes.padded_n, sizes.padded_k)
    half = xp.HALF_BITS

    def numbers(plane, count, fill, dtype):
        return _pack_numbers(xp, plane, sizes.padded_n, count, fill, dtype)

    zeros = steps = None
    if f.scale_levels == 2:
        scales = numbers(c.scale_codes, sizes.groups, 0, "int8")
        levels = [numbers(xp.bits(c.scales), sizes.steps, 0, half)]
        if f.zero == "float":
            zeros = numbers(c.offset_codes, sizes.groups, 0, "int8")
            levels.append(numbers(xp.bits(c.offsets), sizes.steps, 0, half))
        steps = xp.to_bytes(xp.stack(levels, 2))
    else:
        scales = numbers(xp.bits(c.scales), sizes.groups, 0, half)
        if f.zero == "int":
            zeros = numbers(c.zeros, sizes.groups, 1 << (f.bits - 1), "uint8")
        elif f.zero == "float":
            zeros = numbers(xp.bits(c.offsets), sizes.groups, 0, half)
    zeros = None if zeros is None else xp.to_bytes(zeros)
    return Packed(f, c.n, c.k, xp.to_bytes(weights), xp.to_bytes(scales), zeros, steps)


def unpack(p):
    """The inverse of pack; 16-bit numbers come back as bits (int16 in PyTorch, uint16 in NumPy)."""
    f, xp, sizes = p.format, arrays.of(p.weights), packed_sizes(p.n, p.k, p.format)
    groups = p.k // f.group_size if f.group_size else 1
    half, levels = xp.HALF_BITS, {}

    def numbers(flat, count, canonical, dtype):
        plane = xp.from_bytes(flat, dtype).reshape(sizes.padded_n // 16, count, 8, 2)
        return _unpack_numbers(xp, plane, p.n, canonical)

    if f.scale_levels == 2:
        levels["scale_codes"] = numbers(p.scales, sizes.groups, groups, "int8")
        both = xp.from_bytes(p.steps, half).reshape(sizes.padded_n // 16, sizes.steps, -1, 8, 2)
        scales = _unpack_numbers(xp, both[:, :, 0], p.n, -(-p.k // STEP_WEIGHTS))
        if f.zero == "float":
            levels["offset_codes"] = numbers(p.zeros, sizes.groups, groups, "int8")
            levels["offsets"] = _unpack_numbers(xp, both[:, :, 1], p.n, -(-p.k // STEP_WEIGHTS))
    else:
        scales = numbers(p.scales, sizes.groups, groups, half)
        if f.zero == "int":
            levels["zeros"] = numbers(p.zeros, sizes.groups, groups, "uint8")
        elif f.zero == "float":
            levels["offsets"] = numbers(p.zeros, sizes.groups, groups, half)
    codes = _unpack_codes(xp, p.weights, f.bits, sizes.padded_n, sizes.padded_k)[: p.n, : p.k]
    return Canonical(f, codes, scales, **levels)


__all__ = [
    "Canonical", "LAYOUT_ID", "Packed", "PackedSizes", "check_canonical", "check_format", "dequantize", "pack", "packed_sizes",
    "quantize", "unpack",
]  # fmt: skip
