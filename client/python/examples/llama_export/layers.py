"""Step layers: every tuned shape beside fp64."""

import torch
from llama_export.run import needed_rows

import qgemm
import qgemm.torch

# A kernel's relative error (Frobenius norm) against fp64 may be as large.
LAYER_TOLERANCE = 3e-3


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
