"""The kernels of read_kernels.cu, compiled by NVRTC for the GPU that is here: the pure-read limit and the read flush."""

import ctypes
import dataclasses
import glob
import os
import pathlib
import sys

BULK_STAGES = 12
FLUSH_BLOCKS_PER_SM = 4


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to read: an entry of read_kernels.cu and its launch."""

    entry: str
    blocks_per_sm: int
    threads: int
    dynamic_smem_bytes: int = 0

    def __str__(self):
        return f"{self.entry} {self.blocks_per_sm} x {self.threads}"


def variants(compute_major):
    """All ways worth trying; which is fastest depends on the number of bytes."""
    direct = [
        Variant("read_direct_4", 1, 1024),
        Variant("read_direct_4", 2, 1024),
        Variant("read_direct_8", 2, 512),
        Variant("read_direct_8", 4, 512),
    ]
    if compute_major < 9:
        return direct
    return direct + [Variant(f"read_bulk_{kib}", blocks, 32, kib * 1024 * BULK_STAGES)
                     for kib, blocks in ((4, 1), (4, 2), (8, 1), (8, 2), (16, 1))]


def nvrtc_candidates():
    chosen = os.environ.get("QGEMM_NVRTC_PATH", "")
    if ".so" in chosen:
        return [chosen]
    folders = [chosen + "/"] if chosen else [""]
    if os.environ.get("CUDA_HOME"):
        folders.append(os.environ["CUDA_HOME"] + "/lib64/")
    folders.append("/usr/local/cuda/lib64/")
    for path in sys.path:
        folders += sorted(glob.glob(path + "/nvidia/cu13/lib/")) + sorted(glob.glob(path + "/nvidia/cuda_nvrtc/lib/"))
    return [folder + name for folder in folders for name in ("libnvrtc.so.13", "libnvrtc.so.12")]


def load_nvrtc():
    tried = nvrtc_candidates()
    for path in tried:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise RuntimeError(f"NVRTC was not found; set QGEMM_NVRTC_PATH to libnvrtc.so (tried {', '.join(tried)})")


def compile_cubin(source, arch, defines=()):
    """The cubin of CUDA source for an arch such as "sm_90a"; RuntimeError with the compiler's log."""
    nvrtc = load_nvrtc()
    program = ctypes.c_void_p()

    def check(result, call):
        if result == 0:
            return
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(max(1, size.value))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{call} failed with NVRTC error {result}:\n{log.value.decode(errors='replace')}")

    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"read_kernels.cu", 0, None, None),
          "nvrtcCreateProgram")
    options = [b"--std=c++17", f"--gpu-architecture={arch}".encode(), *(f"-D{define}".encode() for define in defines)]
    check(nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)),
          "nvrtcCompileProgram")
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
    cubin = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin.raw


def read_kernels_cubin(compute_major, compute_minor):
    source = (pathlib.Path(__file__).resolve().parent / "read_kernels.cu").read_text()
    return compile_cubin(source, f"sm_{compute_major}{compute_minor}", [f"BULK_STAGES={BULK_STAGES}"])


class ReadKernels:
    """The compiled kernels, loaded through `driver` (outside_launch.Driver)."""

    def __init__(self, torch, driver):
        properties = torch.cuda.get_device_properties(0)
        self.torch, self.driver = torch, driver
        self.sm_count, self.compute_major = properties.multi_processor_count, properties.major
        self.cubin = read_kernels_cubin(properties.major, properties.minor)
        self.functions = {}
        self.sink = torch.zeros(4, dtype=torch.int32, device="cuda")

    def variants(self):
        return variants(self.compute_major)

    def reader(self, variant, data, stream):
        """A function that enqueues one read of all whole 16-byte words of `data`, a tensor, on `stream`."""
        if variant.entry not in self.functions:
            self.functions[variant.entry] = self.driver.load(self.cubin, variant.entry)
        function = self.functions[variant.entry]
        spec = {"block_threads": variant.threads, "dynamic_smem_bytes": variant.dynamic_smem_bytes}
        words = data.numel() * data.element_size() // 16
        values = [ctypes.c_uint64(data.data_ptr()), ctypes.c_int64(words), ctypes.c_uint64(self.sink.data_ptr())]
        grid = (variant.blocks_per_sm * self.sm_count, 1, 1)
        return lambda: self.driver.launch(function, spec, grid, values, stream)

    def flush(self, data, stream):
        """A function that enqueues the read flush over `data`."""
        return self.reader(Variant("read_flush", FLUSH_BLOCKS_PER_SM, 512), data, stream)
