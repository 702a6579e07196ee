"""Shows how far a Tune is: a tqdm bar where tqdm is installed, else lines on standard error."""

import sys
import time


class _Nothing:
    def update(self, progress):
        pass

    def close(self):
        pass


class _Callback(_Nothing):
    def __init__(self, function):
        self.update = function


class _Bar:
    """One tick per kernel compiled and per candidate timed; the total grows as the daemon learns it."""

    def __init__(self, tqdm):
        self._bar = tqdm(total=0, unit="step", desc="tune")

    def update(self, progress):
        self._bar.total = max(progress.kernels_wanted + progress.candidates_wanted, 1)
        self._bar.n = progress.kernels_compiled + progress.candidates_done
        self._bar.set_postfix_str(f"{progress.results_done}/{progress.results_wanted} picks", refresh=False)
        self._bar.refresh()

    def close(self):
        self._bar.close()


class _Lines:
    """At most a line every two seconds."""

    INTERVAL_S = 2.0

    def __init__(self, stream, clock):
        self._stream, self._clock, self._last = stream, clock, clock()

    def update(self, progress):
        now = self._clock()
        if now - self._last < self.INTERVAL_S:
            return
        self._last = now
        self._stream.write(
            f"tune: {progress.kernels_compiled}/{progress.kernels_wanted} kernels compiled, "
            f"{progress.candidates_done}/{progress.candidates_wanted} candidates done, "
            f"{progress.results_done}/{progress.results_wanted} picks, {progress.elapsed_s:.1f} s\n"
        )
        self._stream.flush()

    def close(self):
        pass


def make_progress(wanted, stream=None, clock=time.monotonic):
    """`wanted`: False = nothing, True = show it, None = show it on a terminal or in a notebook, or a function that
    is called with every TuneProgress."""
    if callable(wanted):
        return _Callback(wanted)
    stream = stream or sys.stderr
    if wanted is None:
        wanted = stream.isatty() or "ipykernel" in sys.modules
    if not wanted:
        return _Nothing()
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Lines(stream, clock)
    return _Bar(lambda **options: tqdm(file=stream, **options))
