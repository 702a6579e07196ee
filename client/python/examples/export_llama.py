#!/usr/bin/env python3
"""A Llama-style model from bf16 to tuned int4 kernels, checked and timed at every step.

    qgemmd --listen unix:/tmp/qgemm.sock --data-dir /tmp/qgemm &
    python3 client/python/examples/export_llama.py --server unix:/tmp/qgemm.sock --out figures.json

Weights are random. What is done, each step under its name in the JSON that --out gets:

  tune     quantize_ replaces all linear layers and tunes their shapes through the daemon
  layers   every tuned shape at several M beside the product with its dequantized weight in fp64
  tokens   greedy tokens of a short and of several long prompts, beside the same model with dequantized bf16 weights; where
           they part, both are measured against fp32
  fused    the same with q, k, v as one layer, and gate, up, silu and the residuals inside the kernels (fused.py)
  decode   tokens per second with the decoding step as a CUDA graph: bf16, qgemm, tinygemm
  steps    one pass of T rows through the model, in a CUDA graph
  methods  the layers exported as 8 methods (1, 2, 4, 8, 16, 32, 64 rows and any), with and without the weight store: the same
           files; where run_layer is (--run-layer), a layer of that bundle run in C beside its product in fp64
  export   torch.export of prefill and decoding step, saved, loaded and run: the same tokens
  hf       the same weights in transformers' LlamaForCausalLM, whose layers are replaced; generate() beside the plain model
  aoti     the decoding step compiled to an AOTInductor package. It is code alone: its weights are those of the bundle
  cpp      that package run by run_package.cc, without Python: libqgemm.so launches the kernels of a bundle, whose weights
           the package uses. Needs a GPU, g++, and libqgemm.so (--library)
  load     the package loaded and run in Python: the same tokens (or parted by rounding), and those of cpp

A step that fails is reported in "errors" and the next one goes on; exit code 0: none failed and all comparisons hold.
Without a GPU everything runs on the CPU at --size tiny, which is what the test does.
"""

import argparse
import contextlib
import copy
import dataclasses
import faulthandler
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile

import torch
import torch._inductor.config
import torch._inductor.select_algorithm
from fused import fused_llama
from llama import SIZES, random_llama
from tinygemm import TinygemmLinear, serves

import qgemm
import qgemm.torch

HERE = pathlib.Path(__file__).resolve().parent
# A kernel's relative error (Frobenius norm) against fp64 may be as large.
LAYER_TOLERANCE = 3e-3
# Where tokens part, qgemm's distance from fp32 may be that many times the bf16 model's own.
ROUNDING_FACTOR = 1.5


class Run:
    """The command line, the models and the figures so far."""

    def __init__(self, arguments):
        self.arguments, self.figures, self.errors = arguments, {}, {}
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.started = time.monotonic()
        self.prompts, self.models, self.results, self.fused = {}, {}, {}, None
        self.step_program, self.cache, self.package, self.cpp_tokens = None, None, None, None

    @property
    def is_cuda(self):
        return self.device.type == "cuda"

    @contextlib.contextmanager
    def step(self, name):
        started = time.monotonic()
        figures = {}
        try:
            yield figures
        except Exception as error:
            traceback.print_exc()
            self.errors[name] = f"{type(error).__name__}: {error}"
        figures["seconds"] = round(time.monotonic() - started, 2)
        self.figures[name] = figures
        print(f"[{time.monotonic() - self.started:6.1f} s] {name}: {json.dumps(figures)[:400]}", flush=True)
        self.write()

    def expect(self, name, holds, sentence):
        if not holds:
            self.errors[name] = sentence

    def write(self):
        if self.arguments.out:
            document = {**self.figures, "errors": self.errors, "seconds": round(time.monotonic() - self.started, 1)}
            self.arguments.out.write_text(json.dumps(document, indent=1) + "\n")


# ---- running a model ------------------------------------------------------------------------------------------------


class Decoder:
    """Greedy decoding with a static cache; on a GPU the step after the prompt is one CUDA graph."""

    def __init__(self, model, batch, length, use_graph):
        self.model = model
        device = model.model.norm.weight.device
        self.cache = model.new_cache(batch, length)
        self.tokens = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.logits, self.graph = None, None
        if use_graph:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._step()  # loads kernels, sizes workspaces
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._step()

    @torch.no_grad()
    def _step(self):
        self.logits = self.model.step(self.tokens, self.position, self.cache)[:, 0]
        self.tokens.copy_(self.logits.argmax(-1, keepdim=True))
        self.position.add_(1)

    @torch.no_grad()
    def start(self, prompt):
        """The prompt [B, T] at once; logits [B, vocabulary] of its last row."""
        self.cache.zero_()
        logits = self.model(prompt, self.cache)[:, 0]
        self.tokens.copy_(logits.argmax(-1, keepdim=True))
        self.position.fill_(prompt.shape[1])
        return logits

    def step(self):
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()
        return self.logits

    def generate(self, prompt, new):
        """(tokens [B, new], logits [B, new, vocabulary])."""
        logits = [self.start(prompt)]
        tokens = [self.tokens.clone()]
        for _ in range(new - 1):
            logits.append(self.step().clone())
            tokens.append(self.tokens.clone())
        return torch.cat(tokens, 1), torch.stack(logits, 1)


def seconds(run, action, repeats):
    """Of one repetition: GPU time by events where there is one."""
    if not run.is_cuda:
        started = time.perf_counter()
        for _ in range(repeats):
            action()
        return (time.perf_counter() - started) / repeats
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        action()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / repeats


def median_seconds(run, action, limit_s=0.4):
    action()
    once = max(seconds(run, action, 1), 1e-6)
    rounds = int(min(max(limit_s / once, 3), 50))
    return statistics.median(seconds(run, action, 1) for _ in range(rounds))


def matmul_without_tf32():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


# ---- the steps ------------------------------------------------------------------------------------------------------


def build(run):
    """The bf16 model that weights are taken from, and the prompts."""
    a = run.arguments
    config = SIZES[a.size]
    if a.layers:
        config = dataclasses.replace(config, num_hidden_layers=a.layers)
    run.source = random_llama(config, run.device, torch.bfloat16)
    generator = torch.Generator().manual_seed(1)

    def prompt(batch, length):
        return torch.randint(0, config.vocab_size, (batch, length), generator=generator).to(run.device)

    run.prompts = {f"1x{a.prompt}": prompt(1, a.prompt), f"{a.batch}x{a.long}": prompt(a.batch, a.long)}
    parameters = sum(p.numel() for p in run.source.parameters())
    gpu = torch.cuda.get_device_name() if run.is_cuda else ""
    run.figures["setup"] = {
        "size": a.size, "parameters": parameters, "format": a.format, "gpu": gpu, "torch": torch.__version__,
        "python": platform.python_version(), "qgemm": qgemm.__version__, "prompts": list(run.prompts), "new": a.new,
    }  # fmt: skip


def needed_rows(arguments):
    """Every M that a step below launches with."""
    batch = arguments.batch
    rows = [1, batch, arguments.prompt, batch * arguments.long, *arguments.steps]
    return sorted({qgemm.bucket_for(m) for m in rows})


def picks_of(records):
    columns = ("n", "k", "m_bucket", "source", "config", "split_k", "reduction", "time_us", "predicted_us", "confidence")
    return [{column: record[column] for column in columns} for record in records]


def tune(run, figures):
    a = run.arguments
    run.quantized = copy.deepcopy(run.source)
    with qgemm.Client(a.server, tune_timeout=a.tune_timeout) as client:
        device = client.describe()
        figures["daemon"] = {"target": device.target, "arch": device.arch, "gpu": device.product_name}
        quantized = run.quantized
        options = {"format": a.format, "effort": a.effort}
        body = qgemm.torch.quantize_(quantized, client, m=needed_rows(a), exclude="lm_head", **options)
        # Of a prompt only the last row's logits are asked for.
        head = qgemm.torch.quantize_(quantized, client, m=[1, a.batch], include="lm_head", **options)
    reports = [body, head]
    figures["layers_replaced"] = sum(len(report.replaced) for report in reports)
    figures["problems"] = [str(problem) for problem in qgemm.torch.problems_of(quantized)]
    for key in ("compiles", "timings", "cache_hits", "wall_s"):
        figures[key] = round(sum(getattr(report.results.summary, key) for report in reports), 3)
    figures["picks"] = picks_of(record for report in reports for record in report.results.records())
    # The same weights without qgemm: dequantized, once rounded to bf16.
    run.reference = run.source
    for name, module in run.quantized.named_modules():
        if isinstance(module, qgemm.torch.QuantizedLinear):
            run.reference.get_submodule(name).weight.data.copy_(module.dequantized_weight())
    run.bundle = pathlib.Path(a.bundle or tempfile.mkdtemp(prefix="qgemm-bundle."))
    qgemm.torch.save_bundle(run.bundle, run.quantized)


def layers(run, figures):
    seen, worst, rows_of = set(), 0.0, figures.setdefault("rows", [])
    generator = torch.Generator(device=run.device).manual_seed(2)
    largest = {False: max(needed_rows(run.arguments)), True: run.arguments.batch}
    for name, module in run.quantized.named_modules():
        if not isinstance(module, qgemm.torch.QuantizedLinear) or module.problem in seen:
            continue
        seen.add(module.problem)
        weight = module.dequantized_weight().double()
        for m in (1, 3, 16, 17, 64, 100, 512, 2001):
            if qgemm.bucket_for(m) > largest["lm_head" in name]:
                continue
            x = torch.randn(m, module.in_features, generator=generator, device=run.device).bfloat16()
            y, again = module(x), module(x)
            expected = x.double() @ weight.T
            error = ((y.double() - expected).norm() / expected.norm()).item()
            worst = max(worst, error if torch.equal(y, again) else float("inf"))
            rows_of.append({"n": module.out_features, "k": module.in_features, "m": m, "relative_error": error})
        del weight
    figures["worst"] = worst
    run.expect("layers", worst <= LAYER_TOLERANCE, f"relative error {worst}: at most {LAYER_TOLERANCE} is allowed")


def results_of(run, name):
    """{"bf16", "qgemm": (tokens, logits)} of a prompt, greedy, by the models themselves."""
    if name not in run.results:
        prompt, new = run.prompts[name], run.arguments.new
        run.results[name] = {
            kind: Decoder(model, prompt.shape[0], prompt.shape[1] + new, run.is_cuda).generate(prompt, new)
            for kind, model in (("bf16", run.reference), ("qgemm", run.quantized))
        }
    return run.results[name]


def tokens(run, figures):
    a = run.arguments
    for name, prompt in run.prompts.items():
        results = results_of(run, name)
        eager, _ = Decoder(run.quantized, prompt.shape[0], prompt.shape[1] + a.new, False).generate(prompt, a.new)
        same_as_graph = torch.equal(eager, results["qgemm"][0])
        figures[name] = {"graph_gives_eager_tokens": same_as_graph, "sequences": compare(run, prompt, results)}
        run.expect("tokens", same_as_graph, "the CUDA graph's tokens differ from those without one")
        for row in figures[name]["sequences"]:
            run.expect("tokens", row["verdict"] != "WRONG", f"{name}: tokens part for another cause than rounding: {row}")


def compare(run, prompt, results):
    """Per sequence: whether greedy tokens agree, else where they part and how far both models are from fp32 there."""
    (ours, our_logits), (theirs, their_logits) = results["qgemm"], results["bf16"]
    exact = exact_logits(run, prompt, theirs)
    rows = []
    for index in range(prompt.shape[0]):
        differing = (ours[index] != theirs[index]).nonzero()
        at = int(differing[0]) if len(differing) else None
        # Up to and with the first differing token both had the same context.
        shared = slice(0, ours.shape[1] if at is None else at + 1)
        errors = {
            kind: (logits[index, shared].float() - exact[index, shared]).abs().max().item()
            for kind, logits in (("bf16", their_logits), ("qgemm", our_logits))
        }
        row = {"first_difference": at, "fp32_error_bf16": errors["bf16"], "fp32_error_qgemm": errors["qgemm"]}
        if at is None:
            row["verdict"] = "identical"
        else:
            a, b = theirs[index, at], ours[index, at]
            row["logit_gap_bf16"] = (their_logits[index, at, a].float() - their_logits[index, at, b].float()).item()
            row["logit_gap_qgemm"] = (our_logits[index, at, b].float() - our_logits[index, at, a].float()).item()
            row["logit_gap_fp32"] = (exact[index, at, a] - exact[index, at, b]).item()
            row["logit_deviation"] = exact[index, at].std().item()
            is_rounding = errors["qgemm"] <= ROUNDING_FACTOR * errors["bf16"]
            row["verdict"] = "rounding" if is_rounding else "WRONG"
        rows.append(row)
    return rows


@torch.no_grad()
def exact_logits(run, prompt, continuation):
    """fp32 logits [B, new, vocabulary] of the model with unrounded weights, given the continuation."""
    matmul_without_tf32()
    model = copy.deepcopy(run.reference).float()
    for name, module in run.quantized.named_modules():
        if isinstance(module, qgemm.torch.QuantizedLinear):
            model.get_submodule(name).weight.data.copy_(module.dequantized_weight())
    rows = torch.cat((prompt, continuation[:, :-1]), 1)
    return torch.cat([model(row[None], last=continuation.shape[1]) for row in rows])


def fused(run, figures):
    a = run.arguments
    model = fused_llama(run.quantized)
    with qgemm.Client(a.server, tune_timeout=a.tune_timeout) as client:
        results = qgemm.torch.tune(model.model, client, m=needed_rows(a), effort=a.effort)
    figures["problems"] = [str(problem) for problem in qgemm.torch.problems_of(model.model)]
    figures["wall_s"], figures["picks"] = results.summary.wall_s, picks_of(results.records())
    for name, prompt in run.prompts.items():
        result = Decoder(model, prompt.shape[0], prompt.shape[1] + a.new, run.is_cuda).generate(prompt, a.new)
        rows = figures[name] = compare(run, prompt, {**results_of(run, name), "qgemm": result})
        wrong = [row for row in rows if row["verdict"] == "WRONG"]
        run.expect("fused", not wrong, f"{name}: tokens part for another cause than rounding: {wrong}")
    run.fused = model


def peers(run):
    """{name: model}: the same weights, some ways to multiply."""
    if run.models:
        return run.models
    models = run.models = {"bf16": run.reference, "qgemm": run.quantized}
    if run.fused is not None:
        models["qgemm_fused"] = run.fused
    layers = {n: m for n, m in run.quantized.named_modules() if isinstance(m, qgemm.torch.QuantizedLinear)}
    if all(serves(layer) for layer in layers.values()):
        with torch.device("meta"):
            other = type(run.reference)(run.reference.config)
        other = other.to(torch.bfloat16)
        other.load_state_dict(run.reference.state_dict(), assign=True)
        for name, layer in layers.items():
            parent, _, child = name.rpartition(".")
            setattr(other.get_submodule(parent), child, TinygemmLinear(layer))
        models["tinygemm"] = other.eval()
    return models


def decode(run, figures):
    models = peers(run)
    if "tinygemm" in models:
        # The peer is right, too: one of its layers beside the same weights.
        name = "model.layers.0.mlp.down_proj"
        layer, other = run.quantized.get_submodule(name), models["tinygemm"].get_submodule(name)
        x = torch.randn(4, layer.in_features, device=run.device).bfloat16()
        expected = x.double() @ layer.dequantized_weight().double().T
        figures["tinygemm_relative_error"] = ((other(x).double() - expected).norm() / expected.norm()).item()
    for name, prompt in run.prompts.items():
        batch, length = prompt.shape
        row = figures[name] = {}
        for kind, model in models.items():
            decoder = Decoder(model, batch, length + run.arguments.new + 8, run.is_cuda)
            decoder.start(prompt)
            decoder.step()
            time_s = seconds(run, decoder.step, run.arguments.new)
            prefill_s = None
            if kind != "tinygemm":  # which is not made for many rows
                with torch.no_grad():
                    prefill_s = median_seconds(run, lambda: model(prompt, decoder.cache))
            row[kind] = {"step_ms": time_s * 1e3, "tokens_per_s": batch / time_s}
            if prefill_s is not None:
                row[kind]["prefill_ms"] = prefill_s * 1e3
        for kind in row:
            row[kind]["qgemm_speedup"] = row[kind]["step_ms"] / row["qgemm"]["step_ms"]


def steps(run, figures):
    figures["rows"] = []
    for count in run.arguments.steps:
        row = {"t": count}
        for kind, model in peers(run).items():
            if kind == "tinygemm" and count > 512:
                continue
            prompt = torch.arange(count, device=run.device).view(1, -1) % run.reference.config.vocab_size
            with torch.no_grad():
                if run.is_cuda:
                    model(prompt)
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        model(prompt)
                    action = graph.replay
                else:
                    action = lambda: model(prompt)  # noqa: E731
                row[f"{kind}_ms"] = median_seconds(run, action) * 1e3
                if run.is_cuda:
                    del graph, action
        row["speedup_to_bf16"] = row["bf16_ms"] / min(row["qgemm_ms"], row.get("qgemm_fused_ms", float("inf")))
        figures["rows"].append(row)


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
    run_layer_of(run, figures, folder)
    if not a.methods_folder:
        shutil.rmtree(folder)


def run_layer_of(run, figures, folder):
    """One layer of the bundle in C, by two of its methods."""
    program = pathlib.Path(run.arguments.run_layer or HERE.parent / "bin" / "run_layer")
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


OTHER_MATMULS = {f"aten.{name}.default" for name in ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm")}


class Prefill(torch.nn.Module):
    """A prompt of any length: logits of its last row; fills the cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, cache):
        return self.model(tokens, cache)[:, 0]


class Step(torch.nn.Module):
    """One more token per sequence."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, position, cache):
        return self.model.step(tokens, position, cache)[:, 0]


def step_program(run):
    """The decoding step of one sequence, exported; its cache stands beside it."""
    if run.step_program is None:
        run.cache = run.quantized.new_cache(1, run.arguments.prompt + run.arguments.new)
        one = torch.zeros(1, 1, dtype=torch.long, device=run.device)
        position = torch.zeros(1, dtype=torch.long, device=run.device)
        with torch.no_grad():
            run.step_program = torch.export.export(Step(run.quantized), (one, position, run.cache))
    return run.step_program


def prefill_program(run):
    """A prompt of any length, exported."""
    step_program(run)
    rows = torch.export.Dim("rows", min=2, max=run.arguments.prompt + run.arguments.new)
    with torch.no_grad():
        prompt = torch.zeros(1, 5, dtype=torch.long, device=run.device)
        # Attention's strides give a guard that holds for every row count but that is not simplified: checked when run.
        return torch.export.export(
            Prefill(run.quantized),
            (prompt, run.cache),
            dynamic_shapes=({1: rows}, None),
            prefer_deferred_runtime_asserts_over_guards=True,
        )


@torch.no_grad()
def generate_with(prefill, step, prompt, cache, new):
    """As Decoder.generate, by two exported methods."""
    cache.zero_()
    logits = [prefill(prompt, cache)]
    tokens = [logits[0].argmax(-1, keepdim=True)]
    position = torch.full((1,), prompt.shape[1], dtype=torch.long, device=prompt.device)
    for _ in range(new - 1):
        logits.append(step(tokens[-1], position, cache).clone())
        tokens.append(logits[-1].argmax(-1, keepdim=True))
        position = position + 1
    return torch.cat(tokens, 1), torch.stack(logits, 1)


def judge(run, figures, step, name, result):
    """The same tokens as the model's, or parted by rounding: another compiler rounds elsewhere."""
    results = results_of(run, name)
    figures["same_tokens"] = torch.equal(result[0], results["qgemm"][0])
    if not figures["same_tokens"]:
        figures["beside_bf16"] = compare(run, run.prompts[name], {**results, "qgemm": result})
        verdicts = {row["verdict"] for row in figures["beside_bf16"]}
        run.expect(step, "WRONG" not in verdicts, "tokens differ from the model's for another cause than rounding")


def export(run, figures):
    name = next(iter(run.prompts))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="qgemm-export."))
    loaded = []
    for method, make in (("prefill", prefill_program), ("step", step_program)):
        started = time.monotonic()
        program = make(run)
        calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        path = folder / f"{method}.pt2"
        torch.export.save(program, path)
        figures[method] = {
            "qgemm_calls": calls.count("qgemm.linear.default"),
            "other_matmuls": sum(call in OTHER_MATMULS for call in calls),
            "bytes": path.stat().st_size, "export_and_save_s": round(time.monotonic() - started, 1),
        }  # fmt: skip
        run.expect("export", figures[method]["other_matmuls"] == 0, f"{method} multiplies by other operators, too")
        loaded.append(torch.export.load(path).module())
    judge(run, figures, "export", name, generate_with(*loaded, run.prompts[name], run.cache, run.arguments.new))
    shutil.rmtree(folder)


class GemmChoices:
    """What Inductor looks for a kernel for, by name, and how often it has more than one to choose from."""

    def __enter__(self):
        self.names, self.choices = [], 0
        self._class = torch._inductor.select_algorithm.AlgorithmSelectorCache
        self._original = self._class.__call__

        def counting(selector, name, choices, *arguments, **options):
            self.names.append(name)
            self.choices += len(choices) > 1
            return self._original(selector, name, choices, *arguments, **options)

        self._class.__call__ = counting
        return self

    def __exit__(self, *_):
        self._class.__call__ = self._original


def products_in(package):
    """Calls of matrix products in a package's generated C++, by name: what Inductor made of the program."""
    found = {}
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith(".cpp"):
                for call in re.findall(r"aoti_torch_\w*?_((?:add|b|baddb|_scaled_)?mm)_out\(", archive.read(name).decode()):
                    found[call] = found.get(call, 0) + 1
    return found


def constants_of(program):
    """{name: tensor} of what a package without weights is to be given."""
    tensors = {name: value for name, value in program.constants.items() if torch.is_tensor(value)}
    return {**tensors, **program.state_dict}


def aoti(run, figures):
    started = time.monotonic()

    def phase(what):
        figures[f"{what}_s"] = round(time.monotonic() - started, 1)
        print(f"aoti: {what} after {figures[f'{what}_s']} s", flush=True)

    program = step_program(run)
    phase("exported")
    path = tempfile.mkdtemp(prefix="qgemm-aoti.") + "/step.pt2"
    # Fused code rounds to bf16 where the model does. The weights stay where they are.
    in_package = run.arguments.weights_in_package
    options = {"emulate_precision_casts": True, "aot_inductor.package_constants_in_so": in_package}
    if run.is_cuda:
        options["cpp.vec_isa_ok"] = False  # nothing is vectorized on the CPU: no half minute of trying what it can
    faulthandler.dump_traceback_later(45, repeat=True)  # says what a compilation that does not end is at
    try:
        with torch._inductor.config.patch(options), GemmChoices() as choices:
            path = torch._inductor.aoti_compile_and_package(program, package_path=path)
    finally:
        faulthandler.cancel_dump_traceback_later()
    phase("compiled")
    figures["bytes"] = pathlib.Path(path).stat().st_size
    run.package = path
    config = torch._inductor.config
    figures["gemm_configs_chosen_by_inductor"] = choices.choices
    figures["products_looked_for"] = sorted(set(choices.names))
    figures["max_autotune"] = config.max_autotune or config.max_autotune_gemm
    figures["products_in_generated_code"] = products_in(path)
    of_weights = {"mm", "addmm", "_scaled_mm"} & {*figures["products_in_generated_code"], *choices.names}
    no_gemm = choices.choices == 0 and not figures["max_autotune"] and not of_weights
    run.expect("aoti", no_gemm, "Inductor multiplied by weights or chose a config for it")


def load(run, figures):
    if run.package is None:
        figures["left_out"] = "there is no package"
        return
    name = next(iter(run.prompts))
    print("load: the package", flush=True)  # a crash of what is loaded says where it was
    package = torch._inductor.aoti_load_package(run.package)
    if not run.arguments.weights_in_package:
        constants, names = constants_of(run.step_program), package.get_constant_fqns()
        figures["constants"] = len(names)
        print(f"load: {len(names)} weights", flush=True)
        package.load_constants({each: constants[each] for each in names}, check_full_update=True, user_managed=True)
    print("load: run", flush=True)
    result = generate_with(Prefill(run.quantized), package, run.prompts[name], run.cache, run.arguments.new)
    judge(run, figures, "load", name, result)
    if run.cpp_tokens is not None:
        figures["same_tokens_without_python"] = run.cpp_tokens == result[0][0].tolist()
        run.expect("load", figures["same_tokens_without_python"], "the tokens without Python differ from those with it")


def library_of(arguments):
    """Where libqgemm.so is, or None: as told, else beside this folder, as in the bundle of programs."""
    given = arguments.library or os.environ.get("QGEMM_LIBRARY")
    path = pathlib.Path(given) if given else HERE.parent / "lib" / "libqgemm.so"
    return path if path.exists() else None


def start_compiling(run):
    """run_package.cc is compiled while other steps run: (process, program), or None where it cannot be."""
    compiler, library = shutil.which("g++"), library_of(run.arguments)
    if not run.is_cuda or compiler is None or library is None or {"aoti", "cpp"} & run.arguments.skip:
        return None
    from torch.utils.cpp_extension import include_paths, library_paths

    program = pathlib.Path(tempfile.mkdtemp(prefix="qgemm-cpp.")) / "run_package"
    headers = [*include_paths("cuda"), HERE.parents[1], HERE.parent / "include"]  # the last two: of qgemm/c_api.h
    libraries = library_paths("cpu")  # PyTorch's own, which find those of CUDA by themselves
    command = [compiler, "-std=c++20", "-O1", HERE / "run_package.cc", "-o", program, *(f"-I{path}" for path in headers)]
    command += [option for path in libraries for option in (f"-L{path}", f"-Wl,-rpath,{path}")]
    command += ["-Wl,--no-as-needed,--allow-shlib-undefined", "-ltorch", "-ltorch_cpu", "-ltorch_cuda", "-lc10", "-lc10_cuda", "-ldl"]
    log = open(f"{program}.log", "w")
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), program


def write_state(run, path, prompt, token):
    """What run_package.cc starts from: the program's constants, each with its place in the bundle's weights file or in this
    one, the cache after the prompt, its position and the first token."""
    header, base = bundle_header(run.bundle / "weights.safetensors")
    constants = constants_of(run.step_program)
    own, rows = [], []
    for name, tensor in constants.items():
        place = header.get(name.removeprefix("model."))  # of the layer in the model that the step wraps
        if place is None:
            own.append(tensor)
        offset = base + place["data_offsets"][0] if place else sum(each.nbytes for each in own[:-1])
        rows.append((name.encode(), SCALAR_TYPES[tensor.dtype], tensor.shape, 0 if place is None else 1, offset))
    with open(path, "wb") as file:

        def numbers(*values):
            file.write(struct.pack(f"<{len(values)}q", *values))

        def dimensions(shape):
            numbers(len(shape), *shape)

        numbers(prompt.shape[1], token)
        dimensions(run.cache.shape)
        numbers(len(rows))
        for name, scalar_type, shape, source, offset in rows:
            numbers(len(name))
            file.write(name)
            numbers(scalar_type, source, offset)
            dimensions(shape)
        for tensor in (run.cache, *own):
            file.write(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())


# c10::ScalarType
SCALAR_TYPES = {torch.uint8: 0, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.bool: 11, torch.bfloat16: 15}


def bundle_header(path):
    """A safetensors file's header, and where its data begin."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)), 8 + size


def cpp(run, figures):
    if run.compiling is None or run.package is None:
        figures["left_out"] = "needs a package, a GPU, g++ and libqgemm.so (--library)"
        return
    process, program = run.compiling
    if process.wait(timeout=300) != 0:
        raise RuntimeError("run_package.cc does not compile: " + pathlib.Path(f"{program}.log").read_text()[-2000:])
    name = next(iter(run.prompts))
    prompt, new = run.prompts[name], run.arguments.new
    with torch.no_grad():
        run.cache.zero_()
        token = int(run.quantized(prompt, run.cache)[:, 0].argmax(-1))
    state = program.with_suffix(".state")
    write_state(run, state, prompt, token)
    command = [program, library_of(run.arguments), run.bundle, run.package, state, str(new - 1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"run_package ended with {done.returncode}: {done.stderr[-2000:]}")
    run.cpp_tokens = [token, *(int(line) for line in done.stdout.split())]
    figures["said"] = done.stderr.splitlines()[-3:]
    # Those of the model, too, unless another compiler's rounding parts them; `load` compares like with like.
    figures["same_tokens_as_the_model"] = run.cpp_tokens == results_of(run, name)["qgemm"][0][0].tolist()


def hf(run, figures):
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        figures["left_out"] = "transformers is not installed"
        return
    name = next(iter(run.prompts))
    prompt, new, c = run.prompts[name], run.arguments.new, run.reference.config
    config = LlamaConfig(
        hidden_size=c.hidden_size, intermediate_size=c.intermediate_size, num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads, num_key_value_heads=c.num_key_value_heads, vocab_size=c.vocab_size,
        rms_norm_eps=c.rms_norm_eps, max_position_embeddings=8192, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta}, bos_token_id=None, eos_token_id=None,
        pad_token_id=None,
    )  # fmt: skip
    config.rope_theta = c.rope_theta
    with torch.device(run.device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.load_state_dict(run.reference.state_dict())

    def greedy():
        started = time.perf_counter()
        mask = torch.ones_like(prompt)
        result = model.generate(prompt, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False)
        return result[:, prompt.shape[1] :], new / (time.perf_counter() - started)

    def first_difference(a, b):
        differing = (a != b).any(0).nonzero()
        return int(differing[0]) if len(differing) else None

    greedy()
    reference, figures["bf16_tokens_per_s"] = greedy()
    # The weights are those of the quantized model already: the layers need no quantizing, only replacing.
    for path, module in run.quantized.named_modules():
        if isinstance(module, qgemm.torch.QuantizedLinear):
            parent, _, child = path.rpartition(".")
            setattr(model.get_submodule(parent), child, module)
    greedy()
    quantized, figures["qgemm_tokens_per_s"] = greedy()
    figures["first_difference_to_hf_bf16"] = first_difference(quantized, reference)
    figures["first_difference_to_plain_qgemm"] = first_difference(quantized, results_of(run, name)["qgemm"][0])
    figures["first_difference_of_bf16_models"] = first_difference(reference, results_of(run, name)["bf16"][0])


STEPS = {
    "tune": tune, "layers": layers, "tokens": tokens, "fused": fused, "decode": decode, "steps": steps,
    "methods": methods, "export": export, "hf": hf, "aoti": aoti, "cpp": cpp, "load": load,
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="unix:PATH or HOST:PORT; else QGEMM_SERVER, else the default socket")
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--layers", type=int, help="of the model; else as many as --size says")
    parser.add_argument("--format", default="int4-g128")
    parser.add_argument("--effort", default="balanced")
    parser.add_argument("--prompt", type=int, default=512, help="rows of the short prompt")
    parser.add_argument("--long", type=int, default=2048, help="rows of each long prompt")
    parser.add_argument("--batch", type=int, default=4, help="number of long prompts")
    parser.add_argument("--new", type=int, default=64, help="tokens to generate per prompt")
    parser.add_argument("--steps", default="1,2,9,16,64,512,4096", help="rows of a step")
    parser.add_argument("--skip", default="", help=f"steps to leave out: {','.join(list(STEPS)[1:])}")
    parser.add_argument("--bundle", help="folder for the bundle of kernels and packed weights; else a temporary one")
    parser.add_argument("--library", help="libqgemm.so; else QGEMM_LIBRARY, else ../lib/libqgemm.so")
    parser.add_argument("--run-layer", help="the program run_layer; else ../bin/run_layer")
    parser.add_argument("--methods-folder", help="folder to leave the bundle of 8 methods in; else a temporary one")
    parser.add_argument("--weights-in-package", action="store_true", help="of AOTInductor; else it uses the bundle's")
    parser.add_argument("--tune-timeout", type=float, default=150, help="seconds for each of two tune calls")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of all figures")
    arguments = parser.parse_args()
    arguments.steps = [int(word) for word in arguments.steps.split(",")]
    arguments.skip = {word for word in arguments.skip.split(",") if word}

    run = Run(arguments)
    run.compiling = start_compiling(run)
    build(run)
    for name, action in STEPS.items():
        if name in arguments.skip:
            run.figures[name] = "skipped"
            continue
        with run.step(name) as figures:
            action(run, figures)
        if name == "tune" and name in run.errors:
            break
    run.write()
    for name, error in run.errors.items():
        print(f"export_llama: {name}: {error}", file=sys.stderr)
    sys.exit(1 if run.errors else 0)


if __name__ == "__main__":
    main()
