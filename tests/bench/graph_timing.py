"""Cold-L2 times by CUDA graphs: n x {flush, work} less n x {flush}, both timed in turn so that neither drifts away.

`interleaved_us` is the method, over a device that makes and times graphs; `TorchDevice` is that device on a GPU.
Times are microseconds per launch. Source: kernels of a few us are timed well only in graphs, and a flush alone drifts by
up to 0.7 us within a process, so that its own time is measured beside each work's.
"""

import dataclasses
import statistics
from typing import Callable

GRAPH_US = 3000.0  # a graph repeats its work for about that long
MAX_REPEATS = 20
MIN_REPEATS = 3
SLOW_US = 1000.0  # works from here on get few rounds: their noise is small beside them
SLOW_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Work:
    """Something to time: `enqueue` puts it on the device's stream and allocates nothing that outlives the call."""

    name: str
    enqueue: Callable[[], None]


def repeats_for(single_us):
    """How often a graph repeats a {flush, work} that takes so long."""
    return max(MIN_REPEATS, min(MAX_REPEATS, round(GRAPH_US / max(single_us, 1.0))))


def interleaved_us(device, works, flush, rounds):
    """{name: us} of each work after `flush`, a Work itself: median over rounds, flushes subtracted.

    Every round times all works, each right after a graph of as many flushes alone.
    """
    graphs = []
    for work in works:
        single_us = device.single_us([flush, work])
        repeats = repeats_for(single_us)
        own_rounds = min(rounds, SLOW_ROUNDS) if single_us > SLOW_US else rounds
        both = device.graph([flush, work] * repeats)
        graphs.append((work.name, repeats, own_rounds, both, device.graph([flush] * repeats)))
    for _, _, _, both, alone in graphs:
        device.time_graphs([alone, both])  # warm-up
    with_work = {work.name: [] for work in works}
    without = {work.name: [] for work in works}
    for round_index in range(rounds):
        for name, repeats, own_rounds, both, alone in graphs:
            if round_index >= own_rounds:
                continue
            alone_us, both_us = device.time_graphs([alone, both])
            without[name].append(alone_us / repeats)
            with_work[name].append(both_us / repeats)
    return {name: statistics.median(times) - statistics.median(without[name]) for name, times in with_work.items()}


class TorchDevice:
    """The current GPU, one stream of PyTorch's; works enqueue on `stream` (PyTorch's operators do so by themselves)."""

    def __init__(self, torch):
        self.torch = torch
        self.stream = torch.cuda.Stream()

    def run(self, works):
        with self.torch.cuda.stream(self.stream):
            for work in works:
                work.enqueue()

    def single_us(self, works):
        """Rough time of the works once, launched one by one."""
        self.run(works)  # lazy set-up of libraries, which no capture survives
        self.stream.synchronize()
        return self._between(lambda: self.run(works))

    def graph(self, works):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.stream(self.stream):
            graph.capture_begin()
            try:
                for work in works:
                    work.enqueue()
            finally:
                graph.capture_end()
        return graph

    def time_graphs(self, graphs):
        """Microseconds of each graph, launched back to back."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(len(graphs) + 1)]
        with self.torch.cuda.stream(self.stream):
            events[0].record()
            for graph, event in zip(graphs, events[1:]):
                graph.replay()
                event.record()
        self.stream.synchronize()
        return [a.elapsed_time(b) * 1e3 for a, b in zip(events, events[1:])]

    def _between(self, enqueue):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(self.stream):
            begin.record()
            enqueue()
            end.record()
        self.stream.synchronize()
        return begin.elapsed_time(end) * 1e3
