"""The few operations that NumPy arrays and PyTorch tensors spell differently, under one name. `of(array)` gives the
right set; PyTorch is imported only when a tensor comes."""

import functools

import numpy as np


class _NumPy:
    @staticmethod
    def full(like, shape, value, dtype):
        return np.full(shape, value, dtype=dtype)

    @staticmethod
    def cast(array, dtype):
        return array.astype(dtype)

    @staticmethod
    def permute(array, axes):
        return np.ascontiguousarray(array.transpose(axes))

    stack = staticmethod(lambda arrays, axis: np.stack(arrays, axis))
    concatenate = staticmethod(lambda arrays, axis: np.concatenate(arrays, axis))
    maximum = staticmethod(np.maximum)
    isfinite = staticmethod(np.isfinite)
    where = staticmethod(np.where)

    @staticmethod
    def amax(array, axis):
        return array.max(axis)

    @staticmethod
    def amin(array, axis):
        return array.min(axis)

    @staticmethod
    def repeat(array, count):
        """Every column `count` times."""
        return np.repeat(array, count, axis=1)

    @staticmethod
    def to_bytes(array):
        """The array's memory as flat uint8."""
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    @staticmethod
    def from_bytes(flat, dtype):
        return flat.view(dtype)

    @staticmethod
    def bits(array):
        """16-bit numbers as the integers of the same bits."""
        return array.view(np.uint16)

    @staticmethod
    def from_bits(array, scalar):
        """The float32 values of "bf16" or "fp16" numbers, given as bits."""
        bits = array.view(np.uint16)
        if scalar == "bf16":
            return (bits.astype(np.uint32) << 16).view(np.float32)
        return bits.view(np.float16).astype(np.float32)

    @staticmethod
    def rounded(values, scalar):
        """float32 values as the nearest "bf16" or "fp16" numbers, given as bits."""
        if scalar == "fp16":
            return values.astype(np.float16).view(np.uint16)
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    HALF_BITS = "uint16"


class _Torch:
    def __init__(self, torch):
        self._torch = torch
        self._scalars = {"bf16": torch.bfloat16, "fp16": torch.float16}
        self.stack, self.concatenate, self.maximum, self.where = torch.stack, torch.cat, torch.maximum, torch.where
        self.isfinite = torch.isfinite

    def full(self, like, shape, value, dtype):
        return self._torch.full(shape, value, dtype=getattr(self._torch, dtype), device=like.device)

    def cast(self, array, dtype):
        return array.to(getattr(self._torch, dtype))

    @staticmethod
    def permute(array, axes):
        return array.permute(axes).contiguous()

    @staticmethod
    def amax(array, axis):
        return array.amax(axis)

    @staticmethod
    def amin(array, axis):
        return array.amin(axis)

    @staticmethod
    def repeat(array, count):
        return array.repeat_interleave(count, dim=1)

    def to_bytes(self, array):
        return array.contiguous().reshape(-1).view(self._torch.uint8)

    def from_bytes(self, flat, dtype):
        return flat.view(getattr(self._torch, dtype))

    def bits(self, array):
        return array.view(self._torch.int16)

    def from_bits(self, array, scalar):
        """As NumPy's; a tensor may be of the type itself, too."""
        return (array if array.is_floating_point() else array.view(self._scalars[scalar])).float()

    def rounded(self, values, scalar):
        """As a tensor of the type itself."""
        return values.to(self._scalars[scalar])

    HALF_BITS = "int16"


@functools.lru_cache(maxsize=None)
def _torch():
    import torch

    return _Torch(torch)


def of(array):
    return _torch() if type(array).__module__.split(".")[0] == "torch" else _NumPy
