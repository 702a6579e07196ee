"""QuantizedLinear, which takes nn.Linear's place, and quantize_, which puts it there."""

import dataclasses
import pathlib
import re
import tempfile
from typing import Dict, List, Optional

import torch
from torch import nn

from qgemm import bundle, packing, weight_store
from qgemm.buckets import LADDER, bucket_for
from qgemm.errors import NotFound
from qgemm.results import TuneResults
from qgemm.torch.kernels import KERNELS
from qgemm.torch.op import linear, problem_of
from qgemm.types import as_format, check_act_quantization

_SCALES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


class QuantizedLinear(nn.Module):
    """Y = X @ dequant(W)^T + bias with packed weights as buffers; for inference. `dtype` is X's and Y's type.

    `activation` ("none", "silu", "gelu_tanh", "relu") follows the bias in the same kernel; `gated`: rows of W alternate
    gate and up, and Y = activation(gate) * up has n / 2 columns; `residual`: forward takes what is added last.
    `act_quantization` "int8": the kernel rounds X to bytes (see qgemm.Problem); never chosen unasked.
    `permutation`: column j of the packed weight is column permutation[j] of the model's (GPTQ's act-order); X is gathered.
    """

    def __init__(self, n, k, format, bias=False, *, activation="none", gated=False, residual=False,
                 act_quantization="none", dtype=torch.bfloat16, device=None):  # fmt: skip
        super().__init__()
        f = as_format(format)
        if dtype not in _SCALES:
            raise TypeError(f"dtype is {dtype}: allowed are torch.bfloat16 and torch.float16")
        self.in_features, self.out_features, self.dtype = k, n, dtype
        self.activation, self.gated, self.residual = activation, gated, residual
        self.act_quantization = check_act_quantization(act_quantization, f)
        default_scale = "fp16" if f.scale_levels == 2 else _SCALES[dtype]
        self.format = dataclasses.replace(f, scale=f.scale or default_scale)
        packing.check_format(self.format)
        sizes = packing.packed_sizes(n, k, self.format)

        def plane(size):
            return torch.empty(size, dtype=torch.uint8, device=device) if size else None

        self.register_buffer("weights", plane(sizes.weight_bytes))
        self.register_buffer("scales", plane(sizes.scale_bytes))
        self.register_buffer("zeros", plane(sizes.zero_bytes))
        self.register_buffer("steps", plane(sizes.step_bytes))
        self.register_buffer("bias", torch.empty(n, dtype=dtype, device=device) if bias else None)
        self.register_buffer("permutation", None)

    @classmethod
    def from_canonical(cls, canonical, bias=None, *, dtype=torch.bfloat16, device=None, permutation=None, **epilogue):
        """From packing.Canonical; `device`: where the tensors are, the CPU for NumPy's, unless it is given."""
        if device is None:
            device = getattr(canonical.codes, "device", "cpu") if torch.is_tensor(canonical.codes) else "cpu"
        f = canonical.format
        made = cls(canonical.n, canonical.k, f, bias is not None, dtype=dtype, device=device, **epilogue)
        packed = packing.pack(canonical)
        for name in ("weights", "scales", "zeros", "steps"):
            plane = getattr(packed, name)
            if plane is not None:
                setattr(made, name, torch.as_tensor(plane, device=device))
        if bias is not None:
            made.bias = torch.as_tensor(bias, device=device).detach().to(dtype).contiguous()
        if permutation is not None:
            made.permutation = torch.as_tensor(permutation, device=device).long()
        return made

    @classmethod
    def from_linear(cls, module, format, **epilogue):
        """Quantizes an nn.Linear's weight, round to nearest."""
        with torch.no_grad():
            dtype = module.weight.dtype
            if dtype not in _SCALES:
                raise TypeError(f"the weight has the type {dtype}: allowed are torch.bfloat16 and torch.float16")
            canonical = packing.quantize(module.weight.detach(), format, _SCALES[dtype])
            return cls.from_canonical(canonical, module.bias, dtype=dtype, **epilogue)

    @classmethod
    def from_bundle(cls, opened, layer, *, weights=None, device=None):
        """A layer of a bundle.Bundle with its weights; load_kernels brings its kernels. `weights`: opened.weights(), to
        read the file once for all layers."""
        p = layer.problem
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[p.act]
        epilogue = {"activation": p.activation, "gated": p.gated, "residual": p.residual, "act_quantization": p.act_quantization}
        made = cls(p.n, p.k, p.format, p.bias, **epilogue, dtype=dtype, device=device)
        for name, data in opened.planes(layer, weights).items():
            plane = getattr(made, name)
            plane.view(torch.uint8).copy_(torch.from_numpy(data.copy()).view(plane.view(torch.uint8).shape))
        return made

    @property
    def problem(self):
        """Its Problem."""
        call = (self.out_features, self.in_features, str(self.format), self.dtype, self.bias is not None)
        return problem_of(*call, self.activation, self.gated, self.residual, self.act_quantization)

    def dequantized_weight(self):
        """float32 [N, K], columns as in the model's weight."""
        shape = (self.format, self.out_features, self.in_features)
        packed = packing.Packed(*shape, self.weights, self.scales, self.zeros, self.steps)
        weight = packing.dequantize(packing.unpack(packed))
        if self.permutation is None:
            return weight
        return torch.empty_like(weight).index_copy_(1, self.permutation, weight)

    def forward(self, x, residual=None):
        if (residual is not None) != self.residual:
            raise ValueError(f"a residual is {'missing' if self.residual else 'given'}: the layer is made for the other case")
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"x has the shape {tuple(x.shape)}: its last dimension must be in_features, {self.in_features}")
        if self.permutation is not None:
            x = x.index_select(-1, self.permutation)
        return linear(
            x, self.weights, self.scales, self.zeros, self.steps, self.bias, residual, self.out_features,
            str(self.format), self.activation, self.gated, self.act_quantization,
        )  # fmt: skip

    def extra_repr(self):
        words = f"in_features={self.in_features}, out_features={self.out_features}, format={self.format}"
        words += f", bias={self.bias is not None}"
        words += f", activation={self.activation}" if self.activation != "none" else ""
        words += ", gated=True" if self.gated else ""
        words += f", act_quantization={self.act_quantization}" if self.act_quantization != "none" else ""
        return words + (", residual=True" if self.residual else "")


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


def quantize_(model, client=None, *, format="int4-g128", act_quantization="none", m=LADDER, include=None, exclude=None,
              effort="balanced", target="", progress=None):  # fmt: skip
    """Replaces the nn.Linear layers of `model` by QuantizedLinear, in place, and tunes their problems.

    `act_quantization`: "int8" for kernels that round activations to bytes, too (some 0.7 % of error).
    `include`, `exclude`: regular expressions searched in a layer's full name, or functions of (name, module).
    `client`: a qgemm.Client; every problem is tuned for the buckets of `m` and its kernels are fetched. None: nothing
    is tuned; the layers run on the CPU, on a GPU after `tune` or `load_kernels`.
    Returns a QuantizeReport. Raises TuneFailed where a problem got no pick; the layers are replaced by then.
    """
    f = as_format(format)
    check_act_quantization(act_quantization, f)
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
            try:
                layer = QuantizedLinear.from_linear(module, f, act_quantization=act_quantization)
            except ValueError as error:
                raise ValueError(f"layer {name}: {error}") from None
            made[module] = layer.train(module.training)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[module])
    results = None
    if client is not None and chosen:
        results = tune(model, client, m=m, effort=effort, target=target, progress=progress)
    return QuantizeReport([name for name, _ in chosen], skipped, results)


def load_checkpoint_(model, checkpoint, client=None, *, act_quantization="none", m=LADDER, effort="balanced", target="",
                     progress=None):  # fmt: skip
    """Puts the layers of a quantized checkpoint (qgemm.importers.open_checkpoint) in the place of the model's nn.Linear of
    the same names, and tunes them as quantize_ does. Types, devices and biases stay the model's; what else a checkpoint
    holds (embeddings, norms, biases) is loaded as for any model. Returns a QuantizeReport; ValueError names a layer that
    the model lacks or has in another shape."""
    modules, replaced = dict(model.named_modules()), []
    for name in checkpoint.layers():
        module = modules.get(name)
        if not isinstance(module, nn.Linear):
            raise ValueError(f"the checkpoint has a layer {name}: the model has no nn.Linear of this name")
        weights = checkpoint.read(name)
        if (weights.n, weights.k) != (module.out_features, module.in_features):
            raise ValueError(f"{name} is {weights.n}x{weights.k}: the model's is {module.out_features}x{module.in_features}")
        made = QuantizedLinear.from_canonical(
            weights.canonical(), module.bias, dtype=module.weight.dtype, device=module.weight.device,
            permutation=weights.permutation, act_quantization=act_quantization,
        )  # fmt: skip
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made.train(module.training))
        replaced.append(name)
    results = None
    if client is not None and replaced:
        results = tune(model, client, m=m, effort=effort, target=target, progress=progress)
    return QuantizeReport(replaced, {}, results)


def _matches(pattern, name, module):
    return pattern(name, module) if callable(pattern) else re.search(pattern, name) is not None


def _why_not(name, module, f, include, exclude):
    if include is not None and not _matches(include, name, module):
        return "not included"
    if exclude is not None and _matches(exclude, name, module):
        return "excluded"
    if module.in_features % (f.group_size or 8):
        return f"k {module.in_features} is not a multiple of {f'group_size {f.group_size}' if f.group_size else 8}"
    if module.weight.dtype not in _SCALES:
        return f"its weight has the type {module.weight.dtype}: allowed are torch.bfloat16 and torch.float16"
    return ""


def problems_of(model):
    """The distinct problems of a model's QuantizedLinear layers, in the order of their first layer."""
    layers = (module for module in model.modules() if isinstance(module, QuantizedLinear))
    return list(dict.fromkeys(layer.problem for layer in layers))


def _with_programmatic(kernel, client):
    """The kernel, its `info` saying whether it waits for the kernel before it."""
    try:
        waits = "griddepcontrol.wait" in client.get_ptx(kernel.sha256)
    except NotFound:  # stored without its PTX
        return kernel
    return dataclasses.replace(kernel, info=dataclasses.replace(kernel.info, programmatic=waits))


def tune(model, client, *, m=LADDER, effort="balanced", target="", progress=None):
    """Tunes the problems of a quantized model for the buckets of `m` and fetches their kernels; TuneResults."""
    results = client.tune(problems_of(model), m, effort=effort, target=target, progress=progress).raise_for_errors()
    kernels = client.get_kernels(results.picks)
    KERNELS.add(results.picks, {sha256: _with_programmatic(kernel, client) for sha256, kernel in kernels.items()})
    devices = {module.weights.device for module in model.modules() if isinstance(module, QuantizedLinear)}
    preload(*(device.index for device in devices if device.type == "cuda"))
    return results


def preload(*devices):
    """Loads all kernels of this process on the given CUDA devices, so that no first launch waits for it."""
    for device in devices:
        with torch.cuda.device(device):
            KERNELS.preload(device)


def _planes(name, layer):
    """{"<name>.<plane>": tensor} of a layer, for a bundle's weights file."""
    planes = {f"{name}.{plane}": getattr(layer, plane) for plane in ("weights", "scales", "zeros", "steps", "bias")}
    return {key: tensor for key, tensor in planes.items() if tensor is not None}


def _methods(name, layers):
    """Layers with every bucket are a method of that name for any M; the others one method NAME-mBUCKET per bucket."""
    whole = tuple(layer for layer in layers if [pick.m_bucket for pick in layer.picks] == list(LADDER))
    methods = [bundle.Method(name, None, whole)] if whole else []
    for bucket in LADDER:
        single = []
        for layer in layers:
            picks = tuple(pick for pick in layer.picks if pick.m_bucket == bucket)
            if layer not in whole and picks:
                single.append(dataclasses.replace(layer, picks=picks))
        if single:
            methods.append(bundle.Method(f"{name}-m{bucket}", bucket, tuple(single)))
    return methods


def _chosen_methods(methods, layers):
    """As save_bundle's `methods` says: {name: rows or None} -> bundle.Method; LookupError names what is not tuned."""
    made = []
    for name, rows in methods.items():
        wanted = LADDER if rows is None else (bucket_for(rows),)
        chosen = []
        for layer in layers:
            picks = {pick.m_bucket: pick for pick in layer.picks}
            missing = [bucket for bucket in wanted if bucket not in picks]
            if missing:
                raise LookupError(f"method {name}: {layer.problem} is not tuned for M <= {missing[0]}: qgemm.torch.tune it")
            chosen.append(dataclasses.replace(layer, picks=tuple(picks[bucket] for bucket in wanted)))
        made.append(bundle.Method(name, rows, tuple(chosen)))
    return made


def _write_weights(path, methods, planes, skip_repeats):
    """One file of the planes of all methods' layers; WeightCounts."""
    devices = {tensor.device for of_layer in planes.values() for tensor in of_layer.values()}
    gpus = {device for device in devices if device.type == "cuda"}
    for device in gpus:
        torch.cuda.synchronize(device)
    one_gpu = next(iter(gpus)).index if len(gpus) == 1 else None
    with weight_store.WeightStore(path, one_gpu, skip_repeats) as store:
        for method in methods:
            for layer in method.layers:
                for key, tensor in sorted(planes[layer.name].items()):
                    on_gpu = tensor.device.type == "cuda" and one_gpu is not None
                    store.add(key, tensor if on_gpu else tensor.cpu(), "weight" if on_gpu else "cpu_tensor")
        store.finish()
        return store.counts


@dataclasses.dataclass(frozen=True)
class SavedBundle:
    """What save_bundle wrote: names of methods, and how often weights were written; None: there are none, or
    libqgemm.so is not there."""

    methods: List[str]
    weights: Optional[weight_store.WeightCounts]


def save_bundle(path, model, *, weights=True, method="main", methods=None, skip_repeats=True):
    """Writes a model's quantized layers as a bundle (qgemm.bundle): their kernels for every tuned bucket and, unless
    `weights` is False, their packed weights, once for all methods. A layer has its name in the model; one that occurs
    twice its first.

    `methods`: {name: rows of every launch, or None for any}, such as {"decode": 1, "prefill": None}: all layers are in
    each. Without it layers tuned for all of LADDER are the method `method`; others are in one method per bucket.
    `skip_repeats`: a weight on a GPU that an earlier method wrote is known by its fingerprint and not copied again; the
    bundle is the same without. Returns SavedBundle. LookupError: a method's bucket is not tuned."""
    layers, planes = [], {}
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLinear):
            name = name or "main"
            if weights and module.permutation is not None:
                raise ValueError(f"{name} gathers its activations (act-order), which a bundle cannot say: weights=False")
            layers.append(KERNELS.layer(name, module.problem, name if weights else ""))
            planes[name] = _planes(name, module)
    made = _methods(method, layers) if methods is None else _chosen_methods(methods, layers)
    names = [each.name for each in made]
    if not weights:
        bundle.write(path, made, KERNELS.cubins())
        return SavedBundle(names, None)
    if not weight_store.available():
        tensors = {}
        for of_layer in planes.values():
            for key, tensor in of_layer.items():
                flat = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
                tensors[key] = (weight_store.dtype_of(tensor), tuple(tensor.shape), flat)
        bundle.write(path, made, KERNELS.cubins(), tensors)
        return SavedBundle(names, None)
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        file = pathlib.Path(folder) / "weights.safetensors"
        counts = _write_weights(file, made, planes, skip_repeats)
        bundle.write(path, made, KERNELS.cubins(), weights_file=file)
    return SavedBundle(names, counts)


def load_kernels(path):
    """Adds the kernels of a bundle: what a program needs that loads an exported model."""
    KERNELS.load(path)
