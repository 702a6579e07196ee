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
ABI_VERSION = 1
# Largest relative error (Frobenius norm) of a result in that type.
TOLERANCE = {"bf16": 3e-3, "fp16": 6e-4}


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
            "bits": 4,
            "group_size": arguments.group_size,
            "zero_point": {"none": "ZERO_POINT_NONE", "int": "ZERO_POINT_INTEGER"}[arguments.zero],
        },
        "act": f"SCALAR_TYPE_{arguments.act.upper()}",
        "epilogue": {"bias": arguments.bias},
    }
    picks = look_up(api, problem, arguments)
    for pick in picks:
        sha256 = pick["kernel"]["sha256"]
        cubin = get_kernel(api, sha256)
        (arguments.out / f"{sha256}.cubin").write_bytes(cubin)
        (arguments.out / f"pick-m{pick['m_bucket']}.json").write_text(json.dumps(pick, indent=2))
        print(f"fetched M <= {pick['m_bucket']}: {pick['config']} split {pick['split_k']}, {len(cubin)} bytes, {sha256}")


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


def pack_weights(torch, codes):
    """codes uint8 [N, K] -> the bytes of the weights plane, as kernels/LAYOUT.md says."""
    n, k = codes.shape
    padded_n, padded_k = (n + 63) // 64 * 64, (k + 63) // 64 * 64
    padded = torch.full((padded_n, padded_k), 8, dtype=torch.int64, device=codes.device)
    padded[:n, :k] = codes
    # i, p % 2, g, j, w, p / 2, t, odd  ->  i, j, g, t, w, p / 2, p % 2, odd
    q = padded.reshape(padded_n // 16, 2, 8, padded_k // 64, 4, 2, 4, 2).permute(0, 3, 2, 6, 4, 5, 1, 7)
    shift = torch.tensor([0, 16, 4, 20, 8, 24, 12, 28], dtype=torch.int64, device=codes.device).reshape(2, 2, 2)
    words = (q << shift).sum(dim=(5, 6, 7))
    return torch.stack([(words >> (8 * byte)) & 255 for byte in range(4)], dim=-1).to(torch.uint8).reshape(-1)


def pack_plane(torch, values, groups, fill):
    """[N, K / group] of scale bits or zero points -> [padded_n / 16][groups][8][2], padding filled."""
    n, given = values.shape
    padded_n = (n + 63) // 64 * 64
    padded = torch.full((padded_n, groups), fill, dtype=values.dtype, device=values.device)
    padded[:n, :given] = values
    return padded.reshape(padded_n // 16, 2, 8, groups).permute(0, 3, 2, 1).contiguous().reshape(-1)


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
        numbers = plane.tolist()
        data = struct.pack(f"<{len(numbers)}{'h' if plane.dtype == torch.int16 else 'B'}", *numbers)
        if hashlib.sha256(data).hexdigest() != digest:
            fail("this script does not pack as kernels/LAYOUT.md's example says")


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
    ELEMENTS = {"ELEMENT_BF16": (9, 2), "ELEMENT_FP16": (6, 2), "ELEMENT_U32": (2, 4)}
    SWIZZLES = {0: 0, 128: 3}  # CUtensorMapSwizzle

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")

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
        if smem > 48 << 10:
            self.check(
                self.cuda.cuFuncSetAttribute(function, self.DYNAMIC_SMEM_ATTRIBUTE, smem), f"cuFuncSetAttribute({smem})"
            )
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
        config = LaunchConfig(tuple(grid), (int(spec["block_threads"]), 1, 1), smem, stream, None, 0)
        cluster_z = int(spec.get("cluster_z", 1))
        if cluster_z > 1:
            cluster = LaunchAttribute(self.CLUSTER_ATTRIBUTE, b"", (1, 1, cluster_z))
            config.attributes, config.attribute_count = ctypes.pointer(cluster), 1
        self.check(self.cuda.cuLaunchKernelEx(ctypes.byref(config), function, pointers, None), "cuLaunchKernelEx")

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


class Problem:
    """A random weight and what both sides need of it: its packed planes, and the fp64 matrix it stands for."""

    def __init__(self, torch, problem):
        self.n, self.k = int(problem["n"]), int(problem["k"])
        group = int(problem["format"]["group_size"])
        self.act = {"SCALAR_TYPE_BF16": "bf16", "SCALAR_TYPE_FP16": "fp16"}[problem["act"]]
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[self.act]
        groups = (self.k + 63) // 64 * 64 // group
        generator = torch.Generator(device="cuda").manual_seed(1)

        def random_codes(*shape):
            return torch.randint(0, 16, shape, generator=generator, device="cuda", dtype=torch.uint8)

        codes = random_codes(self.n, self.k)
        scales = torch.rand((self.n, self.k // group), generator=generator, device="cuda") * 0.02 + 0.002
        scales = scales.to(self.dtype)
        zeros = None
        if problem["format"].get("zero_point") == "ZERO_POINT_INTEGER":
            zeros = random_codes(self.n, self.k // group)
        self.bias = None
        if problem.get("epilogue", {}).get("bias"):
            self.bias = torch.randn((self.n,), generator=generator, device="cuda").to(self.dtype)

        zero = 8 if zeros is None else zeros.double().repeat_interleave(group, dim=1)
        self.dequantized = (codes.double() - zero) * scales.double().repeat_interleave(group, dim=1)
        self.weights = pack_weights(torch, codes)
        self.scales = pack_plane(torch, scales.view(torch.int16), groups, 0)
        self.zeros = None if zeros is None else pack_plane(torch, zeros, groups, 8)
        self.generator = generator

    def activations(self, torch, m):
        return torch.randn((m, self.k), generator=self.generator, device="cuda").to(self.dtype)


def launch_once(torch, driver, function, spec, problem, x, workspace):
    """Y [m, N] of one launch; the row after the last must stay as it was."""
    m, tile_m = x.shape[0], int(spec["tile_m"])
    ldx, ldy = (problem.k + 7) // 8 * 8, problem.n
    padded_x = torch.zeros((m, ldx), dtype=problem.dtype, device="cuda")
    padded_x[:, : problem.k] = x
    poison = float("nan")
    y = torch.full((m + 1, ldy), poison, dtype=problem.dtype, device="cuda")

    def address(tensor):
        return 0 if tensor is None else tensor.data_ptr()

    pointers = {
        "POINTER_ROLE_X": address(padded_x),
        "POINTER_ROLE_WEIGHTS": address(problem.weights),
        "POINTER_ROLE_SCALES": address(problem.scales),
        "POINTER_ROLE_ZEROS": address(problem.zeros),
        "POINTER_ROLE_BIAS": address(problem.bias),
        "POINTER_ROLE_Y": address(y),
        "POINTER_ROLE_WORKSPACE": address(workspace),
    }
    values = argument_values(spec, driver, pointers, {"SYMBOL_M": m, "SYMBOL_LDX": ldx, "SYMBOL_LDY": ldy})
    grid = (math.ceil(m / tile_m), int(spec["grid_n"]), int(spec["split_k"]))
    driver.launch(function, spec, grid, values, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    if not torch.isnan(y[m]).all():
        fail(f"the launch with M = {m} wrote beyond its last row")
    return y[:m]


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
    x = problem.activations(torch, m)
    workspace = make_workspace(torch, spec, m)
    y = launch_once(torch, driver, function, spec, problem, x, workspace)
    # The same workspace again: a launch leaves its tickets as it found them.
    again = launch_once(torch, driver, function, spec, problem, x, workspace)
    if not torch.equal(y.view(torch.int16), again.view(torch.int16)):
        fail(f"two launches with M = {m} differ")
    expected = x.double() @ problem.dequantized.t()
    if problem.bias is not None:
        expected = expected + problem.bias.double()
    error = ((y.double() - expected).norm() / expected.norm()).item()
    tolerance = TOLERANCE[problem.act]
    verdict = "matches" if error <= tolerance else "DIFFERS FROM"
    print(
        f"M = {m}: {problem.n}x{problem.k} {pick['config']} split {pick['split_k']} {verdict} PyTorch's dequantized "
        f"matmul: relative error {error:.2e} (allowed {tolerance:.0e}), two launches bitwise equal"
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
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--act", choices=["bf16", "fp16"], default="bf16")
    parser.add_argument("--zero", choices=["none", "int"], default="none")
    parser.add_argument("--bias", action="store_true")
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
