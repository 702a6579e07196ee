"""AWQ, version "gemm"."""

from qgemm.importers.weights import Tensor, run


def import_awq(qweight, qzeros, scales, *, group_size, name="layer"):
    """`qzeros` may be None: symmetric."""
    tensors = [
        Tensor.of(f"{name}.{part}", value) for part, value in (("qweight", qweight), ("qzeros", qzeros), ("scales", scales))
    ]
    return run("qgemm_import_awq", tensors, group_size)
