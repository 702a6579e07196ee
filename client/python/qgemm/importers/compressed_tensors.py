"""compressed-tensors, format "pack-quantized", 4, 5, 6 and 8 bits, padded and dense words."""

from qgemm.importers.weights import Tensor, run

_ENCODINGS = {None: 0, "padded": 1, "dense": 2}


def import_compressed_tensors(
    weight_packed,
    weight_shape,
    weight_scale,
    weight_zero_point=None,
    weight_g_idx=None,
    *,
    bits,
    group_size,
    encoding=None,
    name="layer",
):
    """`encoding`: "padded" (whole codes in each word), "dense" (codes across words), or None to detect it."""
    if encoding not in _ENCODINGS:
        raise ValueError(f"encoding {encoding!r} is not one of 'padded', 'dense', None")
    parts = (
        ("weight_packed", weight_packed),
        ("weight_shape", weight_shape),
        ("weight_scale", weight_scale),
        ("weight_zero_point", weight_zero_point),
        ("weight_g_idx", weight_g_idx),
    )
    tensors = [Tensor.of(f"{name}.{part}", value) for part, value in parts]
    return run("qgemm_import_compressed_tensors", tensors, bits, group_size, _ENCODINGS[encoding])
