"""qgemm.packing: the examples of kernels/LAYOUT.md, and equality with the C++ packer over formats and awkward shapes."""

import dataclasses
import hashlib

import numpy as np
import pytest

from qgemm import canonical_file
from qgemm.packing import Canonical, dequantize, pack, packed_sizes, quantize, unpack
from qgemm.types import WeightFormat

FORMATS = [
    WeightFormat(bits, group, scale, zero)
    for bits in (4, 5, 6, 8)
    for group, scale in ((32, "bf16"), (128, "fp16"), (16, "fp16"), (256, "bf16"), (0, "bf16"), (64, "bf16"))
    for zero in ("none", "int", "float")
] + [
    WeightFormat(bits, group, "fp16", zero, 2) for bits in (4, 5, 6, 8) for group in (16, 32, 128) for zero in ("none", "float")
]  # fmt: skip
PLANES = ("codes", "scales", "zeros", "offsets", "scale_codes", "offset_codes")


def shapes(f):
    """Shapes (n, k): less, equal and more than a block, and none a multiple of the other's."""
    unit = max(f.group_size, 8)
    return [(1, unit), (17, 3 * unit), (64, 256), (65, 5 * unit), (130, 640 if 640 % unit == 0 else 768)]


def to_torch(c):
    torch = pytest.importorskip("torch")
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[c.format.scale]
    planes = {}
    for name in PLANES:
        plane = getattr(c, name)
        if plane is not None and plane.dtype == np.uint16:
            plane = torch.from_numpy(plane.view(np.int16).copy()).view(kind)
        elif plane is not None:
            plane = torch.from_numpy(plane)
        planes[name] = plane
    return Canonical(c.format, **planes)


def random_weights(f, n, k, seed=0):
    random = np.random.default_rng(seed)
    groups = k // f.group_size if f.group_size else 1
    numbers = -(-k // 256) if f.scale_levels == 2 else groups

    def halves():
        return random.integers(0, 1 << 16, (n, numbers), dtype=np.uint16)

    def signed():
        return random.integers(-128, 128, (n, groups), dtype=np.int8)

    codes = random.integers(0, 1 << f.bits, (n, k), dtype=np.uint8)
    planes = {"scales": halves()}
    if f.zero == "int":
        planes["zeros"] = random.integers(0, 1 << f.bits, (n, groups), dtype=np.uint8)
    if f.zero == "float":
        planes["offsets"] = halves()
    if f.scale_levels == 2:
        planes["scale_codes"] = signed()
        if f.zero == "float":
            planes["offset_codes"] = signed()
    return Canonical(f, codes, **planes)


def plane_bytes(packed):
    planes = (packed.weights, packed.scales, packed.zeros, packed.steps)
    return [b"" if plane is None else np.asarray(plane).tobytes() for plane in planes]


def example(f):
    """The inputs of the page's example."""
    row, group = np.arange(17)[:, None], np.arange(3)
    codes = ((5 * row + 3 * np.arange(96)) % (13 if f.bits == 4 else (1 << f.bits) - 3)).astype(np.uint8)
    if f.scale_levels == 2:
        planes = {"scales": (0x3C00 + 16 * row).astype(np.uint16), "scale_codes": (7 * row + group - 60).astype(np.int8)}
        if f.zero == "float":
            planes["offsets"] = (0xBC00 + 16 * row).astype(np.uint16)
            planes["offset_codes"] = (60 - 7 * row - group).astype(np.int8)
    else:
        planes = {"scales": (0x3C00 + 16 * row + group).astype(np.uint16)}
        if f.zero == "float":
            planes["offsets"] = (0xBC00 + 16 * row + group).astype(np.uint16)
        if f.zero == "int":
            planes["zeros"] = ((row + 2 * group) % 16).astype(np.uint8)
    return Canonical(f, codes, **planes)


@pytest.mark.parametrize(
    "f, digests",
    [
        (WeightFormat(4, 32, "fp16", "int"), [
            "1dcca0f7d7ad6c50ec46b9a4f286ac2823a3e37088b125bee039b6e23d7f2486",
            "3633c55dcc4e01f784b92a97edcc04aeb1cef6e543f9f7df6536c6023603fd81",
            "902e2d750dafe0c5b1550c7c1bc16b87d03eac770b86d30792c29ea1cf7b014f"]),
        (WeightFormat(5, 32, "fp16", "float", 2), [
            "838ff9d3990804acce1a70199cad7e27bdf2c311a88f0e7e48a2680a35df07e9",
            "e11f75faea6e1d757a03ed43b7f1e810648ca6d93a4844c64eb8ab267e46b5c3",
            "0771ae7352149d0b101a759bead76c462c518e2829092912066a26ac0fd632f7",
            "60cfc0c10512be5f0dd168c99c96aff8031e796045117e572957e5e1c7315088"]),
        (WeightFormat(6, 32, "fp16", "none", 2), [
            "5cfbef0c753545354785e535b9218288650e160dd7c4af37632a2373c48c8ece",
            "e11f75faea6e1d757a03ed43b7f1e810648ca6d93a4844c64eb8ab267e46b5c3",
            "f82c8d25c9a9868c3c6cb27e8d49a346adf735f3a7f8eed7a8e032f87faa2520"]),
        (WeightFormat(8, 32, "fp16", "float"), [
            "b092c6d696cb3e8e64cfbdafb3d68c5e08cb5205aa0028cecdfb684046c0437c",
            "3633c55dcc4e01f784b92a97edcc04aeb1cef6e543f9f7df6536c6023603fd81",
            "e2a0ea115a7d664cd7ea202be29566f949b7ff386605a924b8e1d4e84f3d0343"]),
    ],
    ids=str,
)  # fmt: skip
def test_the_examples_of_the_layout_page(f, digests):
    planes = [plane for plane in plane_bytes(pack(example(f))) if plane]
    assert [hashlib.sha256(plane).hexdigest() for plane in planes] == digests


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_equal_to_the_cpp_packer(pack_planes, f):
    for n, k in shapes(f):
        canonical = random_weights(f, n, k)
        assert plane_bytes(pack(canonical)) == pack_planes(canonical), (n, k)


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_sizes_are_known_before_packing(f):
    for n, k in shapes(f):
        sizes = packed_sizes(n, k, f)
        wanted = [sizes.weight_bytes, sizes.scale_bytes, sizes.zero_bytes, sizes.step_bytes]
        assert [len(plane) for plane in plane_bytes(pack(random_weights(f, n, k)))] == wanted


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_torch_packs_the_same_bytes(f):
    for n, k in shapes(f):
        canonical = random_weights(f, n, k)
        assert plane_bytes(pack(to_torch(canonical))) == plane_bytes(pack(canonical)), (n, k)


@pytest.mark.parametrize("f", FORMATS, ids=str)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_unpack_gives_back_what_was_packed(f, library):
    for n, k in shapes(f):
        canonical = random_weights(f, n, k)
        back = unpack(pack(to_torch(canonical) if library == "torch" else canonical))
        for name in PLANES:
            wanted, got = getattr(canonical, name), getattr(back, name)
            assert (wanted is None) == (got is None), name
            assert wanted is None or np.array_equal(np.asarray(got).view(wanted.dtype), wanted), (name, n, k)


@pytest.mark.parametrize("f", [f for f in FORMATS if f.group_size != 256], ids=str)
def test_quantization_is_off_by_half_a_step_at_most(f):
    weight = np.random.default_rng(1).standard_normal((40, 512)).astype(np.float32) * 0.05
    weight[3, : f.group_size or 512] = 0
    canonical = quantize(weight, f)
    one = dataclasses.replace(canonical, codes=canonical.codes * 0 + 1)
    step = np.abs(dequantize(one) - dequantize(dataclasses.replace(canonical, codes=canonical.codes * 0)))
    error = np.abs(dequantize(canonical) - weight)
    # Beyond the half step of rounding: scales are stored with 8 (bf16) or 11 bits, or as one of 127 times a step, so
    # that the outermost of 2^bits codes may lie off by some steps; a stored zero point or offset moves all of them.
    stored = {"bf16": 2**-9, "fp16": 2**-12}[f.scale]
    if f.scale_levels == 2:
        largest = step.reshape(40, -1, 256).max(2).repeat(256, 1)
        bound = step * 0.5 + largest * (2**f.bits - 1) * (0.5 / 127 + 2**-11)
    else:
        bound = step * (0.5 + (2**f.bits - 1) * stored)
    if f.zero == "int":
        bound = bound + step * 0.5
    if f.zero == "float":
        least = np.abs(weight).max()
        bound = bound + least * (stored if f.scale_levels == 1 else 0.5 / 127 + 2**-11)
    assert np.all(error <= bound + 1e-9)
    assert not np.any(dequantize(canonical)[3, : f.group_size or 512])


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_torch_quantizes_to_the_same_planes(f):
    torch = pytest.importorskip("torch")
    weight = np.random.default_rng(2).standard_normal((24, 512)).astype(np.float32)
    numpy, other = quantize(weight, f), quantize(torch.from_numpy(weight), f)
    assert plane_bytes(pack(numpy)) == plane_bytes(pack(other))
    assert np.array_equal(dequantize(numpy), dequantize(other).numpy())


def test_what_does_not_fit_is_named():
    f = WeightFormat(4, 32, "bf16", "none")
    good = random_weights(f, 4, 64)
    bad = {
        "k 48 is not a multiple": dataclasses.replace(good, codes=good.codes[:, :48]),
        "scales has the shape": dataclasses.replace(good, scales=good.scales[:, :1]),
        "codes holds 16": dataclasses.replace(good, codes=np.full_like(good.codes, 16)),
        "zeros are given": dataclasses.replace(good, zeros=np.zeros((4, 2), np.uint8)),
        "zeros are missing": dataclasses.replace(good, format=WeightFormat(4, 32, "bf16", "int")),
        "offsets are missing": dataclasses.replace(good, format=WeightFormat(4, 32, "bf16", "float")),
        "bits 3 is not allowed: use 4, 5, 6 or 8": dataclasses.replace(good, format=WeightFormat(3, 32, "bf16", "none")),
        "group_size 48 is not allowed": dataclasses.replace(good, format=WeightFormat(4, 48, "bf16", "none")),
        "two levels need fp16": dataclasses.replace(good, format=WeightFormat(4, 32, "bf16", "none", 2)),
    }
    for message, canonical in bad.items():
        with pytest.raises(ValueError, match=message):
            pack(canonical)


@pytest.mark.parametrize("name", ["int4-g32-bf16-zint", "int5-g32-fp16x2-zfloat"])
def test_a_canonical_file_of_tensors_is_that_of_arrays(name, tmp_path):
    c = random_weights(WeightFormat.parse(name), 17, 96)
    for kind, each in (("arrays", c), ("tensors", to_torch(c))):
        canonical_file.save(tmp_path / kind, [("layer", each, np.arange(17))])
    assert (tmp_path / "arrays").read_bytes() == (tmp_path / "tensors").read_bytes()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    "name, value, says",
    [
        ("int4-g32-bf16", np.nan, "it holds NaN or an infinity"),
        ("int8-g32-fp16-zfloat", -np.inf, "it holds NaN or an infinity"),
        ("int5-g32-fp16x2", np.inf, "it holds NaN or an infinity"),
        ("int4-g32-fp16", 1e6, "up to 1e.06, which is too large for scales of fp16"),
        ("int8-g32-fp16-zfloat", -1e6, "up to 1e.06, which is too large for scales of fp16"),
        ("int4-g32-fp16x2-zfloat", 3e38, "up to 3e.38, which is too large for scales of fp16"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_weight_that_no_scale_holds_is_named(library, name, value, says):
    weight = np.random.default_rng(1).normal(size=(4, 96)).astype(np.float32)
    weight[2, 40] = value
    if library == "torch":
        weight = pytest.importorskip("torch").from_numpy(weight)
    with pytest.raises(ValueError, match="weight of row 2, columns 32 to 63: " + says):
        quantize(weight, name)


def test_a_large_weight_stays_finite_where_its_scale_does():
    weight = np.full((1, 32), 3e38, np.float32)
    assert np.isfinite(dequantize(quantize(weight, "int4-g32-bf16"))).all()
    weight = np.full((1, 32), 4.5e5, np.float32)
    assert np.isfinite(dequantize(quantize(weight, "int4-g32-fp16"))).all()
