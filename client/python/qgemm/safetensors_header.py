"""The header of a safetensors file (github.com/huggingface/safetensors, "Format") whose tensors are written one after the other."""

import json


class Header:
    """The tensors added so far. `end`: bytes of them all, where the next one begins."""

    def __init__(self):
        self._tensors, self.end = {}, 0

    def add(self, name, dtype, shape, size):
        self._tensors[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.end, self.end + size]}
        self.end += size

    def to_bytes(self):
        """What stands before the tensors' bytes: the text's length, then the text, a multiple of 8 bytes."""
        text = json.dumps(self._tensors, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text
