"""qgemm.importers: whole checkpoints, written here by safetensors and gguf; what is malformed is refused by name."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qgemm.importers import (
    MalformedTensor,
    Tensor,
    detect_gptq_zeros,
    import_awq,
    import_gguf,
    import_gptq,
    import_torchao,
    open_checkpoint,
    save_canonical,
)

RANDOM = np.random.default_rng(1)


def pack_rows(codes, bits=4):
    """[K, N] codes -> int32 [K * bits / 32, N], lowest bits first."""
    k, n = codes.shape
    words = codes.reshape(k * bits // 32, 32 // bits, n).astype(np.uint32)
    shifts = (bits * np.arange(32 // bits, dtype=np.uint32))[None, :, None]
    return np.bitwise_or.reduce(words << shifts, axis=1).view(np.int32)


def write(folder, config, tensors):
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    save_file(tensors, str(folder / "model.safetensors"))


def gptq_layer(name, n=16, k=64, group=32, stored_zero=7, g_idx=None):
    codes = RANDOM.integers(0, 16, (k, n), dtype=np.uint8)
    zeros = np.full((n, k // group), stored_zero, np.uint8) if np.isscalar(stored_zero) else stored_zero
    scales = RANDOM.uniform(0.01, 0.02, (k // group, n)).astype(np.float16)
    tensors = {
        f"{name}.qweight": pack_rows(codes),
        f"{name}.qzeros": pack_rows(zeros).T.copy(),
        f"{name}.scales": scales,
    }
    if g_idx is not None:
        tensors[f"{name}.g_idx"] = g_idx.astype(np.int32)
    return codes, scales, tensors


def test_gptq_folder_with_act_order(tmp_path):
    g_idx = RANDOM.permutation(np.arange(64) // 32)
    codes, scales, tensors = gptq_layer("model.layers.0.mlp.up_proj", g_idx=g_idx)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}
    write(tmp_path, config, {**tensors, "model.norm.weight": np.ones(4, np.float32)})
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.format, checkpoint.zeros) == ("gptq", "v1")
    assert checkpoint.layers() == ["model.layers.0.mlp.up_proj"]
    weights = checkpoint.read("model.layers.0.mlp.up_proj")
    expected = ((codes.astype(np.int32) - 8) * scales.astype(np.float32)[g_idx]).T
    np.testing.assert_array_equal(weights.dequantize(), expected)
    assert sorted(weights.permutation) == list(range(64))
    assert "act-order" in repr(weights)


def test_gptq_zeros_count_more_than_what_the_checkpoint_says(tmp_path):
    _, _, tensors = gptq_layer("layer", stored_zero=8)
    write(tmp_path, {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}, tensors)
    assert open_checkpoint(tmp_path).zeros == "v2"


def test_gptq_zeros_that_say_nothing_are_asked_for(tmp_path):
    stored = RANDOM.integers(0, 16, (16, 2), dtype=np.uint8)
    _, _, tensors = gptq_layer("layer", stored_zero=stored)
    write(tmp_path, {"quant_method": "gptq", "bits": 4, "group_size": 32}, tensors)
    with pytest.raises(ValueError, match="gptq_zeros"):
        open_checkpoint(tmp_path)
    assert detect_gptq_zeros(tensors["layer.qzeros"], 4) is None
    for convention, add in (("v1", 1), ("v2", 0)):
        weights = open_checkpoint(tmp_path, gptq_zeros=convention).read("layer")
        np.testing.assert_array_equal(weights.zeros, (stored + add) % 16)


def test_awq_folder(tmp_path):
    k, n, order = 64, 16, [0, 2, 4, 6, 1, 3, 5, 7]
    codes = RANDOM.integers(0, 16, (k, n), dtype=np.uint8)
    zeros = RANDOM.integers(0, 16, (2, n), dtype=np.uint8)

    def pack(values):
        return pack_rows(values.reshape(-1, 8)[:, order].reshape(values.shape).T.copy()).T.copy()

    scales = RANDOM.uniform(0.01, 0.02, (2, n)).astype(np.float16)
    tensors = {"l.qweight": pack(codes), "l.qzeros": pack(zeros), "l.scales": scales}
    write(tmp_path, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "GEMM"}, tensors)
    weights = open_checkpoint(tmp_path).read("l")
    np.testing.assert_array_equal(weights.codes, codes.T)
    np.testing.assert_array_equal(weights.zeros, zeros.T)
    np.testing.assert_array_equal(weights.scales, scales.view(np.uint16).T)


def test_compressed_tensors_folder_with_bf16_scales(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    codes = RANDOM.integers(0, 256, (8, 64), dtype=np.uint8)
    scale = torch.rand(8, 2).to(torch.bfloat16)
    tensors = {
        "l.weight_packed": torch.from_numpy(codes.view(np.int32).copy()),
        "l.weight_shape": torch.tensor([8, 64]),
        "l.weight_scale": scale,
    }
    weights = {"num_bits": 8, "group_size": 32, "strategy": "group", "symmetric": True, "type": "int"}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    save_torch(tensors, str(tmp_path / "model.safetensors"))
    imported = open_checkpoint(tmp_path).read("l")
    assert imported.scale_type == "bf16"
    expected = (codes.astype(np.float32) - 128) * scale.float().numpy().repeat(32, axis=1)
    np.testing.assert_array_equal(imported.dequantize(), expected)


def test_torchao_folder(tmp_path):
    """As torchao's flatten_tensor_state_dict names and describes a tile-packed weight of 13 x 500."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    described = {
        "_type": "Int4TilePackedTo4dTensor",
        "_data": {"block_size": [1, 128], "shape": [13, 500]},
        "_tensor_data_names": ["qdata", "scale_and_zero"],
    }
    name = "model.layers.0.mlp.up_proj"
    scale_and_zero = torch.ones(4, 16, 2, dtype=torch.bfloat16)
    # Every code of qdata is 9: w = (9 - 8) * 1 + 1.
    tensors = {
        f"{name}._weight_qdata": torch.full((2, 4, 32, 4), 0x99999999 - (1 << 32), dtype=torch.int32),
        f"{name}._weight_scale_and_zero": scale_and_zero,
        "model.norm.weight": torch.ones(3),
    }
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "torchao"}}))
    save_torch(tensors, str(tmp_path / "model.safetensors"), metadata={f"{name}.weight": json.dumps(described)})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.layers() == [name]
    np.testing.assert_array_equal(checkpoint.read(name).dequantize(), np.full((13, 500), 2, np.float32))


def test_gguf_file(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    block_bytes = {"Q8_0": 34, "Q4_K": 144, "Q6_K": 210}
    data = {}
    for name, size in block_bytes.items():
        blocks = RANDOM.integers(0, 256, (3, 2 * (8 if name == "Q8_0" else 1), size), dtype=np.uint8)
        halves = [208] if name == "Q6_K" else [0, 2] if name == "Q4_K" else [0]
        for at in halves:  # finite scales
            blocks[..., at + 1] = 0x20
        data[name] = blocks.reshape(3, -1)
        writer.add_tensor(f"blk.0.{name}.weight", data[name], raw_dtype=gguf.GGMLQuantizationType[name])
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(path)
    assert checkpoint.layers() == [f"blk.0.{name}.weight" for name in block_bytes]
    for name in block_bytes:
        weights = checkpoint.read(f"blk.0.{name}.weight")
        assert (weights.n, weights.k) == (3, 512)
        reference = gguf.quants.dequantize(data[name], gguf.GGMLQuantizationType[name])
        np.testing.assert_array_equal(weights.dequantize(), reference)


def same_weights(weights, tolerance):
    """Packed, unpacked and dequantized by the package's own code."""
    from qgemm.packing import dequantize, pack, unpack

    expected = weights.dequantize(model_order=False)
    np.testing.assert_allclose(dequantize(unpack(pack(weights.canonical()))), expected, rtol=0, atol=tolerance)


def test_canonical_weights_pack():
    codes, _, tensors = gptq_layer("l", stored_zero=RANDOM.integers(0, 16, (16, 2), dtype=np.uint8))
    parts = [tensors[f"l.{part}"] for part in ("qweight", "qzeros", "scales")]
    same_weights(import_gptq(*parts, bits=4, group_size=32, zeros="v2"), 0)
    for name, size, halves, tolerance in (("Q4_K", 144, (0, 2), 1e-5), ("Q5_K", 176, (0, 2), 1e-5), ("Q6_K", 210, (208,), 0)):
        blocks = RANDOM.integers(0, 256, (3, 2, size), dtype=np.uint8)
        for at in halves:
            blocks[..., at + 1] = 0x20
        same_weights(import_gguf(blocks.reshape(3, -1), name, shape=(3, 512)), tolerance)
    qdata = RANDOM.integers(-(2**31), 2**31, (2, 4, 32, 4)).astype(np.int32)
    scale_and_zero = RANDOM.uniform(-0.2, 0.2, (4, 16, 2)).astype(np.float32).view(np.uint32) >> 16
    tensor = Tensor("sz", "bf16", (4, 16, 2), scale_and_zero.astype(np.uint16))
    weights = import_torchao(qdata, tensor, shape=(16, 512), group_size=128)
    same_weights(weights, 2.0**-8)  # half a step of bf16 below 2
    short = import_awq(np.zeros((100, 2), np.int32), None, np.ones((4, 16), np.float16), group_size=32)
    with pytest.raises(ValueError, match="is shorter"):
        short.canonical()


def test_planes_outlive_the_weights():
    codes, _, tensors = gptq_layer("l")
    weights = import_gptq(tensors["l.qweight"], tensors["l.qzeros"], tensors["l.scales"], bits=4, group_size=32)
    kept = weights.codes
    del weights
    np.testing.assert_array_equal(kept, codes.T)
    assert not kept.flags.writeable


def test_malformed_tensors_are_refused_by_name(tmp_path):
    _, _, tensors = gptq_layer("model.layers.3.o_proj")
    tensors["model.layers.3.o_proj.scales"] = tensors["model.layers.3.o_proj.scales"][:1]
    write(tmp_path, {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}, tensors)
    with pytest.raises(MalformedTensor, match=r"model.layers.3.o_proj.scales \(fp16 \[1, 16\]\).*must be \[2, 16\]"):
        open_checkpoint(tmp_path).read("model.layers.3.o_proj")
    with pytest.raises(MalformedTensor, match=r"tensor \(uint8 \[100\]\).*must be \[144\]"):
        import_gguf(np.zeros(100, np.uint8), "Q4_K", shape=(1, 256))
    with pytest.raises(MalformedTensor, match="weight.qdata .*must be 32 and 1, 2 or 4"):
        import_torchao(np.zeros((2, 4, 16, 4), np.int32), np.zeros((4, 16, 2), np.float16), shape=(16, 512), group_size=128)
    with pytest.raises(MalformedTensor, match="float64"):
        import_gptq(np.zeros((8, 8)), None, None, bits=4, group_size=32)


def test_what_no_importer_reads_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json"):
        open_checkpoint(tmp_path)
    write(tmp_path, {"quant_method": "bitsandbytes"}, {"a": np.zeros(1, np.float32)})
    with pytest.raises(ValueError, match="'bitsandbytes' is not supported"):
        open_checkpoint(tmp_path)
    write(tmp_path, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}, {"a": np.zeros(1, np.float32)})
    with pytest.raises(ValueError, match="'gemv'"):
        open_checkpoint(tmp_path)


# ---- files whose header and bytes do not agree ----------------------------------------------------------------------


def gptq_folder(folder):
    """(path of the safetensors file, its header as read)."""
    _, _, tensors = gptq_layer("model.layers.3.o_proj", k=4096)
    write(folder, {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}, tensors)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return path, json.loads(data[8 : 8 + length]), data[8 + length :]


def rewrite(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_a_safetensors_file_that_was_cut_names_tensor_and_offset(tmp_path):
    path, header, data = gptq_folder(tmp_path)
    name, last = max(header.items(), key=lambda item: item[1].get("data_offsets", [0, 0])[1])
    whole = path.read_bytes()
    begin, end = (len(whole) - len(data) + offset for offset in last["data_offsets"])
    path.write_bytes(whole[:-1])
    with pytest.raises(MalformedTensor, match=rf"{name} in .* byte offsets {begin} to {end}: the file has {end - 1} bytes"):
        open_checkpoint(tmp_path)
    for size in (0, 5, 8, 100):
        path.write_bytes(whole[:size])
        with pytest.raises(MalformedTensor, match=rf"ends at byte offset {size}: its header"):
            open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda h, name: h[name].update(dtype="I64"), r"from byte offset \d+ on: it must have"),
        (lambda h, name: h[name].update(shape=[1 << 62, 1 << 62]), "it must have"),
        (lambda h, name: h[name].update(data_offsets=[0, 1 << 70]), "byte offsets"),
        (lambda h, name: h[name].update(data_offsets=[-8, 0]), "-8 is no size"),
        (lambda h, name: h[name].update(shape=[True, 2.5]), "is no size"),
        (lambda h, name: h[name].pop("shape"), "KeyError"),
        (lambda h, name: h.update({name: 7}), "TypeError"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(tmp_path, change, says):
    path, header, data = gptq_folder(tmp_path)
    change(header, "model.layers.3.o_proj.qweight")
    rewrite(path, header, data)
    with pytest.raises(MalformedTensor, match=says):
        open_checkpoint(tmp_path)


def test_a_header_with_a_tensor_twice_or_no_json_is_refused(tmp_path):
    path, header, data = gptq_folder(tmp_path)
    text = json.dumps(header)[:-1] + ', "model.layers.3.o_proj.qweight": ' + json.dumps(header["model.layers.3.o_proj.scales"]) + "}"
    rewrite(path, text.encode(), data)
    with pytest.raises(MalformedTensor, match="has model.layers.3.o_proj.qweight twice"):
        open_checkpoint(tmp_path)
    for text in (b"{", b"[" * 100000, b"\xff\xfe", b"[]", b'{"a": NaN}'):
        rewrite(path, text, data)
        with pytest.raises(MalformedTensor, match="header cannot be read"):
            open_checkpoint(tmp_path)


def test_a_tensor_of_two_files_is_refused(tmp_path):
    path, _, _ = gptq_folder(tmp_path)
    (tmp_path / "more.safetensors").write_bytes(path.read_bytes())
    with pytest.raises(MalformedTensor, match="is in model.safetensors and in more.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "config, says",
    [
        ({"bits": 4}, "group_size is None"),
        ({"bits": "4", "group_size": 32}, "bits is '4'"),
        ({"bits": 4, "group_size": 10**400}, "must be a whole number"),
        ({"bits": True, "group_size": 32}, "bits is True"),
    ],
)
def test_a_configuration_that_says_no_numbers_is_refused(tmp_path, config, says):
    gptq_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "gptq", **config}}))
    with pytest.raises(ValueError, match=says):
        open_checkpoint(tmp_path)
    for text in ("{", "[]", "\x00"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="config.json"):
            open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "weights, says",
    [
        (3, "must be objects"),
        ({"num_bits": 4, "group_size": [32]}, r"group_size is \[32\]"),
        ({"num_bits": 4, "group_size": 32, "symmetric": False}, "l.weight_zero_point is missing"),
    ],
)
def test_a_compressed_tensors_configuration_that_does_not_fit_is_refused(tmp_path, weights, says):
    tensors = {"l.weight_packed": np.zeros((8, 8), np.int32), "l.weight_shape": np.array([8, 64]),
               "l.weight_scale": np.ones((8, 2), np.float16)}  # fmt: skip
    write(tmp_path, {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}, tensors)
    with pytest.raises(ValueError, match=says):
        open_checkpoint(tmp_path).read("l")


def test_awq_zero_points_that_are_missing_are_named(tmp_path):
    tensors = {"l.qweight": np.zeros((64, 2), np.int32), "l.scales": np.ones((2, 16), np.float16)}
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    write(tmp_path, {**config, "zero_point": True}, tensors)
    with pytest.raises(MalformedTensor, match="l.qzeros is missing"):
        open_checkpoint(tmp_path).read("l")
    write(tmp_path, {**config, "zero_point": False}, tensors)
    assert open_checkpoint(tmp_path).read("l").zero == "middle"


def test_a_gguf_file_that_was_cut_names_tensor_and_offset(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    for name in ("blk.0.a.weight", "blk.0.b.weight"):
        writer.add_tensor(name, np.zeros((4, 2 * 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole = path.read_bytes()
    last = gguf.GGUFReader(str(path)).tensors[-1]
    end = last.data_offset + last.n_bytes
    path.write_bytes(whole[: end - 1])
    says = rf"blk.0.b.weight in .* byte offsets {last.data_offset} to {end}: the file has {end - 1} bytes"
    with pytest.raises(MalformedTensor, match=says):
        open_checkpoint(path)
    for size in range(0, last.data_offset, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(MalformedTensor, match="model.gguf"):
            open_checkpoint(path)


def test_a_checkpoint_as_one_file_of_canonical_weights(tmp_path):
    codes, scales, tensors = gptq_layer("a.up_proj")
    _, _, more = gptq_layer("a.k_proj", g_idx=RANDOM.permutation(np.arange(64) // 32))
    bias = RANDOM.normal(size=16).astype(np.float16)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}
    write(tmp_path, config, {**tensors, **more, "a.up_proj.bias": bias})
    out = tmp_path / "new" / "canonical.safetensors"
    with pytest.raises(ValueError, match="layer a.k_proj gathers its activations"):
        save_canonical(out, open_checkpoint(tmp_path))
    assert list(out.parent.iterdir()) == []  # nothing of it is left
    assert save_canonical(out, open_checkpoint(tmp_path), exclude="k_proj", act="fp16") == ["a.up_proj"]
    made = load_file(str(out))
    assert set(made) == {f"a.up_proj.{plane}" for plane in ("codes", "scales", "bias", "bits")}
    np.testing.assert_array_equal(made["a.up_proj.codes"], codes.T)
    np.testing.assert_array_equal(made["a.up_proj.scales"], scales.T)
    np.testing.assert_array_equal(made["a.up_proj.bias"], bias)
    assert made["a.up_proj.bits"].tolist() == [4]
    with pytest.raises(ValueError, match="no layer to write: the checkpoint has 2"):
        save_canonical(out, open_checkpoint(tmp_path), include="nothing")

    def run(*options):
        command = [sys.executable, "-m", "qgemm.importers", str(tmp_path), "-o", str(tmp_path / "again"), *options]
        return subprocess.run(command, capture_output=True, text=True)

    done = run("--exclude", "k_proj", "--act", "fp16")
    assert done.returncode == 0 and "1 layers of gptq" in done.stdout, done.stderr
    assert (tmp_path / "again").read_bytes() == out.read_bytes()
    done = run("--include", "k_proj")
    assert done.returncode == 1 and done.stderr.startswith("qgemm.importers: layer a.k_proj gathers"), done.stderr


def test_layers_of_a_gguf_file_keep_their_bits_and_biases(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, block_bytes in (("Q4_K", 144), ("Q6_K", 210)):
        blocks = RANDOM.integers(0, 256, (4, block_bytes), dtype=np.uint8)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.add_tensor("Q6_K.bias", np.array([1, 2, 3, 0.1], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_canonical(tmp_path / "c", open_checkpoint(path), act="fp16")
    made = load_file(str(tmp_path / "c"))
    assert (made["Q4_K.weight.bits"], made["Q6_K.weight.bits"]) == (4, 6)
    assert {"Q4_K.weight.offset_codes", "Q6_K.weight.scale_codes"} <= set(made) and "Q6_K.weight.offsets" not in made
    np.testing.assert_array_equal(made["Q6_K.weight.bias"], np.array([1, 2, 3, 0.1], np.float16))
    assert "Q4_K.weight.bias" not in made
