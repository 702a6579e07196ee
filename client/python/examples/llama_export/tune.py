"""Step tune: all linear layers replaced and tuned, and the bundle of what came out."""

import copy
import pathlib
import tempfile

from llama_export.run import needed_rows, picks_of

import qgemm
import qgemm.torch


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
