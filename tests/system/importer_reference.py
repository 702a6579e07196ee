#!/usr/bin/env python3
"""Importers against each ecosystem's own dequantizer, bit for bit.

    PYTHONPATH=client/python QGEMM_LIBRARY=build/release/lib/libqgemm.so importer_reference.py [--only NAME] [--digests FILE]

Each case makes the tensors of a file by formula (StreamWord of tests/unit/kernels/import/import_test_data.h), gives them to
the ecosystem's package and to qgemm.importers, and compares all weights as fp32 bits. An ecosystem that is not installed is
left out, and said so. Then tensors that are too short, of another shape or type, or with a number out of range: each must be
refused by a sentence that names the tensor, and the byte offset where there is one. `--summary` prints a row per format.
`--digests` writes the SHA-256 of the reference's weights, which a unit test checks without any package. Exit code: 0 all
equal, 1 a difference, 77 no ecosystem was there.

Packages (tests/system/importer_requirements.txt says how to install them): auto-gptq, gptqmodel, autoawq,
compressed-tensors (a release that packs densely; `--older FOLDER` holds 0.9.x, which pads), torchao (where there is no CUDA
device its tiles are made by formula; "tinygemm" holds that formula and the importer against PyTorch's own kernels, without
torchao), gguf.
"""

import argparse
import hashlib
import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import types

import numpy as np

SKIPPED = 77


# ---- data by formula ----------------------------------------------------------------------------------------------------


def stream(seed, count):
    with np.errstate(over="ignore"):
        z = np.uint64(seed + 1) * np.uint64(0xD1342543DE82EF95) + np.arange(count, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def words(shape, seed, mask=0xFFFFFFFF):
    return (stream(seed, int(np.prod(shape))) & np.uint64(mask)).astype(np.uint32).view(np.int32).reshape(shape)


def scalars(shape, kind, seed):
    """Bits of finite scales of both signs, uint16."""
    bits = stream(seed, int(np.prod(shape)))
    bits = (bits & np.uint64(0x8FFF)) | np.uint64(0x2000) if kind == "fp16" else (bits & np.uint64(0x81FF)) | np.uint64(0x3C00)
    return bits.astype(np.uint16).reshape(shape)


def group_index(k, group_size, seed):
    order = np.argsort(stream(seed, k), kind="stable")
    g_idx = np.empty(k, np.int32)
    g_idx[order] = np.arange(k) // group_size
    return g_idx


def torch_scalars(bits, kind):
    import torch

    return torch.from_numpy(bits.view(np.int16)).view(torch.float16 if kind == "fp16" else torch.bfloat16)


def rounded(values, kind):
    """fp32 -> nearest even fp16 or bf16 -> fp32."""
    if kind.endswith(" + 0"):
        return rounded(values, kind[:4]) + np.float32(0)
    if kind == "fp16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


# ---- ecosystems: each yields (key, reference fp32 [n, k], ImportedWeights, how ours is rounded to the reference's type) ---


def _folder_of(package):
    return importlib.util.find_spec(package).submodule_search_locations[0]


def load_without_package(package, module):
    """Module of a package whose own __init__ does not load beside today's other packages."""
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise ImportError(f"no package {package}")
    folder = sys.modules[package].__path__[0] if package in sys.modules else _folder_of(package)
    for name in [package] + [f"{package}.{'.'.join(module.split('.')[:i])}" for i in range(1, module.count(".") + 1)]:
        if name not in sys.modules:
            stub = types.ModuleType(name)
            stub.__path__ = [str(pathlib.Path(folder, *name.split(".")[1:]))]
            sys.modules[name] = stub
    return importlib.import_module(f"{package}.{module}")


GPTQ_SHAPES = [(64, 128, 32), (96, 192, 64), (32, 7392, 32), (160, 1024, 128), (32, 96, -1)]


def auto_gptq():
    import torch

    from qgemm.importers import import_gptq

    in_order = load_without_package("auto_gptq", "nn_modules.qlinear.qlinear_cuda_old").QuantLinear
    by_index = load_without_package("auto_gptq", "nn_modules.qlinear.qlinear_cuda").QuantLinear
    for bits in (4, 8):
        for n, k, group in GPTQ_SHAPES:
            for act_order in (False, True):
                if act_order and group == -1:
                    continue
                size = k if group == -1 else group
                # The class that knows g_idx reads a stored 2^bits - 1 as 2^bits, the other one as 0: no such code there.
                mask = 0xFFFFFFFF if not act_order else (0x77777777 if bits == 4 else 0x7F7F7F7F)
                layer = (by_index if act_order else in_order)(bits, group, k, n, False, weight_dtype=torch.float16)
                g_idx = group_index(k, size, 4) if act_order else None
                qweight, qzeros = words((k * bits // 32, n), 1), words((k // size, n * bits // 32), 2, mask)
                scale_bits = scalars((k // size, n), "fp16", 3)
                layer.qweight, layer.qzeros = torch.from_numpy(qweight), torch.from_numpy(qzeros)
                layer.scales = torch_scalars(scale_bits, "fp16")
                if act_order:
                    layer.g_idx = torch.from_numpy(g_idx)
                weight = _matrix(layer, k)
                ours = import_gptq(
                    qweight, qzeros, layer.scales, g_idx, bits=bits, group_size=group, zeros="v1", name="layer"
                )
                yield f"gptq-v1 {bits} {n} {k} {size} {int(act_order)}", weight, ours, "fp16 + 0"


def _matrix(layer, k):
    import torch

    # Products with 1 and sums with 0 are exact, but a sum makes +0 of -0: ours are compared with 0 added.
    return layer.forward(torch.eye(k, dtype=torch.float16)).float().numpy().T


def gptqmodel():
    import torch
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    from qgemm.importers import import_gptq

    for bits in (4, 8):
        for n, k, group in GPTQ_SHAPES:
            for act_order in (False, True):
                size = k if group == -1 else group
                if act_order and size == k:
                    continue
                layer = TorchLinear(bits=bits, group_size=group, sym=False, desc_act=act_order, in_features=k, out_features=n)
                g_idx = group_index(k, size, 4) if act_order else None
                qweight, qzeros = words((k * bits // 32, n), 1), words((k // size, n * bits // 32), 2)
                layer.qweight, layer.qzeros = torch.from_numpy(qweight), torch.from_numpy(qzeros)
                layer.scales = torch_scalars(scalars((k // size, n), "fp16", 3), "fp16")
                if act_order:
                    layer.g_idx = torch.from_numpy(g_idx)
                layer.post_init()
                layer.eval()
                weight = layer.dequantize_weight().float().numpy().T
                ours = import_gptq(
                    qweight, qzeros, layer.scales, g_idx, bits=bits, group_size=group, zeros="v2", name="layer"
                )
                yield f"gptq-v2 {bits} {n} {k} {size} {int(act_order)}", weight, ours, "fp16"


def autoawq():
    import torch

    packing = load_without_package("awq", "utils.packing_utils")
    from qgemm.importers import import_awq

    for n, k, group in [(64, 128, 32), (8, 192, 64), (264, 7392, 32), (40, 1024, 128), (24, 96, 96)]:
        qweight, qzeros = words((k, n // 8), 1), words((k // group, n // 8), 2)
        scales = torch_scalars(scalars((k // group, n), "fp16", 3), "fp16")
        weight = packing.dequantize_gemm(torch.from_numpy(qweight), torch.from_numpy(qzeros), scales, 4, group)
        ours = import_awq(qweight, qzeros, scales, group_size=group)
        yield f"awq 4 {n} {k} {group} 0", weight.float().numpy().T, ours, "fp16"


def compressed_tensors():
    import inspect

    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle import forward

    try:
        from compressed_tensors.compressors.pack_quantized import helpers as packing
    except ImportError:
        from compressed_tensors.compressors.quantized_compressors import pack_quantized as packing
    from qgemm.importers import import_compressed_tensors

    dense = packing.pack_to_int32(torch.zeros((1, 32), dtype=torch.int8), 5).shape[1] == 5
    encoding = "dense" if dense else "padded"
    takes_g_idx = "g_idx" in inspect.signature(forward.dequantize).parameters
    for bits in (4, 5, 6, 8):
        for n, k, group in [(64, 128, 32), (33, 192, 64), (7, 7392, 32), (31, 100, -1), (160, 160, 16)]:
            for asymmetric, act_order in [(False, False), (True, False), (True, True)]:
                size = k if group == -1 else group
                if act_order and (size == k or not takes_g_idx):
                    continue
                count = (lambda codes: -(-codes * bits // 32)) if dense else (lambda codes: -(-codes // (32 // bits)))
                packed, zero = words((n, count(k)), 1), None
                scale = torch_scalars(scalars((n, k // size), "bf16", 3), "bf16")
                zero_point = None
                if asymmetric:
                    zero = words((count(n), k // size), 2)
                    # Unpacked as rows of the transpose: one release stumbles over a single word along dimension 0.
                    rows = torch.from_numpy(np.array(zero.T, order="C", copy=True))
                    zero_point = packing.unpack_from_int32(rows, bits, torch.Size((k // size, n))).T.contiguous()
                codes = packing.unpack_from_int32(torch.from_numpy(packed), bits, torch.Size((n, k)))
                arguments = QuantizationArgs(
                    num_bits=bits,
                    symmetric=not asymmetric,
                    strategy="channel" if group == -1 else "group",
                    group_size=None if group == -1 else group,
                )
                g_idx = group_index(k, size, 4) if act_order else None
                more = {"g_idx": torch.from_numpy(g_idx)} if act_order else {}
                weight = forward.dequantize(codes, scale, zero_point, arguments, dtype=torch.bfloat16, **more)
                ours = import_compressed_tensors(
                    packed, np.array([n, k]), scale, zero, g_idx, bits=bits, group_size=group
                )  # the encoding shows itself
                key = f"compressed-tensors-{encoding}{'-asym' if asymmetric else ''} {bits} {n} {k} {size} {int(act_order)}"
                yield key, weight.float().numpy(), ours, "bf16"


def _tiles_by_formula(codes, inner_k_tiles):
    """What aten._convert_weight_to_int4pack makes on a GPU: codes where the B fragments of m16n8k16 want them."""
    n, k = codes.shape
    row, column = np.indices((n, k))
    k_tile, lane = column // 16, row % 8 * 4 + column % 8 // 2
    value = k_tile % 2 * 4 + column % 16 // 8 * 2 + column % 2
    nibble = value // 2 + value % 2 * 4
    outer = row // 8 * (k // 16 // inner_k_tiles) + k_tile // inner_k_tiles
    word = (outer * 32 + lane) * (inner_k_tiles // 2) + k_tile % inner_k_tiles // 2
    words = np.zeros(n * k // 8, np.uint32)
    np.bitwise_or.at(words, word, codes.astype(np.uint32) << (4 * nibble).astype(np.uint32))
    return words.view(np.int32).reshape(n // 8, k // 16 // inner_k_tiles, 32, inner_k_tiles // 2)


def _int4_tiles(make_tiles):
    """Per case: inner_k_tiles, n, k, group, codes of the padded matrix, its tiles, scales and zeros; on the CPU."""
    import torch

    for inner_k_tiles in (2, 4, 8):
        for n, k, group in [(64, 256, 32), (13, 192, 64), (257, 7392, 32), (40, 1000, 128)]:
            padded_n, padded_k = -(-n // 8) * 8, -(-k // 1024) * 1024
            codes = (stream(1, padded_n * padded_k) & np.uint64(15)).astype(np.uint8).reshape(padded_n, padded_k)
            qdata = torch.from_numpy(make_tiles(codes, inner_k_tiles))
            scale_and_zero = torch_scalars(scalars((padded_k // group, padded_n, 2), "bf16", 3), "bf16")
            yield inner_k_tiles, n, k, group, codes, qdata, scale_and_zero


def _tiles_of_the_gpu(codes, inner_k_tiles):
    import torch

    pairs = torch.from_numpy(codes[:, 0::2] << 4 | codes[:, 1::2]).cuda().contiguous()
    return torch.ops.aten._convert_weight_to_int4pack(pairs, inner_k_tiles).cpu().numpy()


def torchao():
    import torch
    from torchao.quantization.quant_primitives import _dequantize_affine_tinygemm

    from qgemm.importers import import_torchao

    # Its packing runs on a CUDA device alone; elsewhere the tiles are made as it documents them.
    make_tiles = _tiles_of_the_gpu if torch.cuda.is_available() else _tiles_by_formula
    for inner_k_tiles, n, k, group, codes, qdata, scale_and_zero in _int4_tiles(make_tiles):
        scale, zero = (scale_and_zero[..., i].T.contiguous() for i in range(2))
        weight = _dequantize_affine_tinygemm(
            torch.from_numpy(codes.astype(np.int32)), [1, group], scale, zero, torch.int32, 0, 15,
            output_dtype=torch.float32,
        )  # fmt: skip
        ours = import_torchao(qdata, scale_and_zero, shape=(n, k), group_size=group)
        key = f"torchao-{inner_k_tiles} 4 {n} {k} {group} 0"
        yield key, np.ascontiguousarray(weight.numpy()[:n, :k]), ours, None


def tinygemm():
    """PyTorch's own kernel for torchao's tiles, which torchao dequantizes by, too: a product with the unit matrix."""
    import torch

    from qgemm.importers import import_torchao

    if not torch.cuda.is_available():
        raise ImportError("it runs on a CUDA device only, and none is here")
    for inner_k_tiles, n, k, group, codes, qdata, scale_and_zero in _int4_tiles(_tiles_of_the_gpu):
        if not np.array_equal(_tiles_by_formula(codes, inner_k_tiles), qdata.numpy()):
            raise ValueError(f"the formula of the tiles is wrong for {inner_k_tiles} {n}x{k}")
        unit, tiles, numbers = torch.eye(k, scale_and_zero.shape[0] * group), qdata.cuda(), scale_and_zero.cuda()
        rows = [
            torch._weight_int4pack_mm(piece.bfloat16().cuda(), tiles, group, numbers).float().cpu()
            for piece in unit.split(1024)
        ]
        ours = import_torchao(qdata, scale_and_zero, shape=(n, k), group_size=group)
        key = f"tinygemm-{inner_k_tiles} 4 {n} {k} {group} 0"
        # A sum makes +0 of -0.
        yield key, torch.cat(rows).numpy().T[:n], ours, "bf16 + 0"


GGUF_BLOCKS = {"Q4_0": (32, 18, [0]), "Q4_1": (32, 20, [0, 2]), "Q8_0": (32, 34, [0]), "Q4_K": (256, 144, [0, 2]),
               "Q5_K": (256, 176, [0, 2]), "Q6_K": (256, 210, [208])}  # fmt: skip
GGUF_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6}


def gguf():
    import gguf as package

    from qgemm.importers import import_gguf

    for name, (weights, size, halves) in GGUF_BLOCKS.items():
        for n, blocks in [(1, 1), (3, 2), (33, 5), (64, 16)]:
            data = (stream(1, n * blocks * size) & np.uint64(255)).astype(np.uint8).reshape(n * blocks, size)
            for i, at in enumerate(halves):  # finite scales
                data[:, at : at + 2] = scalars((n * blocks,), "fp16", 3 + i).view(np.uint8).reshape(-1, 2)
            data = data.reshape(n, blocks * size)
            reference = package.quants.dequantize(data, package.GGMLQuantizationType[name])
            ours = import_gguf(data, name, shape=(n, blocks * weights))
            group = 16 if name == "Q6_K" else 32
            yield f"gguf-{name} {GGUF_BITS[name]} {n} {blocks * weights} {group} 0", reference, ours, None


ECOSYSTEMS = {
    "auto-gptq": auto_gptq,
    "gptqmodel": gptqmodel,
    "autoawq": autoawq,
    "compressed-tensors": compressed_tensors,
    "torchao": torchao,
    "tinygemm": tinygemm,
    "gguf": gguf,
}


# ---- tensors that are no good ---------------------------------------------------------------------------------------------


def _valid():
    """{format: (importer as a function of its tensors, its tensors)}: each importer with a layer that it takes."""
    from qgemm import importers
    from qgemm.importers import Tensor

    def numbers(name, kind, shape):
        size = {"int32": 4, "int64": 8, "uint8": 1, "fp16": 2, "bf16": 2}[kind]
        data = (stream(7, int(np.prod(shape)) * size) & np.uint64(0x1F)).astype(np.uint8)
        return Tensor(name, kind, tuple(shape), data)

    def layer(**tensors):
        return {part: numbers(f"layer.{part}", kind, shape) for part, (kind, shape) in tensors.items()}

    gptq = layer(qweight=("int32", (16, 16)), qzeros=("int32", (4, 2)), scales=("fp16", (4, 16)))
    gptq["g_idx"] = Tensor("layer.g_idx", "int32", (128,), group_index(128, 32, 4))
    awq = layer(qweight=("int32", (128, 2)), qzeros=("int32", (4, 2)), scales=("fp16", (4, 16)))
    dense = layer(weight_packed=("int32", (16, 20)), weight_scale=("bf16", (16, 4)), weight_zero_point=("int32", (3, 4)))
    padded = layer(weight_packed=("int32", (16, 22)), weight_scale=("bf16", (16, 4)), weight_zero_point=("int32", (3, 4)))
    torchao = layer(qdata=("int32", (2, 4, 32, 4)), scale_and_zero=("bf16", (4, 16, 2)))
    compressed = importers.import_compressed_tensors
    shape = np.array([16, 128])
    cases = {
        "gptq": (lambda t: importers.import_gptq(*t.values(), bits=4, group_size=32, zeros="v2", name="layer"), gptq),
        "awq": (lambda t: importers.import_awq(*t.values(), group_size=32, name="layer"), awq),
        "torchao": (lambda t: importers.import_torchao(*t.values(), shape=(16, 512), group_size=128, name="layer"), torchao),
    }
    for encoding, tensors in (("dense", dense), ("padded", padded)):
        cases[f"compressed-tensors-{encoding}"] = (
            lambda t, e=encoding: compressed(
                t["weight_packed"], shape, t["weight_scale"], t["weight_zero_point"], None, bits=5, group_size=32, encoding=e,
                name="layer",
            ),
            tensors,
        )  # fmt: skip
    for name, (weights, size, _) in GGUF_BLOCKS.items():
        read = lambda t, name=name, weights=weights: importers.import_gguf(  # noqa: E731
            t["weight"], name, shape=(3, 2 * weights), name="layer.weight"
        )
        cases[f"gguf-{name}"] = (read, layer(weight=("uint8", (3, 2 * size))))
    return cases


def _broken(tensor):
    """(what was done, the tensor, whether the sentence must have a byte offset)."""
    import dataclasses

    data = np.frombuffer(tensor.data, np.uint8)
    yield "1 byte short", dataclasses.replace(tensor, data=data[:-1].copy()), True
    yield "1 byte more", dataclasses.replace(tensor, data=np.append(data, np.uint8(0))), True
    size = data.size // int(np.prod(tensor.shape))
    shape = (*tensor.shape[:-1], tensor.shape[-1] + 1)
    yield "a column more", dataclasses.replace(tensor, shape=shape, data=np.resize(data, size * int(np.prod(shape)))), False
    yield "no rows", dataclasses.replace(tensor, shape=(0, *tensor.shape[1:]), data=data[:0].copy()), False
    yield "of fp32", dataclasses.replace(tensor, type="fp32", data=np.zeros(4 * int(np.prod(tensor.shape)), np.uint8)), False
    if tensor.name.endswith("g_idx"):
        for value in (-1, 4, 2**31 - 1):
            numbers = tensor.data.copy()
            numbers[77] = value
            yield f"a group of {value}", dataclasses.replace(tensor, data=numbers), True


def malformed():
    """Yields (format, tensor, what was done, whether the sentence is as it must be, the sentence)."""
    from qgemm.importers import MalformedTensor

    for name, (read, tensors) in _valid().items():
        read(tensors)  # what is broken below is all that is wrong with it
        for part, tensor in tensors.items():
            for what, broken, has_offset in _broken(tensor):
                try:
                    read({**tensors, part: broken})
                    sentence = "taken"
                except MalformedTensor as error:
                    sentence = str(error)
                # A wrong shape of what the sizes are read from shows itself in the tensor that does not fit it.
                whose = "layer." if what == "a column more" else broken.name
                named = sentence.startswith(whose)
                yield name, part, what, named and (not has_offset or "byte offset" in sentence), sentence


# ---- the table ------------------------------------------------------------------------------------------------------------

COLUMNS = f"{'format':<34} {'bits':>4} {'N':>5} {'K':>6} {'group':>6} {'act-order':>9}  result"


def compare(names):
    """Yields (key, result, digest of the reference) of every case of the ecosystems; prints who is not there."""
    for name in names:
        try:
            for key, reference, weights, kind in ECOSYSTEMS[name]():
                ours = weights.dequantize()
                ours = ours if kind is None else rounded(ours, kind)
                reference = np.ascontiguousarray(reference, np.float32)
                wrong = int((ours.view(np.uint32) != reference.view(np.uint32)).sum()) if ours.shape == reference.shape else -1
                result = "equal" if wrong == 0 else f"{wrong} of {reference.size} weights differ"
                yield key, result, hashlib.sha256(reference.astype("<f4").tobytes()).hexdigest()
        except ImportError as error:
            print(f"{name}: left out: {error}")


def of_another_release(folder):
    """The cases of compressed-tensors with the release that lies in `folder`: a process of its own."""
    command = [sys.executable, __file__, "--only", "compressed-tensors", "--keys"]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 2]
    if done.returncode not in (0, 1) or not rows:
        raise SystemExit(f"the release of compressed-tensors in {folder} cannot be compared with:\n{done.stdout}{done.stderr}")
    return rows


def summarized(rows):
    """A row per format, width and act-order."""
    groups = {}
    for key, result, _ in rows:
        what, bits, n, k, group, act_order = key.split()
        groups.setdefault((what, bits, act_order), []).append((int(n), int(k), int(group), result))
    print(f"{'format':<34} {'bits':>4} {'act-order':>9} {'shapes':>6}  {'groups':<22} {'N':<10} {'K':<12} result")
    for (what, bits, act_order), cases in groups.items():
        n, k, group, results = zip(*cases)
        sizes = ",".join(str(size) for size in sorted(set(group)))
        equal = sum(result == "equal" for result in results)
        print(
            f"{what:<34} {bits:>4} {'yes' if act_order == '1' else 'no':>9} {len(cases):>6}  {sizes:<22} "
            f"{f'{min(n)}..{max(n)}':<10} {f'{min(k)}..{max(k)}':<12} {equal} of {len(cases)} equal"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ECOSYSTEMS)
    parser.add_argument("--older", type=pathlib.Path, help="folder with compressed-tensors 0.9.x, which pads its words")
    parser.add_argument("--summary", action="store_true", help="a row per format, width and act-order")
    parser.add_argument("--keys", action="store_true", help="tab-separated: case, result, digest")
    parser.add_argument("--digests", type=pathlib.Path, help="add the digests of the reference's weights to this file")
    arguments = parser.parse_args()

    rows = list(compare([arguments.only] if arguments.only else ECOSYSTEMS))
    if arguments.older is not None:
        rows += of_another_release(arguments.older)
    if arguments.keys:
        print("".join("\t".join(row) + "\n" for row in rows), end="")
    elif arguments.summary:
        summarized(rows)
    else:
        print(COLUMNS)
        for key, result, _ in rows:
            what, bits, n, k, group, act_order = key.split()
            print(f"{what:<34} {bits:>4} {n:>5} {k:>6} {group:>6} {'yes' if act_order == '1' else 'no':>9}  {result}")
    different = sum(result != "equal" for _, result, _ in rows)
    if arguments.digests is not None:
        known = arguments.digests.read_text().splitlines() if arguments.digests.exists() else []
        digests = dict(line.rpartition(" ")[::2] for line in known)
        digests.update((key, digest) for key, _, digest in rows)
        arguments.digests.write_text("".join(f"{key} {digest}\n" for key, digest in sorted(digests.items())))
    unclear = 0
    if not arguments.only:
        cases = list(malformed())
        unclear = sum(not good for *_, good, _ in cases)
        if not arguments.summary:
            print(f"\n{'format':<26} {'tensor':<18} {'what was done':<20} said")
        for name, part, what, good, sentence in cases:
            if not arguments.summary or not good:
                print(f"{name:<26} {part:<18} {what:<20} {'' if good else 'UNCLEAR: '}{sentence}")
        print(f"{len(cases)} malformed tensors, {len(cases) - unclear} refused by name")
    if not arguments.keys:
        print(f"{len(rows)} cases, {different} differ")
    sys.exit(SKIPPED if not rows else int(different + unclear > 0))


if __name__ == "__main__":
    main()
