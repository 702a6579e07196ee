"""Checkpoints: which layers a model's files hold, and each as canonical weights."""

import json
import pathlib

import numpy as np

from qgemm.importers import awq, compressed_tensors, gguf, gptq, torchao
from qgemm.importers.extent import check_safetensors, open_gguf, read_json
from qgemm.importers.weights import MalformedTensor, Tensor

_SAFETENSORS_TYPES = {"I32": "int32", "I64": "int64", "U8": "uint8", "I8": "int8", "F16": "fp16", "BF16": "bf16", "F32": "fp32"}
_VOTING_LAYERS = 64  # symmetric zero points show themselves in the first ones


class Checkpoint:
    """What `open_checkpoint` gives: `format`, `layers()` and `read(name)`."""

    format = ""

    def layers(self):
        """The names of the quantized layers, in the order of the files."""
        raise NotImplementedError

    def read(self, name):
        """The layer as ImportedWeights. KeyError without such a layer; MalformedTensor names the tensor at fault."""
        raise NotImplementedError

    def bias(self, name):
        """The layer's bias, float32 [N], or None."""
        raise NotImplementedError


def _as_float(tensor):
    """float32 of a Tensor of 16- or 32-bit numbers."""
    if tensor.type == "bf16":
        return (np.frombuffer(tensor.data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if tensor.type not in ("fp16", "fp32"):
        raise MalformedTensor(f"{tensor.name} has element type {tensor.type}: it must be fp16, bf16 or fp32")
    return np.asarray(tensor.data, np.float32)


def open_checkpoint(path, *, gptq_zeros=None, encoding=None):
    """Opens a Hugging Face folder (config.json and *.safetensors) or a .gguf file.

    `gptq_zeros`: "v1" or "v2" where a GPTQ checkpoint does not show its convention; `encoding`: "padded" or "dense" where a
    compressed-tensors one does not.
    """
    path = pathlib.Path(path)
    if path.suffix == ".gguf":
        return _Gguf(path)
    config_path = path / "config.json"
    if not config_path.exists():
        raise FileNotFoundError(f"{path} is neither a .gguf file nor a folder with a config.json")
    config = read_json(config_path).get("quantization_config")
    if config is None and (path / "quantize_config.json").exists():  # AutoGPTQ's own file
        config = {"quant_method": "gptq", **read_json(path / "quantize_config.json")}
    if config is not None and not isinstance(config, dict):
        raise ValueError(f"{config_path}: quantization_config must be an object")
    method = (config or {}).get("quant_method")
    if method == "gptq":
        return _Gptq(path, config, gptq_zeros)
    if method == "awq":
        return _Awq(path, config)
    if method == "compressed-tensors":
        return _CompressedTensors(path, config, encoding)
    if method == "torchao":
        return _Torchao(path)
    raise ValueError(f"{config_path}: quant_method {method!r} is not supported: gptq, awq, compressed-tensors, torchao")


class _Files:
    """The tensors of all *.safetensors of a folder."""

    def __init__(self, path):
        import safetensors

        self._open = safetensors.safe_open
        self._file_of = {}
        self.metadata = {}  # of all files
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{path} holds no *.safetensors")
        for file in files:
            check_safetensors(file)
            try:
                with self._open(str(file), framework="np") as opened:
                    self.metadata.update(opened.metadata() or {})
                    for name in opened.keys():
                        if name in self._file_of:
                            raise MalformedTensor(f"{name} is in {self._file_of[name].name} and in {file.name}")
                        self._file_of[name] = file
            except safetensors.SafetensorError as error:
                raise MalformedTensor(f"{file}: {error}") from None

    def __contains__(self, name):
        return name in self._file_of

    def names(self):
        return list(self._file_of)

    def read(self, name):
        if name not in self._file_of:
            raise KeyError(f"no tensor {name} in the checkpoint")
        with self._open(str(self._file_of[name]), framework="np") as opened:
            one = opened.get_slice(name)
            kind, shape = one.get_dtype(), tuple(one.get_shape())
            if kind not in _SAFETENSORS_TYPES:
                raise ValueError(f"{name} has element type {kind}: it must be one of {', '.join(_SAFETENSORS_TYPES)}")
            if kind != "BF16":
                return Tensor(name, _SAFETENSORS_TYPES[kind], shape, opened.get_tensor(name))
        return Tensor(name, "bf16", shape, self._raw(name))

    def read_if_there(self, name):
        return self.read(name) if name in self else None

    def _raw(self, name):
        # NumPy has no bf16, so safetensors cannot give it: the bytes, by the offsets of the file's own header.
        with open(self._file_of[name], "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            begin, end = json.loads(file.read(header_bytes))[name]["data_offsets"]
            file.seek(8 + header_bytes + begin)
            return file.read(end - begin)


def _whole_number(config, *keys):
    """The first of `keys` that quantization_config has."""
    value = next((config[key] for key in keys if config.get(key) is not None), None)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 31:
        raise ValueError(f"quantization_config: {keys[0]} is {value!r}: it must be a whole number")
    return value


class _Safetensors(Checkpoint):
    suffix = ""  # of the tensor that every quantized layer has

    def __init__(self, path):
        self._files = _Files(path)

    def layers(self):
        return [name[: -len(self.suffix)] for name in self._files.names() if name.endswith(self.suffix)]

    def _zeros(self, layer, part, needed):
        """Zero points; without them weights are symmetric, which the configuration may deny."""
        found = self._optional(layer, part)
        if found is None and needed:
            raise MalformedTensor(f"{layer}.{part} is missing: by the configuration the weights have zero points")
        return found

    def bias(self, name):
        found = self._optional(name, "bias")
        return None if found is None else _as_float(found)

    def _part(self, layer, part):
        return self._files.read(f"{layer}.{part}")

    def _optional(self, layer, part):
        return self._files.read_if_there(f"{layer}.{part}")


class _Gptq(_Safetensors):
    format = "gptq"
    suffix = ".qweight"

    def __init__(self, path, config, zeros):
        super().__init__(path)
        self._bits, self._group_size = _whole_number(config, "bits"), _whole_number(config, "group_size")
        self.zeros = zeros or self._convention(config.get("checkpoint_format"))

    def _convention(self, declared):
        # What the zero points show counts more than what the configuration says: some say the wrong one.
        shown = {
            gptq.detect_gptq_zeros(self._part(layer, "qzeros"), self._bits) for layer in self.layers()[:_VOTING_LAYERS]
        } - {None}
        if len(shown) == 1:
            return shown.pop()
        if not shown and declared in ("gptq", "gptq_v2"):
            return {"gptq": "v1", "gptq_v2": "v2"}[declared]
        raise ValueError(
            f"neither the zero points nor checkpoint_format ({declared!r}) say whether this checkpoint stores z - 1 or z: "
            "pass gptq_zeros='v1' or 'v2'"
        )

    def read(self, name):
        return gptq.import_gptq(
            self._part(name, "qweight"),
            self._part(name, "qzeros"),
            self._part(name, "scales"),
            self._optional(name, "g_idx"),
            bits=self._bits,
            group_size=self._group_size,
            zeros=self.zeros,
            name=name,
        )


class _Awq(_Safetensors):
    format = "awq"
    suffix = ".qweight"

    def __init__(self, path, config):
        super().__init__(path)
        version, bits = str(config.get("version", "gemm")).lower(), config.get("bits", config.get("w_bit"))
        if version != "gemm" or bits != 4:
            raise ValueError(f"AWQ version {version!r} with {bits} bits is not supported: 'gemm' with 4 bits")
        self._group_size = _whole_number(config, "group_size", "q_group_size")
        self._has_zeros = config.get("zero_point") is True

    def read(self, name):
        return awq.import_awq(
            self._part(name, "qweight"),
            self._zeros(name, "qzeros", self._has_zeros),
            self._part(name, "scales"),
            group_size=self._group_size,
            name=name,
        )


class _CompressedTensors(_Safetensors):
    format = "compressed-tensors"
    suffix = ".weight_packed"

    def __init__(self, path, config, encoding):
        super().__init__(path)
        self._encoding = encoding
        groups = config.get("config_groups")
        if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
            raise ValueError("quantization_config: config_groups must be an object of objects")
        self._groups = [group["weights"] for group in groups.values() if group.get("weights")]
        if not all(isinstance(weights, dict) for weights in self._groups):
            raise ValueError("quantization_config: the weights of config_groups must be objects")
        if len({(_whole_number(weights, "num_bits"), self._group_size(weights)) for weights in self._groups}) != 1:
            raise ValueError("config_groups with different weights are not supported: one width and group size for all")

    @staticmethod
    def _group_size(weights):
        return -1 if weights.get("group_size") is None else _whole_number(weights, "group_size")

    def read(self, name):
        weights = self._groups[0]
        return compressed_tensors.import_compressed_tensors(
            self._part(name, "weight_packed"),
            self._part(name, "weight_shape"),
            self._part(name, "weight_scale"),
            self._zeros(name, "weight_zero_point", weights.get("symmetric") is False),
            self._optional(name, "weight_g_idx"),
            bits=weights["num_bits"],
            group_size=self._group_size(weights),
            encoding=self._encoding,
            name=name,
        )


class _Torchao(_Safetensors):
    format = "torchao"
    suffix = "._weight_scale_and_zero"  # tile-packed int4 has it, torchao's other tensors have not

    def read(self, name):
        try:
            described = json.loads(self._files.metadata.get(f"{name}.weight", "{}"))
            kind, data = described.get("_type"), described.get("_data") or {}
            shape, group_size = tuple(map(int, data.get("shape", ()))), int(data.get("block_size", [0])[-1])
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise MalformedTensor(f"{name}.weight: the file's metadata do not describe it: {error}") from None
        if kind != "Int4TilePackedTo4dTensor":
            raise ValueError(f"{name}.weight is of type {kind}: it must be Int4TilePackedTo4dTensor")
        if len(shape) != 2:
            raise MalformedTensor(f"{name}.weight: the file's metadata give it the shape {list(shape)}: it must be [N, K]")
        return torchao.import_torchao(
            self._part(name, "_weight_qdata"),
            self._part(name, "_weight_scale_and_zero"),
            shape=shape,
            group_size=group_size,
            name=name,
        )


class _Gguf(Checkpoint):
    format = "gguf"

    def __init__(self, path):
        self._tensors = {tensor.name: tensor for tensor in open_gguf(path).tensors}

    def layers(self):
        types = set(gguf.TYPES.values())
        return [name for name, tensor in self._tensors.items() if int(tensor.tensor_type) in types and len(tensor.shape) == 2]

    def read(self, name):
        tensor = self._tensors[name]
        k, n = (int(size) for size in tensor.shape)  # GGUF names the fastest dimension first
        return gguf.import_gguf(tensor.data, int(tensor.tensor_type), shape=(n, k), name=name)

    def bias(self, name):
        found = self._tensors.get(name.removesuffix(".weight") + ".bias")
        if found is None:
            return None
        if found.data.dtype not in (np.float32, np.float16):  # bf16 comes as bytes
            raise MalformedTensor(f"{found.name} has the type {found.tensor_type.name}: it must be F32 or F16")
        return np.asarray(found.data, np.float32).reshape(-1)
