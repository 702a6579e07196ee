#!/usr/bin/env python3
"""Somebody else launches a tuned kernel: nothing of qgemm's code is used here.

    python3 tests/system/outside_launch.py --server unix:/run/qgemm/qgemm.sock --shape 5376x4096 --m 64 --out DIR

Two steps, each with what it needs and no more:
  fetch   (grpcio, protobuf)      asks the daemon for the pick of each --m, tuning it if need be, and writes to DIR
                                  pick-m<bucket>.json (the API's Pick with its launch spec) and <sha256>.cubin
  launch  (PyTorch, CUDA driver)  packs a random weight by kernels/LAYOUT.md, launches each pick of DIR by its launch
                                  spec for every --rows it serves, and compares with PyTorch's matmul of the
                                  dequantized weight in fp64

A step whose modules are missing is left out, so that the folder may be fetched on one machine and launched on
another; --only fetch|launch asks for one of them. Exit code 0: what was asked for was done and every launch agrees.
"""

import argparse
import ctypes
import hashlib
import importlib.util
import json
import math
import pathlib
import re
import struct
import sys

LAYOUT_ID = "qgemm-frag16x64-v1"
ABI_VERSION = 2
# Largest relative error (Frobenius norm) of a result with activations of that type.
TOLERANCE = {"bf16": 3e-3, "fp16": 6e-4}
STEP_WEIGHTS = 256  # weights along K that share a step of two-level scales


def fail(sentence):
    sys.exit(f"outside_launch: {sentence}")


# ---- fetch: gRPC and reflection only --------------------------------------------------------------------------------


def fetch(arguments):
    from reflected_api import ReflectedApi

    api = ReflectedApi(arguments.server)
    arguments.out.mkdir(parents=True, exist_ok=True)
    n, k = (int(word) for word in arguments.shape.split("x"))
    problem = {
        "n": n,
        "k": k,
        "format": {
            "bits": int(arguments.format.removeprefix("int")),
            "group_size": max(0, arguments.group_size),
            "zero_point": {"none": "ZERO_POINT_NONE", "int": "ZERO_POINT_INTEGER", "float": "ZERO_POINT_FLOAT"}[
                arguments.zero
            ],
            "scale_type": scalar_type(arguments.scale or ("fp16" if arguments.scale_levels == 2 else arguments.act)),
            "scale_levels": arguments.scale_levels,
        },
        "act": scalar_type(arguments.act),
        "out": scalar_type(arguments.out_type or arguments.act),
        "epilogue": {
            "bias": arguments.bias,
            "activation": f"ACTIVATION_{arguments.activation.upper()}",
            "gated": arguments.gated,
            "residual": arguments.residual,
        },
    }
    if arguments.act_quant != "none":
        problem["act_quantization"] = f"ACTIVATION_QUANTIZATION_{arguments.act_quant.upper()}"
    picks = look_up(api, problem, arguments)
    for pick in picks:
        sha256 = pick["kernel"]["sha256"]
        cubin = get_kernel(api, sha256)
        (arguments.out / f"{sha256}.cubin").write_bytes(cubin)
        (arguments.out / f"pick-m{pick['m_bucket']}.json").write_text(json.dumps(pick, indent=2))
        print(f"fetched M <= {pick['m_bucket']}: {pick['config']} split {pick['split_k']}, {len(cubin)} bytes, {sha256}")


def scalar_type(word):
    return f"SCALAR_TYPE_{word.upper()}"


def look_up(api, problem, arguments):
    """The stored pick of each m; what is missing is tuned first."""
    request = {"keys": [{"problem": problem, "m": m} for m in arguments.m], "target": arguments.target}
    answers = api.call("qgemm.v1.Tuner", "Lookup", request)["answers"]
    if any("pick" not in answer for answer in answers):
        tune = {"problems": [problem], "m": arguments.m, "target": arguments.target}
        for event in api.stream("qgemm.v1.Tuner", "Tune", tune):
            if event.get("result", {}).get("error"):
                fail(f"no pick for {arguments.shape}: {event['result']['error']}")
        answers = api.call("qgemm.v1.Tuner", "Lookup", request)["answers"]
    picks = {}
    for m, answer in zip(arguments.m, answers):
        if "pick" not in answer:
            fail(f"no pick for M = {m}: {answer.get('miss_reason')}")
        picks[answer["pick"]["m_bucket"]] = answer["pick"]
    return list(picks.values())


def get_kernel(api, sha256):
    import base64

    cubin = b""
    for chunk in api.stream("qgemm.v1.Tuner", "GetKernels", {"sha256": [sha256]}):
        if int(chunk.get("offset", 0)) != len(cubin):
            fail(f"the chunks of kernel {sha256} have a gap at byte {len(cubin)}")
        cubin += base64.b64decode(chunk["data"])
    if hashlib.sha256(cubin).hexdigest() != sha256:
        fail(f"the bytes of kernel {sha256} have another SHA-256")
    return cubin


# ---- launch: PyTorch and the CUDA driver only -----------------------------------------------------------------------


class Format:
    """A weight format as the API describes it."""

    def __init__(self, message):
        self.bits = int(message["bits"])
        self.group_size = int(message.get("group_size", 0))  # 0: one group per row
        self.scale = {"SCALAR_TYPE_BF16": "bf16", "SCALAR_TYPE_FP16": "fp16"}[message["scale_type"]]
        self.zero = message.get("zero_point", "ZERO_POINT_NONE").removeprefix("ZERO_POINT_").lower()
        self.two_level = int(message.get("scale_levels", 1)) == 2
        self.center = 1 << (self.bits - 1)

    def groups(self, k):
        return -(-k // self.group_size) if self.group_size else 1

    def steps(self, k):
        return -(-k // STEP_WEIGHTS)

    def per_weight(self, torch, values, k, width):
        """[N, groups or steps] -> [N, K], `width` weights sharing a value; 0 = all of them."""
        return values.repeat_interleave(width or k, dim=1)[:, :k]


def padded(size):
    return (size + 63) // 64 * 64


def pack_weights(torch, codes, bits=4):
    """codes uint8 [N, K] -> the bytes of the weights plane, as kernels/LAYOUT.md says."""
    n, k = codes.shape
    fill = torch.full((padded(n), padded(k)), 1 << (bits - 1), dtype=torch.uint8, device=codes.device)
    fill[:n, :k] = codes
    # i, p % 2, g, j, w, p / 2, t, odd  ->  i, j, g, t, w, p / 2, p % 2, odd
    q = fill.reshape(padded(n) // 16, 2, 8, padded(k) // 64, 4, 2, 4, 2).permute(0, 3, 2, 6, 4, 5, 1, 7)
    blocks = q.shape[:2]

    def bytes_of(parts):  # [i, j, ...] -> [i, j, bytes of a block]
        return parts.to(torch.uint8).reshape(*blocks, -1)

    if bits == 8:
        # A byte is 2 odd + p / 2 of word 2 (w % 2) + p % 2 of the plane w / 2.
        signed = q.bitwise_xor(0x80).reshape(*blocks, 8, 4, 2, 2, 2, 2, 2)  # i, j, g, t, w / 2, w % 2, p / 2, p % 2, odd
        return bytes_of(signed.permute(0, 1, 4, 2, 3, 5, 7, 8, 6)).reshape(-1)
    low = q.bitwise_and(15)
    # Bits 16 odd + 4 p: byte 2 odd + p / 2 of the word has p % 2 = 0 in its low half.
    low_bytes = low[..., 0, :] | low[..., 1, :] << 4  # i, j, g, t, w, p / 2, odd
    block = bytes_of(low_bytes.permute(0, 1, 2, 3, 4, 6, 5))
    if bits == 4:
        return block.reshape(-1)
    high = q >> 4
    parts = [high[:, :, :, :, w, :, p] for w in range(4) for p in range(2)]  # number 2 w + p % 2: i, j, g, t, p / 2, odd
    if bits == 5:
        high_bytes = sum_of_bits([part << i for i, part in enumerate(parts)])
    else:
        high_bytes = torch.stack([sum_of_bits([part << 2 * i for i, part in enumerate(parts[half : half + 4])])
                                  for half in (0, 4)], dim=4)  # i, j, g, t, w / 2, p / 2, odd
    return torch.cat([block, bytes_of(high_bytes.transpose(-1, -2))], dim=2).reshape(-1)


def sum_of_bits(parts):
    total = parts[0]
    for part in parts[1:]:
        total = total | part
    return total


def pack_plane(torch, values, columns, fill):
    """[N, groups or steps] of numbers -> [padded_n / 16][columns][8][2], padding filled."""
    n, given = values.shape
    whole = torch.full((padded(n), columns), fill, dtype=values.dtype, device=values.device)
    whole[:n, :given] = values
    return whole.reshape(padded(n) // 16, 2, 8, columns).permute(0, 3, 2, 1).contiguous().reshape(-1)


def pack_steps(torch, kinds, columns):
    """One or two of [N, steps] -> [padded_n / 16][steps][1 or 2][8][2]: the scales' steps, then the offsets'."""
    planes = [pack_plane(torch, values, columns, 0).reshape(-1, columns, 1, 8, 2) for values in kinds]
    return torch.cat(planes, dim=2).reshape(-1)


def check_packing(torch):
    """The worked example of kernels/LAYOUT.md: N = 17, K = 96, group 32."""
    rows = torch.arange(17).reshape(-1, 1)
    codes = ((5 * rows + 3 * torch.arange(96)) % 13).to(torch.uint8)
    scales = (0x3C00 + 16 * rows + torch.arange(3)).to(torch.int16)
    zeros = ((rows + 2 * torch.arange(3)) % 16).to(torch.uint8)
    planes = (pack_weights(torch, codes), pack_plane(torch, scales, 4, 0), pack_plane(torch, zeros, 4, 8))
    expected = (
        "1dcca0f7d7ad6c50ec46b9a4f286ac2823a3e37088b125bee039b6e23d7f2486",
        "3633c55dcc4e01f784b92a97edcc04aeb1cef6e543f9f7df6536c6023603fd81",
        "902e2d750dafe0c5b1550c7c1bc16b87d03eac770b86d30792c29ea1cf7b014f",
    )
    for plane, digest in zip(planes, expected):
        if hashlib.sha256(plane_bytes(torch, plane)).hexdigest() != digest:
            fail("this script does not pack as kernels/LAYOUT.md's example says")


def plane_bytes(torch, plane):
    numbers = plane.tolist()
    return struct.pack(f"<{len(numbers)}{'h' if plane.dtype == torch.int16 else 'B'}", *numbers)


class Quantized:
    """A matrix [N, K] quantized to a format: its numbers as canonical as LAYOUT.md has them, and what they mean."""

    def __init__(self, torch, weights, format):
        self.format = format
        n, k = weights.shape
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[format.scale]
        width = format.group_size or k
        grouped = weights.double().reshape(n, -1, width)
        largest = (1 << format.bits) - 1
        if format.zero == "none":
            wanted_scales, wanted_offsets = grouped.abs().amax(dim=2) / format.center, None
        else:
            low, high = grouped.amin(dim=2).clamp(max=0), grouped.amax(dim=2).clamp(min=0)
            wanted_scales, wanted_offsets = (high - low) / largest, low
        scales, self.scales, self.scale_codes = self.stored(torch, wanted_scales, k, dtype)
        inverse = torch.where(scales == 0, torch.zeros_like(scales), 1 / scales)[:, :, None]
        self.zeros = self.offsets = self.offset_codes = None
        if format.zero == "float":
            offsets, self.offsets, self.offset_codes = self.stored(torch, wanted_offsets, k, dtype)
            codes = ((grouped - offsets[:, :, None]) * inverse).round().clamp(0, largest)
            meant = codes * scales[:, :, None] + offsets[:, :, None]
        else:
            zeros = torch.full_like(scales, format.center)
            if format.zero == "integer":
                zeros = (-wanted_offsets * inverse[:, :, 0]).round().clamp(0, largest)
                self.zeros = zeros.to(torch.uint8)
            codes = (grouped * inverse + zeros[:, :, None]).round().clamp(0, largest)
            meant = (codes - zeros[:, :, None]) * scales[:, :, None]
        self.codes = codes.reshape(n, k).to(torch.uint8)
        self.dequantized = meant.reshape(n, k)

    def stored(self, torch, wanted, k, dtype):
        """Of wanted numbers [N, groups]: what is read back (fp64), what is stored, and the codes of two levels."""
        if not self.format.two_level:
            stored = wanted.to(dtype)
            return stored.double(), stored, None
        n, groups = wanted.shape
        per_step = STEP_WEIGHTS // self.format.group_size
        filled = torch.zeros((n, self.format.steps(k) * per_step), dtype=torch.float64, device=wanted.device)
        filled[:, :groups] = wanted
        steps = (filled.reshape(n, -1, per_step).abs().amax(dim=2) / 127).to(torch.float16)
        spread = steps.double().repeat_interleave(per_step, dim=1)[:, :groups]
        codes = torch.where(spread == 0, torch.zeros_like(spread), wanted / spread).round().clamp(-127, 127)
        return spread * codes, steps, codes.to(torch.int8)


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute; the first three words of its 64-byte value are a cluster's dimensions."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


class Driver:
    """The few calls of the CUDA driver API that a launch takes; PyTorch's primary context is the current one."""

    DYNAMIC_SMEM_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    CLUSTER_ATTRIBUTE = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    # CUtensorMapDataType and bytes of an element
    ELEMENTS = {"ELEMENT_BF16": (9, 2), "ELEMENT_FP16": (6, 2), "ELEMENT_U32": (2, 4), "ELEMENT_U64": (4, 8)}
    SWIZZLES = {0: 0, 128: 3}  # CUtensorMapSwizzle

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.allowed_smem = {}  # by function: so that a launch under capture changes no attribute

    def check(self, result, call):
        if result != 0:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(result, ctypes.byref(text))
            fail(f"{call}: {(text.value or b'unknown error').decode()} ({result})")

    def load(self, cubin, entry):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(cubin)), "cuModuleLoadData")
        self.check(
            self.cuda.cuModuleGetFunction(ctypes.byref(function), module, entry.encode()), f"cuModuleGetFunction({entry})"
        )
        return function

    def launch(self, function, spec, grid, values, stream):
        smem = int(spec.get("dynamic_smem_bytes", 0))
        if smem > self.allowed_smem.get(function.value, 0):
            self.check(
                self.cuda.cuFuncSetAttribute(function, self.DYNAMIC_SMEM_ATTRIBUTE, smem), f"cuFuncSetAttribute({smem})"
            )
            self.allowed_smem[function.value] = smem
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
        config = LaunchConfig(tuple(grid), (int(spec["block_threads"]), 1, 1), smem, stream, None, 0)
        cluster_z = int(spec.get("cluster_z", 1))
        if cluster_z > 1:
            cluster = LaunchAttribute(self.CLUSTER_ATTRIBUTE, b"", (1, 1, cluster_z))
            config.attributes, config.attribute_count = ctypes.pointer(cluster), 1
        self.check(self.cuda.cuLaunchKernelEx(ctypes.byref(config), function, pointers, None), "cuLaunchKernelEx")

    def memset(self, address, size, stream):
        """Zeroes `size` bytes, a multiple of 4, on a stream."""
        self.check(
            self.cuda.cuMemsetD32Async(
                ctypes.c_uint64(address), ctypes.c_uint(0), ctypes.c_size_t(size // 4), ctypes.c_void_p(stream)
            ),
            "cuMemsetD32Async",
        )

    def tensor_map(self, name, description, address, m, ldx):
        """The 128 bytes that a kernel takes for a tensor_map argument."""
        element, swizzle = description["element"], int(description.get("swizzle_bytes", 0))
        if element not in self.ELEMENTS or swizzle not in self.SWIZZLES:
            fail(f"argument {name} has {element} and swizzle_bytes {swizzle}, which this script does not know")
        data_type, element_bytes = self.ELEMENTS[element]
        rows = int(description.get("rows", 0)) or m
        pitch = int(description.get("row_pitch_bytes", 0)) or ldx * element_bytes
        if address == 0 or address % 16 or pitch % 16:
            fail(f"argument {name} at {address:#x} with rows {pitch} bytes apart: the copy engine needs multiples of 16")
        memory = (ctypes.c_ubyte * 192)()
        tensor_map = (ctypes.c_ubyte * 128).from_buffer(memory, -ctypes.addressof(memory) % 64)
        self.check(
            self.cuda.cuTensorMapEncodeTiled(
                ctypes.byref(tensor_map), data_type, ctypes.c_uint32(2), ctypes.c_void_p(address),
                (ctypes.c_uint64 * 2)(int(description["columns"]), rows), (ctypes.c_uint64 * 1)(pitch),
                (ctypes.c_uint32 * 2)(int(description["box_columns"]), int(description["box_rows"])),
                (ctypes.c_uint32 * 2)(1, 1),
                0, self.SWIZZLES[swizzle], 0, 0,  # no interleave, swizzle, no L2 promotion, zero fill
            ),
            f"cuTensorMapEncodeTiled({name})",
        )
        return tensor_map


def argument_values(spec, driver, pointers, symbols):
    """The kernel's arguments in order: 8 bytes for a pointer, 4 or 8 for an integer, 128 for a tensor map."""
    values = []
    for argument in spec["arguments"]:
        if "pointer" in argument:
            address = pointers[argument["pointer"]["role"]]
            if address % int(argument["pointer"]["alignment"]):
                fail(f"argument {argument['name']} is not aligned to {argument['pointer']['alignment']} bytes")
            values.append(ctypes.c_uint64(address))
            continue
        if "tensor_map" in argument:
            description = argument["tensor_map"]
            address = pointers[description["role"]]
            m, ldx = symbols["SYMBOL_M"], symbols["SYMBOL_LDX"]
            values.append(driver.tensor_map(argument["name"], description, address, m, ldx))
            continue
        if "i32" not in argument and "i64" not in argument:
            fail(f"argument {argument['name']} is of a kind that this script does not know")
        kind, integer = ("i32", argument["i32"]) if "i32" in argument else ("i64", argument["i64"])
        value = symbols[integer["symbol"]] if "symbol" in integer else int(integer["constant"])
        values.append(ctypes.c_int32(value) if kind == "i32" else ctypes.c_int64(value))
    return values


SCALAR_TYPES = {"SCALAR_TYPE_BF16": "bf16", "SCALAR_TYPE_FP16": "fp16", "SCALAR_TYPE_FP32": "fp32"}


def as_int8(torch, x):
    """fp64: what X's bytes are worth, by row and block of 32 along K."""
    k = x.shape[1]
    blocks = torch.nn.functional.pad(x.float(), (0, -k % 32)).reshape(x.shape[0], -1, 32)
    most = blocks.abs().amax(2, keepdim=True)
    bytes_of = torch.round(blocks * torch.where(most > 1e-30, torch.full_like(most, 127) / most, 0))
    return ((most / 127).double() * bytes_of.double()).reshape(x.shape[0], -1)[:, :k]


class Problem:
    """A random weight and what both sides need of it: its packed planes, and the fp64 matrix it stands for."""

    def __init__(self, torch, problem):
        types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
        self.torch, self.n, self.k = torch, int(problem["n"]), int(problem["k"])
        self.act, self.out = SCALAR_TYPES[problem["act"]], SCALAR_TYPES[problem["out"]]
        self.dtype, self.out_dtype = types[self.act], types[self.out]
        self.int8 = problem.get("act_quantization") == "ACTIVATION_QUANTIZATION_INT8"
        self.format = format = Format(problem["format"])
        epilogue = problem.get("epilogue", {})
        self.activation = epilogue.get("activation", "ACTIVATION_NONE").removeprefix("ACTIVATION_").lower()
        self.gated, self.has_residual = epilogue.get("gated", False), epilogue.get("residual", False)
        self.columns = self.n // 2 if self.gated else self.n
        self.generator = torch.Generator(device="cuda").manual_seed(1)

        quantized = Quantized(torch, self.random(self.n, self.k) * (2 / math.sqrt(self.k)), format)
        self.dequantized = quantized.dequantized
        self.bias = self.random(self.n).to(self.out_dtype) if epilogue.get("bias") else None
        groups, steps = format.groups(padded(self.k)), format.steps(padded(self.k))
        self.weights = pack_weights(torch, quantized.codes, format.bits)
        self.zeros = self.steps = None
        if format.two_level:
            self.scales = pack_plane(torch, quantized.scale_codes, groups, 0)
            kinds = [quantized.scales.view(torch.int16)]
            if format.zero == "float":
                self.zeros = pack_plane(torch, quantized.offset_codes, groups, 0)
                kinds.append(quantized.offsets.view(torch.int16))
            self.steps = pack_steps(torch, kinds, steps)
            return
        self.scales = pack_plane(torch, quantized.scales.view(torch.int16), groups, 0)
        if format.zero == "integer":
            self.zeros = pack_plane(torch, quantized.zeros, groups, format.center)
        elif format.zero == "float":
            self.zeros = pack_plane(torch, quantized.offsets.view(torch.int16), groups, 0)

    def random(self, *shape):
        return self.torch.randn(shape, generator=self.generator, device="cuda")

    def activations(self, m):
        return self.random(m, self.k).to(self.dtype)

    def residual(self, m):
        """[M, columns of Y] in the output type; None without one."""
        return self.random(m, self.columns).to(self.out_dtype) if self.has_residual else None

    def packed_bytes(self):
        """Bytes of all packed planes."""
        planes = (self.weights, self.scales, self.zeros, self.steps)
        return sum(plane.numel() * plane.element_size() for plane in planes if plane is not None)

    def expected(self, x, residual):
        """Y in fp64, of PyTorch's own operators."""
        torch = self.torch
        v = (as_int8(torch, x) if self.int8 else x.double()) @ self.dequantized.t()
        if self.bias is not None:
            v = v + self.bias.double()
        activation = {
            "unspecified": lambda u: u,
            "none": lambda u: u,
            "silu": torch.nn.functional.silu,
            "gelu_tanh": lambda u: torch.nn.functional.gelu(u, approximate="tanh"),
            "relu": torch.relu,
        }[self.activation]
        v = activation(v[:, 0::2]) * v[:, 1::2] if self.gated else activation(v)
        return v if residual is None else v + residual.double()

    def error(self, y, x, residual=None):
        """Relative error of Y by the Frobenius norm."""
        expected = self.expected(x, residual)
        return ((y.double() - expected).norm() / expected.norm()).item()

    def tolerance(self):
        # A product of two outputs has both their errors.
        return TOLERANCE[self.act] * (math.sqrt(2) if self.gated else 1)


class Launch:
    """A launch of a kernel with operands of its own; `enqueue` may be called again and again.

    Rows of X, Y and the residual are `spare` elements further apart than they need be.
    """

    def __init__(self, torch, driver, function, spec, problem, x, workspace, residual=None, spare=0):
        self.torch, self.driver, self.function, self.spec, self.workspace = torch, driver, function, spec, workspace
        self.m, self.columns = x.shape[0], problem.columns
        ldx, ldy, ldr = (problem.k + 7) // 8 * 8 + spare, self.columns + spare, 0
        self.x = torch.zeros((self.m, ldx), dtype=problem.dtype, device="cuda")
        self.x[:, : problem.k] = x
        self.residual = None
        if residual is not None:
            ldr = self.columns + spare
            self.residual = torch.full((self.m, ldr), float("nan"), dtype=problem.out_dtype, device="cuda")
            self.residual[:, : self.columns] = residual
        self.y = torch.full((self.m + 1, ldy), float("nan"), dtype=problem.out_dtype, device="cuda")

        def address(tensor):
            return 0 if tensor is None else tensor.data_ptr()

        pointers = {
            "POINTER_ROLE_X": address(self.x),
            "POINTER_ROLE_WEIGHTS": address(problem.weights),
            "POINTER_ROLE_SCALES": address(problem.scales),
            "POINTER_ROLE_ZEROS": address(problem.zeros),
            "POINTER_ROLE_STEPS": address(problem.steps),
            "POINTER_ROLE_BIAS": address(problem.bias),
            "POINTER_ROLE_RESIDUAL": address(self.residual),
            "POINTER_ROLE_Y": address(self.y),
            "POINTER_ROLE_WORKSPACE": address(workspace),
        }
        symbols = {"SYMBOL_M": self.m, "SYMBOL_LDX": ldx, "SYMBOL_LDY": ldy, "SYMBOL_LDR": ldr}
        self.values = argument_values(spec, driver, pointers, symbols)
        self.grid = (math.ceil(self.m / int(spec["tile_m"])), int(spec["grid_n"]), int(spec["split_k"]))

    def enqueue(self, stream):
        """Puts the launch on a CUDA stream, given as its handle."""
        self.driver.launch(self.function, self.spec, self.grid, self.values, stream)

    def outputs(self):
        """Y of the last launch, contiguous; what lies behind its rows and after the last must be as it was."""
        self.torch.cuda.synchronize()
        if not self.torch.isnan(self.y[self.m]).all() or not self.torch.isnan(self.y[:, self.columns :]).all():
            fail(f"the launch with M = {self.m} wrote beyond its outputs")
        return self.y[: self.m, : self.columns].contiguous()


def make_workspace(torch, spec, m):
    """[tickets, zero | partials], sized for m rows; None where none is needed."""
    tiles = math.ceil(m / int(spec["tile_m"]))
    sizes = spec.get("workspace", {})
    tickets = tiles * int(sizes.get("ticket_bytes_per_m_tile", 0))
    tickets = (tickets + 255) // 256 * 256
    size = tickets + tiles * int(sizes.get("partial_bytes_per_m_tile", 0))
    if size == 0:
        return None
    workspace = torch.full((size,), 255, dtype=torch.uint8, device="cuda")
    workspace[:tickets] = 0
    return workspace


def launch(arguments):
    import torch

    check_packing(torch)
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU here"
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    driver = Driver()
    files = sorted(arguments.out.glob("pick-m*.json"), key=lambda file: int(re.search(r"m(\d+)", file.name).group(1)))
    if not files:
        fail(f"{arguments.out} holds no pick")
    for file in files:
        pick = json.loads(file.read_text())
        spec, sha256 = pick["launch"], pick["kernel"]["sha256"]
        if spec["layout_id"] != LAYOUT_ID or int(spec["abi_version"]) != ABI_VERSION:
            fail(f"{file} is of layout {spec['layout_id']}, ABI {spec['abi_version']}: this script knows {LAYOUT_ID}, {ABI_VERSION}")
        cubin = (arguments.out / f"{sha256}.cubin").read_bytes()
        if hashlib.sha256(cubin).hexdigest() != sha256:
            fail(f"{sha256}.cubin has other bytes than its name says")
        problem = Problem(torch, pick["problem"])
        function = driver.load(cubin, spec["entry"])
        max_m = int(spec.get("max_m", 0))
        for m in arguments.rows:
            if max_m and m > max_m:
                continue
            compare(torch, driver, function, pick, problem, m)
    return None


def compare(torch, driver, function, pick, problem, m):
    spec = pick["launch"]
    x, residual = problem.activations(m), problem.residual(m)
    workspace = make_workspace(torch, spec, m)
    outputs = []
    # The same workspace again: a launch leaves its tickets as it found them.
    for _ in range(2):
        launch = Launch(torch, driver, function, spec, problem, x, workspace, residual, spare=8)
        launch.enqueue(torch.cuda.current_stream().cuda_stream)
        outputs.append(launch.outputs())
    if not torch.equal(*(y.view(torch.int8) for y in outputs)):
        fail(f"two launches with M = {m} differ")
    error, tolerance = problem.error(outputs[0], x, residual), problem.tolerance()
    verdict = "matches" if error <= tolerance else "DIFFERS FROM"
    print(
        f"M = {m}: {problem.n}x{problem.k} {pick['config']} split {pick['split_k']} {verdict} PyTorch's dequantized "
        f"matmul: relative error {error:.2e} (allowed {tolerance:.1e}), two launches bitwise equal"
    )
    if not error <= tolerance:
        fail(f"M = {m} is wrong")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="unix:PATH or HOST:PORT")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of picks and cubins")
    parser.add_argument("--only", choices=["fetch", "launch"])
    parser.add_argument("--shape", default="5376x4096", help="NxK")
    parser.add_argument("--m", default="64", help="whose buckets' picks are fetched: 1,5,64")
    parser.add_argument("--rows", default="1,5,64", help="real M of the launches")
    parser.add_argument("--format", choices=["int4", "int5", "int6", "int8"], default="int4")
    parser.add_argument("--group-size", type=int, default=128, help="-1: channel-wise")
    parser.add_argument("--act", choices=["bf16", "fp16"], default="bf16")
    parser.add_argument("--act-quant", choices=["none", "int8"], default="none")
    parser.add_argument("--out-type", choices=["bf16", "fp16", "fp32"], help="default: as --act")
    parser.add_argument("--zero", choices=["none", "int", "float"], default="none")
    parser.add_argument("--scale", choices=["bf16", "fp16"], help="default: as --act; fp16 with two levels")
    parser.add_argument("--scale-levels", type=int, choices=[1, 2], default=1)
    parser.add_argument("--bias", action="store_true")
    parser.add_argument("--activation", choices=["none", "silu", "gelu_tanh", "relu"], default="none")
    parser.add_argument("--gated", action="store_true", help="rows of W alternate gate and up")
    parser.add_argument("--residual", action="store_true")
    parser.add_argument("--target", default="", help="device profile; empty: the daemon's GPU")
    arguments = parser.parse_args()
    arguments.m = [int(m) for m in arguments.m.split(",")]
    arguments.rows = [int(m) for m in arguments.rows.split(",")]

    missing = {}
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("grpc_reflection") is None:
        missing["fetch"] = "grpcio and grpcio-reflection are not installed here"
    if importlib.util.find_spec("torch") is None:
        missing["launch"] = "PyTorch is not installed here"
    if arguments.only in missing:
        fail(missing[arguments.only])
    steps = [arguments.only] if arguments.only else ["fetch", "launch"]
    if "fetch" in steps and "fetch" not in missing:
        if not arguments.server:
            fail("--server is missing")
        fetch(arguments)
    if "launch" in steps and "launch" not in missing:
        reason = launch(arguments)
        if reason and arguments.only:
            fail(reason)
        if reason:
            missing["launch"] = reason
    for step in steps:
        if step in missing:
            print(f"{step}: left out: {missing[step]}")
    if set(steps) <= set(missing):
        fail("nothing could be done")


if __name__ == "__main__":
    main()
