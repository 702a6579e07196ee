"""What the kernels of all methods read and write, by their PTX: one analysis per call signature."""

import functools
import statistics
import time

import torch

import qgemm
from qgemm import access as accesses
from qgemm.torch import QuantizedLinear

WRITTEN = {"y", "workspace"}


def calls_of(run, bundle, ptx):
    """[(Call, Pick)]: every launch that the methods have, of every layer, with the addresses of its weights."""
    x, y, workspace = (torch.empty(64, device=run.device) for _ in range(3))
    layers = {n: m for n, m in run.quantized.model.named_modules() if isinstance(m, QuantizedLinear)}
    found = []
    for name in bundle.methods:
        method = bundle.method(name)
        for layer in method.layers:
            planes = {p: getattr(layers[layer.name], p) for p in ("weights", "scales", "zeros", "steps", "bias")}
            tensors = {"x": x, "y": y, "workspace": workspace, **{p: t for p, t in planes.items() if t is not None}}
            addresses = {role: tensor.data_ptr() for role, tensor in tensors.items()}
            for pick in layer.picks:
                text = functools.partial(ptx, pick.kernel_sha256)
                found.append((accesses.Call.of_pick(pick, addresses, method.static_m, text), pick))
    return found


def access(run, figures, bundle):
    if not accesses.available():
        figures["access"] = "left out: needs libqgemm.so (--library)"
        return
    with qgemm.Client(run.arguments.server) as client:
        ptx = functools.lru_cache(maxsize=None)(client.get_ptx)
        calls, memo = calls_of(run, bundle, ptx), accesses.AccessMemo()
        for sha256 in {pick.kernel_sha256 for _, pick in calls}:
            ptx(sha256)  # fetching is not what is timed
        started = time.perf_counter()
        first = [memo.report(call) for call, _ in calls]
        seconds = time.perf_counter() - started
    analyses = memo.counts.analyses
    again = [memo.report(call) for call, _ in calls]  # another export
    wrong = [_wrong(report, pick) for report, (_, pick) in zip(first, calls)]
    out, repeats = accesses.new_report(), []
    for call, _ in calls:
        began = time.perf_counter()
        for _ in range(100):
            memo.get(call, out)
        repeats.append((time.perf_counter() - began) * 1e4)
    figures["access"] = {
        "calls": len(calls), "kernels": len({pick.kernel_sha256 for _, pick in calls}),
        "signatures": len({call.signature for call, _ in calls}), "analyses": analyses, "failures": memo.counts.failures,
        "analyses_when_repeated": memo.counts.analyses - analyses, "seconds": round(seconds, 3),
        "repeat_us": round(statistics.median(repeats), 3), "wrong": sum(map(bool, wrong)),
    }  # fmt: skip
    found = figures["access"]
    run.expect("methods", found["analyses"] == found["signatures"], f"not one analysis per signature: {found}")
    run.expect("methods", again == first and not found["analyses_when_repeated"], f"analysed again: {found}")
    run.expect("methods", not any(wrong), f"access report: {next(filter(None, wrong), '')}")


def _wrong(report, pick):
    """What the report says other than the launch declares and the daemon found; "" where nothing."""
    if report.failure:
        return report.failure
    roles = {index: argument.role for index, argument in enumerate(pick.launch.arguments) if hasattr(argument, "role")}
    written = {roles.get(row.index) for row in report.parameters if row.written}
    # A launch declares the workspace also where this split needs none.
    if not {"y"} <= written <= WRITTEN:
        return f"{pick.problem} writes {written}"
    declared = {row["index"]: row for row in (pick.kernel.access or {}).get("parameters", ())}
    for row in report.parameters:
        said = declared.get(row.index)
        if said and (row.read, row.written, row.alignment) != (said["read"], said["written"], said["alignment"]):
            return f"{pick.problem}, parameter {row.index}: {row}, the daemon said {said}"
    return ""
