"""The operator qgemm::linear: X[..., K] times packed weights, Y[..., N].

On CUDA it launches the tuned kernel of its problem and M from KERNELS, on the current stream; on the CPU it dequantizes
and multiplies in fp32 (with act_quantization "int8": what X's bytes are worth), so that the same program runs there. A fake implementation serves torch.compile and torch.export.
"""

import dataclasses
import functools
import threading

import torch

from qgemm.packing import Packed, check_format, dequantize, packed_sizes, unpack
from qgemm.torch.driver import driver
from qgemm.torch.kernels import KERNELS
from qgemm.torch.workspace import Workspaces
from qgemm.types import Problem, WeightFormat

_ACTIVATIONS = {torch.bfloat16: "bf16", torch.float16: "fp16"}

_PLANES = ("weights", "scales", "zeros", "steps")

_library = torch.library.Library("qgemm", "FRAGMENT")
_library.define(
    "linear(Tensor x, Tensor weights, Tensor scales, Tensor? zeros, Tensor? steps, Tensor? bias, Tensor? residual, "
    'int n, str format, str activation="none", bool gated=False, str act_quantization="none") -> Tensor',
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _act_of(dtype):
    act = _ACTIVATIONS.get(dtype)
    if act is None:
        raise TypeError(f"x has the type {dtype}: allowed are torch.bfloat16 and torch.float16")
    return act


@functools.lru_cache(maxsize=None)
def problem_of(n, k, format, dtype, bias, activation="none", gated=False, residual=False, act_quantization="none"):
    """The canonical Problem of a call."""
    f = WeightFormat.parse(format)
    return Problem(
        n, k, f, _act_of(dtype), bias, activation=activation, gated=gated, residual=residual, act_quantization=act_quantization
    ).canonical()


@functools.lru_cache(maxsize=None)
def _plane_bytes(n, k, format):
    f = WeightFormat.parse(format)
    check_format(f if f.scale else dataclasses.replace(f, scale="bf16"))
    if n < 1 or k < 1 or k % (f.group_size or 8):
        raise ValueError(f"a weight of {n}x{k} is not allowed: k must be a multiple of {f.group_size or 8}, n at least 1")
    sizes = packed_sizes(n, k, f)
    return sizes.weight_bytes, sizes.scale_bytes, sizes.zero_bytes, sizes.step_bytes


def _check(x, planes, bias, residual, n, format, activation, gated):
    """ValueError or TypeError names the tensor that does not fit: a kernel would read past its end, or other numbers."""
    dtype, device = x.dtype, x.device
    _act_of(dtype)
    if x.dim() == 0:
        raise ValueError("x is one number: it must have rows of K")
    k = x.shape[-1]
    for name, plane, size in zip(_PLANES, planes, _plane_bytes(n, k, format)):
        if plane is None:
            if size:
                raise ValueError(f"{name} is missing: a weight of {n}x{k} in the format {format} needs {size} bytes")
        elif plane.numel() != size:
            raise ValueError(f"{name} has {plane.numel()} bytes: a weight of {n}x{k} in the format {format} needs {size}")
        elif plane.dtype is not torch.uint8 or plane.device != device or not plane.is_contiguous():
            raise TypeError(f"{name} must be contiguous bytes (uint8) on {device}: they are {plane.dtype} on {plane.device}")
    if activation not in _FUNCTIONS:
        raise ValueError(f'activation "{activation}" is not allowed: use {", ".join(_FUNCTIONS)}')
    if bias is not None:
        _check_added("bias", bias, (n,), dtype, device)
        if not bias.is_contiguous():
            raise TypeError("bias must be contiguous")
    if residual is not None:
        _check_added("residual", residual, (*x.shape[:-1], n // 2 if gated else n), dtype, device)


def _check_added(name, tensor, shape, dtype, device):
    if tensor.shape != shape:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}: it must be {shape}")
    if tensor.dtype is not dtype or tensor.device != device:
        raise TypeError(f"{name} must be of x's type, {dtype} on {device}: it is {tensor.dtype} on {tensor.device}")


@torch.library.register_fake("qgemm::linear", lib=_library)
def _fake(x, weights, scales, zeros, steps, bias, residual, n, format, activation="none", gated=False,
          act_quantization="none"):  # fmt: skip
    return x.new_empty((*x.shape[:-1], n // 2 if gated else n))


_FUNCTIONS = {
    "none": lambda v: v,
    "silu": torch.nn.functional.silu,
    "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    "relu": torch.relu,
}


_BLOCK = 32


def as_int8(x):
    """float32: what X[..., K] is worth as bytes, by row and block of 32 along K, each by its largest magnitude."""
    k = x.shape[-1]
    blocks = torch.nn.functional.pad(x.float(), (0, -k % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    most = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(most > 1e-30, torch.full_like(most, 127) / most, 0)  # a number over a tensor is rounded twice
    return (most / 127 * torch.round(blocks * inverse)).flatten(-2)[..., :k]


_QUANTIZED = {"none": lambda x: x.float(), "int8": as_int8}


def _on_cpu(x, weights, scales, zeros, steps, bias, residual, n, format, activation="none", gated=False,
            act_quantization="none"):  # fmt: skip
    _check(x, (weights, scales, zeros, steps), bias, residual, n, format, activation, gated)
    k = x.shape[-1]
    f = problem_of(n, k, format, x.dtype, bias is not None).format
    dense = dequantize(unpack(Packed(f, n, k, weights, scales, zeros, steps)))
    v = torch.nn.functional.linear(_QUANTIZED[act_quantization](x), dense, None if bias is None else bias.float())
    if gated:
        v = _FUNCTIONS[activation](v[..., 0::2]) * v[..., 1::2]
    else:
        v = _FUNCTIONS[activation](v)
    if residual is not None:
        v = v + residual.float()
    return v.to(x.dtype)


_workspaces = {}
_workspaces_lock = threading.Lock()


def workspaces(device):
    """The Workspaces of a device index."""
    found = _workspaces.get(device)
    if found is None:
        with _workspaces_lock:
            found = _workspaces.setdefault(device, Workspaces(driver(), _free_cached_memory))
    return found


def _free_cached_memory():
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.empty_cache()


def _address(tensor):
    return 0 if tensor is None else tensor.data_ptr()


def _rows(tensor, columns):
    """(2-D view or copy, elements between its rows): rows that start at multiples of 16 bytes, as the copy engine and
    wide loads need them. A slice that does not is copied."""
    rows = tensor.reshape(-1, columns)
    stride = rows.stride(0) if rows.shape[0] > 1 else columns
    if rows.stride(1) != 1 or stride % 8 or stride < columns or rows.data_ptr() % 16:
        padded = -(-columns // 8) * 8
        copy = tensor.new_empty((rows.shape[0], padded))
        copy[:, :columns] = rows
        return copy, padded
    return rows, stride


def _on_cuda(x, weights, scales, zeros, steps, bias, residual, n, format, activation="none", gated=False,
             act_quantization="none"):  # fmt: skip
    _check(x, (weights, scales, zeros, steps), bias, residual, n, format, activation, gated)
    k, columns = x.shape[-1], n // 2 if gated else n
    y = torch.empty((*x.shape[:-1], columns), dtype=x.dtype, device=x.device)
    rows, ldx = _rows(x, k)
    m = rows.shape[0]
    if m == 0:
        return y
    added, ldr = (None, 0) if residual is None else _rows(residual, columns)
    call = (n, k, format, x.dtype, bias is not None, activation, gated, residual is not None, act_quantization)
    addresses = (weights.data_ptr(), scales.data_ptr(), _address(zeros), _address(steps), _address(bias))
    device = x.device.index
    launch_of = (call, addresses, rows.data_ptr(), _address(added), y.data_ptr(), m, ldx, columns, ldr, device)
    if device == torch.cuda.current_device():
        _launch(*launch_of)
    else:
        with torch.cuda.device(device):
            _launch(*launch_of)
    return y


def _launch(call, addresses, x, residual, y, m, ldx, ldy, ldr, device):
    launch = KERNELS.launch(call, problem_of, m, device, addresses)
    stream = torch.cuda.current_stream().cuda_stream
    workspace, size = 0, launch.spec.workspace_bytes(m)
    if size:
        tickets = launch.spec.ticket_bytes(m)
        workspace = workspaces(device).address(tickets, size - tickets, stream, torch.cuda.is_current_stream_capturing())
    launch.run(x, y, workspace, m, ldx, ldy, stream, residual, ldr)


_library.impl("linear", _on_cpu, "CPU")
_library.impl("linear", _on_cuda, "CUDA")

linear = torch.ops.qgemm.linear.default
