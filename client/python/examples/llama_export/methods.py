"""Step methods: eight methods with and without the weight store, what their kernels access, and a layer of them in C."""

import dataclasses
import hashlib
import pathlib
import shutil
import subprocess
import tempfile
import time

import torch
from llama_export.access import access
from llama_export.run import EXAMPLES

import qgemm
import qgemm.torch


def sha256_of_files(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip


def methods(run, figures):
    a, body = run.arguments, run.quantized.model
    with qgemm.Client(a.server, tune_timeout=a.tune_timeout) as client:
        results = qgemm.torch.tune(body, client, effort=a.effort)  # every bucket
    figures["tune_wall_s"] = results.summary.wall_s
    rows = {**{f"m{m}": m for m in (1, 2, 4, 8, 16, 32, 64)}, "any": None}
    folder, digests = pathlib.Path(a.methods_folder or tempfile.mkdtemp(prefix="qgemm-methods.")), {}
    for kind, skips in (("without", False), ("with", True)):
        started = time.perf_counter()
        saved = qgemm.torch.save_bundle(folder / kind, body, methods=rows, skip_repeats=skips)
        figures[kind] = {"save_s": round(time.perf_counter() - started, 3)}
        figures[kind].update(dataclasses.asdict(saved.weights) if saved.weights else {})
        digests[kind] = sha256_of_files(folder / kind)
        if kind != "with":
            shutil.rmtree(folder / kind)
    figures["files"] = len(digests["with"])
    figures["same_files"] = all(digest == digests["with"] for digest in digests.values())
    run.expect("methods", figures["same_files"], "the bundles with and without the weight store differ")
    if run.is_cuda and saved.weights:  # of the last, which is the one with the store
        once = saved.weights.written * len(rows) == saved.weights.written + saved.weights.skipped
        run.expect("methods", once, f"weights were not written once: {saved.weights}")
    access(run, figures, qgemm.bundle.Bundle.open(folder / "with"))
    run_layer_of(run, figures, folder)
    if not a.methods_folder:
        shutil.rmtree(folder)


def run_layer_of(run, figures, folder):
    """One layer of the bundle in C, by two of its methods."""
    program = pathlib.Path(run.arguments.run_layer or EXAMPLES.parent / "bin" / "run_layer")
    if not run.is_cuda or not program.exists():
        figures["run_layer"] = "left out: needs a GPU and the program run_layer (--run-layer)"
        return
    name = "layers.0.mlp.down_proj"
    layer = run.quantized.model.get_submodule(name)
    figures["run_layer"] = []
    for method, m in (("m16", 16), ("any", 13), ("any", 300)):
        x = torch.randn(m, layer.in_features, device=run.device).bfloat16()
        (folder / "x.bin").write_bytes(x.cpu().view(torch.uint8).numpy().tobytes())
        y = (x.double() @ layer.dequantized_weight().double().T).float()
        (folder / "y.bin").write_bytes(y.cpu().numpy().tobytes())
        command = [program, folder / "with", method, name, str(m), folder / "x.bin", folder / "y.bin"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        figures["run_layer"].append((done.stdout + done.stderr).strip().splitlines())
        run.expect("methods", done.returncode == 0, f"run_layer {method} {m}: {done.stdout} {done.stderr}")
