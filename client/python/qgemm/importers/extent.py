"""Whether a file holds what its header says. Reading it is left to the libraries safetensors and gguf; what they say of a
damaged one names neither the tensor nor the place."""

import json
import math
import os

from qgemm.importers.weights import MalformedTensor

_HEADER_AT = 8  # a safetensors file begins with its header's length in 8 bytes
_LARGEST_HEADER = 100_000_000  # that the library reads
_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
          "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}  # fmt: skip


def read_json(path):
    """The object that a JSON file holds; ValueError names the file."""
    try:
        value = json.loads(path.read_text())
    except ValueError as error:  # neither JSON nor UTF-8
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}: it must be an object")
    return value


def check_safetensors(path):
    """Raises MalformedTensor where a tensor, or the header, does not lie in the file as the header says."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(_HEADER_AT), "little")
        if size < _HEADER_AT or length > min(size - _HEADER_AT, _LARGEST_HEADER):
            raise MalformedTensor(f"{path} ends at byte offset {size}: its header would end at {_HEADER_AT + length}")
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(path, pairs))
        tensors = {name: _described(tensor) for name, tensor in header.items() if name != "__metadata__"}
    except MalformedTensor:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MalformedTensor(f"{path}: its header cannot be read: {type(error).__name__}: {error}") from None
    for name, (kind, shape, begin, end) in tensors.items():
        file_end = _HEADER_AT + length + end
        if not 0 <= begin <= end or file_end > size:
            first = _HEADER_AT + length + begin
            raise MalformedTensor(f"{name} in {path} lies at byte offsets {first} to {file_end}: the file has {size} bytes")
        needed = _BYTES[kind] * math.prod(shape) if kind in _BYTES else end - begin
        if needed != end - begin:
            raise MalformedTensor(
                f"{name} ({kind} {list(shape)}) in {path} has {end - begin} bytes from byte offset "
                f"{_HEADER_AT + length + begin} on: it must have {needed}"
            )


def _without_repeats(path, pairs):
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise MalformedTensor(f"{path}: its header has {repeated} twice")
    return dict(pairs)


def _described(tensor):
    kind, shape, (begin, end) = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
    for number in (*shape, begin, end):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"{number!r} is no size")
    return kind, shape, begin, end


def open_gguf(path):
    """gguf.GGUFReader of a file whose tensors all lie in it; MalformedTensor names the first that does not."""
    import gguf

    class Reader(gguf.GGUFReader):
        def _build_tensors(self, start_offs, fields):
            for field in fields:
                _check_gguf_tensor(gguf, path, field.parts, int(start_offs), len(self.data))
            super()._build_tensors(start_offs, fields)

    try:
        return Reader(str(path))
    except (MalformedTensor, OSError):
        raise
    except Exception as error:
        raise MalformedTensor(f"{path}: no GGUF file that can be read: {type(error).__name__}: {error}") from None


def _check_gguf_tensor(gguf, path, parts, start, size):
    _, name, _, dims, kind, offset = parts
    name, dims = bytes(name).decode("utf-8", "replace"), [int(extent) for extent in dims]
    try:
        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(kind[0]))]
    except (ValueError, KeyError):
        raise MalformedTensor(f"{name} in {path} is of type {int(kind[0])}, which the package gguf does not know") from None
    if dims and dims[0] % block:
        raise MalformedTensor(f"{name} in {path}: a row of {dims[0]} weights is no whole number of blocks of {block}")
    begin = start + int(offset[0])
    end = begin + math.prod(dims) // block * block_bytes
    if end > size:
        raise MalformedTensor(f"{name} in {path} lies at byte offsets {begin} to {end}: the file has {size} bytes")
