"""Step fused: the same with everything that can be in the kernels inside them."""

from fused import fused_llama
from llama_export.compare import compare, results_of
from llama_export.decoding import Decoder
from llama_export.run import needed_rows, picks_of

import qgemm
import qgemm.torch


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
