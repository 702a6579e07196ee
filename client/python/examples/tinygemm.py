"""PyTorch's own int4 kernel, tinygemm (torch._weight_int4pack_mm), with the same codes as a QuantizedLinear: a peer."""

import torch
from torch import nn

from qgemm import packing


class TinygemmLinear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        packed = packing.Packed(
            layer.format, layer.out_features, layer.in_features, layer.weights, layer.scales, layer.zeros, layer.steps
        )
        canonical = packing.unpack(packed)
        codes = canonical.codes
        self.group_size, self.n = layer.format.group_size, layer.out_features
        # Even columns stand in the high half of a byte; w = (q - 8) * scale + 0.
        self.weight = torch.ops.aten._convert_weight_to_int4pack(codes[:, 0::2] << 4 | codes[:, 1::2], 8)
        scales = canonical.scales.view(torch.bfloat16).t().contiguous()
        self.scales = torch.stack((scales, torch.zeros_like(scales)), dim=-1).contiguous()

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        return torch._weight_int4pack_mm(rows, self.weight, self.group_size, self.scales).reshape(*x.shape[:-1], self.n)


def serves(layer):
    """Whether tinygemm knows this layer's format and shape."""
    f = layer.format
    is_format = f.bits == 4 and f.zero == "none" and f.scale == "bf16" and f.group_size in (32, 64, 128, 256)
    shape_fits = layer.out_features % 8 == 0 and layer.in_features % 128 == 0
    return is_format and shape_fits and layer.bias is None and layer.weights.is_cuda
