"""examples/export_llama.py from end to end on the CPU, with a tiny model and a real qgemmd."""

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from qgemm.bundle import Bundle  # noqa: E402

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples" / "export_llama.py"


def test_a_tiny_llama_is_exported_end_to_end(daemon, tmp_path):
    out, bundle = tmp_path / "figures.json", tmp_path / "bundle"
    command = [sys.executable, EXAMPLE, "--server", daemon, "--size", "tiny", "--format", "int4-g32", "--prompt", "24",
               "--long", "40", "--batch", "2", "--new", "6", "--steps", "1,9", "--out", out, "--bundle", bundle]  # fmt: skip
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(out.read_text())
    assert figures["errors"] == {}
    assert figures["tune"]["layers_replaced"] == 15 and len(figures["tune"]["problems"]) == 5
    assert 0 < figures["layers"]["worst"] < 3e-3
    for name in ("1x24", "2x40"):
        assert {row["verdict"] for row in figures["tokens"][name]["sequences"]} <= {"identical", "rounding"}
        assert {row["verdict"] for row in figures["fused"][name]} <= {"identical", "rounding"}
        assert figures["decode"][name]["qgemm"]["tokens_per_s"] > 0
        assert figures["decode"][name]["qgemm_fused"]["tokens_per_s"] > 0
    assert any("silu gated" in problem for problem in figures["fused"]["problems"])
    assert sum("residual" in problem for problem in figures["fused"]["problems"]) == 2
    assert [row["t"] for row in figures["steps"]["rows"]] == [1, 9]
    # Every linear layer of both methods is the operator, and nothing else multiplies by weights.
    for method in ("prefill", "step"):
        assert (figures["export"][method]["qgemm_calls"], figures["export"][method]["other_matmuls"]) == (15, 0)
    assert figures["export"]["same_tokens"]
    assert figures["methods"]["same_files"] and figures["methods"]["files"] > 10
    accesses = figures["methods"]["access"]
    if "QGEMM_LIBRARY" in os.environ:
        assert accesses["analyses"] == accesses["signatures"] < accesses["calls"]
        assert (accesses["failures"], accesses["analyses_when_repeated"], accesses["wrong"]) == (0, 0, 0)
    # Its weights are given to it, and no product is left that Inductor would choose a kernel for.
    assert figures["load"]["constants"] > 30 and figures["load"]["same_tokens"]
    assert figures["aoti"]["gemm_configs_chosen_by_inductor"] == 0 and not figures["aoti"]["max_autotune"]
    assert not {"mm", "addmm"} & set(figures["aoti"]["products_in_generated_code"])
    # The same package and weights in a program of PyTorch's C++ libraries and libqgemm.so, without Python.
    if "QGEMM_LIBRARY" in os.environ and shutil.which("g++"):
        assert figures["cpp"]["same_tokens"] and figures["load"]["same_tokens_without_python"], figures["cpp"]
    else:
        assert "libqgemm.so" in figures["cpp"]["left_out"]
    assert set(Bundle.open(bundle).verify().methods) == {f"main-m{m}" for m in (1, 2, 16, 24, 96)}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_compiler_with_a_cpp_library_of_its_own_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    compiler = importlib.import_module("llama_export.compiler")
    for options in ("", "-static-libstdc++"):
        program = tmp_path / f"c++{options}"
        program.write_text(f'#!/bin/sh\nexec g++ "$@" {options}\n')
        program.chmod(0o755)
        monkeypatch.setenv("CXX", str(program))
        compiler.cpp_compiler.cache_clear()
        assert compiler.cpp_compiler() == (shutil.which("g++") if options else str(program))
    monkeypatch.setenv("PATH", str(tmp_path))  # has no g++ that CXX's script could start
    compiler.cpp_compiler.cache_clear()
    assert compiler.cpp_compiler() is None
    compiler.cpp_compiler.cache_clear()
