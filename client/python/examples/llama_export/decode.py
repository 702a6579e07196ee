"""Step decode: tokens per second."""

import torch
from llama_export.decoding import Decoder, median_seconds, seconds
from llama_export.peers import peers


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
