"""The operator qgemm::linear: X[..., K] times packed weights, Y[..., N].

On CUDA it launches the tuned kernel of its problem and M from KERNELS, on the current stream; on the CPU it dequantizes
and multiplies in fp32, so that the same program runs there. A fake implementation serves torch.compile and torch.export.
"""

import functools
import threading

import torch

from qgemm.packing import Packed, dequantize, unpack
from qgemm.torch.driver import driver
from qgemm.torch.kernels import KERNELS
from qgemm.torch.workspace import Workspaces
from qgemm.types import Problem, WeightFormat

_ACTIVATIONS = {torch.bfloat16: "bf16", torch.float16: "fp16"}

_library = torch.library.Library("qgemm", "FRAGMENT")
_library.define(
    "linear(Tensor x, Tensor weights, Tensor scales, Tensor? zeros, Tensor? bias, int n, str format) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@functools.lru_cache(maxsize=None)
def problem_of(n, k, format, dtype, bias):
    """The canonical Problem of a call."""
    act = _ACTIVATIONS.get(dtype)
    if act is None:
        raise TypeError(f"x has the type {dtype}: allowed are torch.bfloat16 and torch.float16")
    return Problem(n, k, WeightFormat.parse(format), act, bias).canonical()


@torch.library.register_fake("qgemm::linear", lib=_library)
def _fake(x, weights, scales, zeros, bias, n, format):
    return x.new_empty((*x.shape[:-1], n))


def _on_cpu(x, weights, scales, zeros, bias, n, format):
    k = x.shape[-1]
    f = problem_of(n, k, format, x.dtype, bias is not None).format
    dense = dequantize(unpack(Packed(f, n, k, weights, scales, zeros)))
    y = torch.nn.functional.linear(x.float(), dense, None if bias is None else bias.float())
    return y.to(x.dtype)


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


def _on_cuda(x, weights, scales, zeros, bias, n, format):
    k = x.shape[-1]
    rows = x.reshape(-1, k)
    m, ldx = rows.shape[0], rows.stride(0) if rows.shape[0] > 1 else k
    # The copy engine needs rows that start at multiples of 16 bytes: a slice that does not is copied.
    if rows.stride(1) != 1 or ldx % 8 or ldx < k or rows.data_ptr() % 16:
        rows, ldx = rows.clone(memory_format=torch.contiguous_format), k
    y = torch.empty((*x.shape[:-1], n), dtype=x.dtype, device=x.device)
    if m == 0:
        return y
    call = (n, k, format, x.dtype, bias is not None)
    addresses = (weights.data_ptr(), scales.data_ptr(), _address(zeros), _address(bias))
    device = x.device.index
    if device == torch.cuda.current_device():
        _launch(call, addresses, rows.data_ptr(), y.data_ptr(), m, ldx, device)
    else:
        with torch.cuda.device(device):
            _launch(call, addresses, rows.data_ptr(), y.data_ptr(), m, ldx, device)
    return y


def _launch(call, addresses, x, y, m, ldx, device):
    launch = KERNELS.launch(call, problem_of, m, device, addresses)
    stream = torch.cuda.current_stream().cuda_stream
    workspace, size = 0, launch.spec.workspace_bytes(m)
    if size:
        tickets = launch.spec.ticket_bytes(m)
        workspace = workspaces(device).address(tickets, size - tickets, stream, torch.cuda.is_current_stream_capturing())
    launch.run(x, y, workspace, m, ldx, call[0], stream)


_library.impl("linear", _on_cpu, "CPU")
_library.impl("linear", _on_cuda, "CUDA")

linear = torch.ops.qgemm.linear.default
