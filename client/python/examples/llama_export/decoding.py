"""Greedy decoding with a static cache, and how long it takes."""

import statistics
import time

import torch


class Decoder:
    """Greedy decoding with a static cache; on a GPU the step after the prompt is one CUDA graph."""

    def __init__(self, model, batch, length, use_graph):
        self.model = model
        device = model.model.norm.weight.device
        self.cache = model.new_cache(batch, length)
        self.tokens = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.logits, self.graph = None, None
        if use_graph:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._step()  # loads kernels, sizes workspaces
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._step()

    @torch.no_grad()
    def _step(self):
        self.logits = self.model.step(self.tokens, self.position, self.cache)[:, 0]
        self.tokens.copy_(self.logits.argmax(-1, keepdim=True))
        self.position.add_(1)

    @torch.no_grad()
    def start(self, prompt):
        """The prompt [B, T] at once; logits [B, vocabulary] of its last row."""
        self.cache.zero_()
        logits = self.model(prompt, self.cache)[:, 0]
        self.tokens.copy_(logits.argmax(-1, keepdim=True))
        self.position.fill_(prompt.shape[1])
        return logits

    def step(self):
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()
        return self.logits

    def generate(self, prompt, new):
        """(tokens [B, new], logits [B, new, vocabulary])."""
        logits = [self.start(prompt)]
        tokens = [self.tokens.clone()]
        for _ in range(new - 1):
            logits.append(self.step().clone())
            tokens.append(self.tokens.clone())
        return torch.cat(tokens, 1), torch.stack(logits, 1)


@torch.no_grad()
def generate_with(prefill, step, prompt, cache, new):
    """As Decoder.generate, by two exported methods."""
    cache.zero_()
    logits = [prefill(prompt, cache)]
    tokens = [logits[0].argmax(-1, keepdim=True)]
    position = torch.full((1,), prompt.shape[1], dtype=torch.long, device=prompt.device)
    for _ in range(new - 1):
        logits.append(step(tokens[-1], position, cache).clone())
        tokens.append(logits[-1].argmax(-1, keepdim=True))
        position = position + 1
    return torch.cat(tokens, 1), torch.stack(logits, 1)


def seconds(run, action, repeats):
    """Of one repetition: GPU time by events where there is one."""
    if not run.is_cuda:
        started = time.perf_counter()
        for _ in range(repeats):
            action()
        return (time.perf_counter() - started) / repeats
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        action()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / repeats


def median_seconds(run, action, limit_s=0.4):
    action()
    once = max(seconds(run, action, 1), 1e-6)
    rounds = int(min(max(limit_s / once, 3), 50))
    return statistics.median(seconds(run, action, 1) for _ in range(rounds))
