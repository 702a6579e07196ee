"""GPTQ, 4 and 8 bits, both conventions of zero points, act-order."""

import ctypes

from qgemm.importers import library
from qgemm.importers.weights import MalformedTensor, Tensor, run

_CONVENTIONS = {None: 0, "v1": 1, "v2": 2}


def detect_gptq_zeros(qzeros, bits, name="qzeros"):
    """"v1" (the file stores z - 1) or "v2" (it stores z) where the zero points show it, as symmetric ones do; else None."""
    struct, _alive = Tensor.of(name, qzeros).struct()
    shown = ctypes.c_int32()
    message = library.call("qgemm_import_gptq_zeros", ctypes.byref(struct), bits, ctypes.byref(shown))
    if message is not None:
        raise MalformedTensor(message)
    return {0: None, 1: "v1", 2: "v2"}[shown.value]


def import_gptq(qweight, qzeros, scales, g_idx=None, *, bits, group_size, zeros=None, name="layer"):
    """`zeros`: "v1", "v2", or None to detect it; asymmetric zero points do not show it and are refused then."""
    if zeros not in _CONVENTIONS:
        raise ValueError(f"zeros {zeros!r} is not one of 'v1', 'v2', None")
    tensors = [
        Tensor.of(f"{name}.{part}", value)
        for part, value in (("qweight", qweight), ("qzeros", qzeros), ("scales", scales), ("g_idx", g_idx))
    ]
    return run("qgemm_import_gptq", tensors, bits, group_size, _CONVENTIONS[zeros])
