"""The results of a Tune or lookup as one table: a sequence that prints, shows itself in notebooks and plots."""

import collections.abc
import html

from qgemm.buckets import LADDER, bucket_for
from qgemm.errors import TuneFailed
from qgemm.types import TuneSummary, as_problem

_COLUMNS = ("N", "K", "format", "M <=", "source", "time us", "spread us", "predicted us", "config", "split",
            "reduction", "cached", "kernel")  # fmt: skip
_LEFT = {"format", "source", "config", "reduction", "cached", "kernel"}


def _number(value):
    return "-" if value is None else f"{value:.2f}"


def _format_cell(problem):
    quantized = problem.act_quantization != "none"
    return f"{problem.format} {problem.act} as {problem.act_quantization}" if quantized else str(problem.format)


def _cells(result):
    problem, pick = result.problem, result.pick
    bucket = f"{result.m_bucket}+" if result.m_bucket == LADDER[-1] else str(result.m_bucket)
    start = [str(problem.n), str(problem.k), _format_cell(problem), bucket]
    if pick is None:
        return [*start, "-", "-", "-", "-", result.error, "-", "-", "-", "-"]
    cached = "stale" if result.stale else "yes" if result.cached else "no"
    return [*start, pick.source, _number(pick.time_us), _number(pick.spread_us), _number(pick.predicted_us),
            pick.config, str(pick.split_k), pick.reduction, cached, pick.kernel_sha256[:12]]  # fmt: skip


class TuneResults(collections.abc.Sequence):
    """TuneResult in the order of the request: problem by problem, smaller M first."""

    def __init__(self, results, summary=None):
        self._results = tuple(results)
        self.summary = summary or TuneSummary()

    def __len__(self):
        return len(self._results)

    def __getitem__(self, index):
        return self._results[index]

    @property
    def picks(self):
        return [result.pick for result in self._results if result.pick is not None]

    @property
    def failed(self):
        return [result for result in self._results if result.pick is None]

    def pick(self, problem, m):
        """The pick that serves `problem` with `m` rows; KeyError where there is none."""
        wanted, bucket = as_problem(problem).canonical(), bucket_for(m)
        for result in self._results:
            if result.pick is not None and result.m_bucket == bucket and result.problem.canonical() == wanted:
                return result.pick
        raise KeyError(f"no pick for {wanted} with M = {m} among these {len(self)} results")

    def raise_for_errors(self):
        """Raises TuneFailed when a result has no pick; else returns self."""
        if self.failed:
            first = self.failed[0]
            raise TuneFailed(
                f"{len(self.failed)} of {len(self)} results have no pick, such as {first.problem} M <= "
                f"{first.m_bucket}: {first.error}",
                self,
            )
        return self

    def records(self):
        """One flat dictionary per result, for a DataFrame or a JSON file."""
        rows = []
        for result in self._results:
            problem, pick = result.problem, result.pick
            row = {"n": problem.n, "k": problem.k, "m_bucket": result.m_bucket, "format": str(problem.format),
                   "act": problem.act, "act_quantization": problem.act_quantization, "out": problem.canonical().out, "bias": problem.bias,
                   "activation": problem.activation, "gated": problem.gated, "residual": problem.residual, "cached": result.cached, "stale": result.stale,
                   "error": result.error}  # fmt: skip
            for field in ("source", "config", "split_k", "reduction", "time_us", "predicted_us", "spread_us",
                          "confidence", "kernel_sha256"):  # fmt: skip
                row[field] = None if pick is None else getattr(pick, field)
            rows.append(row)
        return rows

    def plot(self, ax=None):
        """Time over M, one line per problem (matplotlib); returns the axes."""
        from qgemm.plot import plot_times

        return plot_times(self, ax)

    def _footer(self):
        s = self.summary
        return (f"{len(self.picks)} of {len(self)} picks: {s.compiles} kernels compiled, {s.timings} candidates timed, "
                f"{s.cache_hits} from the cache, {s.wall_s:.2f} s")  # fmt: skip

    def __repr__(self):
        rows = [list(_COLUMNS), *(_cells(result) for result in self._results)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = []
        for row in rows:
            cells = (c.ljust(w) if name in _LEFT else c.rjust(w) for c, w, name in zip(row, widths, _COLUMNS))
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, self._footer()])

    def _repr_html_(self):
        def row(cells, tag):
            style = {True: ' style="text-align:left"', False: ' style="text-align:right"'}
            inner = "".join(f"<{tag}{style[n in _LEFT]}>{html.escape(c)}</{tag}>" for c, n in zip(cells, _COLUMNS))
            return f"<tr>{inner}</tr>"

        body = "".join(row(_cells(result), "td") for result in self._results)
        return (f"<table><thead>{row(_COLUMNS, 'th')}</thead><tbody>{body}</tbody></table>"
                f"<p>{html.escape(self._footer())}</p>")  # fmt: skip
