"""Step tokens: greedy tokens beside the same model with dequantized bf16 weights."""

import torch
from llama_export.compare import compare, results_of
from llama_export.decoding import Decoder


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
