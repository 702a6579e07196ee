"""qgemm.packing: the example of kernels/LAYOUT.md, and equality with the C++ packer over awkward shapes."""

import dataclasses
import hashlib

import numpy as np
import pytest

from qgemm.packing import Canonical, dequantize, pack, quantize, unpack
from qgemm.types import WeightFormat

FORMATS = [
    WeightFormat(4, group, scale, zero)
    for group in (32, 64, 128)
    for scale in ("bf16", "fp16")
    for zero in ("none", "int")
]
SHAPES = [(1, 128), (17, 384), (64, 128), (65, 256), (130, 640)]


def to_torch(canonical):
    torch = pytest.importorskip("torch")
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[canonical.format.scale]
    scales = torch.from_numpy(canonical.scales.view(np.int16).copy()).view(kind)
    zeros = None if canonical.zeros is None else torch.from_numpy(canonical.zeros)
    return Canonical(canonical.format, torch.from_numpy(canonical.codes), scales, zeros)


def random_weights(f, n, k, seed=0):
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << f.bits, (n, k), dtype=np.uint8)
    scales = random.integers(0, 1 << 16, (n, k // f.group_size), dtype=np.uint16)
    zeros = random.integers(0, 1 << f.bits, (n, k // f.group_size), dtype=np.uint8) if f.has_zeros else None
    return Canonical(f, codes, scales, zeros)


def test_the_example_of_the_layout_page():
    row = np.arange(17)[:, None]
    codes = ((5 * row + 3 * np.arange(96)) % 13).astype(np.uint8)
    scales = (0x3C00 + 16 * row + np.arange(3)).astype(np.uint16)
    zeros = ((row + 2 * np.arange(3)) % 16).astype(np.uint8)
    packed = pack(Canonical(WeightFormat(4, 32, "fp16", "int"), codes, scales, zeros))
    assert packed.weights[:4].tolist() == [0x10, 0xCB, 0x43, 0x21]
    planes = (packed.weights, packed.scales, packed.zeros)
    assert [hashlib.sha256(plane.tobytes()).hexdigest() for plane in planes] == [
        "1dcca0f7d7ad6c50ec46b9a4f286ac2823a3e37088b125bee039b6e23d7f2486",
        "3633c55dcc4e01f784b92a97edcc04aeb1cef6e543f9f7df6536c6023603fd81",
        "902e2d750dafe0c5b1550c7c1bc16b87d03eac770b86d30792c29ea1cf7b014f",
    ]


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_equal_to_the_cpp_packer(pack_planes, f):
    for n, k in SHAPES:
        canonical = random_weights(f, n, k)
        packed = pack(canonical)
        zeros = b"" if packed.zeros is None else packed.zeros.tobytes()
        assert (packed.weights.tobytes(), packed.scales.tobytes(), zeros) == pack_planes(canonical), (n, k)


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_torch_packs_the_same_bytes(f):
    for n, k in SHAPES:
        canonical = random_weights(f, n, k)
        numpy, torch = pack(canonical), pack(to_torch(canonical))
        for name in ("weights", "scales", "zeros"):
            ours, theirs = getattr(numpy, name), getattr(torch, name)
            assert (ours is None) == (theirs is None)
            assert ours is None or ours.tobytes() == theirs.numpy().tobytes(), (name, n, k)


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_unpack_gives_back_what_was_packed(f):
    for n, k in SHAPES:
        canonical = random_weights(f, n, k)
        for given in (canonical, to_torch(canonical)):
            back = unpack(pack(given))
            assert np.array_equal(back.codes, canonical.codes)
            assert np.array_equal(np.asarray(back.scales).view(np.uint16), canonical.scales)
            assert f.zero == "none" or np.array_equal(back.zeros, canonical.zeros)


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_quantization_is_off_by_half_a_step_at_most(f):
    weight = np.random.default_rng(1).standard_normal((40, 512)).astype(np.float32) * 0.05
    weight[3, : f.group_size] = 0
    canonical = quantize(weight, f)
    zeros = 0 if canonical.zeros is None else canonical.zeros * 0
    ones = np.full_like(canonical.codes, 1)
    step = np.abs(dequantize(dataclasses.replace(canonical, codes=ones, zeros=None if f.zero == "none" else zeros)))
    step /= 7 if f.zero == "none" else 1  # code 1 without zero points means -7 steps
    # The scale is rounded to 16 bits before codes are chosen, so that the outermost value, up to 15 steps away, may be
    # cut a little; a rounded zero point shifts the whole range by up to half a step more.
    bound = 0.5 + 15 * 2**-9 + (0.5 if f.has_zeros else 0)
    assert np.all(np.abs(dequantize(canonical) - weight) <= step * bound + 1e-12)
    assert not np.any(dequantize(canonical)[3, : f.group_size])


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_torch_quantizes_to_the_same_codes(f):
    torch = pytest.importorskip("torch")
    weight = np.random.default_rng(2).standard_normal((24, 256)).astype(np.float32)
    numpy, other = quantize(weight, f), quantize(torch.from_numpy(weight), f)
    assert np.array_equal(numpy.codes, other.codes)
    assert np.array_equal(numpy.scales, other.scales.view(torch.int16).numpy().view(np.uint16))
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
        "format int3-g32-bf16 is not allowed": dataclasses.replace(good, format=WeightFormat(3, 32, "bf16", "none")),
    }
    for message, canonical in bad.items():
        with pytest.raises(ValueError, match=message):
            pack(canonical)
