"""Step export: both programs saved, loaded and run."""

import pathlib
import shutil
import tempfile
import time

import torch
from llama_export.compare import judge
from llama_export.decoding import generate_with
from llama_export.programs import OTHER_MATMULS, prefill_program, step_program


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
