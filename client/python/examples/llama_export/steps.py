"""Step steps: one pass of T rows."""

import torch
from llama_export.decoding import median_seconds
from llama_export.peers import peers


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
