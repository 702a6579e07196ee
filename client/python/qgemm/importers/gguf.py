"""GGUF Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K."""

from qgemm.importers.weights import Tensor, run

# Block types, by their numbers in files.
TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}


def import_gguf(data, type, *, shape, name="tensor"):
    """`data`: the tensor's bytes, uint8; `type`: "Q4_K" or its number; `shape`: (N, K), rows first."""
    if isinstance(type, str):
        if type not in TYPES:
            raise ValueError(f"type {type!r} is not one of {', '.join(TYPES)}")
        type = TYPES[type]
    return run("qgemm_import_gguf", [Tensor.of(name, data)], int(type), shape[0], shape[1])
