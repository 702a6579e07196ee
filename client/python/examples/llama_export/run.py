"""What a run has so far: its command line, models, figures and errors."""

import contextlib
import dataclasses
import json
import pathlib
import platform
import time
import traceback

import torch
from llama import SIZES, random_llama

import qgemm

EXAMPLES = pathlib.Path(__file__).resolve().parents[1]


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
