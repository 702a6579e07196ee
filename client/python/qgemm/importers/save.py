"""A checkpoint's quantized layers as one file of canonical weights."""

import re

from qgemm import canonical_file


def _canonical(checkpoint, name):
    weights = checkpoint.read(name)
    if weights.permutation is not None:
        raise ValueError(f"layer {name} gathers its activations (act-order), which a bundle cannot say: leave it out")
    try:
        return weights.canonical()
    except ValueError as error:
        raise ValueError(f"layer {name}: {error}") from None


def save_canonical(path, checkpoint, *, include=None, exclude=None, act="bf16"):
    """Writes the layers of a Checkpoint, their biases rounded to `act`, as `qgemmctl bundle create --weights` reads them; the
    names written. One layer is in memory at a time. `include`, `exclude`: regular expressions searched in a layer's name.
    ValueError names a layer that no kernel serves or a bundle cannot hold; also where none is left."""
    names = [
        name
        for name in checkpoint.layers()
        if (include is None or re.search(include, name)) and not (exclude is not None and re.search(exclude, name))
    ]
    if not names:
        raise ValueError(f"there is no layer to write: the checkpoint has {len(checkpoint.layers())}")
    layers = ((name, _canonical(checkpoint, name), checkpoint.bias(name)) for name in names)
    canonical_file.save(path, layers, act=act)
    return names
