"""Whether two models' tokens agree, and where they part, whether rounding parted them."""

import copy

import torch
from llama_export.decoding import Decoder

import qgemm.torch

# Where tokens part, qgemm's distance from fp32 may be that many times the bf16 model's own.
ROUNDING_FACTOR = 1.5


def results_of(run, name):
    """{"bf16", "qgemm": (tokens, logits)} of a prompt, greedy, by the models themselves."""
    if name not in run.results:
        prompt, new = run.prompts[name], run.arguments.new
        run.results[name] = {
            kind: Decoder(model, prompt.shape[0], prompt.shape[1] + new, run.is_cuda).generate(prompt, new)
            for kind, model in (("bf16", run.reference), ("qgemm", run.quantized))
        }
    return run.results[name]


def compare(run, prompt, results):
    """Per sequence: whether greedy tokens agree, else where they part and how far both models are from fp32 there."""
    (ours, our_logits), (theirs, their_logits) = results["qgemm"], results["bf16"]
    exact = exact_logits(run, prompt, theirs)
    rows = []
    for index in range(prompt.shape[0]):
        differing = (ours[index] != theirs[index]).nonzero()
        at = int(differing[0]) if len(differing) else None
        # Up to and with the first differing token both had the same context.
        shared = slice(0, ours.shape[1] if at is None else at + 1)
        errors = {
            kind: (logits[index, shared].float() - exact[index, shared]).abs().max().item()
            for kind, logits in (("bf16", their_logits), ("qgemm", our_logits))
        }
        row = {"first_difference": at, "fp32_error_bf16": errors["bf16"], "fp32_error_qgemm": errors["qgemm"]}
        if at is None:
            row["verdict"] = "identical"
        else:
            a, b = theirs[index, at], ours[index, at]
            row["logit_gap_bf16"] = (their_logits[index, at, a].float() - their_logits[index, at, b].float()).item()
            row["logit_gap_qgemm"] = (our_logits[index, at, b].float() - our_logits[index, at, a].float()).item()
            row["logit_gap_fp32"] = (exact[index, at, a] - exact[index, at, b]).item()
            row["logit_deviation"] = exact[index, at].std().item()
            is_rounding = errors["qgemm"] <= ROUNDING_FACTOR * errors["bf16"]
            row["verdict"] = "rounding" if is_rounding else "WRONG"
        rows.append(row)
    return rows


@torch.no_grad()
def exact_logits(run, prompt, continuation):
    """fp32 logits [B, new, vocabulary] of the model with unrounded weights, given the continuation."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = copy.deepcopy(run.reference).float()
    for name, module in run.quantized.named_modules():
        if isinstance(module, qgemm.torch.QuantizedLinear):
            model.get_submodule(name).weight.data.copy_(module.dequantized_weight())
    rows = torch.cat((prompt, continuation[:, :-1]), 1)
    return torch.cat([model(row[None], last=continuation.shape[1]) for row in rows])


def judge(run, figures, step, name, result):
    """The same tokens as the model's, or parted by rounding: another compiler rounds elsewhere."""
    results = results_of(run, name)
    figures["same_tokens"] = torch.equal(result[0], results["qgemm"][0])
    if not figures["same_tokens"]:
        figures["beside_bf16"] = compare(run, run.prompts[name], {**results, "qgemm": result})
        verdicts = {row["verdict"] for row in figures["beside_bf16"]}
        run.expect(step, "WRONG" not in verdicts, "tokens differ from the model's for another cause than rounding")
