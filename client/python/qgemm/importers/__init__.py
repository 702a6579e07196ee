"""Quantized checkpoints of other ecosystems as canonical weights, bit for bit.

    checkpoint = qgemm.importers.open_checkpoint("Llama-3.1-8B-GPTQ")     # a folder, or a .gguf file
    for name in checkpoint.layers():
        weights = checkpoint.read(name)                                   # codes, scales, zeros: NumPy arrays
        packed = qgemm.packing.pack(weights.canonical())                  # as kernels read them
    save_canonical("canonical.safetensors", checkpoint)                   # for `qgemmctl bundle create --weights`

Files are read by `safetensors` and `gguf`; the bits are turned by libqgemm.so (set QGEMM_LIBRARY to its path where it is
neither in the package nor on the loader's path). `read` may run in many threads at once.
"""

from qgemm.importers.awq import import_awq
from qgemm.importers.checkpoint import Checkpoint, open_checkpoint
from qgemm.importers.compressed_tensors import import_compressed_tensors
from qgemm.importers.gguf import import_gguf
from qgemm.importers.gptq import detect_gptq_zeros, import_gptq
from qgemm.importers.save import save_canonical
from qgemm.importers.torchao import import_torchao
from qgemm.importers.weights import ImportedWeights, MalformedTensor, Tensor

__all__ = [
    "Checkpoint",
    "ImportedWeights",
    "MalformedTensor",
    "Tensor",
    "detect_gptq_zeros",
    "import_awq",
    "import_compressed_tensors",
    "import_gguf",
    "import_gptq",
    "import_torchao",
    "open_checkpoint",
    "save_canonical",
]
