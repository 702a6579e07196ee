"""QuantizedLinear, which takes nn.Linear's place, and quantize_, which puts it there."""

import dataclasses
import re
from typing import Dict, List, Optional

import torch
from torch import nn

from qgemm import packing
from qgemm.buckets import LADDER
from qgemm.results import TuneResults
from qgemm.torch.kernels import KERNELS
from qgemm.torch.op import linear, problem_of
from qgemm.types import as_format

_SCALES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


class QuantizedLinear(nn.Module):
    """Y = X @ dequant(W)^T + bias with packed weights as buffers; for inference. `dtype` is X's and Y's type."""

    def __init__(self, n, k, format, bias=False, *, dtype=torch.bfloat16, device=None):
        super().__init__()
        f = as_format(format)
        if dtype not in _SCALES:
            raise TypeError(f"dtype is {dtype}: allowed are torch.bfloat16 and torch.float16")
        self.in_features, self.out_features, self.dtype = k, n, dtype
        self.format = dataclasses.replace(f, scale=f.scale or _SCALES[dtype])
        padded_n, padded_k, groups = packing.padded(n, k, self.format.group_size)

        def plane(size):
            return torch.empty(size, dtype=torch.uint8, device=device)

        self.register_buffer("weights", plane(padded_n * padded_k * self.format.bits // 8))
        self.register_buffer("scales", plane(padded_n * groups * 2))
        self.register_buffer("zeros", plane(padded_n * groups) if self.format.has_zeros else None)
        self.register_buffer("bias", torch.empty(n, dtype=dtype, device=device) if bias else None)

    @classmethod
    def from_canonical(cls, canonical, bias=None, *, dtype=torch.bfloat16):
        """From packing.Canonical with PyTorch tensors, on their device."""
        device = canonical.codes.device
        made = cls(canonical.n, canonical.k, canonical.format, bias is not None, dtype=dtype, device=device)
        packed = packing.pack(canonical)
        made.weights, made.scales, made.zeros = packed.weights, packed.scales, packed.zeros
        if bias is not None:
            made.bias = bias.detach().to(dtype).contiguous()
        return made

    @classmethod
    def from_linear(cls, module, format):
        """Quantizes an nn.Linear's weight, round to nearest."""
        with torch.no_grad():
            dtype = module.weight.dtype
            if dtype not in _SCALES:
                raise TypeError(f"the weight has the type {dtype}: allowed are torch.bfloat16 and torch.float16")
            canonical = packing.quantize(module.weight.detach(), format, _SCALES[dtype])
            return cls.from_canonical(canonical, module.bias, dtype=dtype)

    @property
    def problem(self):
        return problem_of(self.out_features, self.in_features, str(self.format), self.dtype, self.bias is not None)

    def dequantized_weight(self):
        """float32 [N, K], exact."""
        packed = packing.Packed(
            self.format, self.out_features, self.in_features, self.weights, self.scales, self.zeros
        )
        return packing.dequantize(packing.unpack(packed))

    def forward(self, x):
        return linear(x, self.weights, self.scales, self.zeros, self.bias, self.out_features, str(self.format))

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, format={self.format}, bias={self.bias is not None}"


@dataclasses.dataclass(frozen=True)
class QuantizeReport:
    """What quantize_ did: the layers replaced, those left as they were and why, and the tuning's results."""

    replaced: List[str]
    skipped: Dict[str, str]
    results: Optional[TuneResults]

    def __repr__(self):
        lines = [f"{len(self.replaced)} layers replaced, {len(self.skipped)} left as they were"]
        lines += [f"  {name}: {reason}" for name, reason in self.skipped.items()]
        if self.results is not None:
            lines.append(repr(self.results))
        return "\n".join(lines)


def quantize_(model, client=None, *, format="int4-g128", m=LADDER, include=None, exclude=None, effort="balanced",
              target="", progress=None):  # fmt: skip
    """Replaces the nn.Linear layers of `model` by QuantizedLinear, in place, and tunes their problems.

    `include`, `exclude`: regular expressions searched in a layer's full name, or functions of (name, module).
    `client`: a qgemm.Client; every problem is tuned for the buckets of `m` and its kernels are fetched. None: nothing
    is tuned; the layers run on the CPU, on a GPU after `tune` or `load_kernels`.
    Returns a QuantizeReport. Raises TuneFailed where a problem got no pick; the layers are replaced by then.
    """
    f = as_format(format)
    chosen, skipped, made = [], {}, {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, nn.Linear):
            continue
        reason = _why_not(name, module, f, include, exclude)
        if reason:
            skipped[name] = reason
        else:
            chosen.append((name, module))
    for name, module in chosen:
        if module not in made:
            made[module] = QuantizedLinear.from_linear(module, f).train(module.training)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[module])
    results = None
    if client is not None and chosen:
        results = tune(model, client, m=m, effort=effort, target=target, progress=progress)
    return QuantizeReport([name for name, _ in chosen], skipped, results)


def _matches(pattern, name, module):
    return pattern(name, module) if callable(pattern) else re.search(pattern, name) is not None


def _why_not(name, module, f, include, exclude):
    if include is not None and not _matches(include, name, module):
        return "not included"
    if exclude is not None and _matches(exclude, name, module):
        return "excluded"
    if module.in_features % f.group_size:
        return f"k {module.in_features} is not a multiple of group_size {f.group_size}"
    if module.weight.dtype not in _SCALES:
        return f"its weight has the type {module.weight.dtype}: allowed are torch.bfloat16 and torch.float16"
    return ""


def problems_of(model):
    """The distinct problems of a model's QuantizedLinear layers, in the order of their first layer."""
    layers = (module for module in model.modules() if isinstance(module, QuantizedLinear))
    return list(dict.fromkeys(layer.problem for layer in layers))


def tune(model, client, *, m=LADDER, effort="balanced", target="", progress=None):
    """Tunes the problems of a quantized model for the buckets of `m` and fetches their kernels; TuneResults."""
    results = client.tune(problems_of(model), m, effort=effort, target=target, progress=progress).raise_for_errors()
    KERNELS.add(results.picks, client.get_kernels(results.picks))
    devices = {module.weights.device for module in model.modules() if isinstance(module, QuantizedLinear)}
    preload(*(device.index for device in devices if device.type == "cuda"))
    return results


def preload(*devices):
    """Loads all kernels of this process on the given CUDA devices, so that no first launch waits for it."""
    for device in devices:
        with torch.cuda.device(device):
            KERNELS.preload(device)


def save_kernels(folder, model=None):
    """Writes the kernels of this process, or of one model's problems, to a folder: what a reloaded program needs."""
    KERNELS.save(folder, None if model is None else problems_of(model))


def load_kernels(folder):
    """Adds the kernels of a folder that save_kernels wrote."""
    KERNELS.load(folder)
