"""The picture of how time and memory grow. Matplotlib only when drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parity_tests.speed.growth import SWEEPS, Sweep
from parity_tests.speed.measure import Entry, Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart without colours too, by marker and line.
_OURS, _SEED, _TUNED = "#08519c", "#e6550d", "#4d4d4d"
STYLES: dict[str, dict[str, Any]] = {
    "ours": {"color": _OURS, "linestyle": "-", "marker": "o"},
    "ours, plain": {"color": _OURS, "linestyle": "-", "marker": "o"},
    "ours, blockwise": {"color": _OURS, "linestyle": "--", "marker": "s"},
    "seed": {"color": _SEED, "linestyle": "-", "marker": "v"},
    "tuned": {"color": _TUNED, "linestyle": "-.", "marker": "D"},
    "compiled": {"color": _TUNED, "linestyle": "-.", "marker": "D"},
    "SDPA": {"color": _TUNED, "linestyle": "-.", "marker": "D"},
}
LABELS = {"seed": "torch_ref", "tuned": "tuned PyTorch", "compiled": "torch.compile", "SDPA": "PyTorch's SDPA"}


def draw_growth(results: list[Measured]) -> Figure:
    """Two panels for each sweep that was measured, time and memory; two sweeps in a row."""
    from matplotlib.figure import Figure

    by_name = {result.workload.name: result for result in results}
    sweeps = [sweep for sweep in SWEEPS if any(sweep.workload_name(point) in by_name for point in sweep.points)]
    beside = min(2, len(sweeps))
    rows = -(-len(sweeps) // beside)
    figure = Figure(figsize=(6.5 * beside, 0.4 + 2.7 * rows), layout="constrained")
    grid = figure.subplots(rows, 2 * beside, squeeze=False).reshape(-1, 2)
    for axes, sweep in zip(grid, sweeps, strict=False):
        measured = {
            point[sweep.quantity]: by_name[name].entries
            for point in sweep.points
            if (name := sweep.workload_name(point)) in by_name
        }
        _draw(axes[0], sweep, measured, "time")
        _draw(axes[1], sweep, measured, "memory")
    for axes in grid[len(sweeps) :].flat:
        axes.axis("off")
    return figure


def _draw(axis: Axes, sweep: Sweep, measured: Mapping[int, Mapping[str, Entry]], what: str) -> None:
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    for line in sweep.lines:
        points = [(x, _value(entries[line.name], what)) for x, entries in measured.items() if line.name in entries]
        known = [(x, y) for x, y in points if y]
        if known:
            label = LABELS.get(line.name, line.name)
            axis.plot(*zip(*known, strict=True), label=label, linewidth=1.3, markersize=4, **STYLES[line.name])
    axis.set(xscale="log", yscale="log", xlabel=sweep.quantity)
    axis.set_xticks(list(measured), [f"{x:,}" for x in measured], fontsize=8)
    lowest, highest = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if highest < 100 * lowest else (1,)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.tick_params(axis="y", labelsize=8)
    axis.minorticks_off()
    axis.grid(True, alpha=0.3)
    title = sweep.name if sweep.name == "training step" else f"{sweep.name} attention and gradient"
    axis.set_title(f"{title}: {'seconds' if what == 'time' else 'MB at the peak'}", fontsize=9)
    axis.legend(fontsize=7, frameon=False)


def _value(entry: Entry, what: str) -> float | None:
    if what == "time":
        return entry.spread.median
    return None if entry.peak_bytes is None else entry.peak_bytes / 1e6
