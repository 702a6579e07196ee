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
           files; what every launch of them reads and writes, by its kernel's PTX: one analysis per signature; where
           run_layer is (--run-layer), a layer of that bundle run in C beside its product in fp64
  export   torch.export of prefill and decoding step, saved, loaded and run: the same tokens
  hf       the same weights in transformers' LlamaForCausalLM, whose layers are replaced; generate() beside the plain model
  aoti     the decoding step compiled to an AOTInductor package. It is code alone: its weights are those of the bundle. By
           CXX or g++: the first that links libstdc++.so.6 (Python crashes when it loads a package with a library of its own)
  cpp      that package run by run_package.cc, without Python: libqgemm.so launches the kernels of a bundle, whose weights
           the package uses: the same tokens (or parted by rounding). Needs that compiler and libqgemm.so (--library)
  load     the package loaded and run in Python: the same tokens (or parted by rounding), and those of cpp

A step that fails is reported in "errors" and the next one goes on; exit code 0: none failed and all comparisons hold.
Without a GPU everything runs on the CPU at --size tiny, which is what the test does.
"""

import argparse
import pathlib
import sys

from llama import SIZES
from llama_export.aoti import aoti, load
from llama_export.decode import decode
from llama_export.export import export
from llama_export.fused_layers import fused
from llama_export.hugging_face import hf
from llama_export.layers import layers
from llama_export.methods import methods
from llama_export.run import Run, build
from llama_export.steps import steps
from llama_export.tokens import tokens
from llama_export.tune import tune
from llama_export.without_python import cpp, start_compiling

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
