"""Small plots of tuning results; needs matplotlib, which is imported only here."""


def plot_times(results, ax=None):
    """Time per launch over M, one line per problem: measured medians solid with their spread, predictions dashed."""
    import matplotlib.pyplot as pyplot

    if ax is None:
        _, ax = pyplot.subplots(figsize=(7, 4.5))
    by_problem = {}
    for pick in results.picks:
        by_problem.setdefault(pick.problem, []).append(pick)
    for problem, picks in by_problem.items():
        picks.sort(key=lambda pick: pick.m_bucket)
        measured = all(pick.time_us is not None for pick in picks)
        m = [pick.m_bucket for pick in picks]
        time = [pick.predicted_us if pick.time_us is None else pick.time_us for pick in picks]
        label = f"{problem.n}x{problem.k} {problem.format}"
        (line,) = ax.plot(m, time, "o-" if measured else "o--", label=label if measured else f"{label} (predicted)")
        if measured:
            half = [(pick.spread_us or 0.0) / 2 for pick in picks]
            low = [t - h for t, h in zip(time, half)]
            high = [t + h for t, h in zip(time, half)]
            ax.fill_between(m, low, high, color=line.get_color(), alpha=0.2)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("M (rows of X)")
    ax.set_ylabel("time (us)")
    ax.grid(True, which="both", alpha=0.3)
    if by_problem:
        ax.legend(fontsize="small")
    return ax
