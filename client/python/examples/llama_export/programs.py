"""The decoding step and the prompt as programs of torch.export."""

import torch

OTHER_MATMULS = {f"aten.{name}.default" for name in ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm")}


class Prefill(torch.nn.Module):
    """A prompt of any length: logits of its last row; fills the cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, cache):
        return self.model(tokens, cache)[:, 0]


class Step(torch.nn.Module):
    """One more token per sequence."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, position, cache):
        return self.model.step(tokens, position, cache)[:, 0]


def step_program(run):
    """The decoding step of one sequence, exported; its cache stands beside it."""
    if run.step_program is None:
        run.cache = run.quantized.new_cache(1, run.arguments.prompt + run.arguments.new)
        one = torch.zeros(1, 1, dtype=torch.long, device=run.device)
        position = torch.zeros(1, dtype=torch.long, device=run.device)
        with torch.no_grad():
            run.step_program = torch.export.export(Step(run.quantized), (one, position, run.cache))
    return run.step_program


def prefill_program(run):
    """A prompt of any length, exported."""
    step_program(run)
    rows = torch.export.Dim("rows", min=2, max=run.arguments.prompt + run.arguments.new)
    with torch.no_grad():
        prompt = torch.zeros(1, 5, dtype=torch.long, device=run.device)
        # Attention's strides give a guard that holds for every row count but that is not simplified: checked when run.
        return torch.export.export(
            Prefill(run.quantized),
            (prompt, run.cache),
            dynamic_shapes=({1: rows}, None),
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def constants_of(program):
    """{name: tensor} of what a package without weights is to be given."""
    tensors = {name: value for name, value in program.constants.items() if torch.is_tensor(value)}
    return {**tensors, **program.state_dict}
