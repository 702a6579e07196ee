"""A quantized Llama with fewer and larger products: q, k and v are one layer; gate and up are one whose kernel also multiplies
silu(gate) by up; the residual is added by the kernels of o and down. The codes are those of the separate layers."""

import copy
import dataclasses

import torch

from qgemm import packing
from qgemm.torch import QuantizedLinear


def canonical(layer):
    packed = packing.Packed(
        layer.format, layer.out_features, layer.in_features, layer.weights, layer.scales, layer.zeros, layer.steps
    )
    found = packing.unpack(packed)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[layer.format.scale]
    halves = {name: getattr(found, name) for name in ("scales", "offsets")}
    return dataclasses.replace(found, **{name: p.contiguous().view(kind) for name, p in halves.items() if p is not None})


def joined(layers, join, **epilogue):
    """One QuantizedLinear of the rows of several; `join` puts arrays of rows together."""
    parts = [canonical(layer) for layer in layers]
    planes = {}
    for name in ("codes", "scales", "zeros", "offsets", "scale_codes", "offset_codes"):
        if getattr(parts[0], name) is not None:
            planes[name] = join([getattr(part, name) for part in parts]).contiguous()
    whole = packing.Canonical(layers[0].format, **planes)
    return QuantizedLinear.from_canonical(whole, dtype=layers[0].dtype, **epilogue)


def stacked(arrays):
    return torch.cat(arrays, 0)


def alternating(arrays):
    """Rows of gate and up in turn, as gated kernels want them."""
    return torch.stack(arrays, 1).reshape(-1, arrays[0].shape[1])


class FusedAttention(torch.nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.qkv_proj = joined([attention.q_proj, attention.k_proj, attention.v_proj], stacked)
        self.o_proj = joined([attention.o_proj], stacked, residual=True)
        del attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj

    def forward(self, x, residual, *rest):
        a = self.attention
        sizes = [a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.head_dim]
        return self.o_proj(a.attend(*self.qkv_proj(x).split(sizes, dim=-1), *rest), residual)


class FusedLayer(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.self_attn = FusedAttention(layer.self_attn)
        gate_up = [layer.mlp.gate_proj, layer.mlp.up_proj]
        self.gate_up_proj = joined(gate_up, alternating, activation="silu", gated=True)
        self.down_proj = joined([layer.mlp.down_proj], stacked, residual=True)

    def forward(self, x, *rest):
        x = self.self_attn(self.input_layernorm(x), x, *rest)
        return self.down_proj(self.gate_up_proj(self.post_attention_layernorm(x)), x)


def fused_llama(quantized):
    """A copy of a quantized Llama (llama.py) with fused layers."""
    model = copy.deepcopy(quantized)
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = FusedLayer(layer)
    return model
