"""Canonical weights as a file: what `qgemmctl bundle create --weights` packs and makes a bundle of (client/bundle/README.md).

    save("canonical.safetensors", [("model.q_proj", quantize(weight, "int4-g128"))])
"""

import os
import pathlib
import shutil
import tempfile

import numpy as np

from qgemm import arrays
from qgemm.packing import check_canonical
from qgemm.safetensors_header import Header

_SCALARS = {"bf16": "BF16", "fp16": "F16"}


def _on_cpu(flat):
    return flat if isinstance(flat, np.ndarray) else flat.cpu().numpy()


def _planes(canonical, bias, act):
    """[(plane, dtype, shape, bytes)] of a layer."""
    c, xp, scalar = canonical, arrays.of(canonical.codes), _SCALARS[canonical.format.scale]
    dtypes = {"codes": "U8", "scales": scalar, "zeros": "U8", "offsets": scalar, "scale_codes": "I8", "offset_codes": "I8"}
    found = [(name, dtype, getattr(c, name)) for name, dtype in dtypes.items() if getattr(c, name) is not None]
    rows = [(name, dtype, tuple(plane.shape), _on_cpu(xp.to_bytes(plane))) for name, dtype, plane in found]
    if bias is not None:
        bias = np.asarray(bias, np.float32)
        if bias.shape != (c.n,):
            raise ValueError(f"the bias has the shape {bias.shape}: this layer needs {(c.n,)}")
        numpy = arrays.of(bias)
        rows.append(("bias", _SCALARS[act], bias.shape, numpy.to_bytes(numpy.rounded(bias, act))))
    return rows


def save(path, layers, *, act="bf16"):
    """Writes `layers`: (name, packing.Canonical) or (name, Canonical, bias), taken one at a time. Biases are numbers, rounded to
    `act`, the type of activations that the bundle is made for. The file is there whole or not at all. ValueError names the
    layer that does not fit or is there twice."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    header, bits = Header(), {}
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        data, whole = pathlib.Path(folder) / "data", pathlib.Path(folder) / "whole"
        with open(data, "wb") as file:

            def add(name, dtype, shape, content):
                header.add(name, dtype, shape, len(content))
                file.write(content)

            for name, canonical, *bias in layers:
                if name in bits:
                    raise ValueError(f"layer {name} is there twice")
                bits[name] = canonical.format.bits
                try:
                    check_canonical(canonical)
                    rows = _planes(canonical, bias[0] if bias else None, act)
                except ValueError as error:
                    raise ValueError(f"layer {name}: {error}") from None
                for plane, dtype, shape, content in rows:
                    add(f"{name}.{plane}", dtype, shape, memoryview(content))
            for name, value in bits.items():
                add(f"{name}.bits", "U8", (1,), bytes([value]))
        with open(whole, "wb") as file, open(data, "rb") as source:
            file.write(header.to_bytes())
            shutil.copyfileobj(source, file, 1 << 24)
        os.replace(whole, path)
