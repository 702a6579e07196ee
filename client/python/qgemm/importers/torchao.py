"""torchao int4, tile-packed (tinygemm)."""

from qgemm.importers.weights import Tensor, run


def import_torchao(qdata, scale_and_zero, *, shape, group_size, name="weight"):
    """`shape`: (N, K) of the weight without torchao's padding."""
    tensors = [Tensor.of(f"{name}.qdata", qdata), Tensor.of(f"{name}.scale_and_zero", scale_and_zero)]
    return run("qgemm_import_torchao", tensors, shape[0], shape[1], group_size)


def import_torchao_tensor(weight, name="weight"):
    """From torchao's Int4TilePackedTo4dTensor."""
    return import_torchao(
        weight.qdata, weight.scale_and_zero, shape=weight.shape, group_size=weight.block_size[-1], name=name
    )
