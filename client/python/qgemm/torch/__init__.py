"""Quantized layers for PyTorch that run qgemmd's kernels.

    report = qgemm.torch.quantize_(model, qgemm.Client(), format="int4-g128")

Importing this registers the operator torch.ops.qgemm.linear; a program that loads an exported model imports it, too.
"""

from qgemm.torch.linear import (
    QuantizedLinear,
    QuantizeReport,
    SavedBundle,
    load_checkpoint_,
    load_kernels,
    preload,
    problems_of,
    quantize_,
    save_bundle,
    tune,
)
from qgemm.torch.op import linear

__all__ = [
    "QuantizeReport",
    "QuantizedLinear",
    "SavedBundle",
    "linear",
    "load_checkpoint_",
    "load_kernels",
    "preload",
    "problems_of",
    "quantize_",
    "save_bundle",
    "tune",
]
