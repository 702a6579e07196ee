"""The same weights, some ways to multiply."""

import torch
from tinygemm import TinygemmLinear, serves

import qgemm.torch


def peers(run):
    """{name: model}: the same weights, some ways to multiply."""
    if run.models:
        return run.models
    models = run.models = {"bf16": run.reference, "qgemm": run.quantized}
    if run.fused is not None:
        models["qgemm_fused"] = run.fused
    layers = {n: m for n, m in run.quantized.named_modules() if isinstance(m, qgemm.torch.QuantizedLinear)}
    if all(serves(layer) for layer in layers.values()):
        with torch.device("meta"):
            other = type(run.reference)(run.reference.config)
        other = other.to(torch.bfloat16)
        other.load_state_dict(run.reference.state_dict(), assign=True)
        for name, layer in layers.items():
            parent, _, child = name.rpartition(".")
            setattr(other.get_submodule(parent), child, TinygemmLinear(layer))
        models["tinygemm"] = other.eval()
    return models
